#include "pool.h"

#include <malloc.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace stitch {
namespace {

constexpr size_t kPage = 4096, kHuge = size_t{2} << 20;
constexpr size_t kLargeUnit = size_t{64} << 10;
constexpr int64_t kIdleNanoseconds = 10'000'000'000;
constexpr int kSweepEvery = 256;  // releases between two looks for idle buffers

struct Idle {
  void* buffer;
  int64_t since;
};

struct Pool {
  std::mutex mutex;
  std::map<size_t, std::vector<Idle>> idle;  // by size, oldest first
  std::unordered_map<void*, size_t> sizes;   // of buffers in use
  PoolStatistics state{};
  size_t peak_used = 0;  // what is kept in all is bounded by what was in use at once
  int releases = 0;
};

// Never destroyed: TensorFlow may release tensors after static destructors have run.
Pool& Instance() {
  static Pool* pool = new Pool;
  return *pool;
}

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

size_t SizeOf(size_t bytes) {
  return RoundUp(std::max<size_t>(bytes, 1), bytes < kPooledBytes ? kPage : kLargeUnit);
}

int64_t Now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
  return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec;
}

// Pages of their own, which go back to the system when the buffer does: malloc would keep them, and
// holes between aligned buffers besides. Only whole huge pages within `size` are asked to be huge.
void* Map(size_t size) {
  size_t extra = size >= kHuge ? kHuge : 0;
  void* mapped = mmap(nullptr, size + extra, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                      -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  if (extra == 0) return mapped;
  char* start = static_cast<char*>(mapped);
  char* aligned = reinterpret_cast<char*>(RoundUp(reinterpret_cast<size_t>(start), kHuge));
  if (aligned > start) munmap(start, aligned - start);
  munmap(aligned + size, start + size + extra - (aligned + size));
  madvise(aligned, size / kHuge * kHuge, MADV_HUGEPAGE);
  return aligned;
}

void* Take(size_t size) { return size < kPooledBytes ? aligned_alloc(kPage, size) : Map(size); }

void Free(Pool* pool, size_t size, void* buffer) {
  if (size < kPooledBytes) {
    free(buffer);
  } else {
    munmap(buffer, size);
  }
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

// Gives idle buffers of other sizes back until the total is what was once in use, largest first.
void Shrink(Pool* pool) {
  for (auto entry = pool->idle.rbegin(); entry != pool->idle.rend(); ++entry) {
    auto& buffers = entry->second;
    while (!buffers.empty() && pool->state.used_bytes + pool->state.idle_bytes >
                                   static_cast<int64_t>(pool->peak_used)) {
      Free(pool, entry->first, buffers.front().buffer);
      buffers.erase(buffers.begin());
    }
  }
}

// An idle buffer of at least `size` and at most a quarter more; the newest, warmest in cache.
void* Reuse(Pool* pool, size_t size) {
  for (auto entry = pool->idle.lower_bound(size);
       entry != pool->idle.end() && entry->first <= size + size / 4; ++entry) {
    if (entry->second.empty()) continue;
    void* buffer = entry->second.back().buffer;
    entry->second.pop_back();
    pool->state.idle_bytes -= entry->first;
    pool->state.used_bytes += entry->first;
    pool->sizes[buffer] = entry->first;
    pool->state.reused++;
    return buffer;
  }
  return nullptr;
}

}  // namespace

void* PoolAllocate(size_t bytes) {
  size_t size = SizeOf(bytes);
  Pool& pool = Instance();
  {
    std::lock_guard<std::mutex> lock(pool.mutex);
    void* buffer = Reuse(&pool, size);
    pool.peak_used = std::max<size_t>(pool.peak_used, pool.state.used_bytes);
    if (buffer != nullptr) return buffer;
  }
  void* buffer = Take(size);
  if (buffer == nullptr) return nullptr;
  std::lock_guard<std::mutex> lock(pool.mutex);
  pool.sizes[buffer] = size;
  pool.state.used_bytes += size;
  pool.state.fresh++;
  pool.peak_used = std::max<size_t>(pool.peak_used, pool.state.used_bytes);
  Shrink(&pool);
  return buffer;
}

void PoolRelease(void* buffer) {
  Pool& pool = Instance();
  std::lock_guard<std::mutex> lock(pool.mutex);
  auto known = pool.sizes.find(buffer);
  size_t size = known->second;
  pool.sizes.erase(known);
  pool.state.used_bytes -= size;
  pool.state.idle_bytes += size;
  int64_t now = Now();
  pool.idle[size].push_back({buffer, now});
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

void HeapTrim() {
  static std::atomic<bool> first{true};
  if (first.exchange(false) || PoolState().fresh > 0) malloc_trim(0);
}

PoolStatistics PoolState() {
  Pool& pool = Instance();
  std::lock_guard<std::mutex> lock(pool.mutex);
  return pool.state;
}

}  // namespace stitch
