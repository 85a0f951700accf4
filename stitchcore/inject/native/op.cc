// The StitchedFusion kernel, through TensorFlow's C API: one call runs one stitched kernel, on a
// CPU by TensorFlow's threads, on a GPU in TensorFlow's stream.
// StitchedUpdate is the same op registered as stateful, for kernels that write variables: nobody
// may prune or merge it. StitchTimer marks a pass of a training step (timer.cc), StitchGate that a
// call is about to do what cannot be done twice.
//
// A kernel that cannot run does not fail the user's step. All that may go wrong is tried before the
// kernel's first instruction; where something does, a function of TensorFlow's own operations gets
// the same inputs and makes the same results (Fallback), and the failure is put on record.
#include "op.h"

#include <string.h>

#include <array>
#include <atomic>
#include <string>
#include <vector>

#include "exports.h"
#include "failures.h"
#include "faults.h"
#include "fusion.h"
#include "huge.h"
#include "launch.h"
#include "pool.h"
#include "shim.h"
#include "tensorflow/c/kernels.h"
#include "tensorflow/c/tf_tensor.h"
#include "threads.h"
#include "timer.h"

namespace stitch {
namespace {

std::atomic<int64_t> forwarded_outputs{0}, in_place_updates{0}, calls_left{0};

// Room for `N` values without allocation, more when needed.
template <typename T, size_t N>
class Small {
 public:
  explicit Small(size_t size) : size_(size) {
    if (size > N) heap_.resize(size);
    data_ = size > N ? heap_.data() : fixed_.data();
    for (size_t i = 0; i < size; i++) data_[i] = T{};
  }
  Small(const Small&) = delete;
  T& operator[](size_t i) { return data_[i]; }
  T* data() { return data_; }
  size_t size() const { return size_; }

 private:
  size_t size_;
  std::array<T, N> fixed_;
  std::vector<T> heap_;
  T* data_;
};

constexpr char kGuard[] = "guard: input ";  // begins failures that are of shapes (plugin.py)

void ReleasePooled(void* data, size_t, void*) { PoolRelease(data); }

// Where TensorFlow's own allocator keeps freed memory, every large buffer comes from it: it faults
// no page in after the first steps either, and original and stitched steps share the memory.
// Measured: peak 1.03-1.07 of the untouched job's with the pool, 1.01 without, and no slower.
bool UsePool(TF_OpKernelContext* context) {
  static const bool pool = Shim() == nullptr || !Shim()->allocator_keeps(context);
  return pool;
}

// From this size on oneDNN's allocator takes memory from its regions, below it from malloc.
constexpr size_t kRegionBytes = size_t{256} << 10;
constexpr StitchMemory kMemory = {PoolAllocate, PoolRelease, kRegionBytes};
constexpr StitchMemory kDeviceMemory = {nullptr, nullptr, SIZE_MAX};  // a GPU's has its own

// One execution. Everything it holds is let go by the destructor, whatever happened.
class Call {
 public:
  Call(Fusion* fusion, TF_OpKernelContext* context)
      : fusion_(*fusion),
        table_(fusion->table),
        context_(context),
        symbols_(table_.symbols.size()),
        dims_(table_.results.size() * kMaxRank),
        inputs_(fusion->input_types.size()),
        outputs_(fusion->outputs.size()),
        from_pool_(fusion->outputs.size()),
        variables_(fusion->variables.size()),
        tasks_(table_.tasks.size()),
        bytes_(table_.operands.size() + table_.results.size()),
        buffers_(table_.operands.size() + table_.results.size()) {}

  ~Call() { Release(); }

  void Run() {
    if (fusion_.broken.empty() && !fusion_.retired->load(std::memory_order_relaxed)) {
      succeeded_ = Launch();
      if (succeeded_ || raised_) return;
    } else {
      why_ = fusion_.broken;
    }
    FallBack();
  }

 private:
  bool on_gpu() const { return fusion_.program != nullptr; }
  bool Pools() { return !on_gpu() && UsePool(context_); }
  // A buffer of the kernel. TensorFlow's kept memory has small pages; the pool's has huge ones.
  void Use(size_t buffer, void* data, size_t bytes) {
    buffers_[buffer] = data;
    bytes_[buffer] = bytes;
    if (!on_gpu() && bytes >= kHugeBytes && !Pools()) NoteForHugePages(data, bytes);
  }
  // Lets go of what the call holds; variables keep their old values unless it has succeeded.
  void Release() {
    if (session_ != nullptr) Shim()->close_variables(session_, succeeded_);
    if (scratch_ != nullptr) PoolRelease(scratch_);
    if (scratch_tensor_ != nullptr) TF_DeleteTensor(scratch_tensor_);
    for (size_t i = 0; i < inputs_.size(); i++) {
      if (inputs_[i] != nullptr) TF_DeleteTensor(inputs_[i]);
      inputs_[i] = nullptr;
    }
    for (size_t i = 0; i < outputs_.size(); i++) {
      if (outputs_[i] != nullptr) TF_DeleteTensor(outputs_[i]);
      outputs_[i] = nullptr;
    }
    session_ = scratch_ = nullptr;
    scratch_tensor_ = nullptr;
  }

  bool Launch() try {
    if (Fault("throw", fusion_.key)) throw std::bad_alloc();
    // Outputs come before inputs: an input that we hold cannot be forwarded.
    return BindSymbols() && ShapeResults() && OpenVariables() && CheckGuards() && CountTasks() &&
           (on_gpu() || MakeScratch()) && MakeOutputs() && TakeInputs() &&
           (on_gpu() ? Enqueue() : RunPhases()) && SetPooled();
  } catch (const std::exception& error) {
    return Fail(error.what());
  }

  void FallBack() {
    const Fallback& fallback = fusion_.fallback;
    Release();
    if (overwritten_ || fallback.function.empty()) {
      why_ = "stitch: " + why_;
      AddFailure(fusion_.key, why_);
      return Raise(TF_INTERNAL, why_);
    }
    if (!why_.empty()) AddFailure(fusion_.key, why_);
    if (!why_.empty() && why_.rfind(kGuard, 0) != 0) *fusion_.retired = true;
    std::vector<char> error(size_t{1} << 20);  // TensorFlow tells all labels where one is wrong
    int code = Shim()->call_function(
        context_, fallback.function.c_str(), fallback.arguments.data(),
        static_cast<int>(fallback.arguments.size()), forwarded_.data(),
        static_cast<int>(forwarded_.size()), fallback.takers.data(),
        static_cast<int>(fallback.takers.size()), error.data(), error.size());
    if (code != TF_OK) return Raise(static_cast<TF_Code>(code), error.data());
    calls_left.fetch_add(1, std::memory_order_relaxed);
  }

  void Raise(TF_Code code, const std::string& message) {
    raised_ = true;
    TF_SetStatus(status_.status, code, message.c_str());
    TF_OpKernelContext_Failure(context_, status_.status);
  }

  bool Fail(const std::string& message) {
    if (why_.empty()) why_ = message;
    return false;
  }
  // The data's fault, as in the operation that the kernel stands for: no failure of ours to count.
  // The operation itself says so in its own words, unless what it would read is written over.
  bool FailCheck(int64_t result) {
    size_t error = (result & 255) - 1;
    if (error >= fusion_.errors.size()) return Fail("the kernel gave " + std::to_string(result));
    if (!overwritten_ && !fusion_.fallback.function.empty()) return false;
    std::string message = fusion_.errors[error];
    size_t place = message.find("{}");
    if (place != std::string::npos) message.replace(place, 2, std::to_string(result >> 8));
    Raise(TF_INVALID_ARGUMENT, message);
    return false;
  }
  bool Check() { return status_.ok() || Fail(TF_Message(status_.status)); }
  int64_t* Dims(size_t result) { return dims_.data() + result * kMaxRank; }

  bool BindSymbols() {
    for (size_t i = 0; i < table_.symbols.size(); i++) {
      const Symbol& symbol = table_.symbols[i];
      TF_Tensor* tensor = nullptr;
      TF_GetInput(context_, symbol.input, &tensor, status_.status);
      if (!Check()) return false;
      bool has_axis = symbol.axis < TF_NumDims(tensor);
      int64_t extent = has_axis ? TF_Dim(tensor, symbol.axis) - symbol.offset : -1;
      TF_DeleteTensor(tensor);
      if (!has_axis || extent < 0 || extent % symbol.scale != 0) {
        return Fail(kGuard + std::to_string(symbol.input) + " does not fit its symbol");
      }
      symbols_[i] = extent / symbol.scale;
    }
    return true;
  }

  bool ShapeResults() {
    for (size_t i = 0; i < table_.results.size(); i++) {
      const std::vector<Program>& shape = table_.results[i].shape;
      for (size_t axis = 0; axis < shape.size(); axis++) {
        int64_t* extent = Dims(i) + axis;
        if (!Evaluate(shape[axis], symbols_.data(), extent) || *extent < 0) {
          return Fail("shape of result " + std::to_string(i));
        }
      }
    }
    return true;
  }

  void* FromPool(size_t bytes) {
    return Fault("pool", fusion_.key) ? nullptr : PoolAllocate(bytes);
  }

  void* Forward(const Output& output, int position, const int64_t* dims, int rank) {
    if (output.forward.empty() || Shim() == nullptr) return nullptr;
    StitchForwarded taken;
    void* data = Shim()->forward_input(context_, output.forward.data(),
                                       static_cast<int>(output.forward.size()), position, dims,
                                       rank, &taken);
    if (data == nullptr) return nullptr;
    forwarded_.push_back(taken);
    forwarded_outputs.fetch_add(1, std::memory_order_relaxed);
    return data;
  }

  bool MakeOutputs() {
    size_t first = table_.operands.size();
    for (size_t i = 0; i < table_.results.size(); i++) {
      const Result& result = table_.results[i];
      if (result.kind != Kind::kTensor) continue;
      const Output& output = fusion_.outputs[result.position];
      int rank = static_cast<int>(result.shape.size());
      size_t bytes = output.element_bytes;
      for (int axis = 0; axis < rank; axis++) {
        if (__builtin_mul_overflow(bytes, static_cast<size_t>(Dims(i)[axis]), &bytes)) {
          return Fail("output too large");
        }
      }
      TF_Tensor*& tensor = outputs_[result.position];
      void* pooled = nullptr;
      if (Fault("output", fusion_.key)) return Fail("a fault on purpose");
      // With a shim, an output that finds no input to take over may still come from the pool.
      if (void* data = bytes == 0 ? nullptr : Forward(output, result.position, Dims(i), rank)) {
        Use(first + i, data, bytes);
        continue;
      }
      if (!output.forward.empty() && Shim() == nullptr) {
        int taken = -1;
        tensor = TF_ForwardInputOrAllocateOutput(
            context_, output.forward.data(), static_cast<int>(output.forward.size()),
            result.position, Dims(i), rank, &taken, status_.status);
        if (taken >= 0) forwarded_outputs.fetch_add(1, std::memory_order_relaxed);
      } else if (output.pooled && bytes >= kPooledBytes && Pools() &&
                 (pooled = FromPool(bytes)) != nullptr) {
        tensor = TF_NewTensor(output.type, Dims(i), rank, pooled, bytes, ReleasePooled, nullptr);
        from_pool_[result.position] = true;
      } else {
        tensor = TF_AllocateOutput(context_, result.position, output.type, Dims(i), rank, bytes,
                                   status_.status);
      }
      if (!Check()) return false;
      Use(first + i, TF_TensorData(tensor), bytes);
    }
    return true;
  }

  bool TakeInputs() {
    for (size_t i = 0; i < inputs_.size(); i++) {
      if (!fusion_.needed[i]) continue;
      TF_GetInput(context_, static_cast<int>(i), &inputs_[i], status_.status);
      if (!Check()) return false;
    }
    for (size_t i = 0; i < table_.operands.size(); i++) {
      const Operand& operand = table_.operands[i];
      if (operand.kind != Kind::kTensor) continue;
      TF_Tensor* tensor = inputs_[operand.position];
      Use(i, TF_TensorData(tensor), TF_TensorByteSize(tensor));
    }
    return true;
  }

  bool OpenVariables() {
    if (fusion_.variables.empty()) return true;
    for (size_t i = 0; i < variables_.size(); i++) {
      const VariableUse& use = fusion_.variables[i];
      StitchVariable& variable = variables_[i];
      variable.op_input = use.op_input;
      variable.reads = use.operand >= 0;
      variable.writes = use.result >= 0;
      variable.in_place = use.in_place;
      if (!variable.writes) continue;
      variable.rank = static_cast<int>(table_.results[use.result].shape.size());
      memcpy(variable.dims, Dims(use.result), sizeof(int64_t) * variable.rank);
    }
    if (Fault("variables", fusion_.key)) return Fail("a fault on purpose");
    char error[256];
    session_ = Shim()->open_variables(context_, variables_.data(),
                                      static_cast<int>(variables_.size()),
                                      on_gpu() ? &kDeviceMemory : &kMemory, error, sizeof error);
    if (session_ == nullptr) return Fail(error);
    for (size_t i = 0; i < variables_.size(); i++) {
      const VariableUse& use = fusion_.variables[i];
      void* value = const_cast<void*>(variables_[i].value);
      if (use.operand >= 0) Use(use.operand, value, variables_[i].bytes);
      if (use.result < 0) continue;
      Use(table_.operands.size() + use.result, variables_[i].new_value, variables_[i].bytes);
      if (value == variables_[i].new_value) {
        updates_in_place_ = true;
        in_place_updates.fetch_add(1, std::memory_order_relaxed);
      }
    }
    return true;
  }

  // The shape an op input really has; variables are described by their session.
  const int64_t* ShapeOf(int op_input, int* rank, int64_t* storage) {
    for (size_t i = 0; i < variables_.size(); i++) {
      if (variables_[i].op_input != op_input) continue;
      *rank = variables_[i].value_rank;
      return variables_[i].value_dims;
    }
    TF_Tensor* tensor = nullptr;
    TF_GetInput(context_, op_input, &tensor, status_.status);
    if (!Check()) return storage;
    *rank = TF_NumDims(tensor) > kMaxRank ? -1 : TF_NumDims(tensor);
    for (int axis = 0; axis < *rank; axis++) storage[axis] = TF_Dim(tensor, axis);
    TF_DeleteTensor(tensor);
    return storage;
  }

  bool CheckGuards() {
    if (Fault("guard", fusion_.key)) return Fail(std::string(kGuard) + "a fault on purpose");
    for (const Guard& guard : table_.guards) {
      int rank = -1;
      int64_t storage[kMaxRank];
      const int64_t* dims = ShapeOf(guard.input, &rank, storage);
      bool fits = rank == static_cast<int>(guard.shape.size());
      for (int axis = 0; fits && axis < rank; axis++) {
        int64_t expected = 0;
        fits = Evaluate(guard.shape[axis], symbols_.data(), &expected) && dims[axis] == expected;
      }
      if (!fits) return Fail(kGuard + std::to_string(guard.input) + " has another shape");
    }
    return true;
  }

  bool CountTasks() {
    for (size_t phase = 0; phase < table_.tasks.size(); phase++) {
      if (!Evaluate(table_.tasks[phase], symbols_.data(), &tasks_[phase])) return Fail("tasks");
    }
    return true;
  }

  bool MakeScratch() {
    int64_t bytes = 0;
    if (!Evaluate(table_.scratch, symbols_.data(), &bytes) || bytes < 0) return Fail("scratch");
    if (bytes == 0) return true;
    if (Fault("scratch", fusion_.key)) return Fail("a fault on purpose");
    if (Pools() && (scratch_ = FromPool(bytes)) != nullptr) {
      scratch_data_ = static_cast<char*>(scratch_);
      return true;
    }
    scratch_data_ = Temporary(bytes, true);
    if (!Check()) return false;
    if (static_cast<size_t>(bytes) >= kHugeBytes) NoteForHugePages(scratch_data_, bytes);
    return true;
  }

  // Memory of TensorFlow's until the call ends; the status says why where there is none. Work that
  // a GPU has yet to do may go on using it: TensorFlow gives it to later work of the stream only.
  char* Temporary(int64_t bytes, bool on_host) {
    TF_AllocatorAttributes attributes{TF_ALLOCATOR_ATTRIBUTES_STRUCT_SIZE, on_host};
    scratch_tensor_ = TF_AllocateTemp(context_, TF_UINT8, &bytes, 1, &attributes, status_.status);
    return status_.ok() ? static_cast<char*>(TF_TensorData(scratch_tensor_)) : nullptr;
  }

  static uint64_t DeviceScratch(void* call, uint64_t bytes) {
    constexpr uint64_t kAlignment = 256;  // what an arena needs, and not every allocator gives
    auto* self = static_cast<Call*>(call);
    char* data = self->Temporary(static_cast<int64_t>(bytes + kAlignment), false);
    if (data == nullptr) return 0;
    return (reinterpret_cast<uint64_t>(data) + kAlignment - 1) / kAlignment * kAlignment;
  }
  static void Later(void*, uint64_t) {}  // the call's end lets its scratch go

  bool Enqueue() {
    void* stream = Shim()->gpu_stream(context_);
    if (stream == nullptr) return Fail("TensorFlow's device has no stream");
    GpuBuffers given;
    for (size_t i = 0; i < buffers_.size(); i++) {
      auto& side = i < table_.operands.size() ? given.inputs : given.outputs;
      side.push_back({reinterpret_cast<uint64_t>(buffers_[i]), bytes_[i]});
    }
    StitchAllocator allocator{DeviceScratch, Later, this};
    std::string error = RunOnGpu(fusion_.program, stream, given, symbols_.data(),
                                 static_cast<int>(symbols_.size()), allocator);
    return error.empty() || Fail(error);
  }

  bool RunPhases() {
    if (Fault("launch", fusion_.key)) return Fail("a fault on purpose");
    overwritten_ = !forwarded_.empty() || updates_in_place_;
    struct Launch launch{fusion_.kernel, buffers_.data(), symbols_.data(), scratch_data_,
                         fusion_.work};
    for (size_t phase = 0; phase < table_.tasks.size(); phase++) {
      int64_t failed = RunPhase(context_, launch, phase, tasks_[phase]);
      if (failed != 0) return FailCheck(failed);
    }
    if (Fault("result", fusion_.key)) return FailCheck(255);
    return true;
  }

  bool SetPooled() {
    for (const Result& result : table_.results) {
      if (result.kind != Kind::kTensor || !from_pool_[result.position]) continue;
      // Tensors that TensorFlow allocated are set already, and must not be set again.
      TF_SetOutput(context_, result.position, outputs_[result.position], status_.status);
      if (!Check()) return false;
    }
    return true;
  }

  Fusion& fusion_;
  const Table& table_;
  TF_OpKernelContext* context_;
  Status status_;
  Small<int64_t, 8> symbols_;
  Small<int64_t, 8 * kMaxRank> dims_;
  Small<TF_Tensor*, 32> inputs_, outputs_;
  Small<char, 32> from_pool_;  // by op output
  Small<StitchVariable, 4> variables_;
  Small<int64_t, 8> tasks_;  // of each phase
  Small<size_t, 48> bytes_;  // of each of `buffers_`
  Small<void*, 48> buffers_;
  std::vector<StitchForwarded> forwarded_;
  void* session_ = nullptr;
  void* scratch_ = nullptr;
  char* scratch_data_ = nullptr;
  TF_Tensor* scratch_tensor_ = nullptr;
  std::string why_;               // the first failure
  bool updates_in_place_ = false;  // a variable's new value lies where its old one does
  bool overwritten_ = false;       // the kernel may have begun to write over what it reads
  bool raised_ = false, succeeded_ = false;
};

void* CreateFusion(TF_OpKernelConstruction* context) { return MakeFusion(context, false); }

void* CreateGpuFusion(TF_OpKernelConstruction* context) { return MakeFusion(context, true); }

void DeleteFusion(void* kernel) { delete static_cast<Fusion*>(kernel); }

void ComputeFusion(void* kernel, TF_OpKernelContext* context) {
  Call(static_cast<Fusion*>(kernel), context).Run();
}

struct Timer {
  int64_t step = -1, arm = 0;
};

void* CreateTimer(TF_OpKernelConstruction* context) {
  auto* timer = new Timer;
  Status status;
  TF_OpKernelConstruction_GetAttrInt64(context, "step", &timer->step, status.status);
  TF_OpKernelConstruction_GetAttrInt64(context, "arm", &timer->arm, status.status);
  return timer;
}

void DeleteTimer(void* timer) { delete static_cast<Timer*>(timer); }

void ComputeTimer(void* timer, TF_OpKernelContext* context) {
  auto* self = static_cast<Timer*>(timer);
  PassStep(static_cast<int>(self->step), static_cast<int>(self->arm), TF_StepId(context));
}

void ComputeGate(void* timer, TF_OpKernelContext*) {
  auto* self = static_cast<Timer*>(timer);
  BeginStep(static_cast<int>(self->step), static_cast<int>(self->arm));
}

}  // namespace

Functions FusionFunctions() { return {CreateFusion, ComputeFusion, DeleteFusion}; }
Functions GpuFusionFunctions() { return {CreateGpuFusion, ComputeFusion, DeleteFusion}; }
Functions TimerFunctions() { return {CreateTimer, ComputeTimer, DeleteTimer}; }
Functions GateFunctions() { return {CreateTimer, ComputeGate, DeleteTimer}; }

}  // namespace stitch

void stitch_counters(int64_t out[9]) {
  stitch::PoolStatistics pool = stitch::PoolState();
  int64_t values[9] = {pool.fresh,      pool.reused,
                       pool.released,   pool.idle_bytes,
                       pool.used_bytes, stitch::forwarded_outputs.load(),
                       stitch::in_place_updates.load(), stitch::HugeBytesAsked(),
                       stitch::calls_left.load()};
  memcpy(out, values, sizeof values);
}
