// The stand-in's contexts, modules and memory.
#include <stdlib.h>
#include <string.h>

#include <algorithm>

#include "standin.h"

namespace standin {

State& Get() {
  static auto* state = new State;  // outlives every thread
  return *state;
}

std::vector<void*>& ContextStack() {
  thread_local std::vector<void*> stack;
  return stack;
}

int& CaptureMode() {
  thread_local int mode = 0;
  return mode;
}

void Complain(const std::string& text) { Get().errors.push_back(text); }

void* NewHandle() { return reinterpret_cast<void*>(0x1000 + 16 * Get().next++); }

Result Count(const char* name) {
  State& state = Get();
  state.calls.push_back(name);
  bool fails = ++state.counted == state.fail_at || (state.sticky && state.failed);
  if (!fails) return kSuccess;
  state.failed = true;
  return state.fail_with;
}

bool Captures(void* context) {
  for (auto& [handle, stream] : Get().streams) {
    if (stream->capture == 1 && (context == nullptr || stream->context == context)) return true;
  }
  return false;
}

Result Unsafe(const char* name) {
  if (CaptureMode() == 2 || !Captures(nullptr)) return kSuccess;
  Complain(std::string(name) + " while a stream is captured");
  return kCaptureUnsupported;
}

void* Current() { return ContextStack().empty() ? nullptr : ContextStack().back(); }

namespace {

void* MakeContext(int device, bool primary) {
  State& state = Get();
  void* handle = NewHandle();
  if (!state.spare_contexts.empty()) {
    handle = state.spare_contexts.back();
    state.spare_contexts.pop_back();
  }
  state.contexts[handle] = {device, state.next++, primary, 0};
  state.default_streams[handle] = std::make_unique<Stream>();
  state.default_streams[handle]->context = handle;
  state.default_streams[handle]->id = state.next++;
  return handle;
}

// Everything of a context goes with it.
void EndContext(void* handle) {
  State& state = Get();
  DrainContext(handle);
  auto erase = [&](auto& objects) {
    for (auto at = objects.begin(); at != objects.end();) {
      at = at->second.context == handle ? objects.erase(at) : std::next(at);
    }
  };
  for (auto& [address, block] : state.memory) {
    if (block.context == handle) free(reinterpret_cast<void*>(address));
  }
  for (auto& [address, block] : state.pinned) {
    if (block.context == handle) free(address);
  }
  for (auto at = state.functions.begin(); at != state.functions.end();) {
    bool ended = state.modules[at->second.module].context == handle;
    at = ended ? state.functions.erase(at) : std::next(at);
  }
  erase(state.modules);
  erase(state.memory);
  erase(state.pinned);
  erase(state.events);
  for (auto at = state.streams.begin(); at != state.streams.end();) {
    at = at->second->context == handle ? state.streams.erase(at) : std::next(at);
  }
  state.default_streams.erase(handle);
  state.contexts.erase(handle);
  state.spare_contexts.push_back(handle);
}

bool IsDevice(int device) {
  return device >= 0 && static_cast<size_t>(device) < Get().devices.size();
}

}  // namespace
}  // namespace standin

using namespace standin;

STANDIN_API cuInit(unsigned flags) {
  std::lock_guard<std::recursive_mutex> lock(Get().mutex);
  if (Result asked = Count("cuInit")) return asked;
  if (flags != 0) return Complain("cuInit with flags"), kInvalidValue;
  if (Get().devices.empty()) return kNoDevice;
  Get().initialized = true;
  return kSuccess;
}

STANDIN_API cuDriverGetVersion(int* version) {
  STANDIN_ENTER("cuDriverGetVersion");
  return *version = Get().version, kSuccess;
}

STANDIN_API cuDeviceGet(int* device, int ordinal) {
  STANDIN_ENTER("cuDeviceGet");
  if (!IsDevice(ordinal)) return kInvalidDevice;
  return *device = ordinal, kSuccess;
}

STANDIN_API cuDeviceGetAttribute(int* value, int attribute, int device) {
  STANDIN_ENTER("cuDeviceGetAttribute");
  if (!IsDevice(device)) return Complain("attribute of no device"), kInvalidDevice;
  const DeviceLimits& limits = Get().devices[device];
  switch (attribute) {
    case 8: return *value = 49152, kSuccess;
    case 16: return *value = limits.multiprocessors, kSuccess;
    case 75: return *value = limits.major, kSuccess;
    case 76: return *value = limits.minor, kSuccess;
    case 95: return *value = limits.cooperative, kSuccess;
    case 97: return *value = limits.shared_optin, kSuccess;
    case 133:
      if (Get().version < 12010) return kInvalidValue;
      return *value = limits.service, kSuccess;
  }
  return Complain("unexpected device attribute " + std::to_string(attribute)), kInvalidValue;
}

STANDIN_API cuDevicePrimaryCtxRetain(void** context, int device) {
  STANDIN_ENTER("cuDevicePrimaryCtxRetain");
  if (!IsDevice(device)) return kInvalidDevice;
  for (auto& [handle, one] : Get().contexts) {
    if (!one.primary || one.device != device) continue;
    one.retained++;
    return *context = handle, kSuccess;
  }
  *context = MakeContext(device, true);
  Get().contexts[*context].retained = 1;
  return kSuccess;
}

STANDIN_API cuDevicePrimaryCtxRelease_v2(int device) {
  STANDIN_RELEASE("cuDevicePrimaryCtxRelease");
  for (auto& [handle, one] : Get().contexts) {
    if (!one.primary || one.device != device) continue;
    if (--one.retained == 0) EndContext(handle);
    return asked;
  }
  return Complain("primary context released once too often"), kInvalidContext;
}

STANDIN_API cuCtxCreate_v2(void** context, unsigned, int device) {
  STANDIN_ENTER("cuCtxCreate");
  *context = MakeContext(device, false);
  ContextStack().push_back(*context);
  return kSuccess;
}

STANDIN_API cuCtxDestroy_v2(void* context) {
  STANDIN_RELEASE("cuCtxDestroy");
  if (Get().contexts.count(context) == 0) return Complain("destroyed no context"), kInvalidContext;
  auto& stack = ContextStack();
  stack.erase(std::remove(stack.begin(), stack.end(), context), stack.end());
  EndContext(context);
  return asked;
}

STANDIN_API cuCtxPushCurrent_v2(void* context) {
  STANDIN_ENTER("cuCtxPushCurrent");
  if (Get().contexts.count(context) == 0) return kInvalidContext;
  ContextStack().push_back(context);
  return kSuccess;
}

STANDIN_API cuCtxPopCurrent_v2(void** context) {
  STANDIN_RELEASE("cuCtxPopCurrent");
  if (ContextStack().empty()) return Complain("pop of no context"), kInvalidContext;
  *context = ContextStack().back();
  ContextStack().pop_back();
  return asked;
}

STANDIN_API cuCtxGetCurrent(void** context) {
  STANDIN_ENTER("cuCtxGetCurrent");
  return *context = Current(), kSuccess;
}

STANDIN_API cuCtxGetDevice(int* device) {
  STANDIN_IN_CONTEXT("cuCtxGetDevice");
  return *device = Get().contexts[Current()].device, kSuccess;
}

STANDIN_API cuCtxGetId(void* context, unsigned long long* id) {
  STANDIN_ENTER("cuCtxGetId");
  auto found = Get().contexts.find(context);
  if (found == Get().contexts.end()) return kInvalidContext;
  return *id = found->second.id, kSuccess;
}

STANDIN_API cuModuleLoadData(void** module, const void* image) {
  STANDIN_IN_CONTEXT("cuModuleLoadData");
  if (Result refused = Unsafe("cuModuleLoadData")) return refused;
  Module made{Current(), {}};
  if (!ReadCubin(static_cast<const char*>(image), &made.image)) return kInvalidImage;
  const DeviceLimits& device = Get().devices[Get().contexts[Current()].device];
  if (!Suits(made.image, device.major, device.minor)) return kNoBinary;
  *module = NewHandle();
  Get().modules[*module] = std::move(made);
  return kSuccess;
}

STANDIN_API cuModuleUnload(void* module) {
  STANDIN_RELEASE("cuModuleUnload");
  auto found = Get().modules.find(module);
  if (found == Get().modules.end()) return Complain("unloaded no module"), kInvalidHandle;
  if (found->second.context != Current()) Complain("module unloaded in another context");
  auto works = [&](const Stream& stream) {
    return std::any_of(stream.queue.begin(), stream.queue.end(),
                       [&](const Operation& one) { return one.module == module; });
  };
  bool working = false;
  for (auto& [handle, stream] : Get().streams) working |= works(*stream);
  for (auto& [handle, stream] : Get().default_streams) working |= works(*stream);
  if (working) Complain("module unloaded with work under way");
  for (auto at = Get().functions.begin(); at != Get().functions.end();) {
    at = at->second.module == module ? Get().functions.erase(at) : std::next(at);
  }
  Get().modules.erase(found);
  return asked;
}

STANDIN_API cuModuleGetFunction(void** function, void* module, const char* name) {
  STANDIN_IN_CONTEXT("cuModuleGetFunction");
  auto found = Get().modules.find(module);
  if (found == Get().modules.end()) return Complain("function of no module"), kInvalidHandle;
  if (found->second.context != Current()) Complain("function of a module of another context");
  auto kernel = found->second.image.kernels.find(name);
  if (kernel == found->second.image.kernels.end()) return kNotFound;
  *function = NewHandle();
  int limit = 49152 - static_cast<int>(kernel->second.shared_bytes);
  Get().functions[*function] = {module, name, kernel->second, limit};
  return kSuccess;
}

STANDIN_API cuMemAlloc_v2(Address* address, size_t bytes) {
  STANDIN_IN_CONTEXT("cuMemAlloc");
  if (Result refused = Unsafe("cuMemAlloc")) return refused;
  if (bytes == 0) return Complain("cuMemAlloc of nothing"), kInvalidValue;
  if (bytes > Get().free_bytes) return kOutOfMemory;
  void* block = aligned_alloc(512, (bytes + 511) / 512 * 512);
  memset(block, 0xa5, bytes);  // contents of fresh memory are nobody's to count on
  *address = reinterpret_cast<Address>(block);
  Get().memory[*address] = {Current(), bytes};
  Get().free_bytes -= bytes;
  return kSuccess;
}

STANDIN_API cuMemFree_v2(Address address) {
  STANDIN_RELEASE("cuMemFree");
  auto found = Get().memory.find(address);
  if (found == Get().memory.end()) return Complain("freed no device memory"), kInvalidValue;
  if (found->second.context != Current()) Complain("device memory freed in another context");
  DrainContext(found->second.context);
  Get().free_bytes += found->second.bytes;
  free(reinterpret_cast<void*>(address));
  Get().memory.erase(found);
  return asked;
}

STANDIN_API cuMemHostAlloc(void** address, size_t bytes, unsigned) {
  STANDIN_IN_CONTEXT("cuMemHostAlloc");
  if (Result refused = Unsafe("cuMemHostAlloc")) return refused;
  *address = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  memset(*address, 0xa5, bytes);
  Get().pinned[*address] = {Current(), bytes};
  return kSuccess;
}

STANDIN_API cuMemFreeHost(void* address) {
  STANDIN_RELEASE("cuMemFreeHost");
  auto found = Get().pinned.find(address);
  if (found == Get().pinned.end()) return Complain("freed no pinned memory"), kInvalidValue;
  if (found->second.context != Current()) Complain("pinned memory freed in another context");
  auto uses = [&](const Stream& stream) {
    for (const Operation& operation : stream.queue) {
      for (void* used : operation.pinned) {
        if (used == address) Complain("pinned memory freed with a copy under way");
      }
    }
  };
  for (auto& [handle, stream] : Get().streams) uses(*stream);
  for (auto& [handle, stream] : Get().default_streams) uses(*stream);
  free(address);
  Get().pinned.erase(found);
  return asked;
}

STANDIN_API cuGetErrorName(Result result, const char** text) {
  static const std::map<Result, const char*> names = {
      {1, "CUDA_ERROR_INVALID_VALUE"}, {2, "CUDA_ERROR_OUT_OF_MEMORY"},
      {200, "CUDA_ERROR_INVALID_IMAGE"}, {201, "CUDA_ERROR_INVALID_CONTEXT"},
      {500, "CUDA_ERROR_NOT_FOUND"}, {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
      {719, "CUDA_ERROR_LAUNCH_FAILED"}};
  auto found = names.find(result);
  *text = found == names.end() ? nullptr : found->second;
  return found == names.end() ? kInvalidValue : kSuccess;
}

STANDIN_API cuGetErrorString(Result result, const char** text) {
  *text = result == 719 ? "unspecified launch failure" : "words of the stand-in";
  return kSuccess;
}
