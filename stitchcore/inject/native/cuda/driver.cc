#include "driver.h"

#include <dlfcn.h>

namespace stitch::cuda {
namespace {

// The oldest driver whose functions are declared as ours are.
constexpr int kOldestDriver = 11000;

std::string Version(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string Words(const Driver& driver, Result result) {
  const char *name = nullptr, *words = nullptr;
  if (driver.GetErrorName(result, &name) != kSuccess) name = nullptr;
  if (driver.GetErrorString(result, &words) != kSuccess) words = nullptr;
  return std::string(name != nullptr ? name : "unknown error") + " (" + std::to_string(result) +
         ")" + (words != nullptr ? std::string(": ") + words : "");
}

}  // namespace

Error Failure(const Driver& driver, Result result, std::string_view what, StitchReason otherwise) {
  StitchReason reason = otherwise;
  if (result == kOutOfMemory) reason = STITCH_OUT_OF_MEMORY;
  if (result == kInvalidContext || result == kContextDestroyed) reason = STITCH_NO_CONTEXT;
  if (result == kNoDevice || result == kDeviceUnavailable) reason = STITCH_NO_DEVICE;
  if (result >= kSystemNotReady && result <= kServiceClientEnded) reason = STITCH_NO_DEVICE;
  if (result >= kCaptureUnsupported && result <= kCaptureWrongThread) reason = STITCH_CAPTURE;
  return {reason, std::string(what) + ": " + Words(driver, result)};
}

Error OpenDriver(const char* library, Driver* driver) {
  void* handle = dlopen(library != nullptr ? library : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return {STITCH_NO_DRIVER, dlerror()};
#define STITCH_FIND(name, symbol, parameters) \
  driver->name = reinterpret_cast<Result(*) parameters>(dlsym(handle, symbol));
  STITCH_DRIVER_FUNCTIONS(STITCH_FIND)
  STITCH_DRIVER_OPTIONAL(STITCH_FIND)
#undef STITCH_FIND
#define STITCH_REQUIRE(name, symbol, parameters) \
  if (driver->name == nullptr) return {STITCH_OLD_DRIVER, "the driver has no " symbol};
  STITCH_DRIVER_FUNCTIONS(STITCH_REQUIRE)
#undef STITCH_REQUIRE
  Error error = Judge(*driver, driver->Init(0), "cuInit", STITCH_NO_DRIVER);
  if (error.failed()) return error;
  error = Judge(*driver, driver->DriverGetVersion(&driver->version), "cuDriverGetVersion");
  if (error.failed()) return error;
  if (driver->version < kOldestDriver) {
    return {STITCH_OLD_DRIVER, "the driver is for CUDA " + Version(driver->version) +
                                   ", at least " + Version(kOldestDriver) + " is needed"};
  }
  return {};
}

}  // namespace stitch::cuda
