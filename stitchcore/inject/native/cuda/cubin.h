// A cubin's outer form. The driver is given an address and no length: what it follows must lie in
// the bytes we have.
#ifndef STITCH_CUDA_CUBIN_H_
#define STITCH_CUDA_CUBIN_H_

#include <cstddef>

namespace stitch::cuda {

// Whether `data` is a 64-bit ELF file for CUDA whose tables and sections lie within `size` bytes.
bool IsCubin(const char* data, size_t size);

// Whether `data` is text that ends with its only zero and says which version of PTX it is.
bool IsPtx(const char* data, size_t size);

}  // namespace stitch::cuda

#endif  // STITCH_CUDA_CUBIN_H_
