// Adam over 100 tensors (50 of 768, 50 of LARGE elements, 25 M in all), updated in place.
#include "kernel.h"

enum { TENSORS = 100, SMALL = 768, LARGE = 499200, CHUNK = 65536 };
static const float TAKE1 = 0.1f, TAKE2 = 0.001f, EPSILON = 1e-7f;  // 1 - beta, rounded once

static void update(float *restrict p, float *restrict m, float *restrict v,
                   const float *restrict g, float rate, int64_t count) {
  SIMD for (int64_t i = 0; i < count; i++) {
    float gradient = g[i];
    float first = m[i] + (gradient - m[i]) * TAKE1;
    float second = v[i] + (gradient * gradient - v[i]) * TAKE2;
    m[i] = first;
    v[i] = second;
    p[i] -= rate * first / (sqrtf(second) + EPSILON);
  }
}

// in: p[100] m[100] v[100] g[100] rate; out: p[100] m[100] v[100], the memory of the inputs.
// Task 0 does all small tensors; then 8 chunks a large tensor: 401 tasks.
KERNEL(adam) {
  float rate = *(const float *)buffers[4 * TENSORS];
  float *const *out = (float *const *)buffers + 4 * TENSORS + 1;
  for (int64_t task = begin; task < end; task++) {
    if (task == 0) {
      for (int k = 0; k < 50; k++)
        update(out[k], out[TENSORS + k], out[2 * TENSORS + k], buffers[3 * TENSORS + k], rate,
               SMALL);
      continue;
    }
    int64_t k = 50 + (task - 1) / 8, start = (task - 1) % 8 * CHUNK;
    int64_t count = LARGE - start < CHUNK ? LARGE - start : CHUNK;
    update(out[k] + start, out[TENSORS + k] + start, out[2 * TENSORS + k] + start,
           (const float *)buffers[3 * TENSORS + k] + start, rate, count);
  }
}
