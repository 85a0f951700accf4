// What the hand-written kernels share: the kernel ABI (docs/contracts.md section 2), vector math.
#pragma once
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define SIMD _Pragma("omp simd")

// A kernel's body; the exported function around it sets flush-to-zero and restores the caller's.
#define KERNEL(name)                                                                              \
  static void name##_body(void *const *buffers, char *scratch, int64_t phase, int64_t begin,      \
                          int64_t end);                                                           \
  int64_t name(void *const *buffers, const int64_t *symbols, char *scratch, int64_t phase,        \
               int64_t begin, int64_t end) {                                                      \
    (void)symbols;                                                                                \
    unsigned saved = _mm_getcsr();                                                                \
    _mm_setcsr(saved | 0x8040);                                                                   \
    name##_body(buffers, scratch, phase, begin, end);                                             \
    _mm_sfence(); /* streamed stores are visible before the caller says so */                     \
    _mm_setcsr(saved);                                                                            \
    return 0;                                                                                     \
  }                                                                                               \
  static void name##_body(void *const *buffers, char *scratch, int64_t phase, int64_t begin,      \
                          int64_t end)

// e^x within about 1.2 units in the last place on [-87.3, 88], constant beyond.
INLINE float clamped_exp(float x) {
  x = x < -87.3f ? -87.3f : x;
  x = x > 88.f ? 88.f : x;
  float n = __builtin_rintf(x * 1.44269504f);
  float r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.f;
  union { int32_t bits; float value; } power = {((int32_t)n + 127) << 23};
  return p * power.value;
}

// The same, and 0 where e^x is below the smallest normal number.
INLINE float vector_exp(float x) { return x < -87.3f ? 0.f : clamped_exp(x); }

// Copies a row past the caches: for results too large to be found there by their reader.
INLINE void stream(float *restrict to, const float *restrict from, int64_t count) {
#ifdef __AVX512F__
  for (int64_t i = 0; i < count; i += 16) _mm512_stream_ps(to + i, _mm512_load_ps(from + i));
#else
  for (int64_t i = 0; i < count; i += 8) _mm256_stream_ps(to + i, _mm256_load_ps(from + i));
#endif
}

INLINE float vector_sigmoid(float x) { return 1.f / (1.f + clamped_exp(-x)); }

// Eigen's rational approximation of tanh.
INLINE float vector_tanh(float x) {
  float c = x < -9.f ? -9.f : x;
  c = c > 9.f ? 9.f : c;
  float s = c * c;
  float p = -2.76076847742355e-16f;
  p = p * s + 2.00018790482477e-13f;
  p = p * s - 8.60467152213735e-11f;
  p = p * s + 5.12229709037114e-08f;
  p = p * s + 1.48572235717979e-05f;
  p = p * s + 6.37261928875436e-04f;
  p = p * s + 4.89352455891786e-03f;
  float q = 1.19825839466702e-06f;
  q = q * s + 1.18534705686654e-04f;
  q = q * s + 2.26843463243900e-03f;
  q = q * s + 4.89352518554385e-03f;
  return c * p / q;
}

// Normal distribution function of u (Abramowitz and Stegun 7.1.26, absolute error 1e-7);
// *density gets exp(-u*u/2), which GELU's derivative needs too.
INLINE float vector_normal(float u, float *density) {
  float a = u < 0 ? -u : u;
  float t = 1.f / (1.f + 0.3275911f * 0.70710678f * a);
  float e = clamped_exp(-0.5f * u * u);
  *density = e;
  float p = 1.061405429f;
  p = p * t - 1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t - 0.284496736f;
  p = p * t + 0.254829592f;
  p = 0.5f * p * t * e;
  return u < 0 ? p : 1.f - p;
}
