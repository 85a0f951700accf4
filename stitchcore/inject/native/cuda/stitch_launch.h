/* The CUDA launch library: programs of kernels from a launch table (docs/contracts.md 12), on a
 * stream and with memory of the caller's. Knows neither TensorFlow nor CuPy, and needs no CUDA to
 * compile or to load: the driver is opened at run time.
 *
 * Every function that can fail returns a StitchReason and, where `error` is given, says more there.
 * No exception leaves the library. Functions may be called from any thread at any time, but for the
 * ends of lives: an object is closed, unloaded or waited for once, when no other call uses it. */
#ifndef STITCH_LAUNCH_LIBRARY_H_
#define STITCH_LAUNCH_LIBRARY_H_

#include <stddef.h>
#include <stdint.h>

#define STITCH_LAUNCH_VERSION 1

#ifdef __cplusplus
extern "C" {
#endif

typedef enum StitchReason {
  STITCH_OK = 0,
  STITCH_NO_DRIVER = 1,       /* libcuda does not load, or does not start */
  STITCH_OLD_DRIVER = 2,      /* it lacks what we call, or is older than the cubins' CUDA */
  STITCH_NO_DEVICE = 3,
  STITCH_NO_CONTEXT = 4,      /* none is current, or it is gone */
  STITCH_BAD_TABLE = 5,
  STITCH_BAD_CALL = 6,        /* arguments that do not fit the table */
  STITCH_NO_CUBIN = 7,        /* for this device's architecture */
  STITCH_BAD_MODULE = 8,      /* the driver refuses the cubin, or it is not the table's */
  STITCH_SHARED_MEMORY = 9,   /* more a block than the device has */
  STITCH_RESOURCES = 10,      /* no block fits for another cause: threads or registers */
  STITCH_COOPERATIVE = 11,    /* the grid is more than one wave, or the device has no such launch */
  STITCH_LAUNCH_FAILED = 12,
  STITCH_OUT_OF_MEMORY = 13,
  STITCH_CAPTURE = 14,        /* cannot be part of a CUDA graph */
  STITCH_DRIVER_FAILED = 15,  /* any other call of the driver */
  STITCH_INTERNAL = 16
} StitchReason;

typedef struct StitchError {
  int32_t reason; /* StitchReason */
  char text[508]; /* the driver's words among them, always ended by a zero */
} StitchError;

typedef struct StitchCuda StitchCuda;       /* the driver, and what it holds for us */
typedef struct StitchProgram StitchProgram; /* a launch table with its cubins */
typedef struct StitchChecks StitchChecks;   /* what the checks of one run will have found */

typedef struct StitchBuffer {
  uint64_t address; /* in device memory, a multiple of 16 */
  uint64_t bytes;   /* at least what the table says */
} StitchBuffer;

/* Where a run's arena comes from. `release` is called when all work on it is in the stream: memory
 * may go to work that comes later in this stream. Neither may throw. */
typedef struct StitchAllocator {
  uint64_t (*allocate)(void *user, uint64_t bytes); /* a multiple of 256, or 0: none left */
  void (*release)(void *user, uint64_t address);
  void *user;
} StitchAllocator;

typedef struct StitchCall {
  int32_t device;               /* its primary context; -1: the context that is current */
  int32_t first_launch, launches; /* a stretch of the table's; launches -1: all from the first */
  int32_t symbol_count, input_count, output_count;
  void *stream;                 /* of that context; nullptr: its default stream */
  const int64_t *symbols;
  const StitchBuffer *inputs, *outputs;
  StitchBuffer arena;           /* address 0: from `allocator` */
  const StitchAllocator *allocator; /* may be nullptr where `arena` is given or none is needed */
  StitchChecks **checks;        /* needed where a kernel of the stretch has checks, else nullptr
                                   comes back in it */
} StitchCall;

/* A check that failed: the launch's number, the check's number in its kernel, and the least and the
 * greatest value it reported. launch -1: all passed. */
typedef struct StitchCheck {
  int32_t launch, check;
  int64_t low, high;
} StitchCheck;

/* A kernel as one device has it. */
typedef struct StitchKernelInfo {
  int32_t registers, shared_bytes, local_bytes; /* static shared memory; spills and stack */
  int32_t blocks_per_multiprocessor, multiprocessors;
  int32_t minor; /* of the cubin that was chosen */
} StitchKernelInfo;

/* Opens the driver: `library`, or libcuda.so.1 where it is nullptr. */
int stitch_cuda_open(const char *library, StitchCuda **cuda, StitchError *error);
/* Lets go of everything that `cuda` holds, once all its programs are unloaded (else BAD_CALL). */
int stitch_cuda_close(StitchCuda *cuda, StitchError *error);

/* Reads a launch table; `data` is copied. Touches no device. */
int stitch_program_load(StitchCuda *cuda, const void *data, size_t size, StitchProgram **program,
                        StitchError *error);
/* Waits for the contexts it was used in and unloads its modules from them. Contexts of the caller's
 * must still be alive, and CUDA graphs that captured a run must not be launched any more. */
int stitch_program_unload(StitchProgram *program, StitchError *error);

/* Loads every kernel into the context of `device` (-1: the current one): all that can be refused
 * without a run is refused here. */
int stitch_program_prepare(StitchProgram *program, int32_t device, StitchError *error);
int stitch_kernel_info(StitchProgram *program, int32_t device, int32_t kernel,
                       StitchKernelInfo *info, StitchError *error);

/* Bytes that a run's arena must have, and where region `region` lies in it: what a caller needs who
 * gives the arena himself and runs other work between launches. */
int stitch_arena_bytes(const StitchProgram *program, const int64_t *symbols, int32_t symbol_count,
                       uint64_t *bytes, StitchError *error);
int stitch_region(const StitchProgram *program, int32_t region, const int64_t *symbols,
                  int32_t symbol_count, uint64_t *offset, uint64_t *bytes, StitchError *error);

/* Puts the launches into the stream and returns. What can be refused is refused before the first is
 * there; after a failed launch what the run wrote is worth nothing. */
int stitch_run(StitchProgram *program, const StitchCall *call, StitchError *error);

/* Waits for the run and says which check failed first; `checks` is gone afterwards. */
int stitch_checks_wait(StitchChecks *checks, StitchCheck *found, StitchError *error);

#ifdef __cplusplus
}
#endif

#endif /* STITCH_LAUNCH_LIBRARY_H_ */
