// Batch normalisation (training) and ReLU over [32, 56, 56, 64], channels last, and its gradient.
#include "kernel.h"

enum { ROWS = 32 * 56 * 56, CHANNELS = 64, TASKS = 32, BLOCK = ROWS / TASKS, STRIP = 64 };
static const float EPSILON = 1e-3f;

typedef float vector __attribute__((vector_size(64), aligned(4)));
typedef int bits __attribute__((vector_size(64), aligned(4)));

// Adds up the two partial sums of every block: [TASKS][2][CHANNELS] -> first, second.
INLINE void combine(const float *partial, float *first, float *second) {
  memset(first, 0, sizeof(float) * CHANNELS);
  memset(second, 0, sizeof(float) * CHANNELS);
  for (int block = 0; block < TASKS; block++) {
    SIMD for (int i = 0; i < CHANNELS; i++) {
      first[i] += partial[block * 2 * CHANNELS + i];
      second[i] += partial[block * 2 * CHANNELS + CHANNELS + i];
    }
  }
}

// Sums of x - shift and its square over one block, strip by strip so that rounding stays small.
INLINE void moments(const float *restrict x, const float *restrict shift, float *restrict partial) {
  float total[2][CHANNELS] __attribute__((aligned(64))) = {{0}};
  for (int64_t start = 0; start < BLOCK; start += STRIP) {
    int64_t stop = start + STRIP < BLOCK ? start + STRIP : BLOCK;
    float sum[CHANNELS] __attribute__((aligned(64))) = {0};
    float squares[CHANNELS] __attribute__((aligned(64))) = {0};
    for (int64_t row = start; row < stop; row++) {
      SIMD for (int i = 0; i < CHANNELS; i++) {
        float d = x[row * CHANNELS + i] - shift[i];
        sum[i] += d;
        squares[i] += d * d;
      }
    }
    for (int i = 0; i < CHANNELS; i++) total[0][i] += sum[i], total[1][i] += squares[i];
  }
  memcpy(partial, total, sizeof total);
}

// in: x gamma beta; out: y mean reciprocal_deviation variance. 32 tasks, 32 tasks.
KERNEL(batch_norm_forward) {
  const float *x = buffers[0], *gamma = buffers[1], *beta = buffers[2];
  float *partial = (float *)scratch;
  if (phase == 0) {
    for (int64_t block = begin; block < end; block++)
      moments(x + block * BLOCK * CHANNELS, x, partial + block * 2 * CHANNELS);
    return;
  }
  float sum[CHANNELS], squares[CHANNELS], mean[CHANNELS], variance[CHANNELS], q[CHANNELS];
  float scale[CHANNELS] __attribute__((aligned(64))), shift[CHANNELS] __attribute__((aligned(64)));
  combine(partial, sum, squares);
  for (int i = 0; i < CHANNELS; i++) {
    float d = sum[i] / ROWS;
    variance[i] = squares[i] / ROWS - d * d;
    mean[i] = d + x[i];
    q[i] = 1.f / sqrtf(variance[i] + EPSILON);
    scale[i] = q[i] * gamma[i];
    shift[i] = beta[i] - mean[i] * scale[i];
  }
  if (begin == 0) {
    memcpy(buffers[4], mean, sizeof mean);
    memcpy(buffers[5], q, sizeof q);
    memcpy(buffers[6], variance, sizeof variance);
  }
  for (int64_t row = begin * BLOCK; row < end * BLOCK; row++) {
    const float *restrict in = x + row * CHANNELS;
    float *restrict y = (float *)buffers[3] + row * CHANNELS;
    SIMD for (int i = 0; i < CHANNELS; i++) {
      float v = in[i] * scale[i] + shift[i];
      y[i] = v > 0 ? v : 0;
    }
  }
}

// Sums of d and of d * (x - mean) over one block, d being dy where the ReLU let x through.
INLINE void gradient_moments(const float *x, const float *dy, const float *scale,
                             const float *shift, const float *mean, float *partial) {
  float total[2][CHANNELS] __attribute__((aligned(64))) = {{0}};
  for (int64_t start = 0; start < BLOCK; start += STRIP) {
    int64_t stop = start + STRIP < BLOCK ? start + STRIP : BLOCK;
    float sum[CHANNELS] __attribute__((aligned(64))) = {0};
    float products[CHANNELS] __attribute__((aligned(64))) = {0};
    for (int64_t row = start; row < stop; row++) {
      for (int i = 0; i < CHANNELS; i += 16) {  // a select here does not vectorise by itself
        vector in = *(const vector *)(x + row * CHANNELS + i);
        vector up = *(const vector *)(dy + row * CHANNELS + i);
        vector z = in * *(const vector *)(scale + i) + *(const vector *)(shift + i);
        vector d = (vector)((bits)up & (z > 0));
        *(vector *)(sum + i) += d;
        *(vector *)(products + i) += d * (in - *(const vector *)(mean + i));
      }
    }
    for (int i = 0; i < CHANNELS; i++) total[0][i] += sum[i], total[1][i] += products[i];
  }
  memcpy(partial, total, sizeof total);
}

// in: x gamma beta dy mean reciprocal_deviation; out: dx dgamma dbeta. 32 tasks, 32 tasks.
KERNEL(batch_norm_backward) {
  const float *x = buffers[0], *gamma = buffers[1], *beta = buffers[2], *dy = buffers[3];
  const float *mean = buffers[4], *q = buffers[5];
  float *partial = (float *)scratch;
  float scale[CHANNELS] __attribute__((aligned(64))), shift[CHANNELS] __attribute__((aligned(64)));
  float center[CHANNELS] __attribute__((aligned(64)));
  for (int i = 0; i < CHANNELS; i++) {
    scale[i] = q[i] * gamma[i];
    shift[i] = beta[i] - mean[i] * scale[i];
    center[i] = mean[i];
  }
  if (phase == 0) {
    for (int64_t block = begin; block < end; block++)
      gradient_moments(x + block * BLOCK * CHANNELS, dy + block * BLOCK * CHANNELS, scale, shift,
                       center, partial + block * 2 * CHANNELS);
    return;
  }
  float sum[CHANNELS] __attribute__((aligned(64))), products[CHANNELS] __attribute__((aligned(64)));
  combine(partial, sum, products);
  if (begin == 0) {
    float *dgamma = buffers[7], *dbeta = buffers[8];
    for (int i = 0; i < CHANNELS; i++) dgamma[i] = products[i] * q[i], dbeta[i] = sum[i];
  }
  for (int i = 0; i < CHANNELS; i++) {
    sum[i] = sum[i] / ROWS;
    products[i] = products[i] * q[i] * q[i] / ROWS;
  }
  for (int64_t row = begin * BLOCK; row < end * BLOCK; row++) {
    const float *restrict in = x + row * CHANNELS, *restrict up = dy + row * CHANNELS;
    float *restrict dx = (float *)buffers[6] + row * CHANNELS;
    SIMD for (int i = 0; i < CHANNELS; i++) {
      float e = up[i], d = in[i] * scale[i] + shift[i] > 0 ? e : 0.f;
      dx[i] = scale[i] * (d - sum[i] - (in[i] - center[i]) * products[i]);
    }
  }
}
