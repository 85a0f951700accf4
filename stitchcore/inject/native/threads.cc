#include "threads.h"

#include <dlfcn.h>
#include <stdio.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "exports.h"

namespace stitch {
namespace {

std::atomic<const StitchShim*> loaded_shim{nullptr};

constexpr int64_t kInlineWork = 200'000;  // ns: below it one thread beats two, measured
constexpr int64_t kChunkWork = 50'000;    // ns: a chunk worth handing to a thread
constexpr int kChunksPerThread = 16;      // the last chunk is all that others wait for

// Of two results of task ranges the one to report (docs/contracts.md 2): the first check's; of two
// values that did not pass it the least if negative, else the most.
int64_t First(int64_t a, int64_t b) {
  if (a == 0 || b == 0) return a == 0 ? b : a;
  int64_t left = a & 255, right = b & 255;
  if (left != right) return left < right ? a : b;
  int64_t low = std::min(a >> 8, b >> 8);
  return (low < 0 ? low : std::max(a >> 8, b >> 8)) * 256 + left;
}

// One phase in flight. Helpers hold a reference, because one may start after the phase has ended.
struct Phase {
  Launch launch;
  int64_t number, first, tasks, chunk;
  std::atomic<int64_t> next{0}, done{0}, failure{0};
  std::mutex mutex;
  std::condition_variable finished;

  // Takes chunks until none is left. Kernel memory is touched only while a chunk is held.
  void Work() {
    for (;;) {
      int64_t begin = next.fetch_add(chunk, std::memory_order_relaxed);
      if (begin >= tasks) return;
      int64_t end = std::min(begin + chunk, tasks);
      int64_t result = launch.kernel(launch.buffers, launch.symbols, launch.scratch, number,
                                     first + begin, first + end);
      int64_t other = failure.load();
      while (result != 0 && !failure.compare_exchange_weak(other, First(other, result))) {
      }
      if (done.fetch_add(end - begin, std::memory_order_acq_rel) + (end - begin) == tasks) {
        std::lock_guard<std::mutex> lock(mutex);
        finished.notify_all();
      }
    }
  }

  void Wait() {
    for (int spin = 0; spin < 2000; spin++) {
      if (done.load(std::memory_order_acquire) == tasks) return;
      __builtin_ia32_pause();
    }
    std::unique_lock<std::mutex> lock(mutex);
    finished.wait(lock, [this] { return done.load(std::memory_order_acquire) == tasks; });
  }
};

using Reference = std::shared_ptr<Phase>;

void Help(void* argument) {
  std::unique_ptr<Reference> phase(static_cast<Reference*>(argument));
  (*phase)->Work();
}

// Our own threads, for TensorFlow versions without a shim.
class Workers {
 public:
  explicit Workers(int count) {
    for (int i = 0; i < count; i++) std::thread([this] { Loop(); }).detach();
  }
  void Schedule(void* argument) {
    std::lock_guard<std::mutex> lock(mutex_);
    queue_.push_back(argument);
    ready_.notify_one();
  }

 private:
  void Loop() {
    for (;;) {
      std::unique_lock<std::mutex> lock(mutex_);
      ready_.wait(lock, [this] { return !queue_.empty(); });
      void* argument = queue_.front();
      queue_.pop_front();
      lock.unlock();
      Help(argument);
    }
  }
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<void*> queue_;
};

int OwnThreads() { return std::max(1u, std::thread::hardware_concurrency()); }

Workers& OwnWorkers() {
  static Workers* workers = new Workers(OwnThreads() - 1);
  return *workers;
}

void Schedule(const StitchShim* shim, void* context, const Reference& phase) {
  auto* argument = new Reference(phase);
  if (shim != nullptr) {
    shim->schedule(context, Help, argument);
  } else {
    OwnWorkers().Schedule(argument);
  }
}

}  // namespace

const StitchShim* Shim() { return loaded_shim.load(std::memory_order_acquire); }

int64_t RunPhase(void* context, const Launch& launch, int64_t phase, int64_t begin, int64_t end) {
  int64_t tasks = end - begin;
  if (tasks <= 0) return 0;
  const StitchShim* shim = Shim();
  int64_t threads = 1;
  if (launch.work >= kInlineWork && tasks > 1) {
    threads = shim != nullptr ? shim->threads(context) : OwnThreads();
    threads = std::min({threads, tasks, launch.work / kChunkWork});
  }
  if (threads <= 1) {
    return launch.kernel(launch.buffers, launch.symbols, launch.scratch, phase, begin, end);
  }
  auto shared = std::make_shared<Phase>();
  shared->launch = launch;
  shared->number = phase;
  shared->first = begin;
  shared->tasks = tasks;
  int64_t chunks = std::min({tasks, threads * kChunksPerThread, launch.work / kChunkWork});
  shared->chunk = (tasks + chunks - 1) / chunks;
  for (int64_t i = 1; i < threads; i++) Schedule(shim, context, shared);
  shared->Work();
  shared->Wait();
  return shared->failure.load();
}

}  // namespace stitch

int stitch_load_shim(const char* path, char* error, size_t error_size) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return snprintf(error, error_size, "%s", dlerror()), 0;
  auto entry = reinterpret_cast<StitchShimEntry>(dlsym(library, "stitch_shim"));
  const StitchShim* shim = entry == nullptr ? nullptr : entry();
  if (shim == nullptr || shim->version != kShimVersion) {
    return snprintf(error, error_size, "a shim of another version"), 0;
  }
  stitch::loaded_shim.store(shim, std::memory_order_release);
  return 1;
}

int stitch_add_functions(const char* data, size_t size, char* error, size_t error_size) {
  const StitchShim* shim = stitch::Shim();
  if (shim == nullptr) return snprintf(error, error_size, "no shim is loaded"), 0;
  return shim->add_functions(data, size, error, error_size);
}
