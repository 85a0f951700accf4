// What the Python side calls through ctypes (plugin.py). Plain C types only.
#ifndef STITCH_EXPORTS_H_
#define STITCH_EXPORTS_H_

#include <cstddef>
#include <cstdint>

#define STITCH_EXPORT extern "C" __attribute__((visibility("default")))

// kernels.cc: a library from verified bytes, and one kernel of it; 0/nullptr on failure.
STITCH_EXPORT void* stitch_load_library(const char* data, size_t size, char* error,
                                        size_t error_size);
STITCH_EXPORT int stitch_register_kernel(const char* key, void* library, const char* symbol);
// From now on operations of this kernel leave their work to the functions that stand in for it, or
// do it again (0).
STITCH_EXPORT void stitch_retire_kernel(const char* key, int retired);
// op.cc: whether an operation's first execution is TensorFlow's, its kernel beside it (1 at first).
STITCH_EXPORT void stitch_prove(int first);
// threads.cc: TensorFlow's own operations of regions, a serialized FunctionDefLibrary; 0 and why.
STITCH_EXPORT int stitch_add_functions(const char* data, size_t size, char* error,
                                       size_t error_size);

// fusion.cc: 1 when a node with these attributes can be made, on a GPU or a CPU; else 0 and why.
// `types`: `inputs` of Tin, `host` of Thost, `outputs` of Tout.
STITCH_EXPORT int stitch_check_fusion(const int64_t* table, size_t words, const int32_t* types,
                                      int inputs, int host, int outputs, int gpu, char* error,
                                      size_t error_size);

// gpu.cc: what `driver` (nullptr: libcuda.so.1) can do for kernels on GPUs; once a process.
// A program from a launch table, registered under a kernel's key and prepared for `device` (its
// CUDA number): what can be refused is refused here. Both return a StitchReason and say why.
STITCH_EXPORT int stitch_open_gpu(const char* driver, char* error, size_t error_size);
STITCH_EXPORT int stitch_register_program(const char* key, const char* table, size_t size,
                                          int device, char* error, size_t error_size);

// signature.cc: 1 when `signature` (64 bytes) is `public_key`'s (32 bytes) over `message`.
STITCH_EXPORT int stitch_verify_signature(const unsigned char* signature,
                                          const unsigned char* message, size_t size,
                                          const unsigned char* public_key);

// threads.cc: the shim of this TensorFlow version; 1 when it loads and its version fits.
STITCH_EXPORT int stitch_load_shim(const char* path, char* error, size_t error_size);

// grappler.cc: called for each graph; returns 1 and a stitch_allocate'd buffer, or 0 (unchanged).
typedef int (*StitchGraphCallback)(const char* graph, size_t size, const void* item,
                                   char** replaced, size_t* replaced_size);
STITCH_EXPORT void stitch_set_callback(StitchGraphCallback callback);
STITCH_EXPORT void* stitch_allocate(size_t size);
STITCH_EXPORT void stitch_free(void* buffer);
// Names to preserve, and those of them that are fetched, newline after each; to be freed.
STITCH_EXPORT char* stitch_preserved(const void* item);
STITCH_EXPORT char* stitch_fetched(const void* item);
// Static shapes of the outputs of `names` (newline after each): for each output
// [u32 node][u32 output][u32 length][OpInfo.TensorProperties]; to be freed.
STITCH_EXPORT char* stitch_shapes(const void* item, const char* names, size_t* size);

// timer.cc: see there.
struct StitchInterval {
  int64_t nanoseconds;    // from a call's first step to the next call's
  int32_t arm, position;  // position within the block: 0 is the first call after a switch
  int64_t block;
  int64_t steps;          // of the call
};
STITCH_EXPORT int stitch_new_step();
STITCH_EXPORT const int32_t* stitch_step_arm(int step);
// Of each arm: how often its gates (StitchGate) were passed. A call that ends with an error and has
// passed none has done nothing yet that could not be done again.
STITCH_EXPORT const int64_t* stitch_step_begun(int step);
// Where stitched calls run that may run in the caller's thread: not there (0), there (1), or both
// in turn (2), by the block's number; and where the next one does.
STITCH_EXPORT void stitch_place_step(int step, int place);
STITCH_EXPORT int stitch_runs_in_caller_thread(int step);
STITCH_EXPORT void stitch_schedule_step(int step, int arm, int64_t original, int64_t stitched);
STITCH_EXPORT int stitch_hold_step(int step, int64_t agreed);
STITCH_EXPORT int stitch_decide_step(int step, int arm, int64_t original, int64_t stitched,
                                     int64_t most, uint64_t seed);
STITCH_EXPORT void stitch_stretch_step(int step, int64_t stitched, uint64_t seed);
STITCH_EXPORT int64_t stitch_read_step(int step, int64_t* cursor, StitchInterval* out,
                                       int64_t capacity);
// A pass seen from outside a graph: steps that are one XLA program have no timer op.
STITCH_EXPORT void stitch_pass_step(int step, int arm);
// A call that was timed from outside: one that is called for its results, at any time. On a GPU its
// begin is told as well.
STITCH_EXPORT void stitch_begin_call(int step);
STITCH_EXPORT void stitch_record_call(int step, int arm, int64_t nanoseconds, int on_gpu);
STITCH_EXPORT int64_t stitch_passes(int step, int arm);
STITCH_EXPORT int64_t stitch_calls(int step, int arm);

// memory.cc: the process's resident memory while the arms of a step run in turn.
struct StitchPeak {
  int64_t block;
  int32_t arm, samples;
  int64_t bytes;  // the most that a sample found
};
STITCH_EXPORT int stitch_watch_memory(int step);
STITCH_EXPORT void stitch_unwatch_memory(int step);
STITCH_EXPORT int64_t stitch_read_memory(int step, StitchPeak* out, int64_t capacity);

// failures.cc: failures of stitched operations so far, each a line: how often, kernel key, the
// node's name, the message, TABs between. To be freed; nullptr when there was none.
STITCH_EXPORT char* stitch_failures();

// pool.cc: fresh, reused, released, idle bytes, used bytes; op.cc: forwarded outputs, in-place
// variable updates; huge.cc: bytes asked for; op.cc: calls left to functions, kernels that were
// compared with their functions on the job's data, and that could not be.
STITCH_EXPORT void stitch_counters(int64_t out[11]);

// faults.cc: the `pass`-th time from now that the operation of `kernel` ("": any) comes to `point`
// it fails there. Points: construct, guard, variables, scratch, pool, output, launch, result,
// throw; at `value` the kernel's result is taken to be another one, where it is compared.
STITCH_EXPORT void stitch_arm_fault(const char* point, const char* kernel, int64_t pass);

#endif  // STITCH_EXPORTS_H_
