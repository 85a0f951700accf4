// The product's shim with another `gpu_stream`: a PluggableDevice's stream has no CUstream in it
// (StreamCommon::platform_specific_handle is empty), so the fake GPU is asked. Its answer also
// makes the device's context current, as TensorFlow does around a kernel on CUDA.
#include "shim.h"

#include <dlfcn.h>

#include "tensorflow/c/experimental/grappler/grappler.h"

namespace {

// The file beside this one that is the product's own.
void* Product() {
  static void* library = dlopen(PRODUCT_SHIM, RTLD_NOW | RTLD_LOCAL);
  return library;
}

template <typename Function>
Function Own(const char* name) {
  return reinterpret_cast<Function>(dlsym(Product(), name));
}

void* FakeStream(void* context) {
  using Ask = void* (*)(void*);
  static const Ask ask = [] {
    void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    return driver == nullptr ? nullptr : reinterpret_cast<Ask>(dlsym(driver, "fake_gpu_stream"));
  }();
  return ask == nullptr ? nullptr : ask(context);
}

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED const StitchShim* stitch_shim() {
  static const StitchShim shim = [] {
    StitchShim made = *Own<StitchShimEntry>("stitch_shim")();
    made.gpu_stream = FakeStream;
    return made;
  }();
  return &shim;
}

EXPORTED void stitch_set_optimizer(void* optimizer) {
  Own<void (*)(void*)>("stitch_set_optimizer")(optimizer);
}

EXPORTED void TF_InitGraph(TP_OptimizerRegistrationParams* parameters, TF_Status* status) {
  Own<decltype(&TF_InitGraph)>("TF_InitGraph")(parameters, status);
}

EXPORTED bool stitch_start_trace(int level) {
  return Own<bool (*)(int)>("stitch_start_trace")(level);
}

EXPORTED char* stitch_stop_trace() { return Own<char* (*)()>("stitch_stop_trace")(); }
