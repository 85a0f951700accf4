// libcuda.so.1 as far as the product calls it, on the fake device's streams and memory. A cubin
// tells of its kernels (tests/launch/standin/cubin.cc); what they compute is a host library made of
// the same CUDA text (kernels.py), found by the kernels' names and run when the launch's turn in
// its stream comes.
//
// The current context is the one that was pushed, else that of the device whose kernel this thread
// computes: TensorFlow makes it current around a kernel on CUDA, here the shim says so.
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include <map>
#include <vector>

#include "fake_gpu.h"
#include "standin.h"
#include "tensorflow/c/experimental/stream_executor/stream_executor.h"
#include "tensorflow/c/kernels.h"

#define FAKE_API extern "C" __attribute__((visibility("default")))

namespace fake_gpu {
namespace {

using standin::CubinImage;
using standin::KernelImage;
using standin::kInvalidContext;
using standin::kInvalidDevice;
using standin::kInvalidHandle;
using standin::kInvalidImage;
using standin::kInvalidValue;
using standin::kNoBinary;
using standin::kNotFound;
using standin::kNotReady;
using standin::kSuccess;
using standin::kTooManyResources;
using standin::Result;
constexpr Result kLaunchFailed = 719;
constexpr int kMostFindings = 64, kFindingBytes = 72;  // of the emulator

using Entry = void (*)(void* const*);
struct Twin {  // see tests/emulator: launch.cc and program.py
  int (*launch)(Entry, char* (*)(), void* const*, const void*, const void*, void*);
  char* (*dynamic)();
  void* library;
};
struct GivenLaunch {
  unsigned grid[3], block[3];
  uint64_t dynamic_bytes, dynamic_most, seed;
  int32_t order, cooperative, preempt, buffers;
};

struct Context {
  int device;
};
struct Module {
  Context* context;
  CubinImage image;
  Twin twin;
};
struct Function {
  Module* module;
  std::string name;
  KernelImage image;
  Entry entry;
  int dynamic_limit;
};
struct Event {
  std::shared_ptr<Mark> mark;
};

std::mutex emulator;  // knows one launch at a time
std::atomic<bool> failed{false};  // a kernel has: every later launch does, as in a lost context
const char* (*find_twin)(const char* names) = nullptr;

Context* ContextOf(int device) {
  static std::vector<Context>* all = [] {
    auto* made = new std::vector<Context>;
    for (int i = 0; i < DeviceCount(); i++) made->push_back({i});
    return made;
  }();
  bool known = device >= 0 && static_cast<size_t>(device) < all->size();
  return known ? &(*all)[device] : nullptr;
}

// A thread's own state is gone when it ends, and with the main thread the driver: who calls it
// then, from a destructor, writes into memory that is somebody else's.
std::vector<Context*>& Pushed() {
  thread_local bool ended = false;
  struct Own {
    std::vector<Context*> pushed;
    ~Own() { ended = true; }
  };
  thread_local Own own;
  if (ended) {
    fprintf(stderr, "[fake_gpu] driver: called by a thread that has ended\n");
    abort();
  }
  return own.pushed;
}

Context* Current() { return Pushed().empty() ? ContextOf(ComputingOn()) : Pushed().back(); }

Result Refuse(Result result, const char* what) {
  fprintf(stderr, "[fake_gpu] driver: %s\n", what);
  Log("driver refused: %s", what);
  return result;
}

SP_Stream StreamIn(void* handle) {
  if (handle != nullptr) return static_cast<SP_Stream>(handle);
  static std::mutex mutex;
  static auto* made = new std::map<Context*, SP_Stream>;
  std::lock_guard<std::mutex> lock(mutex);
  SP_Stream& stream = (*made)[Current()];
  if (stream == nullptr) stream = new SP_Stream_st(Current()->device);
  return stream;
}

// Work that a stream was given while it was captured, to be given again.
struct Graph {
  struct Work {
    std::string name;
    std::function<void()> run;
    int64_t cost;
  };
  std::vector<Work> works;
};
std::mutex capture_mutex;
std::map<SP_Stream, Graph*> captures;

Graph* CaptureOf(SP_Stream stream) {
  std::lock_guard<std::mutex> lock(capture_mutex);
  auto found = captures.find(stream);
  return found == captures.end() ? nullptr : found->second;
}

void Put(SP_Stream stream, const std::string& name, std::function<void()> run, int64_t cost) {
  Graph* graph = CaptureOf(stream);
  if (graph == nullptr) return stream->Push(name.c_str(), std::move(run), cost);
  graph->works.push_back({name, std::move(run), cost});
}

bool FindTwin(const CubinImage& image, Twin* twin) {
  std::string names;
  for (auto& [name, kernel] : image.kernels) names += name + "\n";
  const char* path = find_twin == nullptr ? "" : find_twin(names.c_str());
  twin->library = *path == '\0' ? nullptr : dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (twin->library == nullptr) return false;
  twin->launch = reinterpret_cast<decltype(twin->launch)>(dlsym(twin->library, "emulated_launch"));
  twin->dynamic =
      reinterpret_cast<decltype(twin->dynamic)>(dlsym(twin->library, "emulated_dynamic"));
  return twin->launch != nullptr && twin->dynamic != nullptr;
}

int Blocks(const Function& function, int threads, size_t dynamic) {  // on one multiprocessor, sm_90
  size_t shared = function.image.shared_bytes + dynamic + 1024;
  int blocks = std::min(32, 2048 / threads), warps = (threads + 31) / 32;
  int registers = std::max(function.image.registers, 1);
  blocks = std::min(blocks, 65536 / (registers * 32 * warps));
  return std::min<int>(blocks, static_cast<int>(233472 / shared));
}

Result Launch(Function* function, unsigned grid, unsigned threads, unsigned shared, void* handle,
              void** parameters, bool cooperative) {
  if (Current() == nullptr) return Refuse(kInvalidContext, "a launch without a current context");
  if (failed) return kLaunchFailed;
  if (function->module->context != Current()) {
    return Refuse(kInvalidHandle, "a launch in another context than the module's");
  }
  if (grid == 0 || threads == 0) return Refuse(kInvalidValue, "a launch of nothing");
  if (static_cast<int>(threads) > function->image.max_threads) return kTooManyResources;
  if (static_cast<int>(shared) > function->dynamic_limit) {
    return Refuse(kInvalidValue, "more dynamic shared memory than was asked for");
  }
  std::vector<std::string> given;  // as they are now
  for (size_t i = 0; i < function->image.parameter_sizes.size(); i++) {
    given.emplace_back(static_cast<char*>(parameters[i]), function->image.parameter_sizes[i]);
  }
  bool astray = false;  // a word that can only be an address, and is none of this device
  for (const std::string& one : given) {
    for (size_t at = 0; at + 8 <= one.size(); at += 8) {
      uint64_t word = 0;
      memcpy(&word, one.data() + at, 8);
      bool address = word >> 32 != 0 && word >> 47 == 0;
      astray |= address && !OnDevice(reinterpret_cast<void*>(word));
    }
  }
  auto run = [=] {
    if (astray) {
      failed = true;
      fprintf(stderr, "[fake_gpu] kernel %s was given an address of the host\n",
              function->name.c_str());
      return;
    }
    std::vector<const void*> arguments;
    for (const std::string& one : given) arguments.push_back(one.data());
    GivenLaunch launch = {{grid, 1, 1}, {threads, 1, 1}, shared, 232448, 0, 0, cooperative, 0, 0};
    char findings[kMostFindings * kFindingBytes];
    std::lock_guard<std::mutex> lock(emulator);
    const Twin& twin = function->module->twin;
    auto* pointers = const_cast<void* const*>(arguments.data());
    int found = twin.launch(function->entry, twin.dynamic, pointers, &launch, nullptr, findings);
    if (found == 0) return;
    failed = true;
    fprintf(stderr, "[fake_gpu] kernel %s: %d findings of the emulator, the first of kind %d\n",
            function->name.c_str(), found, *reinterpret_cast<int32_t*>(findings));
  };
  static const int64_t cost = Number("FAKE_GPU_KERNEL_US", 10);
  Put(StreamIn(handle), function->name, run, cost);
  return kSuccess;
}

}  // namespace
}  // namespace fake_gpu

using namespace fake_gpu;  // NOLINT

// What the loader of the fake GPU gives: names, a newline after each, to the path of their twin.
FAKE_API void fake_gpu_set_kernels(const char* (*find)(const char*)) { find_twin = find; }

// What the shim asks: the stream of a kernel of the fake device, whose context is current then.
FAKE_API void* fake_gpu_stream(void* kernel) {
  TF_Status* status = TF_NewStatus();
  SP_Stream stream = TF_GetStream(static_cast<TF_OpKernelContext*>(kernel), status);
  bool good = TF_GetCode(status) == TF_OK && stream != nullptr;
  TF_DeleteStatus(status);
  if (!good) return nullptr;
  ComputingOn() = stream->device;
  return stream;
}

FAKE_API int cuInit(unsigned) { return DeviceCount() == 0 ? standin::kNoDevice : kSuccess; }
FAKE_API int cuDriverGetVersion(int* version) {
  return *version = static_cast<int>(Number("FAKE_GPU_DRIVER", 12090)), kSuccess;
}
FAKE_API int cuDeviceGet(int* device, int number) {
  if (ContextOf(number) == nullptr) return kInvalidDevice;
  return *device = number, kSuccess;
}
FAKE_API int cuDeviceGetAttribute(int* value, int attribute, int device) {
  if (ContextOf(device) == nullptr) return kInvalidDevice;
  const char* told = getenv("FAKE_GPU_CAPABILITY");
  int major = 9, minor = 0;
  if (told != nullptr) sscanf(told, "%d.%d", &major, &minor);
  switch (attribute) {
    case 8: return *value = 49152, kSuccess;  // shared memory a block
    case 16: return *value = static_cast<int>(Number("FAKE_GPU_MULTIPROCESSORS", 4)), kSuccess;
    case 75: return *value = major, kSuccess;
    case 76: return *value = minor, kSuccess;
    case 95: return *value = 1, kSuccess;  // cooperative launches
    case 97: return *value = 232448, kSuccess;  // shared memory a block that asks for it
    case 133: return *value = Number("FAKE_GPU_SERVICE", 0) != 0, kSuccess;
  }
  return Refuse(kInvalidValue, "an attribute of the device that is not here");
}

FAKE_API int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = ContextOf(device);
  return *context == nullptr ? kInvalidDevice : kSuccess;
}
FAKE_API int cuDevicePrimaryCtxRelease_v2(int) { return kSuccess; }
FAKE_API int cuCtxPushCurrent_v2(void* context) {
  return Pushed().push_back(static_cast<Context*>(context)), kSuccess;
}
FAKE_API int cuCtxPopCurrent_v2(void** context) {
  if (Pushed().empty()) return kInvalidContext;
  *context = Pushed().back();
  return Pushed().pop_back(), kSuccess;
}
FAKE_API int cuCtxGetCurrent(void** context) { return *context = Current(), kSuccess; }
FAKE_API int cuCtxGetDevice(int* device) {
  if (Current() == nullptr) return kInvalidContext;
  return *device = Current()->device, kSuccess;
}
FAKE_API int cuCtxGetId(void* context, unsigned long long* id) {
  return *id = static_cast<Context*>(context)->device + 1, kSuccess;
}
FAKE_API int cuCtxSynchronize() { return DrainAll(), failed ? kLaunchFailed : kSuccess; }

FAKE_API int cuModuleLoadData(void** module, const void* image) {
  if (Number("FAKE_GPU_CRASH", 0) != 0) abort();
  auto* made = new Module{Current(), {}, {}};
  if (Current() == nullptr) return Refuse(kInvalidContext, "a module without a current context");
  if (!standin::ReadCubin(static_cast<const char*>(image), &made->image)) return kInvalidImage;
  int major = 0, minor = 0;
  cuDeviceGetAttribute(&major, 75, made->context->device);
  cuDeviceGetAttribute(&minor, 76, made->context->device);
  if (!standin::Suits(made->image, major, minor)) return kNoBinary;
  if (!FindTwin(made->image, &made->twin)) return Refuse(kInvalidImage, "a module without a twin");
  return *module = made, kSuccess;
}
FAKE_API int cuModuleUnload(void*) { return DrainAll(), kSuccess; }  // and kept
FAKE_API int cuModuleGetFunction(void** function, void* handle, const char* name) {
  auto* module = static_cast<Module*>(handle);
  auto found = module->image.kernels.find(name);
  void* entry = dlsym(module->twin.library, (std::string("emulated_entry_") + name).c_str());
  if (found == module->image.kernels.end() || entry == nullptr) return kNotFound;
  int limit = 49152 - static_cast<int>(found->second.shared_bytes);
  *function = new Function{module, name, found->second, reinterpret_cast<Entry>(entry), limit};
  return kSuccess;
}
FAKE_API int cuFuncGetAttribute(int* value, int attribute, void* handle) {
  const KernelImage& image = static_cast<Function*>(handle)->image;
  switch (attribute) {
    case 0: return *value = image.max_threads, kSuccess;
    case 1: return *value = static_cast<int>(image.shared_bytes), kSuccess;
    case 3: return *value = 0, kSuccess;
    case 4: return *value = image.registers, kSuccess;
  }
  return Refuse(kInvalidValue, "an attribute of a kernel that is not here");
}
FAKE_API int cuFuncSetAttribute(void* handle, int attribute, int value) {
  auto* function = static_cast<Function*>(handle);
  if (attribute != 8 || value + function->image.shared_bytes > 232448) return kInvalidValue;
  return function->dynamic_limit = value, kSuccess;
}
FAKE_API int cuFuncGetParamInfo(void* handle, size_t index, size_t* offset, size_t* size) {
  const KernelImage& image = static_cast<Function*>(handle)->image;
  if (index >= image.parameter_sizes.size()) return kInvalidValue;
  *offset = image.parameter_offsets[index];
  return *size = image.parameter_sizes[index], kSuccess;
}
FAKE_API int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void* handle, int threads,
                                                         size_t shared) {
  return *blocks = Blocks(*static_cast<Function*>(handle), threads, shared), kSuccess;
}
FAKE_API int cuLaunchKernel(void* function, unsigned x, unsigned, unsigned, unsigned threads,
                            unsigned, unsigned, unsigned shared, void* stream, void** parameters,
                            void**) {
  return Launch(static_cast<Function*>(function), x, threads, shared, stream, parameters, false);
}
FAKE_API int cuLaunchCooperativeKernel(void* function, unsigned x, unsigned, unsigned,
                                       unsigned threads, unsigned, unsigned, unsigned shared,
                                       void* stream, void** parameters) {
  return Launch(static_cast<Function*>(function), x, threads, shared, stream, parameters, true);
}

FAKE_API int cuMemAlloc_v2(unsigned long long* address, size_t bytes) {
  void* data = DeviceAllocate(bytes);
  Touching fresh;
  memset(data, 0xa5, bytes);
  return *address = reinterpret_cast<unsigned long long>(data), kSuccess;
}
FAKE_API int cuMemFree_v2(unsigned long long address) {
  return DrainAll(), DeviceFree(reinterpret_cast<void*>(address)), kSuccess;
}
FAKE_API int cuMemHostAlloc(void** address, size_t bytes, unsigned) {
  return *address = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096), kSuccess;
}
FAKE_API int cuMemFreeHost(void* address) { return DrainAll(), free(address), kSuccess; }
FAKE_API int cuMemcpyHtoDAsync_v2(unsigned long long to, const void* from, size_t bytes,
                                  void* stream) {
  if (!OnDevice(reinterpret_cast<void*>(to)) || OnDevice(from)) {
    return Refuse(kInvalidValue, "a copy to the device that is none");
  }
  auto copy = [=] { memcpy(reinterpret_cast<void*>(to), from, bytes); };
  return Put(StreamIn(stream), "cuMemcpyHtoD", copy, 0), kSuccess;
}
FAKE_API int cuMemcpyDtoHAsync_v2(void* to, unsigned long long from, size_t bytes, void* stream) {
  if (OnDevice(to) || !OnDevice(reinterpret_cast<void*>(from))) {
    return Refuse(kInvalidValue, "a copy to the host that is none");
  }
  auto copy = [=] { memcpy(to, reinterpret_cast<void*>(from), bytes); };
  return Put(StreamIn(stream), "cuMemcpyDtoH", copy, 0), kSuccess;
}
FAKE_API int cuMemsetD32Async(unsigned long long address, unsigned value, size_t count,
                              void* stream) {
  auto fill = [=] { std::fill_n(reinterpret_cast<unsigned*>(address), count, value); };
  return Put(StreamIn(stream), "cuMemsetD32", fill, 0), kSuccess;
}

FAKE_API int cuEventCreate(void** event, unsigned) { return *event = new Event, kSuccess; }
FAKE_API int cuEventRecord(void* event, void* stream) {
  return static_cast<Event*>(event)->mark = StreamIn(stream)->Record(), kSuccess;
}
FAKE_API int cuEventQuery(void* event) {
  auto mark = static_cast<Event*>(event)->mark;
  return mark == nullptr || mark->Passed() ? kSuccess : kNotReady;
}
FAKE_API int cuEventSynchronize(void* event) {
  if (auto mark = static_cast<Event*>(event)->mark) mark->Wait();
  return kSuccess;
}
FAKE_API int cuEventElapsedTime(float* milliseconds, void* start, void* end) {
  auto begun = static_cast<Event*>(start)->mark, ended = static_cast<Event*>(end)->mark;
  if (begun == nullptr || ended == nullptr) return kInvalidHandle;
  if (!begun->Passed() || !ended->Passed()) return kNotReady;
  return *milliseconds = (ended->nanoseconds - begun->nanoseconds) / 1e6f, kSuccess;
}
FAKE_API int cuEventDestroy_v2(void* event) { return delete static_cast<Event*>(event), kSuccess; }
FAKE_API int cuStreamGetId(void* stream, unsigned long long* id) {
  return *id = StreamIn(stream)->id, kSuccess;
}
FAKE_API int cuStreamSynchronize(void* stream) { return StreamIn(stream)->Drain(), kSuccess; }
FAKE_API int cuStreamIsCapturing(void* stream, int* status) {
  return *status = CaptureOf(StreamIn(stream)) != nullptr, kSuccess;
}
FAKE_API int cuStreamCreate(void** stream, unsigned) {
  if (Current() == nullptr) return kInvalidContext;
  return *stream = new SP_Stream_st(Current()->device), kSuccess;
}
FAKE_API int cuStreamDestroy_v2(void* stream) {
  return delete static_cast<SP_Stream>(stream), kSuccess;
}
FAKE_API int cuStreamBeginCapture_v2(void* stream, int) {
  std::lock_guard<std::mutex> lock(capture_mutex);
  return captures[static_cast<SP_Stream>(stream)] = new Graph, kSuccess;
}
FAKE_API int cuStreamEndCapture(void* stream, void** graph) {
  std::lock_guard<std::mutex> lock(capture_mutex);
  *graph = captures[static_cast<SP_Stream>(stream)];
  return captures.erase(static_cast<SP_Stream>(stream)), kSuccess;
}
FAKE_API int cuGraphInstantiateWithFlags(void** made, void* graph, unsigned long long) {
  return *made = new Graph(*static_cast<Graph*>(graph)), kSuccess;
}
FAKE_API int cuGraphLaunch(void* graph, void* stream) {
  for (auto& work : static_cast<Graph*>(graph)->works) {
    StreamIn(stream)->Push(work.name.c_str(), work.run, work.cost);
  }
  return kSuccess;
}
FAKE_API int cuGraphExecDestroy(void* graph) {
  return DrainAll(), delete static_cast<Graph*>(graph), kSuccess;
}
FAKE_API int cuGraphDestroy(void* graph) { return delete static_cast<Graph*>(graph), kSuccess; }
FAKE_API int cuThreadExchangeStreamCaptureMode(int*) { return kSuccess; }
FAKE_API int cuGetErrorName(int result, const char** text) {
  return *text = result == kLaunchFailed ? "CUDA_ERROR_LAUNCH_FAILED" : "error of the fake GPU",
         kSuccess;
}
FAKE_API int cuGetErrorString(int, const char** text) { return *text = "fake", kSuccess; }
