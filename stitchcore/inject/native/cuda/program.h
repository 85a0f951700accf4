// A launch table and its kernels, as they are loaded in each context.
#ifndef STITCH_CUDA_PROGRAM_H_
#define STITCH_CUDA_PROGRAM_H_

#include <memory>
#include <mutex>
#include <vector>

#include "context.h"
#include "table.h"

namespace stitch::cuda {

struct LoadedKernel {
  Function function = nullptr;  // nullptr: not loaded yet
  int blocks = 0;               // resident at once on a multiprocessor
  int64_t wave = 0;             // on the device
  int registers = 0, static_shared = 0, local_bytes = 0, minor = 0;
};

// A program's kernels in one context. Loads need the context to be current.
class Loaded {
 public:
  Loaded(const Driver& driver, const Table& table, std::shared_ptr<ContextState> context)
      : driver_(driver),
        table_(table),
        context_(std::move(context)),
        modules_(table.modules.size()),
        kernels_(table.kernels.size()) {}

  Error Get(int kernel, LoadedKernel* loaded);
  // Keeps a block that a captured graph reads at each of its launches.
  void KeepCaptured(std::unique_ptr<PinnedBlock> block);
  // Waits for the context and unloads. Where it cannot be entered now, nothing has changed.
  Error Unload();
  ContextState* context() const { return context_.get(); }

 private:
  struct LoadedModule {
    Module module = nullptr;
    int minor = 0;
  };
  Error LoadModule(int module, LoadedModule* loaded);
  Error LoadKernel(const KernelEntry& entry, LoadedKernel* kernel);
  Error CheckParameter(const KernelEntry& entry, Function function);
  Error CheckResources(const KernelEntry& entry, LoadedKernel* kernel);

  const Driver& driver_;
  const Table& table_;
  std::shared_ptr<ContextState> context_;
  std::mutex mutex_;
  std::vector<LoadedModule> modules_;
  std::vector<LoadedKernel> kernels_;
  std::vector<std::unique_ptr<PinnedBlock>> captured_;
};

}  // namespace stitch::cuda

struct StitchProgram {
  explicit StitchProgram(StitchCuda* owner) : cuda(owner) {}
  // The program in a context, made when it is not there yet.
  std::shared_ptr<stitch::cuda::Loaded> In(
      const std::shared_ptr<stitch::cuda::ContextState>& context);
  stitch::cuda::Error Unload();
  stitch::cuda::Error Prepare(int device);
  stitch::cuda::Error Info(int device, int kernel, StitchKernelInfo* info);

  StitchCuda* cuda;
  stitch::cuda::Table table;

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<stitch::cuda::Loaded>> loaded_;
};

// Ranges of values that the checks of a run report, on their way to pinned memory.
struct StitchChecks {
  struct Of {
    int launch;
    int64_t first, count;
  };
  stitch::cuda::Error Wait(StitchCheck* found);

  StitchCuda* cuda;
  std::shared_ptr<stitch::cuda::ContextState> context;
  std::unique_ptr<stitch::cuda::PinnedBlock> block;  // its event: the copy has ended
  size_t offset;                                     // of the ranges in the block
  std::vector<Of> launches;
};

namespace stitch::cuda {
Error Run(StitchProgram* program, const StitchCall& call);
// Bytes that a run's arena must have.
Error ArenaBytes(const Table& table, const int64_t* symbols, uint64_t* bytes);
// Where a region lies in an arena of `arena` bytes.
Error FindRegion(const Table& table, int64_t region, const int64_t* symbols, uint64_t arena,
                 uint64_t* offset, uint64_t* bytes);
}  // namespace stitch::cuda

#endif  // STITCH_CUDA_PROGRAM_H_
