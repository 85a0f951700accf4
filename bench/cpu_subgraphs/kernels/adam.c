// Adam over 100 tensors (50 of 768, 50 of LARGE elements, 25 M in all).
#include "kernel.h"

enum { TENSORS = 100, SMALL = 768, LARGE = 499200, CHUNK = 65536 };
static const float TAKE1 = 0.1f, TAKE2 = 0.001f, EPSILON = 1e-7f;  // 1 - beta, rounded once

// The new values may lie in the memory of the old ones, element for element, so nothing is
// restrict; the pragma says that iterations are independent.
static void update(void *const *old, void *const *new, const float *g, float rate, int64_t start,
                   int64_t stop) {
  const float *p = old[0], *m = old[TENSORS], *v = old[2 * TENSORS];
  float *next_p = new[0], *next_m = new[TENSORS], *next_v = new[2 * TENSORS];
  SIMD for (int64_t i = start; i < stop; i++) {
    float gradient = g[i];
    float first = m[i] + (gradient - m[i]) * TAKE1;
    float second = v[i] + (gradient * gradient - v[i]) * TAKE2;
    next_m[i] = first;
    next_v[i] = second;
    next_p[i] = p[i] - rate * first / (sqrtf(second) + EPSILON);
  }
}

// in: p[100] m[100] v[100] g[100] rate; out: p[100] m[100] v[100].
// Task 0 does all small tensors; then 8 chunks a large tensor: 401 tasks.
KERNEL(adam) {
  float rate = *(const float *)buffers[4 * TENSORS];
  void *const *out = buffers + 4 * TENSORS + 1;
  for (int64_t task = begin; task < end; task++) {
    if (task == 0) {
      for (int k = 0; k < 50; k++)
        update(buffers + k, out + k, buffers[3 * TENSORS + k], rate, 0, SMALL);
      continue;
    }
    int64_t k = 50 + (task - 1) / 8, start = (task - 1) % 8 * CHUNK;
    int64_t stop = LARGE - start < CHUNK ? LARGE : start + CHUNK;
    update(buffers + k, out + k, buffers[3 * TENSORS + k], rate, start, stop);
  }
}
