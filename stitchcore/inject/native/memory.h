#ifndef STITCH_MEMORY_H_
#define STITCH_MEMORY_H_

#include <cstdint>

namespace stitch {

// /proc/self/statm, or -1.
int OpenResident();
// Bytes of the process that are in memory; 0 when that cannot be read.
int64_t ResidentBytes(int file);

}  // namespace stitch

#endif  // STITCH_MEMORY_H_
