// Stitched kernels on a GPU: each is a program of one launch for the CUDA launch library (cuda/),
// known by the kernel's key. Knows nothing of TensorFlow, so it is tested on its own.
#ifndef STITCH_GPU_H_
#define STITCH_GPU_H_

#include <cstdint>
#include <memory>
#include <string>

#include "cuda/stitch_launch.h"
#include "moment.h"

namespace stitch {

constexpr uint64_t kGpuAlignment = 16;  // of a buffer: kernels read as much at a time

// nullptr when no such program has been registered.
StitchProgram* FindProgram(const std::string& key);

// What one execution gives its program: all in device memory, in the order of the kernel's buffers.
struct GpuBuffers {
  const StitchBuffer* inputs;
  int input_count;
  const StitchBuffer* outputs;
  int output_count;
};

// Puts the program's launches into `stream` of the context that is current. `allocator` gives its
// scratch. Returns why it could not ("launch failed (13): ...", a StitchReason), or "".
std::string RunOnGpu(StitchProgram* program, void* stream, const GpuBuffers& buffers,
                     const int64_t* symbols, int symbol_count, const StitchAllocator& allocator);

// Records events in `stream` of the context that is current now.
Marker MarkerOf(void* stream);

}  // namespace stitch

#endif  // STITCH_GPU_H_
