// The product's shim with another `gpu_stream`: a PluggableDevice's stream has no CUstream in it
// (StreamCommon::platform_specific_handle is empty), so the fake GPU is asked. Its answer also
// makes the device's context current, as TensorFlow does around a kernel on CUDA. Every other
// function of a shim is found in the product's, which this library is linked with.
#include "shim.h"

#include <dlfcn.h>

namespace {

void* FakeStream(void* context) {
  using Ask = void* (*)(void*);
  static const Ask ask = [] {
    void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    return driver == nullptr ? nullptr : reinterpret_cast<Ask>(dlsym(driver, "fake_gpu_stream"));
  }();
  return ask == nullptr ? nullptr : ask(context);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const StitchShim* stitch_shim() {
  static const StitchShim shim = [] {
    void* product = dlopen(PRODUCT_SHIM, RTLD_NOW | RTLD_LOCAL);
    StitchShim made = *reinterpret_cast<StitchShimEntry>(dlsym(product, "stitch_shim"))();
    made.gpu_stream = FakeStream;
    return made;
  }();
  return &shim;
}
