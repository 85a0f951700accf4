// z = gelu(h + bias) * mask / keep + residual; y = LayerNorm(z), over [4096, 768]; its gradient.
#include "kernel.h"

enum { ROWS = 4096, COLUMNS = 768, BLOCK = 256 };
static const float EPSILON = 1e-5f, KEPT = 1.f / 0.9f;

// in: h bias mask(u8) residual gamma beta; out: y mean reciprocal_deviation. 16 tasks.
KERNEL(gelu_chain_forward) {
  const float *restrict bias = buffers[1], *restrict gamma = buffers[4];
  const float *restrict beta = buffers[5];
  float *mean = buffers[7], *deviation = buffers[8];
  float z[COLUMNS] __attribute__((aligned(64)));
  for (int64_t row = begin * BLOCK; row < end * BLOCK; row++) {
    const float *restrict h = (const float *)buffers[0] + row * COLUMNS;
    const uint8_t *restrict mask = (const uint8_t *)buffers[2] + row * COLUMNS;
    const float *restrict residual = (const float *)buffers[3] + row * COLUMNS;
    float sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
    for (int i = 0; i < COLUMNS; i++) {
      float u = h[i] + bias[i], density;
      float t = u * vector_normal(u, &density) * ((float)mask[i] * KEPT) + residual[i];
      z[i] = t;
      sum += t;
    }
    float m = sum / COLUMNS;
#pragma omp simd reduction(+ : squares)
    for (int i = 0; i < COLUMNS; i++) {
      float d = z[i] - m;
      squares += d * d;
    }
    float q = 1.f / sqrtf(squares / COLUMNS + EPSILON);
    SIMD for (int i = 0; i < COLUMNS; i++) z[i] = (z[i] - m) * q * gamma[i] + beta[i];
    stream((float *)buffers[6] + row * COLUMNS, z, COLUMNS);
    mean[row] = m;
    deviation[row] = q;
  }
}

// in: h bias mask residual gamma dy mean reciprocal_deviation;
// out: dh dbias dresidual dgamma dbeta.
// 16 tasks, then 1. Recomputes z. scratch: dbias, dgamma and dbeta of each block.
KERNEL(gelu_chain_backward) {
  float *partial = (float *)scratch;
  if (phase == 1) {
    float *outputs[3] = {buffers[9], buffers[11], buffers[12]};
    for (int k = 0; k < 3; k++) {
      float *restrict out = outputs[k];
      memset(out, 0, sizeof(float) * COLUMNS);
      for (int block = 0; block < ROWS / BLOCK; block++) {
        const float *restrict part = partial + (block * 3 + k) * COLUMNS;
        SIMD for (int i = 0; i < COLUMNS; i++) out[i] += part[i];
      }
    }
    return;
  }
  const float *restrict bias = buffers[1], *restrict gamma = buffers[4];
  const float *mean = buffers[6], *deviation = buffers[7];
  float zhat[COLUMNS] __attribute__((aligned(64))), slope[COLUMNS] __attribute__((aligned(64)));
  for (int64_t block = begin; block < end; block++) {
    float sums[3][COLUMNS] __attribute__((aligned(64))) = {{0}};
    float *restrict dbias = sums[0], *restrict dgamma = sums[1], *restrict dbeta = sums[2];
    for (int64_t row = block * BLOCK; row < (block + 1) * BLOCK; row++) {
      const float *restrict h = (const float *)buffers[0] + row * COLUMNS;
      const uint8_t *restrict mask = (const uint8_t *)buffers[2] + row * COLUMNS;
      const float *restrict residual = (const float *)buffers[3] + row * COLUMNS;
      const float *restrict dy = (const float *)buffers[5] + row * COLUMNS;
      float m = mean[row], q = deviation[row], s1 = 0, s2 = 0;
#pragma omp simd reduction(+ : s1, s2)
      for (int i = 0; i < COLUMNS; i++) {
        float u = h[i] + bias[i], e, p = vector_normal(u, &e), k = (float)mask[i] * KEPT;
        float x = (u * p * k + residual[i] - m) * q;
        zhat[i] = x;
        slope[i] = k * (p + u * e * 0.39894228f);
        float d = dy[i], w = d * gamma[i];
        s1 += w;
        s2 += w * x;
        dgamma[i] += d * x;
        dbeta[i] += d;
      }
      s1 *= 1.f / COLUMNS;
      s2 *= 1.f / COLUMNS;
      SIMD for (int i = 0; i < COLUMNS; i++) {
        float dz = q * (dy[i] * gamma[i] - s1 - zhat[i] * s2);
        zhat[i] = dz;
        float t = dz * slope[i];
        slope[i] = t;
        dbias[i] += t;
      }
      stream((float *)buffers[10] + row * COLUMNS, zhat, COLUMNS);
      stream((float *)buffers[8] + row * COLUMNS, slope, COLUMNS);
    }
    memcpy(partial + block * 3 * COLUMNS, sums, sizeof sums);
  }
}
