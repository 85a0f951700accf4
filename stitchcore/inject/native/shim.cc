// Compiled once per TensorFlow minor version against the headers of its wheel.
#include "shim.h"

#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/c/experimental/grappler/grappler.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/function.pb.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/lib/core/threadpool.h"
#include "xla/stream_executor/stream.h"
#if __has_include("xla/tsl/profiler/backends/cpu/traceme_recorder.h")
#include "xla/tsl/profiler/backends/cpu/traceme_recorder.h"
#else
#include "tsl/profiler/backends/cpu/traceme_recorder.h"
#endif

namespace {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::Var;

struct Write {
  Var* variable;
  bool in_place;
  Tensor fresh;  // the variable's next value, unless in place (an empty tensor counts as one)
};

// A variable's value stays. Amid a region of an allocator that keeps its regions it would
// split the free memory there, and a larger buffer, like the one of a step under XLA, would need a
// region of its own.
class Lasting : public tensorflow::Allocator {
 public:
  explicit Lasting(const StitchMemory& memory) : memory_(memory) {}
  std::string Name() override { return "stitch"; }
  void* AllocateRaw(size_t, size_t bytes) override { return memory_.allocate(bytes); }
  void DeallocateRaw(void* buffer) override { memory_.release(buffer); }

 private:
  const StitchMemory memory_;
};

struct Session {
  std::vector<tensorflow::core::RefCountPtr<Var>> variables;
  std::vector<Tensor> pinned;  // a reference keeps a read value from being updated in place
  std::deque<tensorflow::mutex_lock> locks;
  std::vector<Write> writes;
};

OpKernelContext* Context(void* context) { return reinterpret_cast<OpKernelContext*>(context); }

tensorflow::TensorShape ShapeOf(const int64_t* dims, int rank) {
  tensorflow::TensorShape shape;
  for (int axis = 0; axis < rank; axis++) shape.AddDim(dims[axis]);
  return shape;
}

int Threads(void* context) {
  auto* workers = Context(context)->device()->tensorflow_cpu_worker_threads();
  return workers == nullptr ? 1 : workers->num_threads;
}

void Schedule(void* context, void (*function)(void*), void* argument) {
  Context(context)->device()->tensorflow_cpu_worker_threads()->workers->Schedule(
      [function, argument] { function(argument); });
}

void DescribeValue(const Tensor& tensor, StitchVariable* variable) {
  variable->value = tensor.tensor_data().data();
  variable->bytes = tensor.TotalBytes();
  variable->type = tensor.dtype();
  variable->value_rank = tensor.dims();
  for (int axis = 0; axis < tensor.dims() && axis < kShimRank; axis++) {
    variable->value_dims[axis] = tensor.dim_size(axis);
  }
}

Tensor Fresh(OpKernelContext* context, tensorflow::DataType type,
             const tensorflow::TensorShape& shape, const StitchMemory& memory) {
  size_t bytes = shape.num_elements() * tensorflow::DataTypeSize(type);
  if (bytes >= memory.least) {  // of a processor: a GPU's variables are in its own memory
    static auto* lasting = new Lasting(memory);  // never destroyed: variables outlive destructors
    return Tensor(lasting, type, shape);
  }
  Tensor fresh;
  return context->allocate_temp(type, shape, &fresh).ok() ? fresh : Tensor();
}

// TensorFlow updates a variable in place only when nobody else holds its buffer
// (PrepareToUpdateVariable); otherwise the variable takes a new one. So do we.
const char* PrepareWrite(OpKernelContext* context, Var* variable, StitchVariable* request,
                         const StitchMemory& memory, Session* session) {
  Tensor* tensor = variable->tensor();
  tensorflow::TensorShape shape = ShapeOf(request->dims, request->rank);
  bool same = tensor->IsInitialized() && tensor->shape() == shape;
  if (!same && variable->is_initialized) return "variable has another shape";
  Write write{variable, false, Tensor()};
  write.in_place = same && request->in_place && tensor->RefCountIsOne() &&
                   !variable->copy_on_read_mode.load();
  if (write.in_place) {
    request->new_value = const_cast<char*>(tensor->tensor_data().data());
  } else {
    write.fresh = Fresh(context, tensor->dtype(), shape, memory);
    if (!write.fresh.IsInitialized()) return "out of memory";
    request->new_value = const_cast<char*>(write.fresh.tensor_data().data());
    request->bytes = write.fresh.TotalBytes();
  }
  session->writes.push_back(std::move(write));
  return nullptr;
}

const char* Open(OpKernelContext* context, StitchVariable* requests, int count,
                 const StitchMemory& memory, Session* session) {
  std::vector<Var*> written;
  for (int i = 0; i < count; i++) {
    tensorflow::core::RefCountPtr<Var> variable;
    if (!LookupResource(context, HandleFromInput(context, requests[i].op_input), &variable).ok()) {
      return "variable does not exist";
    }
    if (requests[i].writes) written.push_back(variable.get());
    session->variables.push_back(std::move(variable));
  }
  std::sort(written.begin(), written.end(),
            [](Var* left, Var* right) { return left->mu() < right->mu(); });
  if (std::adjacent_find(written.begin(), written.end()) != written.end()) {
    return "variable written twice";
  }
  for (int i = 0; i < count; i++) {
    Var* variable = session->variables[i].get();
    bool locked = std::find(written.begin(), written.end(), variable) != written.end();
    if (locked && !requests[i].writes) return "variable read and written apart";
    if (locked || !requests[i].reads) continue;
    tensorflow::tf_shared_lock lock(*variable->mu());
    if (!variable->is_initialized) return "variable is not initialized";
    session->pinned.push_back(*variable->tensor());
    DescribeValue(session->pinned.back(), &requests[i]);
  }
  for (Var* variable : written) session->locks.emplace_back(*variable->mu());
  for (int i = 0; i < count; i++) {
    if (!requests[i].writes) continue;
    Var* variable = session->variables[i].get();
    if (requests[i].reads && !variable->is_initialized) return "variable is not initialized";
    DescribeValue(*variable->tensor(), &requests[i]);
    const char* error = PrepareWrite(context, variable, &requests[i], memory, session);
    if (error != nullptr) return error;
  }
  return nullptr;
}

void* OpenVariables(void* context, StitchVariable* requests, int count, const StitchMemory* memory,
                    char* error, size_t error_size) {
  auto* session = new Session;
  const char* failure = Open(Context(context), requests, count, *memory, session);
  if (failure == nullptr) return session;
  snprintf(error, error_size, "%s", failure);
  delete session;
  return nullptr;
}

void CloseVariables(void* opaque, bool commit) {
  auto* session = static_cast<Session*>(opaque);
  for (Write& write : session->writes) {
    if (!commit) break;
    if (!write.in_place) *write.variable->tensor() = std::move(write.fresh);
    write.variable->is_initialized = true;
  }
  session->locks.clear();
  delete session;
}

void* ForwardInput(void* context, const int* inputs, int count, int output, const int64_t* dims,
                   int rank, StitchForwarded* forwarded) {
  tensorflow::TensorShape shape = ShapeOf(dims, rank);
  for (int i = 0; i < count; i++) {
    Tensor* taken = nullptr;
    tensorflow::TensorShape own = Context(context)->input(inputs[i]).shape();
    if (Context(context)->forward_input_to_output_with_shape(inputs[i], output, shape, &taken)) {
      *forwarded = {inputs[i], output, own.dims(), {}};
      for (int axis = 0; axis < own.dims(); axis++) forwarded->dims[axis] = own.dim_size(axis);
      return const_cast<char*>(taken->tensor_data().data());
    }
  }
  return nullptr;
}

// Of all artifacts; never destroyed: instantiated functions refer to it.
tensorflow::FunctionLibraryDefinition& Library() {
  static auto* library = new tensorflow::FunctionLibraryDefinition(
      tensorflow::OpRegistry::Global(), tensorflow::FunctionDefLibrary());
  return *library;
}

bool Explain(const std::string& why, char* error, size_t error_size) {
  snprintf(error, error_size, "%s", why.c_str());
  return false;
}

bool AddFunctions(const char* data, size_t size, char* error, size_t error_size) {
  tensorflow::FunctionDefLibrary functions;
  if (!functions.ParseFromArray(data, static_cast<int>(size))) {
    return Explain("not a FunctionDefLibrary", error, error_size);
  }
  auto status = Library().AddLibrary(functions);
  return status.ok() || Explain(status.ToString(), error, error_size);
}

// The value that an argument stands for. Holding it keeps anyone from writing over it in place.
bool Value(OpKernelContext* context, int op_input, const StitchForwarded* forwarded, int count,
           Tensor* value) {
  for (int i = 0; i < count; i++) {
    if (forwarded[i].op_input != op_input) continue;
    return value->CopyFrom(*context->mutable_output(forwarded[i].output),
                           ShapeOf(forwarded[i].dims, forwarded[i].rank));
  }
  if (context->input_dtype(op_input) != tensorflow::DT_RESOURCE) {
    *value = context->input(op_input);
    return true;
  }
  tensorflow::core::RefCountPtr<Var> variable;
  if (!LookupResource(context, HandleFromInput(context, op_input), &variable).ok()) return false;
  tensorflow::tf_shared_lock lock(*variable->mu());
  *value = *variable->tensor();
  return variable->is_initialized;
}

void Give(OpKernelContext* context, int output, const Tensor& value) {
  if (context->mutable_output(output) != nullptr) {
    *context->mutable_output(output) = value;
  } else {
    context->set_output(output, value);
  }
}

// An error's text without the tags of the function's node: whoever called it adds his own.
std::string Untagged(std::string message) {
  size_t tag = message.find("\n\t [[{{node ");
  if (tag != std::string::npos) message.resize(tag);
  while (message.rfind("{{", 0) == 0) {
    size_t end = message.find("}}");
    if (end == std::string::npos) break;
    message.erase(0, message.find_first_not_of(' ', end + 2));
  }
  return message;
}

// A function of its own with some of the results of `function`: what only the others need is not
// computed.
std::string PartOf(const std::string& function, const int* wanted, int count) {
  std::string name = function;
  for (int i = 0; i < count; i++) name += "_" + std::to_string(wanted[i]);
  const tensorflow::FunctionDef* whole = Library().Find(function);
  if (whole == nullptr || Library().Find(name) != nullptr) return name;
  tensorflow::FunctionDef part = *whole;
  part.mutable_signature()->set_name(name);
  part.mutable_signature()->clear_output_arg();
  part.clear_ret();
  for (int i = 0; i < count && wanted[i] < whole->signature().output_arg_size(); i++) {
    const auto& result = whole->signature().output_arg(wanted[i]);
    *part.mutable_signature()->add_output_arg() = result;
    (*part.mutable_ret())[result.name()] = whole->ret().at(result.name());
  }
  Library().AddFunctionDef(part).IgnoreError();  // what is not there is not found below
  return name;
}

using Results = std::vector<Tensor>;

void* CallFunction(void* opaque, const char* function, const int* arguments, int count,
                   const StitchForwarded* forwarded, int forwarded_count, const int* wanted,
                   int wanted_count, int* code, char* error, size_t error_size) {
  auto fail = [&](const std::string& why) {
    Explain(why, error, error_size);
    *code = static_cast<int>(tensorflow::error::INTERNAL);
    return nullptr;
  };
  OpKernelContext* context = Context(opaque);
  tensorflow::FunctionLibraryRuntime* runtime = context->function_library();
  if (runtime == nullptr) return fail("stitch: no function runtime");
  tensorflow::FunctionLibraryRuntime::InstantiateOptions instantiate;
  instantiate.lib_def = &Library();
  tensorflow::FunctionLibraryRuntime::Handle handle;
  std::string name = wanted_count > 0 ? PartOf(function, wanted, wanted_count) : function;
  auto status = runtime->Instantiate(name, tensorflow::AttrSlice(), instantiate, &handle);
  if (!status.ok()) return fail("stitch: " + status.ToString());
  std::vector<Tensor> given(count);
  auto results = std::make_unique<Results>();
  for (int i = 0; i < count; i++) {
    if (!Value(context, arguments[i], forwarded, forwarded_count, &given[i])) {
      return fail("stitch: an argument has no value");
    }
  }
  tensorflow::FunctionLibraryRuntime::Options options(context->step_id());
  options.step_container = context->step_container();
  // A step that has failed elsewhere still runs what does not wait for that: so does the function.
  tensorflow::CancellationManager never;
  options.cancellation_manager = &never;
  options.rendezvous = context->rendezvous();
  // All of it runs here: a pool whose threads all wait like this one would never get to it.
  std::function<void(std::function<void()>)> here = [](std::function<void()> work) { work(); };
  options.runner = &here;
  options.run_all_kernels_inline = true;
  status = runtime->RunSync(options, handle, given, results.get());
  if (!status.ok()) {
    Explain(Untagged(std::string(status.message())), error, error_size);
    *code = static_cast<int>(status.code());
    return nullptr;
  }
  return results.release();
}

bool ResultOf(void* opaque, int number, StitchResult* result) {
  auto& results = *static_cast<Results*>(opaque);
  bool known = number < static_cast<int>(results.size());
  if (!known || results[number].dims() > kShimRank) return false;
  const Tensor& tensor = results[number];
  *result = {tensor.tensor_data().data(), tensor.TotalBytes(), tensor.dtype(), tensor.dims(), {}};
  for (int axis = 0; axis < tensor.dims(); axis++) result->dims[axis] = tensor.dim_size(axis);
  return true;
}

int HandOn(void* opaque, void* made, const StitchTaker* takers, int count, char* error,
           size_t error_size) {
  auto fail = [&](const std::string& why) {
    Explain(why, error, error_size);
    return static_cast<int>(tensorflow::error::INTERNAL);
  };
  OpKernelContext* context = Context(opaque);
  auto& results = *static_cast<Results*>(made);
  for (int i = 0; i < count; i++) {
    if (takers[i].result >= static_cast<int>(results.size())) {
      return fail("stitch: the function has fewer results");
    }
  }
  for (int i = 0; i < count; i++) {
    const StitchTaker& taker = takers[i];
    if (taker.variable) {
      tensorflow::core::RefCountPtr<Var> variable;
      auto found = LookupResource(context, HandleFromInput(context, taker.position), &variable);
      if (!found.ok()) return fail("stitch: no variable");
      tensorflow::mutex_lock lock(*variable->mu());
      *variable->tensor() = results[taker.result];
      variable->is_initialized = true;
      continue;
    }
    auto type = context->expected_output_dtype(taker.position);
    Give(context, taker.position,
         taker.result < 0 ? Tensor(type, tensorflow::TensorShape({0})) : results[taker.result]);
  }
  return 0;
}

void CloseResults(void* results) { delete static_cast<Results*>(results); }

int AllocatorKeeps(void* context) {
  auto* allocator = Context(context)->device()->GetAllocator(tensorflow::AllocatorAttributes());
  return allocator->Name() == "mklcpu";  // a BFCAllocator, which never gives a region back
}

int InputShape(void* context, int input, int64_t* dims) {
  const tensorflow::TensorShape& shape = Context(context)->input(input).shape();
  if (shape.dims() > kShimRank) return -1;
  for (int axis = 0; axis < shape.dims(); axis++) dims[axis] = shape.dim_size(axis);
  return shape.dims();
}

void* GpuStream(void* context) {
  auto* device = Context(context)->op_device_context();
  auto* stream = device == nullptr ? nullptr : device->stream();
  return stream == nullptr ? nullptr : stream->platform_specific_handle().stream;
}

const StitchShim kShim = {kShimVersion, Threads,      Schedule,       OpenVariables, CloseVariables,
                          ForwardInput, AddFunctions, CallFunction,   ResultOf,      HandOn,
                          CloseResults, AllocatorKeeps, GpuStream, InputShape};

// The plug-in's TF_InitGraph: given to the shim before TensorFlow loads it as a plug-in of its own.
using Optimizer = void (*)(TP_OptimizerRegistrationParams*, TF_Status*);
Optimizer optimizer = nullptr;

}  // namespace

extern "C" __attribute__((visibility("default"))) const StitchShim* stitch_shim() {
  return &kShim;
}

extern "C" __attribute__((visibility("default"))) void stitch_set_optimizer(
    Optimizer initialize) {
  optimizer = initialize;
}

// TensorFlow asks a library's optimizer only about graphs that have a node on a device of its type,
// and a library registers one type: the plug-in does "CPU", this one the same optimizer for "GPU".
// A graph with nodes on both is shown twice; the second time it holds the first one's nodes.
extern "C" __attribute__((visibility("default"))) void TF_InitGraph(
    TP_OptimizerRegistrationParams* parameters, TF_Status* status) {
  if (optimizer == nullptr) return TF_SetStatus(status, TF_FAILED_PRECONDITION, "no optimizer");
  optimizer(parameters, status);
  parameters->device_type = "GPU";
}

// TensorFlow's own record of what its operations do when, which its profiler is built upon; the
// profiler itself writes to the job's log, and ends a call that asks for a trace while it runs.
// False where somebody records already.
extern "C" __attribute__((visibility("default"))) bool stitch_start_trace(int level) {
  return tsl::profiler::TraceMeRecorder::Start(level);
}

// What has been recorded since: a line "TAB thread" for each thread, then "begin TAB end TAB name"
// for what it did, in nanoseconds; to be freed. What took no time is left out.
extern "C" __attribute__((visibility("default"))) char* stitch_stop_trace() {
  std::string text;
  for (const auto& recorded : tsl::profiler::TraceMeRecorder::Stop()) {
    text += "\t" + recorded.thread.name + "\n";
    for (const auto& event : recorded.events) {
      if (!event.IsComplete() || event.end_time <= event.start_time) continue;
      text += std::to_string(event.start_time) + "\t" + std::to_string(event.end_time) + "\t";
      for (char c : event.name) text += c == '\n' ? ' ' : c;
      text += '\n';
    }
  }
  return strdup(text.c_str());
}
