// LayerNorm over [4096, 768] and its gradient.
#include "kernel.h"

enum { ROWS = 4096, COLUMNS = 768, BLOCK = 256 };  // a task is a block of rows
static const float EPSILON = 1e-5f;

// in: x gamma beta; out: y mean reciprocal_deviation. 16 tasks.
KERNEL(layer_norm_forward) {
  const float *restrict gamma = buffers[1], *restrict beta = buffers[2];
  float *mean = buffers[4], *deviation = buffers[5];
  float y[COLUMNS] __attribute__((aligned(64)));
  for (int64_t row = begin * BLOCK; row < end * BLOCK; row++) {
    const float *restrict x = (const float *)buffers[0] + row * COLUMNS;
    float sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
    for (int i = 0; i < COLUMNS; i++) sum += x[i];
    float m = sum / COLUMNS;
#pragma omp simd reduction(+ : squares)
    for (int i = 0; i < COLUMNS; i++) {
      float d = x[i] - m;
      squares += d * d;
    }
    float q = 1.f / sqrtf(squares / COLUMNS + EPSILON);
    SIMD for (int i = 0; i < COLUMNS; i++) y[i] = (x[i] - m) * q * gamma[i] + beta[i];
    stream((float *)buffers[3] + row * COLUMNS, y, COLUMNS);
    mean[row] = m;
    deviation[row] = q;
  }
}

// in: x gamma dy mean reciprocal_deviation; out: dx dgamma dbeta. 16 tasks, then 1.
// scratch: dgamma and dbeta of each block.
KERNEL(layer_norm_backward) {
  float *partial = (float *)scratch;
  if (phase == 1) {
    float *restrict dgamma = buffers[6], *restrict dbeta = buffers[7];
    memset(dgamma, 0, sizeof(float) * COLUMNS);
    memset(dbeta, 0, sizeof(float) * COLUMNS);
    for (int block = 0; block < ROWS / BLOCK; block++) {
      const float *restrict g = partial + block * 2 * COLUMNS, *restrict b = g + COLUMNS;
      SIMD for (int i = 0; i < COLUMNS; i++) dgamma[i] += g[i], dbeta[i] += b[i];
    }
    return;
  }
  const float *restrict gamma = buffers[1], *mean = buffers[3], *deviation = buffers[4];
  for (int64_t block = begin; block < end; block++) {
    float sum_g[COLUMNS] __attribute__((aligned(64))) = {0};
    float sum_b[COLUMNS] __attribute__((aligned(64))) = {0};
    float dx[COLUMNS] __attribute__((aligned(64)));
    for (int64_t row = block * BLOCK; row < (block + 1) * BLOCK; row++) {
      const float *restrict x = (const float *)buffers[0] + row * COLUMNS;
      const float *restrict dy = (const float *)buffers[2] + row * COLUMNS;
      float m = mean[row], q = deviation[row], s1 = 0, s2 = 0;
#pragma omp simd reduction(+ : s1, s2)
      for (int i = 0; i < COLUMNS; i++) {
        float h = (x[i] - m) * q, d = dy[i], e = d * gamma[i];
        s1 += e;
        s2 += e * h;
        sum_g[i] += d * h;
        sum_b[i] += d;
      }
      s1 *= 1.f / COLUMNS;
      s2 *= 1.f / COLUMNS;
      SIMD for (int i = 0; i < COLUMNS; i++) {
        float h = (x[i] - m) * q;
        dx[i] = q * (dy[i] * gamma[i] - s1 - h * s2);
      }
      stream((float *)buffers[5] + row * COLUMNS, dx, COLUMNS);
    }
    memcpy(partial + block * 2 * COLUMNS, sum_g, sizeof sum_g);
    memcpy(partial + block * 2 * COLUMNS + COLUMNS, sum_b, sizeof sum_b);
  }
}
