// Softmax of x * 0.125 + mask over the last axis of [8, 12, 256, 256], and its gradient.
#include "kernel.h"

enum { PER_MASK = 12 * 256, COLUMNS = 256, BLOCK = 256 };  // 96 tasks of 256 rows
static const float SCALE = 0.125f;

// in: x mask[8, 256]; out: p. 96 tasks.
KERNEL(softmax_forward) {
  float z[COLUMNS] __attribute__((aligned(64)));
  for (int64_t row = begin * BLOCK; row < end * BLOCK; row++) {
    const float *restrict x = (const float *)buffers[0] + row * COLUMNS;
    const float *restrict mask = (const float *)buffers[1] + row / PER_MASK * COLUMNS;
    float *restrict p = (float *)buffers[2] + row * COLUMNS;
    float top = -INFINITY, sum = 0;
#pragma omp simd reduction(max : top)
    for (int i = 0; i < COLUMNS; i++) {
      float t = x[i] * SCALE + mask[i];
      z[i] = t;
      top = t > top ? t : top;
    }
#pragma omp simd reduction(+ : sum)
    for (int i = 0; i < COLUMNS; i++) {
      float e = vector_exp(z[i] - top);
      z[i] = e;
      sum += e;
    }
    sum = 1.f / sum;
    SIMD for (int i = 0; i < COLUMNS; i++) p[i] = z[i] * sum;
  }
}

// in: p dp; out: dx. 96 tasks.
KERNEL(softmax_backward) {
  for (int64_t row = begin * BLOCK; row < end * BLOCK; row++) {
    const float *restrict p = (const float *)buffers[0] + row * COLUMNS;
    const float *restrict d = (const float *)buffers[1] + row * COLUMNS;
    float *restrict dx = (float *)buffers[2] + row * COLUMNS;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int i = 0; i < COLUMNS; i++) sum += p[i] * d[i];
    SIMD for (int i = 0; i < COLUMNS; i++) dx[i] = p[i] * (d[i] - sum) * SCALE;
  }
}
