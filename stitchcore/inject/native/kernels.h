// Stitched kernels by key. Libraries are loaded from bytes that were verified before, through an
// anonymous file, so that nothing on disk can change in between. They are never unloaded.
#ifndef STITCH_KERNELS_H_
#define STITCH_KERNELS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace stitch {

// docs/contracts.md section 2. Returns 0, or 1 + the number of the check that failed.
using Kernel = int64_t (*)(void* const* buffers, const int64_t* symbols, char* scratch,
                           int64_t phase, int64_t task_begin, int64_t task_end);

// nullptr when no such kernel has been registered.
Kernel FindKernel(const std::string& key);

// Whether operations of this kernel leave its work to TensorFlow's own; lives as long as the
// process. Set when the kernel has failed, and for a step that cannot change over to its original.
std::atomic<bool>* Retired(const std::string& key);

}  // namespace stitch

#endif  // STITCH_KERNELS_H_
