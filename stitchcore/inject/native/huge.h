// Huge pages under large buffers that TensorFlow's own allocator holds. It asks for none, and a
// kernel that streams through such a buffer then misses the TLB once in every 4 KiB.
#ifndef STITCH_HUGE_H_
#define STITCH_HUGE_H_

#include <cstddef>
#include <cstdint>

namespace stitch {

// Smaller buffers stay in the caches, where the TLB is no matter.
constexpr size_t kHugeBytes = size_t{128} << 10;

// Notes that [data, data + bytes) is in use, and asks for a huge page once all of its 2 MiB have
// been noted, by one buffer or by many: no page is held then that was not held in any case. Nothing
// where the machine's administrator said "never". Safe from several threads.
void NoteForHugePages(const void* data, size_t bytes);

// Bytes asked for so far.
int64_t HugeBytesAsked();

}  // namespace stitch

#endif  // STITCH_HUGE_H_
