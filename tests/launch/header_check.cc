// Compiles only where our declarations of the driver are cuda.h's: the same number of parameters,
// each of the same size and as much a pointer, the same exported name and the same constants.
#include <cuda.h>
#include <string.h>

#include <type_traits>

#include "driver.h"

namespace {

template <typename Ours, typename Theirs>
constexpr bool Alike() {
  return sizeof(Ours) == sizeof(Theirs) && std::is_pointer_v<Ours> == std::is_pointer_v<Theirs> &&
         (std::is_pointer_v<Ours> ||
          std::is_signed_v<Ours> == std::is_signed_v<Theirs> || std::is_enum_v<Theirs>);
}

template <typename... Ours, typename... Theirs>
constexpr bool Same(stitch::cuda::Result (*)(Ours...), CUresult (*)(Theirs...)) {
  if constexpr (sizeof...(Ours) == sizeof...(Theirs)) {
    return (Alike<Ours, Theirs>() && ...);
  } else {
    return false;
  }
}

#define STRING_OF(name) #name
#define EXPORTED(name) STRING_OF(name)  // cuda.h's macros give a function its version
#define CHECK(name, symbol, parameters)                                     \
  static_assert(Same(static_cast<decltype(Driver::name)>(nullptr),          \
                     static_cast<decltype(&cu##name)>(nullptr)),            \
                symbol);                                                    \
  static_assert(__builtin_strcmp(EXPORTED(cu##name), symbol) == 0, symbol);

using namespace stitch::cuda;

STITCH_DRIVER_FUNCTIONS(CHECK)
STITCH_DRIVER_OPTIONAL(CHECK)

static_assert(kSuccess == CUDA_SUCCESS && kInvalidValue == CUDA_ERROR_INVALID_VALUE);
static_assert(kOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY && kNoDevice == CUDA_ERROR_NO_DEVICE);
static_assert(kInvalidContext == CUDA_ERROR_INVALID_CONTEXT);
static_assert(kContextDestroyed == CUDA_ERROR_CONTEXT_IS_DESTROYED);
static_assert(kNoBinary == CUDA_ERROR_NO_BINARY_FOR_GPU && kNotReady == CUDA_ERROR_NOT_READY);
static_assert(kTooManyResources == CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
static_assert(kCooperativeTooLarge == CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
static_assert(kCaptureUnsupported == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
static_assert(kCaptureWrongThread == CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
static_assert(kMultiprocessors == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
static_assert(kMajor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
static_assert(kMinor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
static_assert(kCooperativeLaunch == CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH);
static_assert(kSharedPerBlock == CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
static_assert(kSharedPerBlockOptIn == CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
static_assert(kMultiProcessService == CU_DEVICE_ATTRIBUTE_MPS_ENABLED);
static_assert(kMaxThreads == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
static_assert(kStaticShared == CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
static_assert(kLocalBytes == CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
static_assert(kRegisters == CU_FUNC_ATTRIBUTE_NUM_REGS);
static_assert(kMaxDynamicShared == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
static_assert(kEventDisableTiming == CU_EVENT_DISABLE_TIMING);
static_assert(kCaptureNone == CU_STREAM_CAPTURE_STATUS_NONE);
static_assert(kCaptureModeRelaxed == CU_STREAM_CAPTURE_MODE_RELAXED);

}  // namespace
