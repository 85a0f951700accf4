// One StitchedFusion node, decoded once when its kernel object is made: what every call needs.
#ifndef STITCH_FUSION_H_
#define STITCH_FUSION_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gpu.h"
#include "kernels.h"
#include "launch.h"
#include "shim.h"
#include "tensorflow/c/kernels.h"
#include "tensorflow/c/tf_datatype.h"
#include "tensorflow/c/tf_status.h"

namespace stitch {

struct Output {
  TF_DataType type;
  size_t element_bytes;
  std::vector<int> forward;  // op inputs whose memory it may take
  bool pooled;
};

// How a kernel uses one variable.
struct VariableUse {
  int op_input, operand, result;  // operand or result is -1 when unused
  bool in_place;
};

// The function of TensorFlow's own operations that does a kernel's work where the kernel cannot:
// its arguments are op inputs, its results go where the kernel's go.
struct Fallback {
  std::string function;  // "" where there is none
  std::vector<int> arguments;
  std::vector<StitchTaker> takers;  // by result of the kernel
};

struct Fusion {
  std::string name;  // the node's
  std::string key;
  Kernel kernel = nullptr;           // on a CPU
  StitchProgram* program = nullptr;  // on a GPU
  Table table;
  std::vector<TF_DataType> input_types;
  std::vector<Output> outputs;            // by op output
  std::vector<VariableUse> variables;
  size_t device_inputs = 0;               // op inputs from here on are in host memory on a GPU
  std::vector<bool> needed;               // op inputs that are tensors the kernel or a guard reads
  std::vector<std::string> errors;
  int64_t work;
  Fallback fallback;
  std::vector<float> tolerances;  // by result; none in an artifact from before shadows
  std::vector<float> units;       // by operand; 0 where its type's is meant
  std::atomic<bool> proved{false};  // it has given TensorFlow's results, or nobody can tell
  std::atomic<bool> wrong{false};   // it has not: its work is left to the fallback
  std::string broken;             // why the kernel can never run; "" when it can
  std::atomic<bool>* retired;     // its work is left to the fallback
};

struct Status {
  TF_Status* status = TF_NewStatus();
  ~Status() { TF_DeleteStatus(status); }
  bool ok() const { return TF_GetCode(status) == TF_OK; }
};

// Reads the node's attributes and finds its kernel, or its program on a GPU. Where that fails the
// node is left to its fallback, and without one the failure is set in `context`.
Fusion* MakeFusion(TF_OpKernelConstruction* context, bool gpu);

}  // namespace stitch

#endif  // STITCH_FUSION_H_
