// What the plug-in needs of TensorFlow's C++ side: its intra-op threads, its variables, its
// functions and the streams of its GPUs. Each TensorFlow version has a shim compiled against its
// headers; the plug-in itself is C API only.
#ifndef STITCH_SHIM_H_
#define STITCH_SHIM_H_

#include <cstddef>
#include <cstdint>

extern "C" {

constexpr int kShimRank = 16;
constexpr int64_t kShimVersion = 10;

// One variable a kernel reads, writes, or both. Dimensions are those of its dense row-major value.
struct StitchVariable {
  // set by the caller
  int32_t op_input;  // a resource handle
  bool reads, writes;
  bool in_place;   // the kernel allows its old and new value to share memory (or never reads it)
  int32_t rank;    // of the new value, when `writes`; its type is the variable's
  int64_t dims[kShimRank];
  // set by StitchOpenVariables
  const void* value;  // current value, when `reads`
  int32_t value_rank;
  int64_t value_dims[kShimRank];
  void* new_value;  // where to write, when `writes`
  size_t bytes;     // of either
  int32_t type;     // a TF_DataType
};

// Where variables' new values of at least `least` bytes come from; smaller ones from the device's
// own allocator.
struct StitchMemory {
  void* (*allocate)(size_t bytes);
  void (*release)(void* buffer);
  size_t least;
};

// An op input whose memory an output took over, and the input's own shape.
struct StitchForwarded {
  int32_t op_input, output, rank;
  int64_t dims[kShimRank];
};

// Where a result of a function goes: to an op output, or to the variable at an op input. The result
// -1 is none: the output is then an empty tensor, which whoever reads it knows by its shape.
struct StitchTaker {
  bool variable;
  int32_t position, result;
};

// A result of a function.
struct StitchResult {
  const void* data;
  size_t bytes;
  int32_t type, rank;  // a TF_DataType
  int64_t dims[kShimRank];
};

struct StitchShim {
  int64_t version;  // kShimVersion
  // Number of threads of the intra-op pool, and a closure to run on one of them.
  int (*threads)(void* context);
  void (*schedule)(void* context, void (*function)(void*), void* argument);
  // Locks the written variables in address order and pins the read ones, until Close. Returns
  // nullptr and fills `error` on failure. Close publishes the new values when `commit`. `memory`
  // outlives every tensor; its functions are the same in all calls in which they are called.
  void* (*open_variables)(void* context, StitchVariable* variables, int count,
                          const StitchMemory* memory, char* error, size_t error_size);
  void (*close_variables)(void* session, bool commit);
  // Makes `output` the memory of the first of `inputs` that nobody else holds; its data, or nullptr
  // when there is none (then nothing has been allocated, unlike with the C API's function).
  void* (*forward_input)(void* context, const int* inputs, int count, int output,
                         const int64_t* dims, int rank, StitchForwarded* forwarded);
  // Adds the functions of a serialized FunctionDefLibrary; false and why where they cannot be had.
  bool (*add_functions)(const char* data, size_t size, char* error, size_t error_size);
  // Calls one of them in this thread, on the op inputs `arguments` (of a variable its value). Those
  // of its results whose numbers are `wanted` (all, where there are none), until close_results; or
  // nullptr, the error's code, and its message in `error`.
  void* (*call_function)(void* context, const char* function, const int* arguments, int count,
                         const StitchForwarded* forwarded, int forwarded_count, const int* wanted,
                         int wanted_count, int* code, char* error, size_t error_size);
  // False where there are no so many, or one has too many dimensions.
  bool (*result)(void* results, int number, StitchResult* result);
  // Hands all results to `takers`. Returns 0, or the error's code and its message in `error`.
  int (*hand_on)(void* context, void* results, const StitchTaker* takers, int count, char* error,
                 size_t error_size);
  void (*close_results)(void* results);
  // 1 when the device's allocator keeps what is freed, as oneDNN's does: a pool beside it would
  // hold the same memory a second time.
  int (*allocator_keeps)(void* context);
  // The CUstream that a kernel on a GPU computes in; nullptr where the device has none.
  void* (*gpu_stream)(void* context);
  // The rank of an op input that is no variable, and its sizes in `dims`; -1 above kShimRank. The C
  // API makes a tensor of its own for that, a tenth of a microsecond.
  int (*input_shape)(void* context, int input, int64_t* dims);
};

typedef const StitchShim* (*StitchShimEntry)();  // exported as "stitch_shim"
}

#endif  // STITCH_SHIM_H_
