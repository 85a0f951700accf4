// What the library holds in one CUDA context: pinned memory for copies under way, and the barrier
// words of its streams.
#ifndef STITCH_CUDA_CONTEXT_H_
#define STITCH_CUDA_CONTEXT_H_

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "driver.h"

namespace stitch::cuda {

// Page-locked host memory that copies of a stream read or write.
struct PinnedBlock {
  char* data = nullptr;
  size_t bytes = 0;
  Event event = nullptr;  // recorded after the last copy
  bool pending = false;   // the event has been recorded and not been seen to have passed
  bool lost = false;      // nothing tells when its copies have ended: not used again
};

// Its functions need the context to be current.
class PinnedPool {
 public:
  // A block of at least `bytes` that no copy uses. Waits for one where kMostPending are under way.
  Error Take(const Driver& driver, size_t bytes, std::unique_ptr<PinnedBlock>* block);
  // Gives a block back; where copies in `stream` still use it, it is taken again once they ended.
  void GiveBack(const Driver& driver, std::unique_ptr<PinnedBlock> block, Stream stream,
                bool used);
  // A block whose copies have ended.
  void GiveBackIdle(std::unique_ptr<PinnedBlock> block);
  // Frees all blocks; the context's work must have ended.
  void Clear(const Driver& driver);

 private:
  static constexpr size_t kMostPending = 64;
  std::mutex mutex_;
  std::vector<std::unique_ptr<PinnedBlock>> blocks_;  // oldest first; has room for all taken ones
  size_t taken_ = 0;
};

// One barrier word for each stream: kernels of one stream follow one another, so they share it. A
// grid barrier leaves its word ready for the next (docs/contracts.md 12), so it is zeroed once.
class BarrierWords {
 public:
  Error Find(const Driver& driver, Stream stream, Address* word);
  void Clear(const Driver& driver);

 private:
  struct Word {
    Address address;
    unsigned long long stream_id;  // 0 where the driver has no identities
  };
  std::mutex mutex_;
  std::map<std::pair<Stream, int>, Word> words_;  // the thread's number, for its own default stream
  std::vector<Address> slabs_, free_;
};

struct ContextState {
  Context handle = nullptr;
  unsigned long long id = 0;  // 0 where the driver has no identities
  Device device = 0;
  int major = 0, minor = 0, multiprocessors = 0, shared_default = 0, shared_limit = 0;
  bool cooperative = false, shared_by_service = false;
  std::atomic<bool> gone{false};  // destroyed by its owner, and all that it held with it
  PinnedPool pinned;
  BarrierWords barriers;
};

// Reads what launches need to know of the device into a state without a device.
Error Describe(const Driver& driver, ContextState* state);

// Makes a context current while it lives, and lets this thread allocate during a capture.
class ContextScope {
 public:
  explicit ContextScope(const Driver& driver) : driver_(driver), relaxed_(driver) {}
  ~ContextScope() {
    Context popped = nullptr;
    if (pushed_) driver_.CtxPopCurrent(&popped);
  }
  ContextScope(const ContextScope&) = delete;
  Error Push(Context context) {
    Error error = Judge(driver_, driver_.CtxPushCurrent(context), "cuCtxPushCurrent");
    pushed_ = !error.failed();
    return error;
  }

 private:
  const Driver& driver_;
  RelaxedCapture relaxed_;
  bool pushed_ = false;
};

}  // namespace stitch::cuda

// The opaque objects of stitch_launch.h.
struct StitchCuda {
  // The state of the context of `device` (-1: the current one), which `scope` makes current.
  stitch::cuda::Error Enter(int device, stitch::cuda::ContextScope* scope,
                            std::shared_ptr<stitch::cuda::ContextState>* state);
  // Frees what is held in contexts, then lets go of the primary ones. Where a context cannot be
  // entered now, it and all that comes after are kept for another try.
  stitch::cuda::Error Clear();

  stitch::cuda::Driver driver;
  std::atomic<int> users{0};  // programs, and runs whose checks nobody has waited for

 private:
  struct PrimaryContext {
    stitch::cuda::Device device;
    stitch::cuda::Context context;
  };
  stitch::cuda::Error Primary(int device, stitch::cuda::Context* context);
  std::mutex mutex_;
  std::map<int, PrimaryContext> primaries_;
  std::vector<std::shared_ptr<stitch::cuda::ContextState>> states_;
};

#endif  // STITCH_CUDA_CONTEXT_H_
