// The resident memory of the process while a step's arms run in turn. A thread reads it every
// kPeriod and keeps the most for each block of calls, while a step is watched; it ends with the
// last watch. A sample counts where the timer tells that it lies within a call of a block and not
// at a switch of arms (timer.cc), both before and after it was taken.
#include "memory.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "exports.h"
#include "timer.h"

namespace stitch {
namespace {

constexpr auto kPeriod = std::chrono::milliseconds(5);  // 0.4 % of a core: a reading takes 20 us
constexpr size_t kBlocks = 4096;  // kept of a step: nobody takes that many to decide

struct Watch {
  bool open = false;
  std::vector<StitchPeak> blocks;
};

struct Sampler {
  std::mutex mutex;
  std::map<int, Watch> steps;
  int open = 0;
  bool running = false;
};

Sampler& Instance() {
  static Sampler* sampler = new Sampler;
  return *sampler;
}

void Add(Watch* watch, const Running& now, int64_t bytes) {
  std::vector<StitchPeak>& blocks = watch->blocks;
  if (blocks.empty() || blocks.back().block != now.block) {
    if (blocks.size() == kBlocks) return;
    blocks.push_back({now.block, now.arm, 0, 0});
  }
  blocks.back().samples++;
  blocks.back().bytes = std::max(blocks.back().bytes, bytes);
}

void Sample(Sampler* sampler, int file) {
  std::vector<std::pair<int, Running>> before;
  for (const auto& [step, watch] : sampler->steps) {
    Running now = RunningCall(step);
    if (watch.open && now.arm >= 0) before.emplace_back(step, now);
  }
  int64_t bytes = before.empty() ? 0 : ResidentBytes(file);
  if (bytes <= 0) return;
  for (const auto& [step, then] : before) {
    Running now = RunningCall(step);
    if (now.arm == then.arm && now.block == then.block) Add(&sampler->steps[step], now, bytes);
  }
}

void Run(int file) {
  pthread_setname_np(pthread_self(), "stitch-memory");
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, nullptr);  // a signal to the job is not for this thread
  Sampler& sampler = Instance();
  for (;;) {
    std::this_thread::sleep_for(kPeriod);
    std::lock_guard<std::mutex> lock(sampler.mutex);
    if (sampler.open == 0) {
      sampler.running = false;
      break;
    }
    Sample(&sampler, file);
  }
  close(file);
}

}  // namespace

int OpenResident() { return open("/proc/self/statm", O_RDONLY | O_CLOEXEC); }

int64_t ResidentBytes(int file) {
  char text[128];
  ssize_t size = pread(file, text, sizeof text - 1, 0);
  if (size <= 0) return 0;
  text[size] = 0;
  char* rest = nullptr;
  strtoll(text, &rest, 10);  // all of the address space; then what is resident
  return strtoll(rest, nullptr, 10) * sysconf(_SC_PAGESIZE);
}

}  // namespace stitch

// Samples `step` until stitch_unwatch_memory; 0 where the system does not tell.
int stitch_watch_memory(int step) {
  stitch::Sampler& sampler = stitch::Instance();
  std::lock_guard<std::mutex> lock(sampler.mutex);
  if (sampler.steps[step].open) return 1;
  if (!sampler.running) {
    int file = stitch::OpenResident();
    if (file < 0) return 0;
    if (stitch::ResidentBytes(file) <= 0) {
      close(file);
      return 0;
    }
    try {
      std::thread(stitch::Run, file).detach();
    } catch (...) {  // no more threads
      close(file);
      return 0;
    }
    sampler.running = true;
  }
  sampler.steps[step].open = true;
  sampler.open++;
  return 1;
}

void stitch_unwatch_memory(int step) {
  stitch::Sampler& sampler = stitch::Instance();
  std::lock_guard<std::mutex> lock(sampler.mutex);
  auto found = sampler.steps.find(step);
  if (found == sampler.steps.end() || !found->second.open) return;
  found->second.open = false;
  sampler.open--;
}

// Copies the blocks of `step` that were sampled, oldest first, and returns how many.
int64_t stitch_read_memory(int step, StitchPeak* out, int64_t capacity) {
  stitch::Sampler& sampler = stitch::Instance();
  std::lock_guard<std::mutex> lock(sampler.mutex);
  auto found = sampler.steps.find(step);
  if (found == sampler.steps.end()) return 0;
  const std::vector<StitchPeak>& blocks = found->second.blocks;
  int64_t count = std::min<int64_t>(capacity, blocks.size());
  std::copy_n(blocks.begin(), count, out);
  return count;
}
