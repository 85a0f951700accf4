// Runs a kernel (docs/contracts.md section 2) without TensorFlow: two threads, chunks dealt as the
// plug-in deals them. The second thread spins a while before it sleeps, as TensorFlow's pool does.
#define _GNU_SOURCE
#include <immintrin.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef int64_t (*kernel)(void *const *, const int64_t *, char *, int64_t, int64_t, int64_t);

static struct {
  kernel function;
  void *const *buffers;
  const int64_t *symbols;
  char *scratch;
  int64_t phase, tasks, chunk;
  int serial;  // of the phase in flight
  _Atomic int64_t next, failure;
} job;
static _Atomic int started, finished;
static _Atomic int door;  // may the helper still join this phase?
enum { SPIN = 20000, CHUNKS = 32, OPEN = 0, JOINED = 1, CLOSED = 2 };

static void work(void) {
  for (;;) {
    int64_t begin = atomic_fetch_add(&job.next, job.chunk);
    if (begin >= job.tasks) return;
    int64_t end = begin + job.chunk < job.tasks ? begin + job.chunk : job.tasks;
    int64_t result = job.function(job.buffers, job.symbols, job.scratch, job.phase, begin, end);
    if (result) job.failure = result;
  }
}

static void *helper(void *unused) {
  (void)unused;
  for (int seen = 0;;) {
    int now, spins = 0;
    while ((now = atomic_load(&started)) == seen) {
      if (++spins < SPIN) _mm_pause();
      else syscall(SYS_futex, &started, FUTEX_WAIT_PRIVATE, seen, 0, 0, 0);
    }
    seen = now;
    int open = OPEN;
    if (!atomic_compare_exchange_strong(&door, &open, JOINED)) continue;
    work();
    atomic_store(&finished, job.serial);
  }
  return 0;
}

// All phases of one call; tasks[p] tasks in phase p, on `threads` (1 or 2) threads.
int64_t run_kernel(kernel function, void *const *buffers, const int64_t *symbols, char *scratch,
                   int64_t phases, const int64_t *tasks, int64_t threads) {
  static int has_helper;
  if (threads > 1 && !has_helper) {
    pthread_t thread;
    pthread_create(&thread, 0, helper, 0);
    has_helper = 1;
  }
  job.function = function, job.buffers = buffers, job.symbols = symbols, job.scratch = scratch;
  job.failure = 0;
  for (int64_t phase = 0; phase < phases; phase++) {
    job.phase = phase, job.tasks = tasks[phase], job.next = 0;
    if (threads == 1 || tasks[phase] <= 1) {
      int64_t result = function(buffers, symbols, scratch, phase, 0, tasks[phase]);
      if (result) job.failure = result;
      continue;
    }
    job.chunk = (tasks[phase] + CHUNKS - 1) / CHUNKS;
    job.serial++;
    atomic_store(&door, OPEN);
    atomic_fetch_add(&started, 1);
    syscall(SYS_futex, &started, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0);
    work();
    int open = OPEN;  // a helper that has not joined by now need not be waited for
    if (atomic_compare_exchange_strong(&door, &open, CLOSED)) continue;
    while (atomic_load(&finished) != job.serial) _mm_pause();
  }
  return job.failure;
}
