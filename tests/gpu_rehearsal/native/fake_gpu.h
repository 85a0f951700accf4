// A GPU that is none, for rehearsals: each stream is a thread that runs its work in order, so that
// the host runs ahead of the device as it does on a real one.
//
// Device memory is host memory that may be touched only while a stream's work or a copy runs: at
// any other time whoever reads it faults. A kernel that is given an address of the host fails.
//
// Time on the device is what its clock says, and that only knows what work costs there: so
// measurements by events do not depend on this machine. Environment variables:
//
//   FAKE_GPU_OP_US, FAKE_GPU_KERNEL_US   what an operation of TensorFlow's, a stitched kernel costs
//   FAKE_GPU_JITTER=20                   by up to so many percent more or less, each time anew
//   FAKE_GPU_PACED=1                     work really takes that long
//   FAKE_GPU_SYNC=1                      the host does not run ahead
//   FAKE_GPU_POISON=1                    fresh memory is NaN
//   FAKE_GPU_COUNT, _MEMORY_MB, _CAPABILITY=9.0, _MULTIPROCESSORS
//   FAKE_GPU_DRIVER=12090                the CUDA version of the driver
//   FAKE_GPU_SERVICE=1                   under the multi-process service
//   FAKE_GPU_WITHOUT=Op,Op               operations that the device lacks
//   FAKE_GPU_CRASH=1                     the driver crashes where a module is loaded
//   FAKE_GPU_LOG=FILE                    what was put into streams and what ran
#ifndef FAKE_GPU_H_
#define FAKE_GPU_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace fake_gpu {

// What a stream is told to signal, once per recording.
struct Mark {
  std::mutex mutex;
  std::condition_variable passed_now;
  bool passed = false;
  int64_t nanoseconds = 0;  // by the device's clock
  void Pass(int64_t now);
  void Wait();
  bool Passed();
};

struct Stream {
  explicit Stream(int device);
  ~Stream();
  // `name` is for the log; `cost` in microseconds of the device's clock, -1: an operation's.
  void Push(const char* name, std::function<void()> work, int64_t cost = -1);
  std::shared_ptr<Mark> Record();
  void WaitFor(std::shared_ptr<Mark> mark);
  void Drain();

  const int device;
  const uint64_t id;

 private:
  struct Work {
    std::string name;
    std::function<void()> run;
    int64_t cost;
  };
  void Loop();
  void Run(const Work& work);
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> queue_;
  uint64_t issued_ = 0, done_ = 0;
  bool ends_ = false;
  uint32_t noise_ = 1;
  int64_t clock_ = 0;  // nanoseconds of work so far, read and moved by the work itself
  std::thread thread_;
};

int64_t Number(const char* variable, int64_t otherwise);  // of the environment
int DeviceCount();  // FAKE_GPU_COUNT, as far as CUDA_VISIBLE_DEVICES shows them
void Log(const char* format, ...) __attribute__((format(printf, 1, 2)));
// The device whose kernel this thread computes now, -1 none: what a real driver knows as the
// current context, which TensorFlow sets around a kernel on CUDA and not on other devices.
int& ComputingOn();

void* DeviceAllocate(size_t bytes);  // on pages of its own
void DeviceFree(void* memory);
bool OnDevice(const void* address);
// While one lives, device memory can be touched, by whoever does.
struct Touching {
  Touching();
  ~Touching();
};
void DrainAll();
std::vector<std::shared_ptr<Mark>> RecordAll(const Stream* but);  // in every stream but that one

}  // namespace fake_gpu

struct SP_Stream_st : fake_gpu::Stream {
  using fake_gpu::Stream::Stream;
};

#endif  // FAKE_GPU_H_
