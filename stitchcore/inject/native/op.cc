// The StitchedFusion kernel, through TensorFlow's C API: one call runs one stitched kernel, on a
// CPU by TensorFlow's threads, on a GPU in TensorFlow's stream.
// StitchedUpdate is the same op registered as stateful, for kernels that write variables: nobody
// may prune or merge it. StitchTimer marks a pass of a training step (timer.cc), StitchGate that a
// call is about to do what cannot be done twice.
//
// A kernel that cannot run does not fail the user's step. All that may go wrong is tried before the
// kernel's first instruction; where something does, a function of TensorFlow's own operations gets
// the same inputs and makes the same results (Fallback), and the failure is put on record. The
// first execution of each operation is that function's too: the kernel runs beside it into memory
// of its own, and does the operation's work only once both have been compared (Shadow).
#include "op.h"

#include <string.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "exports.h"
#include "failures.h"
#include "faults.h"
#include "fusion.h"
#include "huge.h"
#include "launch.h"
#include "pool.h"
#include "shadow.h"
#include "shim.h"
#include "small.h"
#include "tensorflow/c/kernels.h"
#include "tensorflow/c/tf_tensor.h"
#include "threads.h"
#include "timer.h"

namespace stitch {
namespace {

std::atomic<int64_t> forwarded_outputs{0}, in_place_updates{0}, calls_left{0}, compared{0},
    not_compared{0};
std::atomic<bool> proves{true};

// One shadow at a time in the process: memory grows by one kernel's results at most.
std::mutex& OneShadow() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

// How far the elements move, by another rounding, of what a proved kernel made for another of its
// region, and is no tensor of the graph: the next proof reads it there. Small ones, the latest; all
// elements of a sum may cancel, of what is large some do not. Under OneShadow.
class Movements {
 public:
  static constexpr size_t kMost = size_t{1} << 18;  // elements
  void Add(const void* data, size_t bytes, std::vector<float> moved) {
    held_ += moved.size();
    kept_.push_back({data, bytes, Hash(data, bytes), std::move(moved)});
    for (; held_ > kMost; kept_.pop_front()) held_ -= kept_.front().moved.size();
  }
  // Of these bytes at this place; nullptr where nobody has told.
  const float* Of(const void* data, size_t bytes) const {
    for (auto one = kept_.rbegin(); one != kept_.rend(); one++) {
      if (one->data != data || one->bytes != bytes) continue;
      return one->hash == Hash(data, bytes) ? one->moved.data() : nullptr;
    }
    return nullptr;
  }

 private:
  static size_t Hash(const void* data, size_t bytes) {
    return std::hash<std::string_view>{}({static_cast<const char*>(data), bytes});
  }
  struct Movement {
    const void* data;
    size_t bytes, hash;  // another tensor may lie there by then
    std::vector<float> moved;
  };
  std::deque<Movement> kept_;
  size_t held_ = 0;
};
Movements& Moved() {
  static auto* movements = new Movements;
  return *movements;
}

// The results of a function.
struct CloseResults {
  void operator()(void* results) const { Shim()->close_results(results); }
};
using Results = std::unique_ptr<void, CloseResults>;

// Begin failures that are of shapes, and results that are not TensorFlow's (plugin.py).
constexpr char kGuard[] = "guard: input ", kWrong[] = "wrong_result: ";

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
    if (fusion_.broken.empty() && !retired()) {
      if (!fusion_.proved.load(std::memory_order_acquire) && Prove()) return;
      succeeded_ = !retired() && Launch();
      if (succeeded_ || raised_) return;
    } else {
      why_ = fusion_.broken;
    }
    FallBack();
  }

 private:
  bool on_gpu() const { return fusion_.program != nullptr; }
  bool retired() const {
    return fusion_.wrong.load(std::memory_order_relaxed) ||
           fusion_.retired->load(std::memory_order_relaxed);
  }
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
      AddFailure(fusion_.key, fusion_.name, why_);
      return Raise(TF_INTERNAL, why_);
    }
    if (!why_.empty()) AddFailure(fusion_.key, fusion_.name, why_);
    if (!why_.empty() && why_.rfind(kGuard, 0) != 0) *fusion_.retired = true;
    Results results = CallFunction({});
    if (results != nullptr && HandOn(results.get(), fallback.takers)) {
      calls_left.fetch_add(1, std::memory_order_relaxed);
    }
  }

  // The function's results, or those of `wanted`; raises its error where there are none.
  Results CallFunction(const std::vector<int>& wanted) {
    const Fallback& fallback = fusion_.fallback;
    std::vector<char> error(size_t{1} << 20);  // TensorFlow tells all labels where one is wrong
    int code = TF_OK;
    Results results(Shim()->call_function(
        context_, fallback.function.c_str(), fallback.arguments.data(),
        static_cast<int>(fallback.arguments.size()), forwarded_.data(),
        static_cast<int>(forwarded_.size()), wanted.data(), static_cast<int>(wanted.size()), &code,
        error.data(), error.size()));
    if (results == nullptr && wanted.empty()) Raise(static_cast<TF_Code>(code), error.data());
    return results;
  }

  bool HandOn(void* results, const std::vector<StitchTaker>& takers) {
    char error[512];
    int code = Shim()->hand_on(context_, results, takers.data(), static_cast<int>(takers.size()),
                               error, sizeof error);
    if (code != TF_OK) Raise(static_cast<TF_Code>(code), error);
    return code == TF_OK;
  }

  // The first execution: holds the kernel against TensorFlow's operations, on the same inputs and
  // before any of them has changed. True where their results are handed on. Those of variables
  // that are too much memory are compared in parts, and made anew by whoever is found right.
  bool Prove() try {
    if (!proves) return false;
    if (on_gpu() || fusion_.fallback.function.empty()) {
      fusion_.proved = true;
      not_compared.fetch_add(1, std::memory_order_relaxed);
      return false;
    }
    std::lock_guard<std::mutex> lock(OneShadow());
    if (fusion_.proved || retired()) return false;
    proving_ = true;
    int64_t scratch = 0;
    bool ready = BindSymbols() && ShapeResults() && OpenVariables() && CheckGuards() &&
                 CountTasks() && Evaluate(table_.scratch, symbols_.data(), &scratch) &&
                 scratch >= 0 && TakeInputs();
    bool handed_on = ready && ComparedWith(static_cast<size_t>(scratch));
    EndProof();
    return handed_on;
  } catch (const std::exception&) {
    EndProof();
    return raised_;
  }

  void EndProof() {
    Release();
    proving_ = false;
    why_.clear();
    if (!raised_) TF_SetStatus(status_.status, TF_OK, "");
  }

  bool ComparedWith(size_t scratch) {
    struct Shadow shadow{fusion_.kernel, {}, {}, symbols_.data(), scratch, {}, ShadowBudget(),
                         Fault("value", fusion_.key), {}, {}};
    shadow.tasks.assign(tasks_.data(), tasks_.data() + tasks_.size());
    struct Launch launch{fusion_.kernel, nullptr, symbols_.data(), nullptr, fusion_.work};
    shadow.run = [&](void* const* buffers, char* memory, int64_t phase, int64_t begin,
                     int64_t end) {
      launch.buffers = buffers;
      launch.scratch = memory;
      return RunPhase(context_, launch, phase, begin, end);
    };
    for (size_t i = 0; i < table_.operands.size(); i++) {
      const Operand& operand = table_.operands[i];
      int type = operand.kind == Kind::kTensor ? fusion_.input_types[operand.position] : 0;
      for (size_t k = 0; k < variables_.size(); k++) {
        if (fusion_.variables[k].operand == static_cast<int>(i)) type = variables_[k].type;
      }
      shadow.inputs.push_back({type, buffers_[i], bytes_[i], fusion_.units[i],
                               Moved().Of(buffers_[i], bytes_[i])});
    }
    size_t updates = 0;
    bool known = true;
    for (size_t i = 0; i < table_.results.size(); i++) {
      known = known && TypeOf(i) != 0;
      if (table_.results[i].kind == Kind::kVariable) updates += BytesOf(i);
    }
    bool in_parts = known && updates > shadow.budget;
    return in_parts ? ComparedInParts(&shadow) : ComparedAtOnce(&shadow);
  }

  bool ComparedAtOnce(struct Shadow* shadow) {
    std::vector<StitchTaker> takers = fusion_.fallback.takers;
    Results results = CallFunction({});
    if (results == nullptr) return true;  // the user's error
    std::string said;
    std::vector<std::vector<float>> moved(takers.size());
    for (size_t i = 0; i < takers.size(); i++) {
      ShadowResult one{0, 0, false, nullptr, nullptr, fusion_.tolerances[i]};
      if (takers[i].result < 0) {
        if (!Allocate(i, &one)) return false;
        if (Elements(one) <= Movements::kMost) one.moved = &moved[i];
      } else if (!Fits(results.get(), takers[i].result, i, &one)) {
        said = "result " + std::to_string(i) + " has another shape";
      }
      shadow->results.push_back(one);
    }
    std::vector<ShadowResult> made = shadow->results;
    Proof proof = said.empty() ? Compare(std::move(*shadow), &said) : Proof::kDiffers;
    Conclude(proof, said);
    if (proof == Proof::kAgrees) {  // what is no tensor of the graph is the kernel's own
      for (size_t i = 0; i < made.size(); i++) {
        if (made[i].moved != nullptr) Moved().Add(made[i].kept, made[i].bytes, std::move(moved[i]));
      }
      auto own = [](const StitchTaker& taker) { return taker.result < 0; };
      takers.erase(std::remove_if(takers.begin(), takers.end(), own), takers.end());
    }
    Release();
    HandOn(results.get(), takers);
    return true;
  }

  bool ComparedInParts(struct Shadow* shadow) {
    const std::vector<StitchTaker>& takers = fusion_.fallback.takers;
    for (size_t i = 0; i < takers.size(); i++) {
      shadow->results.push_back({TypeOf(i), BytesOf(i), takers[i].result >= 0, nullptr, nullptr,
                                 fusion_.tolerances[i]});
    }
    Results part;
    bool fit = true;
    shadow->fetch = [&](const std::vector<size_t>& numbers, std::vector<ShadowResult>* all) {
      for (ShadowResult& one : *all) one.theirs = nullptr;
      part.reset();
      std::vector<int> wanted;
      for (size_t i : numbers) wanted.push_back(takers[i].result);
      std::sort(wanted.begin(), wanted.end());
      wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
      part = CallFunction(wanted);
      for (size_t i : numbers) {
        auto at = std::lower_bound(wanted.begin(), wanted.end(), takers[i].result);
        ShadowResult one = (*all)[i];
        fit = fit && part != nullptr &&
              Fits(part.get(), static_cast<int>(at - wanted.begin()), i, &one);
        (*all)[i].theirs = one.theirs;
      }
      return fit;
    };
    std::string said;
    Proof proof = Compare(std::move(*shadow), &said);
    Conclude(proof, said);
    return false;
  }

  static size_t Elements(const ShadowResult& one) {
    return one.bytes / std::max<size_t>(1, TF_DataTypeSize(static_cast<TF_DataType>(one.type)));
  }

  // The TF_DataType of a result; 0 for that of a variable that is only written.
  int TypeOf(size_t result) {
    if (table_.results[result].kind == Kind::kTensor) {
      return fusion_.outputs[table_.results[result].position].type;
    }
    for (size_t k = 0; k < variables_.size(); k++) {
      if (fusion_.variables[k].result == static_cast<int>(result)) return variables_[k].type;
    }
    return 0;
  }

  size_t BytesOf(size_t result) {
    size_t bytes = TF_DataTypeSize(static_cast<TF_DataType>(TypeOf(result)));
    size_t rank = table_.results[result].shape.size();
    for (size_t axis = 0; axis < rank; axis++) bytes *= Dims(result)[axis];
    return bytes;
  }

  // The function's result as what the kernel's is compared with; false where it is another kind.
  bool Fits(void* results, int number, size_t result, ShadowResult* one) {
    StitchResult made;
    if (!Shim()->result(results, number, &made)) return false;
    one->type = made.type, one->bytes = made.bytes, one->theirs = made.data, one->compared = true;
    const Result& own = table_.results[result];
    return made.rank == static_cast<int>(own.shape.size()) &&
           std::equal(made.dims, made.dims + made.rank, Dims(result)) &&
           (own.kind == Kind::kVariable || made.type == fusion_.outputs[own.position].type);
  }

  // An output that no function makes.
  bool Allocate(size_t result, ShadowResult* one) {
    int position = table_.results[result].position;
    const Output& output = fusion_.outputs[position];
    int rank = static_cast<int>(table_.results[result].shape.size());
    one->bytes = BytesOf(result);
    outputs_[position] = TF_AllocateOutput(context_, position, output.type, Dims(result), rank,
                                           one->bytes, status_.status);
    if (!Check()) return false;
    one->kept = TF_TensorData(outputs_[position]);
    one->type = output.type;
    return true;
  }

  void Conclude(Proof proof, const std::string& said) {
    if (proof == Proof::kUndecided) return;  // the next execution is asked again
    compared.fetch_add(1, std::memory_order_relaxed);
    if (proof == Proof::kAgrees) {
      fusion_.proved.store(true, std::memory_order_release);
      return;
    }
    AddFailure(fusion_.key, fusion_.name, kWrong + said);
    fusion_.wrong = true;
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
      int64_t dims[kMaxRank];
      bool has_axis = symbol.axis < InputShape(symbol.input, dims);
      if (!status_.ok()) return false;
      int64_t extent = has_axis ? dims[symbol.axis] - symbol.offset : -1;
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
      variable.writes = use.result >= 0 && !proving_;
      variable.in_place = use.in_place;
      if (!variable.writes) continue;
      variable.rank = static_cast<int>(table_.results[use.result].shape.size());
      memcpy(variable.dims, Dims(use.result), sizeof(int64_t) * variable.rank);
    }
    if (!proving_ && Fault("variables", fusion_.key)) return Fail("a fault on purpose");
    char error[256];
    session_ = Shim()->open_variables(context_, variables_.data(),
                                      static_cast<int>(variables_.size()),
                                      on_gpu() ? &kDeviceMemory : &kMemory, error, sizeof error);
    if (session_ == nullptr) return Fail(error);
    for (size_t i = 0; i < variables_.size(); i++) {
      const VariableUse& use = fusion_.variables[i];
      void* value = const_cast<void*>(variables_[i].value);
      if (use.operand >= 0) Use(use.operand, value, variables_[i].bytes);
      if (use.result < 0 || proving_) continue;
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
    *rank = InputShape(op_input, storage);
    return storage;
  }

  // The rank of an op input that is no variable, and its sizes; -1 above a kernel's.
  int InputShape(int op_input, int64_t* dims) {
    if (Shim() != nullptr) return Shim()->input_shape(context_, op_input, dims);
    TF_Tensor* tensor = nullptr;
    TF_GetInput(context_, op_input, &tensor, status_.status);
    if (!Check()) return -1;
    int rank = TF_NumDims(tensor) > kMaxRank ? -1 : TF_NumDims(tensor);
    for (int axis = 0; axis < rank; axis++) dims[axis] = TF_Dim(tensor, axis);
    TF_DeleteTensor(tensor);
    return rank;
  }

  bool CheckGuards() {
    if (!proving_ && Fault("guard", fusion_.key)) {
      return Fail(std::string(kGuard) + "a fault on purpose");
    }
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
    Small<StitchBuffer, 48> given(buffers_.size());
    for (size_t i = 0; i < buffers_.size(); i++) {
      auto address = reinterpret_cast<uint64_t>(buffers_[i]);
      if (address % kGpuAlignment != 0) {  // a part of a tensor, or somebody else's memory
        return Fail(std::string(kGuard) + std::to_string(i) + " is not aligned");
      }
      given[i] = {address, bytes_[i]};
    }
    int inputs = static_cast<int>(table_.operands.size());
    GpuBuffers both{given.data(), inputs, given.data() + inputs,
                    static_cast<int>(given.size()) - inputs};
    StitchAllocator allocator{DeviceScratch, Later, this};
    std::string error = RunOnGpu(fusion_.program, stream, both, symbols_.data(),
                                 static_cast<int>(symbols_.size()), allocator);
    return error.empty() || Fail(error);
  }

  bool RunPhases() {
    if (Fault("launch", fusion_.key)) return Fail("a fault on purpose");
    overwritten_ = !forwarded_.empty() || updates_in_place_;
    struct Launch launch{fusion_.kernel, buffers_.data(), symbols_.data(), scratch_data_,
                         fusion_.work};
    for (size_t phase = 0; phase < table_.tasks.size(); phase++) {
      int64_t failed = RunPhase(context_, launch, phase, 0, tasks_[phase]);
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
  bool proving_ = false;           // variables are only read
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

Marker MarkerIn(TF_OpKernelContext* context) {
  void* stream = Shim() == nullptr ? nullptr : Shim()->gpu_stream(context);
  return stream == nullptr ? Marker() : MarkerOf(stream);
}

void ComputeGpuTimer(void* timer, TF_OpKernelContext* context) {
  auto* self = static_cast<Timer*>(timer);
  Marker marker = MarkerIn(context);
  PassStep(static_cast<int>(self->step), static_cast<int>(self->arm), TF_StepId(context),
           marker ? marker() : nullptr);
}

void ComputeGate(void* timer, TF_OpKernelContext*) {
  auto* self = static_cast<Timer*>(timer);
  BeginStep(static_cast<int>(self->step), static_cast<int>(self->arm), {});
}

void ComputeGpuGate(void* timer, TF_OpKernelContext* context) {
  auto* self = static_cast<Timer*>(timer);
  BeginStep(static_cast<int>(self->step), static_cast<int>(self->arm), [context] {
    return MarkerIn(context);
  });
}

}  // namespace

Functions FusionFunctions() { return {CreateFusion, ComputeFusion, DeleteFusion}; }
Functions GpuFusionFunctions() { return {CreateGpuFusion, ComputeFusion, DeleteFusion}; }
Functions TimerFunctions() { return {CreateTimer, ComputeTimer, DeleteTimer}; }
Functions GpuTimerFunctions() { return {CreateTimer, ComputeGpuTimer, DeleteTimer}; }
Functions GpuGateFunctions() { return {CreateTimer, ComputeGpuGate, DeleteTimer}; }
Functions GateFunctions() { return {CreateTimer, ComputeGate, DeleteTimer}; }

}  // namespace stitch

void stitch_prove(int first) { stitch::proves = first != 0; }

void stitch_counters(int64_t out[11]) {
  stitch::PoolStatistics pool = stitch::PoolState();
  int64_t values[11] = {pool.fresh,      pool.reused,
                       pool.released,   pool.idle_bytes,
                       pool.used_bytes, stitch::forwarded_outputs.load(),
                       stitch::in_place_updates.load(), stitch::HugeBytesAsked(),
                       stitch::calls_left.load(), stitch::compared.load(),
                       stitch::not_compared.load()};
  memcpy(out, values, sizeof values);
}
