// 24 steps of an attention GRU's pointwise part on [128, 36]: a chain of tiny operations.
#include "kernel.h"

// 4 rows of 36 fill 9 vectors of 16 with no tail.
enum { STEPS = 24, ROWS = 128, COLUMNS = 36, TOGETHER = 4, WIDTH = TOGETHER * COLUMNS };

// in: x[24, 3, 128, 36] attention[24, 128, 1] update reset h0; out: h. 32 tasks.
KERNEL(dien_chain) {
  const float *x = buffers[0], *attention = buffers[1], *h0 = buffers[4];
  const float *update = buffers[2], *reset = buffers[3];
  float wu[WIDTH] __attribute__((aligned(64))), wr[WIDTH] __attribute__((aligned(64)));
  float gate[WIDTH] __attribute__((aligned(64))), h[WIDTH] __attribute__((aligned(64)));
  for (int j = 0; j < TOGETHER; j++) {
    memcpy(wu + j * COLUMNS, update, sizeof(float) * COLUMNS);
    memcpy(wr + j * COLUMNS, reset, sizeof(float) * COLUMNS);
  }
  for (int64_t task = begin; task < end; task++) {
    int64_t row = task * TOGETHER;
    memcpy(h, h0 + row * COLUMNS, sizeof h);
    for (int t = 0; t < STEPS; t++) {
      const float *restrict xu = x + ((t * 3L + 0) * ROWS + row) * COLUMNS;
      const float *restrict xr = x + ((t * 3L + 1) * ROWS + row) * COLUMNS;
      const float *restrict xc = x + ((t * 3L + 2) * ROWS + row) * COLUMNS;
      for (int j = 0; j < TOGETHER; j++)
        for (int i = 0; i < COLUMNS; i++) gate[j * COLUMNS + i] = attention[t * ROWS + row + j];
      SIMD for (int i = 0; i < WIDTH; i++) {
        float u = gate[i] * vector_sigmoid(xu[i] + h[i] * wu[i]);
        float r = vector_sigmoid(xr[i] + h[i] * wr[i]);
        float c = vector_tanh(xc[i] + r * h[i]);
        h[i] = (1 - u) * h[i] + u * c;
      }
    }
    memcpy((float *)buffers[5] + row * COLUMNS, h, sizeof h);
  }
}
