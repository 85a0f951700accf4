#include "gpu.h"

#include <stdio.h>

#include <map>
#include <mutex>

#include "cuda/context.h"
#include "exports.h"

namespace stitch {
namespace {

// Like libraries of CPU kernels, programs are never unloaded: kernel objects hold them.
struct Registry {
  std::mutex mutex;
  StitchCuda* cuda = nullptr;
  std::map<std::string, StitchProgram*> programs;
};

Registry& Instance() {
  static Registry* registry = new Registry;
  return *registry;
}

// The driver, opened where it is not yet: libcuda.so.1, or `path`.
int Open(Registry* registry, const char* path, StitchError* why) {
  if (registry->cuda != nullptr) return STITCH_OK;
  int reason = stitch_cuda_open(path, &registry->cuda, why);
  if (reason != STITCH_OK) registry->cuda = nullptr;
  return reason;
}

// An event of a context, which need not be current where the event is asked.
class StreamMark : public DeviceMark {
 public:
  StreamMark(const cuda::Driver& driver, cuda::Context context, cuda::Event event)
      : driver_(driver), context_(context), event_(event) {}
  ~StreamMark() override {
    cuda::ContextScope scope(driver_);
    if (!scope.Push(context_).failed()) driver_.EventDestroy(event_);
  }
  Known Since(const DeviceMark& earlier, int64_t* nanoseconds) const override {
    cuda::ContextScope scope(driver_);
    if (scope.Push(context_).failed()) return Known::kNever;
    cuda::Result passed = driver_.EventQuery(event_);
    if (passed == cuda::kNotReady) return Known::kNotYet;
    float milliseconds = 0;
    cuda::Event begin = static_cast<const StreamMark&>(earlier).event_;
    bool told = passed == cuda::kSuccess &&
                driver_.EventElapsedTime(&milliseconds, begin, event_) == cuda::kSuccess;
    *nanoseconds = static_cast<int64_t>(milliseconds * 1e6);
    return told ? Known::kYes : Known::kNever;
  }

 private:
  const cuda::Driver& driver_;
  const cuda::Context context_;
  const cuda::Event event_;
};

int Say(const StitchError& why, char* error, size_t error_size) {
  snprintf(error, error_size, "%s", why.text);
  return why.reason;
}

}  // namespace

StitchProgram* FindProgram(const std::string& key) {
  Registry& registry = Instance();
  std::lock_guard<std::mutex> lock(registry.mutex);
  auto found = registry.programs.find(key);
  return found == registry.programs.end() ? nullptr : found->second;
}

std::string RunOnGpu(StitchProgram* program, void* stream, const GpuBuffers& buffers,
                     const int64_t* symbols, int symbol_count, const StitchAllocator& allocator) {
  StitchError why{};
  StitchCall call{};
  call.device = -1;  // TensorFlow has made its context current around a kernel
  call.launches = -1;
  call.stream = stream;
  call.symbols = symbols;
  call.symbol_count = symbol_count;
  call.inputs = buffers.inputs;
  call.input_count = buffers.input_count;
  call.outputs = buffers.outputs;
  call.output_count = buffers.output_count;
  call.allocator = &allocator;
  if (stitch_run(program, &call, &why) == STITCH_OK) return "";
  return "launch failed (" + std::to_string(why.reason) + "): " + why.text;
}

Marker MarkerOf(void* stream) {
  Registry& registry = Instance();
  {
    std::lock_guard<std::mutex> lock(registry.mutex);
    StitchError why{};
    if (Open(&registry, nullptr, &why) != STITCH_OK) return {};
  }
  const cuda::Driver& driver = registry.cuda->driver;
  cuda::Context context = nullptr;
  if (driver.CtxGetCurrent(&context) != cuda::kSuccess || context == nullptr) return {};
  return [&driver, context, stream]() -> std::shared_ptr<DeviceMark> {
    cuda::ContextScope scope(driver);
    cuda::Event event = nullptr;
    if (scope.Push(context).failed() || driver.EventCreate(&event, 0) != cuda::kSuccess) return {};
    auto mark = std::make_shared<StreamMark>(driver, context, event);
    bool recorded = driver.EventRecord(event, static_cast<cuda::Stream>(stream)) == cuda::kSuccess;
    return recorded ? mark : nullptr;
  };
}

}  // namespace stitch

int stitch_open_gpu(const char* driver, char* error, size_t error_size) {
  auto& registry = stitch::Instance();
  std::lock_guard<std::mutex> lock(registry.mutex);
  StitchError why{};
  if (stitch::Open(&registry, driver, &why) == STITCH_OK) return STITCH_OK;
  return stitch::Say(why, error, error_size);
}

int stitch_register_program(const char* key, const char* table, size_t size, int device,
                            char* error, size_t error_size) {
  auto& registry = stitch::Instance();
  std::lock_guard<std::mutex> lock(registry.mutex);
  StitchError why{};
  if (registry.cuda == nullptr) {
    snprintf(error, error_size, "the driver has not been opened");
    return STITCH_NO_DRIVER;
  }
  StitchProgram* program = nullptr;
  auto found = registry.programs.find(key);
  if (found != registry.programs.end()) {
    program = found->second;
  } else if (stitch_program_load(registry.cuda, table, size, &program, &why) != STITCH_OK) {
    return stitch::Say(why, error, error_size);
  }
  if (stitch_program_prepare(program, device, &why) != STITCH_OK) {
    if (found == registry.programs.end()) {
      StitchError ignored{};
      stitch_program_unload(program, &ignored);
    }
    return stitch::Say(why, error, error_size);
  }
  registry.programs[key] = program;
  return STITCH_OK;
}
