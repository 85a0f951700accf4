#include "pool.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <vector>

namespace stitch {
namespace {

constexpr size_t kPage = 4096, kHuge = size_t{2} << 20;
constexpr int64_t kIdleNanoseconds = 10'000'000'000;
constexpr int kSweepEvery = 256;  // releases between two looks for idle buffers

struct Idle {
  void* buffer;
  int64_t since;
};

struct Pool {
  std::mutex mutex;
  std::map<size_t, std::vector<Idle>> idle;  // by size class, oldest first
  PoolStatistics state{};
  size_t peak_used = 0;  // idle bytes are bounded by what was in use at once
  int releases = 0;
};

// Never destroyed: TensorFlow may release tensors after static destructors have run.
Pool& Instance() {
  static Pool* pool = new Pool;
  return *pool;
}

size_t SizeClass(size_t bytes) {
  size_t unit = bytes < kPooledBytes ? kPage : kHuge;
  return (std::max<size_t>(bytes, 1) + unit - 1) / unit * unit;
}

int64_t Now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
  return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec;
}

void Free(Pool* pool, size_t size, void* buffer) {
  free(buffer);
  pool->state.idle_bytes -= size;
  pool->state.released++;
}

void Sweep(Pool* pool, int64_t now) {
  for (auto& [size, buffers] : pool->idle) {
    size_t old = 0;
    while (old < buffers.size() && now - buffers[old].since > kIdleNanoseconds) {
      Free(pool, size, buffers[old++].buffer);
    }
    buffers.erase(buffers.begin(), buffers.begin() + old);
  }
}

}  // namespace

void* PoolAllocate(size_t bytes) {
  size_t size = SizeClass(bytes);
  Pool& pool = Instance();
  {
    std::lock_guard<std::mutex> lock(pool.mutex);
    pool.state.used_bytes += size;
    pool.peak_used = std::max<size_t>(pool.peak_used, pool.state.used_bytes);
    auto& buffers = pool.idle[size];
    if (!buffers.empty()) {
      void* buffer = buffers.back().buffer;  // the newest: warmest in cache
      buffers.pop_back();
      pool.state.idle_bytes -= size;
      pool.state.reused++;
      return buffer;
    }
    pool.state.fresh++;
  }
  void* buffer = aligned_alloc(size >= kHuge ? kHuge : kPage, size);
  if (buffer != nullptr && size >= kHuge) {
    madvise(buffer, size, MADV_HUGEPAGE);
  } else if (buffer == nullptr) {
    std::lock_guard<std::mutex> lock(pool.mutex);
    pool.state.used_bytes -= size;
  }
  return buffer;
}

void PoolRelease(void* buffer, size_t bytes) {
  size_t size = SizeClass(bytes);
  Pool& pool = Instance();
  std::lock_guard<std::mutex> lock(pool.mutex);
  pool.state.used_bytes -= size;
  pool.state.idle_bytes += size;
  int64_t now = Now();
  if (pool.state.used_bytes + pool.state.idle_bytes > static_cast<int64_t>(pool.peak_used)) {
    Free(&pool, size, buffer);
  } else {
    pool.idle[size].push_back({buffer, now});
  }
  if (++pool.releases % kSweepEvery == 0) Sweep(&pool, now);
}

void PoolTrim() {
  Pool& pool = Instance();
  std::lock_guard<std::mutex> lock(pool.mutex);
  for (auto& [size, buffers] : pool.idle) {
    for (const Idle& idle : buffers) Free(&pool, size, idle.buffer);
    buffers.clear();
  }
}

PoolStatistics PoolState() {
  Pool& pool = Instance();
  std::lock_guard<std::mutex> lock(pool.mutex);
  return pool.state;
}

}  // namespace stitch
