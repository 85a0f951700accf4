#ifndef STITCH_OP_H_
#define STITCH_OP_H_

#include "tensorflow/c/kernels.h"

namespace stitch {

// The three functions of a kernel in TensorFlow's C API.
struct Functions {
  void* (*create)(TF_OpKernelConstruction*);
  void (*compute)(void*, TF_OpKernelContext*);
  void (*destroy)(void*);
};

Functions FusionFunctions();
Functions GpuFusionFunctions();
Functions TimerFunctions();
Functions GpuTimerFunctions();
Functions GateFunctions();
Functions GpuGateFunctions();

}  // namespace stitch

#endif  // STITCH_OP_H_
