// Buffers for large outputs and for scratch, recycled by size class, so that a step after the
// first faults no page in (docs/decisions.md 16). Bounded; gives back what it has not used for a
// while.
#ifndef STITCH_POOL_H_
#define STITCH_POOL_H_

#include <cstddef>
#include <cstdint>

namespace stitch {

// Outputs smaller than this are better left to TensorFlow's allocator.
constexpr size_t kPooledBytes = size_t{1} << 20;

struct PoolStatistics {
  int64_t fresh, reused, released, idle_bytes, used_bytes;
};

// At least `bytes`, aligned to a page (2 MiB and huge pages when large); nullptr without memory.
void* PoolAllocate(size_t bytes);
void PoolRelease(void* buffer);
// Gives back all idle buffers.
void PoolTrim();
// Gives back what TensorFlow has freed and malloc still holds: the first time, when Grappler and
// the swap have left copies of graphs behind, and whenever buffers of the pool would stand beside.
void HeapTrim();

PoolStatistics PoolState();

}  // namespace stitch

#endif  // STITCH_POOL_H_
