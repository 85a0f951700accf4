// The CUDA driver as we need it: opened by name, its functions declared here after cuda.h 12.9 (a
// test compares them), so that nothing of CUDA is needed to compile.
#ifndef STITCH_CUDA_DRIVER_H_
#define STITCH_CUDA_DRIVER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "stitch_launch.h"

namespace stitch::cuda {

using Result = int;  // CUresult
using Device = int;  // CUdevice
using Address = unsigned long long;  // CUdeviceptr
struct OpaqueContext;
struct OpaqueModule;
struct OpaqueFunction;
struct OpaqueStream;
struct OpaqueEvent;
using Context = OpaqueContext*;
using Module = OpaqueModule*;
using Function = OpaqueFunction*;
using Stream = OpaqueStream*;
using Event = OpaqueEvent*;

constexpr Result kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2,
                 kDeviceUnavailable = 46, kNoDevice = 100, kInvalidContext = 201, kNoBinary = 209,
                 kCompilerNotFound = 221, kNewerPtx = 222, kCompilationDisabled = 223,
                 kNotReady = 600, kTooManyResources = 701, kContextDestroyed = 709,
                 kCooperativeTooLarge = 720, kSystemNotReady = 802, kServiceClientEnded = 810,
                 kCaptureUnsupported = 900, kCaptureWrongThread = 908;
// CUdevice_attribute
constexpr int kMultiprocessors = 16, kMajor = 75, kMinor = 76, kCooperativeLaunch = 95,
              kSharedPerBlock = 8, kSharedPerBlockOptIn = 97, kMultiProcessService = 133;
// CUfunction_attribute
constexpr int kMaxThreads = 0, kStaticShared = 1, kLocalBytes = 3, kRegisters = 4,
              kMaxDynamicShared = 8;
constexpr unsigned kEventDisableTiming = 2;
constexpr int kCaptureNone = 0, kCaptureModeRelaxed = 2;
// CU_STREAM_PER_THREAD: one handle for as many streams as there are threads.
inline Stream PerThreadStream() { return reinterpret_cast<Stream>(uintptr_t{2}); }

// X(name, exported symbol, parameters)
#define STITCH_DRIVER_FUNCTIONS(X)                                                           \
  X(Init, "cuInit", (unsigned))                                                              \
  X(DriverGetVersion, "cuDriverGetVersion", (int*))                                          \
  X(DeviceGet, "cuDeviceGet", (Device*, int))                                                \
  X(DeviceGetAttribute, "cuDeviceGetAttribute", (int*, int, Device))                         \
  X(DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (Context*, Device))                  \
  X(DevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", (Device))                       \
  X(CtxPushCurrent, "cuCtxPushCurrent_v2", (Context))                                        \
  X(CtxPopCurrent, "cuCtxPopCurrent_v2", (Context*))                                         \
  X(CtxGetCurrent, "cuCtxGetCurrent", (Context*))                                            \
  X(CtxGetDevice, "cuCtxGetDevice", (Device*))                                               \
  X(CtxSynchronize, "cuCtxSynchronize", (void))                                              \
  X(ModuleLoadData, "cuModuleLoadData", (Module*, const void*))                              \
  X(ModuleUnload, "cuModuleUnload", (Module))                                                \
  X(ModuleGetFunction, "cuModuleGetFunction", (Function*, Module, const char*))              \
  X(FuncGetAttribute, "cuFuncGetAttribute", (int*, int, Function))                           \
  X(FuncSetAttribute, "cuFuncSetAttribute", (Function, int, int))                            \
  X(OccupancyMaxActiveBlocksPerMultiprocessor, "cuOccupancyMaxActiveBlocksPerMultiprocessor", \
    (int*, Function, int, size_t))                                                           \
  X(LaunchKernel, "cuLaunchKernel",                                                          \
    (Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream, \
     void**, void**))                                                                        \
  X(LaunchCooperativeKernel, "cuLaunchCooperativeKernel",                                    \
    (Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream, \
     void**))                                                                                \
  X(MemAlloc, "cuMemAlloc_v2", (Address*, size_t))                                           \
  X(MemFree, "cuMemFree_v2", (Address))                                                      \
  X(MemHostAlloc, "cuMemHostAlloc", (void**, size_t, unsigned))                              \
  X(MemFreeHost, "cuMemFreeHost", (void*))                                                   \
  X(MemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", (Address, const void*, size_t, Stream))         \
  X(MemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", (void*, Address, size_t, Stream))               \
  X(MemsetD32Async, "cuMemsetD32Async", (Address, unsigned, size_t, Stream))                 \
  X(EventCreate, "cuEventCreate", (Event*, unsigned))                                        \
  X(EventRecord, "cuEventRecord", (Event, Stream))                                           \
  X(EventQuery, "cuEventQuery", (Event))                                                     \
  X(EventSynchronize, "cuEventSynchronize", (Event))                                         \
  X(EventElapsedTime, "cuEventElapsedTime", (float*, Event, Event))                          \
  X(EventDestroy, "cuEventDestroy_v2", (Event))                                              \
  X(StreamSynchronize, "cuStreamSynchronize", (Stream))                                      \
  X(StreamIsCapturing, "cuStreamIsCapturing", (Stream, int*))                                \
  X(ThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode", (int*))            \
  X(GetErrorName, "cuGetErrorName", (Result, const char**))                                  \
  X(GetErrorString, "cuGetErrorString", (Result, const char**))

// Of newer drivers; nullptr where there is none. Identities tell a handle from a later object that
// got the same one (CUDA 12.0); parameters are compared with the table's (12.4).
#define STITCH_DRIVER_OPTIONAL(X)                                       \
  X(CtxGetId, "cuCtxGetId", (Context, unsigned long long*))             \
  X(StreamGetId, "cuStreamGetId", (Stream, unsigned long long*))        \
  X(FuncGetParamInfo, "cuFuncGetParamInfo", (Function, size_t, size_t*, size_t*))

struct Driver {
#define STITCH_MEMBER(name, symbol, parameters) Result(*name) parameters = nullptr;
  STITCH_DRIVER_FUNCTIONS(STITCH_MEMBER)
  STITCH_DRIVER_OPTIONAL(STITCH_MEMBER)
#undef STITCH_MEMBER
  int version = 0;  // 12090: CUDA 12.9
};

// A failure as a value; reason STITCH_OK is none.
struct [[nodiscard]] Error {
  StitchReason reason = STITCH_OK;
  std::string text;
  bool failed() const { return reason != STITCH_OK; }
};

// What the driver said, as an Error: memory and contexts have reasons of their own, everything else
// gets `otherwise`. `what` is the call and what it was for.
Error Failure(const Driver& driver, Result result, std::string_view what, StitchReason otherwise);
inline Error Judge(const Driver& driver, Result result, std::string_view what,
                   StitchReason otherwise = STITCH_DRIVER_FAILED) {
  return result == kSuccess ? Error{} : Failure(driver, result, what, otherwise);
}

// Opens `library` and starts the driver. A driver is never closed: it has threads of its own.
Error OpenDriver(const char* library, Driver* driver);

// While it lives, this thread may allocate and load modules although a stream is being captured.
class RelaxedCapture {
 public:
  // A mode that could not be set leaves the stricter one: the call that follows says so.
  explicit RelaxedCapture(const Driver& driver)
      : driver_(driver), set_(driver.ThreadExchangeStreamCaptureMode(&mode_) == kSuccess) {}
  ~RelaxedCapture() {
    if (set_) driver_.ThreadExchangeStreamCaptureMode(&mode_);
  }
  RelaxedCapture(const RelaxedCapture&) = delete;

 private:
  const Driver& driver_;
  int mode_ = kCaptureModeRelaxed;  // afterwards the thread's own
  bool set_;
};

}  // namespace stitch::cuda

#endif  // STITCH_CUDA_DRIVER_H_
