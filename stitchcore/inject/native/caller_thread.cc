// An executor that runs a step in the thread that calls it, and the operation by which such a step
// takes the next element of its input there. Compiled with the shim.
//
// TensorFlow hands a function's graph to its inter-op pool and waits: two or three threads are
// woken for a call, more where operations become ready side by side. On an idle machine that takes
// as long as a small stitched step (docs/decisions.md 37). This executor is TensorFlow's own, given
// a runner that runs at once what it is handed. A gate's attribute allows it (graphs.py); for all
// other graphs TensorFlow's own executor is made. What may not run so is the hook's to know
// (caller_thread.py), and each call asks the step's timer whether it is to (timer.cc).
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include <atomic>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include "tensorflow/core/common_runtime/executor.h"
#include "tensorflow/core/common_runtime/executor_factory.h"
#include "tensorflow/core/common_runtime/local_executor_params.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/graph/graph.h"
#include "tensorflow/core/platform/denormal.h"
#include "tensorflow/core/platform/setround.h"

namespace {

using tensorflow::Executor;

// Below it a thread of its own runs the step: a program's threads may have any size of stack,
// TensorFlow's have the system's, 8 MiB.
constexpr size_t kLeastStack = 2 << 20;

// Closures within closures, of operations that end at once though they might not have: beyond it
// the pool takes over, so that no chain of them uses up the stack.
constexpr int kDeepest = 16;

// What this thread runs as a caller, 0 outside of calls; and whether it is at the input pipeline's
// work, which is the pool's: functions of a pipeline may ask Python in whose thread they are.
thread_local int64_t running = 0;
thread_local bool at_pipeline = false;
thread_local int depth = 0;

size_t StackLeft() {
  // Of the main thread the system looks it up in a file: once.
  thread_local const char* const lowest = [] {
    pthread_attr_t attributes;
    void* address = nullptr;
    size_t size = 0;
    if (pthread_getattr_np(pthread_self(), &attributes) != 0) return static_cast<char*>(nullptr);
    pthread_attr_getstack(&attributes, &address, &size);
    pthread_attr_destroy(&attributes);
    return static_cast<char*>(address);
  }();
  char here;
  return lowest == nullptr ? 0 : static_cast<size_t>(&here - lowest);
}

// This thread is the caller of `run`. Numbers are computed as in the pool's threads.
class Calling {
 public:
  explicit Calling(int64_t run) : outer_(running), outer_depth_(depth), round_(FE_TONEAREST) {
    running = run;
    depth = 0;
  }
  ~Calling() {
    running = outer_;
    depth = outer_depth_;
  }

 private:
  const int64_t outer_;
  const int outer_depth_;
  const tensorflow::port::ScopedFlushDenormal flush_;
  const tensorflow::port::ScopedSetRound round_;
};

using Choice = int (*)(int step);
Choice runs_here = nullptr;

class CallerThread : public Executor {
 public:
  CallerThread(Executor* executor, int step) : executor_(executor), step_(step) {}

 private:
  void RunAsyncInternal(const Args& args, DoneCallback done) override {
    if (!runs_here(step_)) return executor_->RunAsync(args, std::move(done));
    if (StackLeft() >= kLeastStack) return RunHere(args, std::move(done));
    try {
      std::thread([this, args, done] { RunHere(args, done); }).detach();
    } catch (const std::system_error&) {  // no more threads
      executor_->RunAsync(args, std::move(done));
    }
  }

  void RunHere(const Args& args, DoneCallback done) {
    static std::atomic<int64_t> runs{0};
    const int64_t run = ++runs;
    Args here = args;
    here.run_all_kernels_inline = true;
    // Whoever keeps the runner (an iterator does) gets the pool's once the call is over, and so do
    // other threads, in which operations end that wait for something.
    here.runner = [run, pool = args.runner](Args::Closure closure) {
      if (running != run || at_pipeline || depth == kDeepest) return pool(std::move(closure));
      depth++;
      closure();
      depth--;
    };
    Calling calling(run);
    executor_->RunAsync(here, std::move(done));
  }

  const std::unique_ptr<Executor> executor_;
  const int step_;
};

// Takes the next element of an iterator in the caller's thread, where TensorFlow's own operation
// has a thread for it and goes on in the pool: two more that are woken. It is that one's kernel,
// made without the label by which a graph asks for this one; in other threads it does what that
// does.
class NextElement : public tensorflow::AsyncOpKernel {
 public:
  explicit NextElement(tensorflow::OpKernelConstruction* context) : AsyncOpKernel(context) {
    tensorflow::NodeDef node = def();
    node.mutable_attr()->erase("_kernel");
    std::shared_ptr<const tensorflow::NodeProperties> properties;
    OP_REQUIRES_OK(context, tensorflow::NodeProperties::CreateFromNodeDef(
                                node, tensorflow::OpRegistry::Global(), &properties));
    tensorflow::OpKernel* made = nullptr;
    auto* device = context->device();
    OP_REQUIRES_OK(context, tensorflow::CreateOpKernel(
                                context->device_type(), device, device->GetAllocator({}),
                                context->function_library(), context->resource_manager(),
                                properties, context->graph_def_version(), &made));
    kernel_.reset(made);
    OP_REQUIRES(context, kernel_->AsAsync() != nullptr,
                tensorflow::errors::Internal("stitch: ", name(), " does not wait"));
  }

  void ComputeAsync(tensorflow::OpKernelContext* context, DoneCallback done) override {
    if (running == 0) return kernel_->AsAsync()->ComputeAsync(context, std::move(done));
    at_pipeline = true;
    kernel_->Compute(context);
    at_pipeline = false;
    done();
  }

 private:
  std::unique_ptr<tensorflow::OpKernel> kernel_;
};

#define REGISTER_NEXT(operation)                                                             \
  REGISTER_KERNEL_BUILDER(                                                                   \
      Name(operation).Device(tensorflow::DEVICE_CPU).Label("stitch_caller_thread"), NextElement)

REGISTER_NEXT("IteratorGetNext");
REGISTER_NEXT("IteratorGetNextAsOptional");

// The step whose calls may run so; -1 where none may.
int Allowed(const tensorflow::Graph& graph) {
  for (const tensorflow::Node* node : graph.op_nodes()) {
    if (node->type_string() != "StitchGate") continue;
    const tensorflow::AttrValue* allows = node->attrs().Find("caller_thread");
    const tensorflow::AttrValue* step = node->attrs().Find("step");
    bool allowed = allows != nullptr && allows->b() && step != nullptr;
    return allowed ? static_cast<int>(step->i()) : -1;
  }
  return -1;
}

class Factory : public tensorflow::ExecutorFactory {
 public:
  tensorflow::Status NewExecutor(const tensorflow::LocalExecutorParams& params,
                                 const tensorflow::Graph& graph,
                                 std::unique_ptr<Executor>* made) override {
    const int step = Allowed(graph);
    Executor* own = nullptr;
    auto status = tensorflow::NewLocalExecutor(params, graph, &own);
    if (!status.ok()) return status;
    made->reset(step >= 0 ? new CallerThread(own, step) : own);
    return status;
  }
};

}  // namespace

// The executor's type; `choice` says of a step whether its next call is to run in the caller's
// thread.
extern "C" __attribute__((visibility("default"))) const char* stitch_caller_thread_executor(
    Choice choice) {
  runs_here = choice;
  static const char* const name = [] {
    tensorflow::ExecutorFactory::Register("STITCH_CALLER_THREAD", new Factory);
    return "STITCH_CALLER_THREAD";
  }();
  return name;
}
