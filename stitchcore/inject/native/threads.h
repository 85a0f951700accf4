// Runs a kernel's phases on TensorFlow's own intra-op threads (through the shim), or on a few of
// ours where the TensorFlow version has no shim.
#ifndef STITCH_THREADS_H_
#define STITCH_THREADS_H_

#include <cstdint>

#include "kernels.h"
#include "shim.h"

namespace stitch {

const StitchShim* Shim();  // nullptr when none is loaded

struct Launch {
  Kernel kernel;
  void* const* buffers;
  const int64_t* symbols;
  char* scratch;
  int64_t work;  // estimated nanoseconds on one core
};

// Runs tasks [begin, end) of `phase`; returns the first non-zero result of the kernel, or 0.
int64_t RunPhase(void* context, const Launch& launch, int64_t phase, int64_t begin, int64_t end);

}  // namespace stitch

#endif  // STITCH_THREADS_H_
