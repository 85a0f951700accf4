// The pointwise part of an LSTM cell, [256, 512], gates i j f o side by side; and its gradient.
#include "kernel.h"

enum { ROWS = 256, HIDDEN = 512, BLOCK = 16 };

// in: gates[256, 2048] c; out: next_c h. 16 tasks.
KERNEL(lstm_cell_forward) {
  for (int64_t row = begin * BLOCK; row < end * BLOCK; row++) {
    const float *restrict gi = (const float *)buffers[0] + row * 4 * HIDDEN;
    const float *restrict gj = gi + HIDDEN, *restrict gf = gj + HIDDEN, *restrict go = gf + HIDDEN;
    const float *restrict c = (const float *)buffers[1] + row * HIDDEN;
    float *restrict next = (float *)buffers[2] + row * HIDDEN;
    float *restrict h = (float *)buffers[3] + row * HIDDEN;
    SIMD for (int k = 0; k < HIDDEN; k++) {
      float n = c[k] * vector_sigmoid(gf[k] + 1.f) + vector_sigmoid(gi[k]) * vector_tanh(gj[k]);
      next[k] = n;
      h[k] = vector_tanh(n) * vector_sigmoid(go[k]);
    }
  }
}

// in: gates c dh dnext_c; out: dgates dc. 16 tasks.
KERNEL(lstm_cell_backward) {
  for (int64_t row = begin * BLOCK; row < end * BLOCK; row++) {
    const float *restrict gi = (const float *)buffers[0] + row * 4 * HIDDEN;
    const float *restrict gj = gi + HIDDEN, *restrict gf = gj + HIDDEN, *restrict go = gf + HIDDEN;
    const float *restrict c = (const float *)buffers[1] + row * HIDDEN;
    const float *restrict dh = (const float *)buffers[2] + row * HIDDEN;
    const float *restrict dnext = (const float *)buffers[3] + row * HIDDEN;
    float *restrict di = (float *)buffers[4] + row * 4 * HIDDEN;
    float *restrict dj = di + HIDDEN, *restrict df = dj + HIDDEN, *restrict d_o = df + HIDDEN;
    float *restrict dc = (float *)buffers[5] + row * HIDDEN;
    SIMD for (int k = 0; k < HIDDEN; k++) {
      float i = vector_sigmoid(gi[k]), j = vector_tanh(gj[k]), f = vector_sigmoid(gf[k] + 1.f);
      float o = vector_sigmoid(go[k]), n = c[k] * f + i * j, t = vector_tanh(n);
      float dn = dnext[k] + dh[k] * o * (1 - t * t);
      d_o[k] = dh[k] * t * o * (1 - o);
      di[k] = dn * j * i * (1 - i);
      dj[k] = dn * i * (1 - j * j);
      df[k] = dn * c[k] * f * (1 - f);
      dc[k] = dn * f;
    }
  }
}
