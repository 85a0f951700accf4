#include "program.h"

#include <algorithm>
#include <string>

namespace stitch::cuda {

Error Loaded::LoadModule(int number, LoadedModule* loaded) {
  const Cubin* chosen = nullptr;
  std::string offered;
  for (const Cubin& cubin : table_.modules[number].cubins) {
    offered += " sm_" + std::to_string(cubin.major) + std::to_string(cubin.minor);
    // A cubin runs on devices of its own major number and of no lower minor one.
    if (cubin.major != context_->major || cubin.minor > context_->minor) continue;
    if (chosen == nullptr || cubin.minor > chosen->minor) chosen = &cubin;
  }
  std::string device = "sm_" + std::to_string(context_->major) + std::to_string(context_->minor);
  if (chosen == nullptr) {
    return {STITCH_NO_CUBIN, "no cubin for this " + device + ", only for" + offered};
  }
  Module module = nullptr;
  Result result = driver_.ModuleLoadData(&module, table_.blob.data() + chosen->offset);
  StitchReason reason = STITCH_BAD_MODULE;
  if (result == kNewerPtx) reason = STITCH_OLD_DRIVER;
  if (result == kNoBinary || result == kCompilerNotFound || result == kCompilationDisabled) {
    reason = STITCH_NO_CUBIN;
  }
  Error error = Judge(driver_, result, "cuModuleLoadData on " + device, reason);
  if (error.failed()) return error;
  *loaded = {module, chosen->minor};
  return {};
}

// The driver reads as many bytes as the cubin says: they must be those that we give.
Error Loaded::CheckParameter(const KernelEntry& entry, Function function) {
  if (driver_.FuncGetParamInfo == nullptr) return {};
  size_t offset = 0, size = 0, given = entry.words > kParameterWords ? 8 : 8 * entry.words;
  Error error = Judge(driver_, driver_.FuncGetParamInfo(function, 0, &offset, &size),
                      "cuFuncGetParamInfo of " + entry.name, STITCH_BAD_MODULE);
  if (error.failed()) return error;
  size_t second = 0;
  bool more = driver_.FuncGetParamInfo(function, 1, &offset, &second) == kSuccess;
  if (!more && size == given) return {};
  return {STITCH_BAD_MODULE, entry.name + " takes " + (more ? "several parameters" :
          std::to_string(size) + " bytes") + ", the table has " + std::to_string(given)};
}

Error Loaded::CheckResources(const KernelEntry& entry, LoadedKernel* kernel) {
  int threads = 0;
  const std::pair<int, int*> attributes[] = {{kMaxThreads, &threads},
                                             {kStaticShared, &kernel->static_shared},
                                             {kLocalBytes, &kernel->local_bytes},
                                             {kRegisters, &kernel->registers}};
  for (auto [attribute, value] : attributes) {
    Error error = Judge(driver_, driver_.FuncGetAttribute(value, attribute, kernel->function),
                        "cuFuncGetAttribute of " + entry.name);
    if (error.failed()) return error;
  }
  int64_t shared = int64_t{kernel->static_shared} + entry.shared_bytes;
  if (shared > context_->shared_limit) {
    return {STITCH_SHARED_MEMORY, entry.name + " needs " + std::to_string(shared) +
                                      " bytes of shared memory a block, the device has " +
                                      std::to_string(context_->shared_limit)};
  }
  if (entry.threads > threads) {
    return {STITCH_RESOURCES, entry.name + " needs blocks of " + std::to_string(entry.threads) +
                                  " threads, its registers allow " + std::to_string(threads)};
  }
  if (shared > context_->shared_default) {
    Error error = Judge(
        driver_,
        driver_.FuncSetAttribute(kernel->function, kMaxDynamicShared, entry.shared_bytes),
        "cuFuncSetAttribute of " + entry.name, STITCH_SHARED_MEMORY);
    if (error.failed()) return error;
  }
  return Judge(driver_,
               driver_.OccupancyMaxActiveBlocksPerMultiprocessor(
                   &kernel->blocks, kernel->function, entry.threads, entry.shared_bytes),
               "cuOccupancyMaxActiveBlocksPerMultiprocessor of " + entry.name);
}

Error Loaded::LoadKernel(const KernelEntry& entry, LoadedKernel* kernel) {
  if (entry.cooperative && (!context_->cooperative || context_->shared_by_service)) {
    return {STITCH_COOPERATIVE,
            entry.name + " needs a cooperative launch, " +
                (context_->cooperative ? "which is not safe under the multi-process service"
                                       : "which this device does not have")};
  }
  LoadedModule& module = modules_[entry.module];
  if (module.module == nullptr) {
    Error error = LoadModule(entry.module, &module);
    if (error.failed()) return error;
  }
  LoadedKernel made;
  made.minor = module.minor;
  Error error = Judge(
      driver_, driver_.ModuleGetFunction(&made.function, module.module, entry.name.c_str()),
      "cuModuleGetFunction of " + entry.name, STITCH_BAD_MODULE);
  if (!error.failed()) error = CheckParameter(entry, made.function);
  if (!error.failed()) error = CheckResources(entry, &made);
  if (error.failed()) return error;
  if (made.blocks < 1) {
    return {STITCH_RESOURCES, "no block of " + entry.name + " fits a multiprocessor"};
  }
  made.wave = int64_t{made.blocks} * context_->multiprocessors;
  *kernel = made;
  return {};
}

Error Loaded::Get(int number, LoadedKernel* loaded) {
  std::lock_guard<std::mutex> lock(mutex_);
  LoadedKernel& kernel = kernels_[number];
  if (kernel.function == nullptr) {
    Error error = LoadKernel(table_.kernels[number], &kernel);
    if (error.failed()) return error;
  }
  *loaded = kernel;
  return {};
}

void Loaded::KeepCaptured(std::unique_ptr<PinnedBlock> block) {
  std::lock_guard<std::mutex> lock(mutex_);
  captured_.push_back(std::move(block));
}

Error Loaded::Unload() {
  if (context_->gone) return {};
  ContextScope scope(driver_);
  Error error = scope.Push(context_->handle);
  if (error.reason == STITCH_NO_CONTEXT) return {};
  if (error.failed()) return error;
  driver_.CtxSynchronize();
  for (LoadedModule& module : modules_) {
    if (module.module != nullptr) driver_.ModuleUnload(module.module);
  }
  for (auto& block : captured_) context_->pinned.GiveBackIdle(std::move(block));
  return {};
}

}  // namespace stitch::cuda

using stitch::cuda::ContextScope;
using stitch::cuda::ContextState;
using stitch::cuda::Error;
using stitch::cuda::Judge;
using stitch::cuda::Loaded;
using stitch::cuda::LoadedKernel;

std::shared_ptr<Loaded> StitchProgram::In(const std::shared_ptr<ContextState>& context) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (size_t i = loaded_.size(); i-- > 0;) {
    if (loaded_[i]->context() == context.get()) return loaded_[i];
    if (loaded_[i]->context()->gone) loaded_.erase(loaded_.begin() + static_cast<int64_t>(i));
  }
  loaded_.push_back(std::make_shared<Loaded>(cuda->driver, table, context));
  return loaded_.back();
}

Error StitchProgram::Unload() {
  std::lock_guard<std::mutex> lock(mutex_);
  while (!loaded_.empty()) {
    Error error = loaded_.back()->Unload();
    if (error.failed()) return error;
    loaded_.pop_back();
  }
  return {};
}

Error StitchProgram::Prepare(int device) {
  ContextScope scope(cuda->driver);
  std::shared_ptr<ContextState> context;
  Error error = cuda->Enter(device, &scope, &context);
  if (error.failed()) return error;
  std::shared_ptr<Loaded> loaded = In(context);
  for (size_t i = 0; i < table.kernels.size(); i++) {
    LoadedKernel kernel;
    error = loaded->Get(static_cast<int>(i), &kernel);
    if (error.failed()) return error;
  }
  return {};
}

Error StitchProgram::Info(int device, int number, StitchKernelInfo* info) {
  if (number < 0 || static_cast<size_t>(number) >= table.kernels.size()) {
    return {STITCH_BAD_CALL, "there is no kernel " + std::to_string(number)};
  }
  ContextScope scope(cuda->driver);
  std::shared_ptr<ContextState> context;
  Error error = cuda->Enter(device, &scope, &context);
  LoadedKernel kernel;
  if (!error.failed()) error = In(context)->Get(number, &kernel);
  if (error.failed()) return error;
  *info = {kernel.registers, kernel.static_shared,     kernel.local_bytes,
           kernel.blocks,    context->multiprocessors, kernel.minor};
  return {};
}

Error StitchChecks::Wait(StitchCheck* found) {
  ContextScope scope(cuda->driver);
  Error error;
  if (context->gone) error = {STITCH_NO_CONTEXT, "the context of the run is gone"};
  if (!error.failed()) error = scope.Push(context->handle);
  if (!error.failed()) {
    error = Judge(cuda->driver, cuda->driver.EventSynchronize(block->event), "cuEventSynchronize");
  }
  *found = {-1, 0, 0, 0};
  const auto* ranges = reinterpret_cast<const int64_t*>(block->data + offset);
  for (size_t i = 0; i < launches.size() && !error.failed(); i++) {
    for (int64_t check = 0; check < launches[i].count && found->launch < 0; check++) {
      const int64_t* range = ranges + 2 * (launches[i].first + check);
      if (range[0] > range[1]) continue;
      *found = {launches[i].launch, static_cast<int32_t>(check), range[0], range[1]};
    }
  }
  block->lost = error.failed();
  context->pinned.GiveBackIdle(std::move(block));
  return error;
}
