// A stand-in for libcuda.so.1: no GPU, every call checked. Device memory is host memory, streams
// are queues that run when somebody waits for them (so that what is given back too early shows),
// kernels are callbacks. What a caller does wrong is a line in `errors`, besides the result.
//
// Where the real driver's behaviour is not documented, the stricter one is chosen. It follows
// cuda.h 12.9; docs/contracts.md 12 says what it cannot show.
#ifndef STANDIN_H_
#define STANDIN_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace standin {

using Result = int;
using Address = unsigned long long;
constexpr Result kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kNotInitialized = 3,
                 kNoDevice = 100, kInvalidDevice = 101, kInvalidImage = 200, kInvalidContext = 201,
                 kNoBinary = 209, kInvalidHandle = 400, kNotFound = 500, kNotReady = 600,
                 kTooManyResources = 701, kCooperativeTooLarge = 720,
                 kCaptureUnsupported = 900, kCaptureImplicit = 906;

struct KernelImage {
  size_t shared_bytes = 0;
  int registers = 0, max_threads = 1024;
  std::vector<size_t> parameter_offsets, parameter_sizes;
};
struct CubinImage {
  int architecture = 0;  // 90: sm_90
  bool is_ptx = false;
  std::map<std::string, KernelImage> kernels;
};
// Whether a device runs it: a cubin of its major number, PTX that is not newer.
bool Suits(const CubinImage& image, int major, int minor);
// False where `data` is no cubin, and no PTX, as NVRTC writes them.
bool ReadCubin(const char* data, CubinImage* image);

struct Context {
  int device = 0;
  unsigned long long id = 0;
  bool primary = false;
  int retained = 0;
};
struct Module {
  void* context = nullptr;
  CubinImage image;
};
struct Function {
  void* module = nullptr;
  std::string name;
  KernelImage image;
  int dynamic_limit = 0;
};
struct Operation {
  std::function<void()> run;
  std::vector<void*> pinned;  // blocks it uses
  void* module = nullptr;     // whose kernel it runs
};
struct Stream {
  void* context = nullptr;
  unsigned long long id = 0;
  std::deque<Operation> queue;
  uint64_t issued = 0, done = 0;
  int capture = 0;  // 0 none, 1 active, 2 invalidated
  std::vector<Operation> captured;
};
struct Event {
  void* context = nullptr;
  bool recorded = false;
  unsigned long long stream_id = 0;
  uint64_t position = 0;
};
struct Block {
  void* context = nullptr;
  size_t bytes = 0;
};
struct DeviceLimits {
  int major = 9, minor = 0, multiprocessors = 4, cooperative = 1, service = 0;
  int shared_optin = 232448;
};

// Called when a launch runs: the parameter's bytes as they were at the launch.
using KernelCallback = void (*)(const char* name, const uint64_t* words, size_t bytes,
                                unsigned grid, unsigned threads, unsigned shared, int cooperative);

struct State {
  std::recursive_mutex mutex;
  bool initialized = false;
  int version = 12090;
  std::vector<DeviceLimits> devices{DeviceLimits{}};
  size_t free_bytes = size_t{1} << 30;
  std::map<void*, Context> contexts;
  std::map<void*, Module> modules;
  std::map<void*, Function> functions;
  std::map<void*, std::unique_ptr<Stream>> streams;
  std::map<void*, std::unique_ptr<Stream>> default_streams;  // by context
  std::map<void*, Event> events;
  std::map<Address, Block> memory;
  std::map<void*, Block> pinned;
  std::vector<void*> spare_contexts, spare_streams;  // handles that come again, as a driver's do
  uint64_t next = 1;
  std::vector<std::string> errors, calls;
  int64_t counted = 0, fail_at = 0;  // fail_at 0: never
  Result fail_with = 0;
  bool failed = false, sticky = false;
  KernelCallback callback = nullptr;
};
State& Get();
// This thread's contexts, the current one last; and its capture mode.
std::vector<void*>& ContextStack();
int& CaptureMode();

void Complain(const std::string& text);
void* NewHandle();
// Counts a call and notes its name; a result that is not 0 was asked for by standin_fail.
Result Count(const char* name);
// For calls that may allocate: refused while any stream is being captured, unless this thread's
// mode is relaxed.
Result Unsafe(const char* name);
void* Current();
// The stream `handle` names in the current context; nullptr, and a complaint, when it names none.
Stream* Find(void* handle, const char* name);
void Push(Stream* stream, Operation operation);
void Drain(Stream* stream);
void DrainContext(void* context);
bool Captures(void* context);

// The body of one function of the driver: counted, locked, not before cuInit, in a context.
#define STANDIN_ENTER(name)                                    \
  std::lock_guard<std::recursive_mutex> lock(Get().mutex);     \
  if (Result asked = Count(name)) return asked;                \
  if (!Get().initialized) return Complain(std::string(name) + " before cuInit"), kNotInitialized
#define STANDIN_IN_CONTEXT(name)                                                        \
  STANDIN_ENTER(name);                                                                  \
  if (Current() == nullptr) return Complain(std::string(name) + " without a context"), \
                                   kInvalidContext
// A function that lets something go does so also where it is told to fail.
#define STANDIN_RELEASE(name)                              \
  std::lock_guard<std::recursive_mutex> lock(Get().mutex); \
  Result asked = Count(name)

}  // namespace standin

#define STANDIN_API extern "C" __attribute__((visibility("default"))) int

#endif  // STANDIN_H_
