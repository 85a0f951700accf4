// Sparse softmax cross-entropy of [2048, 8192] logits: the losses, and the gradient of their mean.
#include "kernel.h"

enum { ROWS = 2048, CLASSES = 8192, BLOCK = 32 };

// in: logits labels(i64); out: losses dlogits. 64 tasks.
KERNEL(cross_entropy) {
  const int64_t *labels = buffers[1];
  float *losses = buffers[2];
  for (int64_t row = begin * BLOCK; row < end * BLOCK; row++) {
    const float *restrict x = (const float *)buffers[0] + row * CLASSES;
    float *restrict d = (float *)buffers[3] + row * CLASSES;
    float top = -INFINITY, sum = 0;
#pragma omp simd reduction(max : top)
    for (int i = 0; i < CLASSES; i++) top = x[i] > top ? x[i] : top;
#pragma omp simd reduction(+ : sum)
    for (int i = 0; i < CLASSES; i++) {
      float e = vector_exp(x[i] - top);
      d[i] = e;
      sum += e;
    }
    float scale = 1.f / (sum * ROWS);
    SIMD for (int i = 0; i < CLASSES; i++) d[i] *= scale;
    d[labels[row]] -= 1.f / ROWS;
    losses[row] = logf(sum) + top - x[labels[row]];
  }
}
