/* Helpers of generated CPU kernels: vector math without fast-math, storage types, float environment.
 *
 * Every function is a branch-free scalar inline that gcc and clang vectorise under `#pragma omp simd`.
 * No reassociation: the text is the arithmetic. Errors are in units in the last
 * place against float64 over the whole range, measured by tests/codegen/test_math.py, with denormals
 * flushed (kernels run so). f64 functions are libm's: right to 1 ulp, not vectorised. */
#ifndef STITCH_CPU_H
#define STITCH_CPU_H
#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#define ST_INLINE static inline __attribute__((always_inline, unused))
#define ST_COPY(to, from, bytes) __builtin_memcpy(to, from, bytes)
#define ST_INF_F32 __builtin_inff()
#define ST_NAN_F32 __builtin_nanf("")
#define ST_INF_F64 __builtin_inf()
#define ST_NAN_F64 __builtin_nan("")
#define ST_TABLE static const __attribute__((unused))
#define ST_ALIGNED __attribute__((aligned(64)))
/* No inlining, cloning or merging: gcc forgets that a cloned loop is `omp simd`, and reports of merged
 * functions would be missing. clang knows only noinline. */
#ifdef __clang__
#define ST_SECTION static __attribute__((noinline))
#else
#define ST_SECTION static __attribute__((noipa))
#endif
#define ST_EXPORT __attribute__((visibility("default")))
#include "stitch_common.h"

/* ---- float16, some lanes at a time ------------------------------------------------------------------ */
/* gcc 12 vectorises no conversion of _Float16: what has an instruction for a vector of them is written
 * with it, here, and generated loops are cut around it (codegen/c_half_lanes.py). NaNs keep the upper
 * part of their pattern, and are quiet. */
#if defined(__AVX512F__)
#define ST_HALF_LANES 16
#else
#define ST_HALF_LANES 8
#endif
#if defined(__F16C__)
typedef float st_wide_lanes __attribute__((vector_size(4 * ST_HALF_LANES), aligned(4), may_alias));
typedef short st_half_lanes __attribute__((vector_size(2 * ST_HALF_LANES), aligned(2), may_alias));
#if defined(__clang__)
typedef _Float16 st_float16_lanes __attribute__((vector_size(2 * ST_HALF_LANES)));
#define ST_WIDEN(half) __builtin_convertvector((st_float16_lanes)(half), st_wide_lanes)
#define ST_NARROW(wide) (st_half_lanes)__builtin_convertvector(wide, st_float16_lanes)
#elif ST_HALF_LANES == 16
#define ST_WIDEN(half) __builtin_ia32_vcvtph2ps512_mask(half, (st_wide_lanes){0}, -1, 4)
#define ST_NARROW(wide) __builtin_ia32_vcvtps2ph512_mask(wide, 0, (st_half_lanes){0}, -1)
#else
#define ST_WIDEN(half) __builtin_ia32_vcvtph2ps256(half)
#define ST_NARROW(wide) __builtin_ia32_vcvtps2ph256(wide, 0)
#endif
ST_INLINE void st_widen_lanes(float *to, const uint16_t *from) {
  *(st_wide_lanes *)to = ST_WIDEN(*(const st_half_lanes *)from);
}
ST_INLINE void st_narrow_lanes(uint16_t *to, const float *from) {
  *(st_half_lanes *)to = ST_NARROW(*(const st_wide_lanes *)from);
}
ST_INLINE void st_round_lanes(float *to, const float *from) {
  *(st_wide_lanes *)to = ST_WIDEN(ST_NARROW(*(const st_wide_lanes *)from));
}
#else
#define ST_EACH_LANE(value) for (int l = 0; l < ST_HALF_LANES; l++) to[l] = value
ST_INLINE void st_widen_lanes(float *to, const uint16_t *from) { ST_EACH_LANE(st_load_f16(from[l])); }
ST_INLINE void st_narrow_lanes(uint16_t *to, const float *from) {
  ST_EACH_LANE(st_store_f16(st_round_f16(from[l])));
}
ST_INLINE void st_round_lanes(float *to, const float *from) { ST_EACH_LANE(st_round_f16(from[l])); }
#endif

/* ---- choices that all lanes make alike, by a mask of all bits or none ------------------------------ */
#define ST_CHOOSE(t, T, I)                                                                            \
  ST_INLINE T st_choose_##t(int64_t mask, T a, T b) {                                                 \
    I x, y;                                                                                           \
    ST_COPY(&x, &a, sizeof(x));                                                                       \
    ST_COPY(&y, &b, sizeof(y));                                                                       \
    x = (x & (I)mask) | (y & ~(I)mask);                                                               \
    ST_COPY(&a, &x, sizeof(x));                                                                       \
    return a;                                                                                         \
  }
ST_CHOOSE(f32, float, int32_t)
ST_CHOOSE(f64, double, int64_t)
ST_CHOOSE(s32, int32_t, int32_t)
ST_CHOOSE(u32, uint32_t, int32_t)
ST_CHOOSE(s64, int64_t, int64_t)
ST_CHOOSE(u64, uint64_t, int64_t)

/* ---- float environment: flush-to-zero (bit 15) and denormals-are-zero (bit 6) of MXCSR ------------ */
ST_INLINE unsigned st_enter(void) {
  unsigned saved = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(saved | 0x8040u);
  return saved;
}
ST_INLINE void st_leave(unsigned saved) { __builtin_ia32_ldmxcsr(saved); }

/* ---- indices and checks -------------------------------------------------------------------------- */
#define ST_PRAGMA(text) _Pragma(#text)
#define ST_UNROLL(count) ST_PRAGMA(GCC unroll count)
ST_INLINE long st_min(long a, long b) { return a < b ? a : b; }
ST_INLINE long st_max(long a, long b) { return a > b ? a : b; }
/* Of two values that did not pass a check, the one to report: the least if negative, else the most. */
ST_INLINE int64_t st_worse(int64_t a, int64_t b) {
  const int64_t low = a < b ? a : b;
  return low < 0 ? low : (a < b ? b : a);
}
/* The result of a task range in which a check failed: 1 + its number below, the value it reports,
 * of 56 bits, above. Values in [low, high] failed. */
ST_INLINE int64_t st_failed(int64_t error, int64_t low, int64_t high) {
  const int64_t limit = (int64_t)1 << 55, value = st_worse(low, high);
  const int64_t kept = value < -limit ? -limit : (value >= limit ? limit - 1 : value);
  return kept * 256 + error + 1;
}
/* Of two results of task ranges the one to return: the first check's, and its worse value. */
ST_INLINE int64_t st_first(int64_t a, int64_t b) {
  const int64_t left = a & 255, right = b & 255;
  if (left == 0 || right == 0) return left == 0 ? b : a;
  if (left != right) return left < right ? a : b;
  return st_worse(a >> 8, b >> 8) * 256 + left;
}

/* ---- cache hints --------------------------------------------------------------------------------- */
#if defined(__AVX512F__)
#define ST_LINE 64
#elif defined(__AVX__)
#define ST_LINE 32
#else
#define ST_LINE 16
#endif
typedef float st_line __attribute__((vector_size(ST_LINE), aligned(4), may_alias));
/* One vector to an address that is a multiple of its size, past the caches. */
ST_INLINE void st_stream_line(char *to, const char *from) {
  st_line line = *(const st_line *)from;
#ifdef __clang__
  typedef float whole __attribute__((vector_size(ST_LINE), may_alias));
  __builtin_nontemporal_store((whole)line, (whole *)to);
#elif ST_LINE == 64
  __builtin_ia32_movntps512((float *)to, line);
#elif ST_LINE == 32
  __builtin_ia32_movntps256((float *)to, line);
#else
  __builtin_ia32_movntps((float *)to, line);
#endif
}
/* Copies bytes past the caches; the ends that do not fill a whole vector go the ordinary way. */
ST_INLINE void st_stream(void *to, const void *from, long bytes) {
  char *target = (char *)to;
  const char *source = (const char *)from;
  long head = st_min((long)(-(uintptr_t)target & (ST_LINE - 1)), bytes), at = head;
  if (head != 0) ST_COPY(target, source, head);
  for (; at + ST_LINE <= bytes; at += ST_LINE) st_stream_line(target + at, source + at);
  if (at < bytes) ST_COPY(target + at, source + at, bytes - at);
}
/* Streamed stores become visible before those that follow. */
ST_INLINE void st_stream_end(void) { __builtin_ia32_sfence(); }
ST_INLINE void st_prefetch_near(const void *from, long bytes) {
  for (long at = 0; at < bytes; at += 64) __builtin_prefetch((const char *)from + at, 0, 3);
}
ST_INLINE void st_prefetch_far(const void *from, long bytes) {
  for (long at = 0; at < bytes; at += 64) __builtin_prefetch((const char *)from + at, 0, 2);
}

/* ---- extremes of many ---------------------------------------------------------------------------- */
/* st_maximum and st_minimum of an accumulator `a`. What b is may be a choice, which compilers look
 * through: the test for NaN would wait for that of the choice, and `a` for both. Bits hide it. */
#define ST_EXTREME(name, t, T, U, better)                                       \
  ST_INLINE T st_accumulate_##name##_##t(T a, T b) {                            \
    const T best = b better a ? b : a;                                          \
    const U kept = (U)0 - (U)(b != b);                                          \
    return st_from_bits_##t((st_bits_##t(b) & kept) | (st_bits_##t(best) & ~kept)); \
  }
ST_EXTREME(maximum, f32, float, uint32_t, >)
ST_EXTREME(minimum, f32, float, uint32_t, <)
ST_EXTREME(maximum, f64, double, uint64_t, >)
ST_EXTREME(minimum, f64, double, uint64_t, <)

/* ---- squares of a transpose ---------------------------------------------------------------------- */
#define ST_SIDE 16
#ifdef __clang__
#define ST_SHUFFLE(type, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define ST_SHUFFLE(type, a, b, ...) __builtin_shuffle(a, b, (type){__VA_ARGS__})
#endif
/* Vectors whose numbers differ by `distance` swap what is on each other's side of the diagonal. */
#define ST_SWAP(lanes, distance, LOW, HIGH)                         \
  ST_UNROLL(lanes) for (int i = 0; i < lanes; i++) {                \
    if (i & distance) continue;                                     \
    const vector a = v[i], b = v[i + distance];                     \
    v[i] = ST_SHUFFLE(vector, a, b, LOW);                           \
    v[i + distance] = ST_SHUFFLE(vector, a, b, HIGH);               \
  }
#define ST_LANES(...) __VA_ARGS__
#define ST_SWAPS_8                                                                        \
  ST_SWAP(8, 4, ST_LANES(0, 1, 2, 3, 8, 9, 10, 11), ST_LANES(4, 5, 6, 7, 12, 13, 14, 15)) \
  ST_SWAP(8, 2, ST_LANES(0, 1, 8, 9, 4, 5, 12, 13), ST_LANES(2, 3, 10, 11, 6, 7, 14, 15)) \
  ST_SWAP(8, 1, ST_LANES(0, 8, 2, 10, 4, 12, 6, 14), ST_LANES(1, 9, 3, 11, 5, 13, 7, 15))
#define ST_SWAPS_4                                          \
  ST_SWAP(4, 2, ST_LANES(0, 1, 4, 5), ST_LANES(2, 3, 6, 7)) \
  ST_SWAP(4, 1, ST_LANES(0, 4, 2, 6), ST_LANES(1, 5, 3, 7))
#define ST_SWAPS_2 ST_SWAP(2, 1, ST_LANES(0, 2), ST_LANES(1, 3))
/* to[r][l] = from[l * stride + r] for a square of elements of some bytes, by vectors of `lanes`. */
#define ST_TURN(bytes, element, lanes)                                                    \
  ST_INLINE void st_turn_##bytes(void *to, const void *from, long stride) {               \
    typedef element vector __attribute__((vector_size(bytes * lanes)));                   \
    typedef element loose __attribute__((vector_size(bytes * lanes), aligned(bytes), may_alias)); \
    element *target = (element *)to;                                                      \
    const element *source = (const element *)from;                                        \
    for (long l = 0; l < ST_SIDE; l += lanes)                                             \
      for (long r = 0; r < ST_SIDE; r += lanes) {                                         \
        vector v[lanes];                                                                  \
        ST_UNROLL(lanes) for (int i = 0; i < lanes; i++)                                  \
          v[i] = *(const loose *)(source + (l + i) * stride + r);                         \
        ST_SWAPS_##lanes                                                                  \
        ST_UNROLL(lanes) for (int i = 0; i < lanes; i++)                                  \
          *(loose *)(target + (r + i) * ST_SIDE + l) = v[i];                              \
      }                                                                                   \
  }
ST_TURN(2, int16_t, 8)
#ifdef __AVX2__
ST_TURN(4, int32_t, 8)
ST_TURN(8, int64_t, 4)
#else
ST_TURN(4, int32_t, 4)
ST_TURN(8, int64_t, 2)
#endif

/* ---- groups of elements in the other order ------------------------------------------------------- */
/* to[r * group + l] = from[(count - 1 - r) * group + l], as many whole groups at a time as a vector has;
 * inside `from` and `to` only: what a vector has beside them is of the same groups. */
#ifdef __clang__ /* no shuffle but by constants */
#define ST_FLIP_VECTORS(bytes, element, lanes)
#else
#define ST_FLIP_VECTORS(bytes, element, lanes)                                                    \
  typedef element vector __attribute__((vector_size(bytes * lanes)));                             \
  typedef element loose __attribute__((vector_size(bytes * lanes), aligned(bytes), may_alias));   \
  const long whole = lanes / group, moved = whole * group;                                        \
  vector order;                                                                                   \
  ST_UNROLL(lanes) for (int i = 0; i < lanes; i++)                                                \
    order[i] = i < moved ? lanes - (i / group + 1) * group + i % group : 0;                       \
  for (; moved && end - source >= lanes; end -= moved, target += moved)                           \
    *(loose *)target = __builtin_shuffle(*(const loose *)(end - lanes), order);
#endif
#define ST_FLIP(bytes, element, lanes)                                                            \
  ST_INLINE void st_flip_##bytes(void *to, const void *from, long count, const long group) {      \
    element *target = (element *)to;                                                              \
    const element *const source = (const element *)from, *end = source + count * group;           \
    ST_FLIP_VECTORS(bytes, element, lanes)                                                        \
    for (; end > source; target += group) {                                                       \
      end -= group;                                                                               \
      for (long l = 0; l < group; l++) target[l] = end[l];                                        \
    }                                                                                             \
  }
#if defined(__AVX512F__)
ST_FLIP(4, int32_t, 16)
ST_FLIP(8, int64_t, 8)
#elif defined(__AVX2__)
ST_FLIP(4, int32_t, 8)
ST_FLIP(8, int64_t, 4)
#else
ST_FLIP(4, int32_t, 4)
ST_FLIP(8, int64_t, 2)
#endif

/* ---- rounding ------------------------------------------------------------------------------------ */
ST_INLINE float st_floor_f32(float x) { return __builtin_floorf(x); }
ST_INLINE float st_ceil_f32(float x) { return __builtin_ceilf(x); }
ST_INLINE float st_round_nearest_even_f32(float x) { return __builtin_rintf(x); }
ST_INLINE float st_truncate_f32(float x) { return __builtin_truncf(x); }
ST_INLINE float st_round_nearest_afz_f32(float x) {
  float whole = __builtin_truncf(x);
  float up = whole + st_with_sign_f32(1.0f, x);
  return st_with_sign_f32(st_abs_f32(x - whole) >= 0.5f ? up : whole, x);
}
ST_INLINE double st_floor_f64(double x) { return __builtin_floor(x); }
ST_INLINE double st_ceil_f64(double x) { return __builtin_ceil(x); }
ST_INLINE double st_round_nearest_even_f64(double x) { return __builtin_rint(x); }
ST_INLINE double st_truncate_f64(double x) { return __builtin_trunc(x); }
ST_INLINE double st_round_nearest_afz_f64(double x) { return __builtin_round(x); }

/* ---- float32 ------------------------------------------------------------------------------------- */
/* Inside these functions a multiply-add is one instruction where the target has it: faster and nearer.
 * Kernels' own arithmetic is never contracted. */
#ifdef __FMA__
#define ST_FMA(a, b, c) __builtin_fmaf(a, b, c)
#else
#define ST_FMA(a, b, c) ((a) * (b) + (c))
#endif
/* exp(r) - 1 for |r| <= ln2 / 2, relative error 1e-8. */
ST_INLINE float st_expm1_core_f32(float r) {
  float p = 1.98412698e-4f;
  p = ST_FMA(p, r, 1.39337465e-3f);
  p = ST_FMA(p, r, 8.33333377e-3f);
  p = ST_FMA(p, r, 4.16657962e-2f);
  p = ST_FMA(p, r, 1.66666657e-1f);
  p = ST_FMA(p, r, 5.00000000e-1f);
  return ST_FMA(p, r * r, r);
}
/* The power of two is added to the bits of exp(r), which overflow only where the result does. */
ST_INLINE float st_exponential_f32(float x) {
  float n = __builtin_rintf(x * 1.44269504f);
  float r = ST_FMA(n, -0.693359375f, x);
  r = ST_FMA(n, 2.12194440e-4f, r);
  uint32_t power = (uint32_t)(int32_t)n << 23;
  float y = st_from_bits_f32(st_bits_f32(st_expm1_core_f32(r) + 1.0f) + power);
  y = x < -87.3365402f ? 0.0f : y;
  return x <= 88.7228394f ? y : x + ST_INF_F32; /* above: infinity; NaN stays */
}
ST_INLINE float st_exponential_minus_one_f32(float x) {
  float c = x > 89.0f ? 89.0f : x;
  c = c < -18.0f ? -18.0f : c;
  float n = __builtin_rintf(c * 1.44269504f);
  float r = ST_FMA(n, -0.693359375f, c);
  r = ST_FMA(n, 2.12194440e-4f, r);
  /* 2^(n-1) stays finite for n = 128 */
  float half = st_from_bits_f32((uint32_t)((int32_t)n + 126) << 23);
  float y = 2.0f * (half * st_expm1_core_f32(r) + (half - 0.5f));
  y = n == 0.0f ? st_expm1_core_f32(x) : y;
  return x == 0.0f ? x : y;
}
/* log(1 + f) for 1 + f in [sqrt(1/2), sqrt(2)], without f - f*f/2 */
ST_INLINE float st_log_core_f32(float f) {
  float p = 7.0376836292e-2f;
  p = ST_FMA(p, f, -1.1514610310e-1f);
  p = ST_FMA(p, f, 1.1676998740e-1f);
  p = ST_FMA(p, f, -1.2420140846e-1f);
  p = ST_FMA(p, f, 1.4249322787e-1f);
  p = ST_FMA(p, f, -1.6668057665e-1f);
  p = ST_FMA(p, f, 2.0000714765e-1f);
  p = ST_FMA(p, f, -2.4999993993e-1f);
  p = ST_FMA(p, f, 3.3333331174e-1f);
  return p * f * f * f;
}
ST_INLINE float st_log_f32(float x) {
  uint32_t u = st_bits_f32(x) - 0x3f3504f3u; /* 1/sqrt(2) */
  int32_t e = (int32_t)u >> 23;
  float f = st_from_bits_f32((u & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
  float n = (float)e;
  float y = st_log_core_f32(f) + n * -2.12194440e-4f;
  y = y - 0.5f * (f * f);
  y = (f + y) + n * 0.693359375f;
  y = x == ST_INF_F32 ? x : y;
  y = x > 0.0f ? y : ST_NAN_F32;
  y = x == 0.0f ? -ST_INF_F32 : y;
  return x != x ? x : y;
}
ST_INLINE float st_log_plus_one_f32(float x) {
  float u = 1.0f + x;
  float lost = x - (u - 1.0f);
  lost = st_abs_f32(x) > 1.0f ? 1.0f - (u - x) : lost;
  float y = st_log_f32(u) + lost / u;
  y = st_abs_f32(x) < 1e-4f ? x - 0.5f * x * x : y;
  y = x == ST_INF_F32 ? x : y;
  y = x == -1.0f ? -ST_INF_F32 : y;
  return x == 0.0f ? x : y;
}
ST_INLINE float st_logistic_f32(float x) { return 1.0f / (1.0f + st_exponential_f32(-x)); }
ST_INLINE float st_tanh_f32(float x) {
  float a = st_abs_f32(x);
  float c = a > 10.0f ? 10.0f : a;
  float n = __builtin_rintf(c * 2.88539008f);
  float r = ST_FMA(n, -0.693359375f, c + c);
  r = ST_FMA(n, 2.12194440e-4f, r);
  float scale = st_from_bits_f32((uint32_t)((int32_t)n + 127) << 23);
  float t = ST_FMA(scale, st_expm1_core_f32(r), scale - 1.0f); /* exp(2 |x|) - 1 */
  return st_with_sign_f32(t / (t + 2.0f), x);
}
/* Two polynomials, chosen by |x| (N. Juffa's coefficients). */
ST_INLINE float st_erf_f32(float x) {
  float t = st_abs_f32(x);
  float s = x * x;
  float r = ST_FMA(-1.72853470e-5f, t, 3.83197126e-4f);
  float u = ST_FMA(-3.88396438e-3f, t, 2.42546219e-2f);
  r = ST_FMA(r, s, u);
  r = ST_FMA(r, t, -1.06777877e-1f);
  r = ST_FMA(r, t, -6.34846687e-1f);
  r = ST_FMA(r, t, -1.28717512e-1f);
  r = ST_FMA(r, t, -t);
  float far = t > 4.0f ? 1.0f : 1.0f - st_exponential_f32(r);
  float near = -5.96761703e-4f;
  near = ST_FMA(near, s, 4.99119423e-3f);
  near = ST_FMA(near, s, -2.67681349e-2f);
  near = ST_FMA(near, s, 1.12819925e-1f);
  near = ST_FMA(near, s, -3.76125336e-1f);
  near = ST_FMA(near, s, 1.28379166e-1f);
  near = ST_FMA(near, x, x);
  float y = t > 0.927734375f ? st_with_sign_f32(far, x) : near;
  return x != x ? x : y;
}
ST_INLINE float st_sqrt_f32(float x) { return __builtin_sqrtf(x); }
ST_INLINE float st_rsqrt_f32(float x) { return 1.0f / __builtin_sqrtf(x); }
ST_INLINE float st_cbrt_f32(float x) {
  uint32_t u = st_bits_f32(st_abs_f32(x));
  /* u / 3 by a multiplication that stays inside 32 bits, then two Halley steps in double */
  uint32_t third = (uint32_t)((double)(int32_t)u * 0.3333333333333333);
  double guess = (double)st_from_bits_f32(third + 709921077u);
  double a = (double)st_abs_f32(x);
  for (int step = 0; step < 2; step++) {
    double cube = guess * guess * guess;
    guess = guess * (cube + a + a) / (cube + cube + a);
  }
  float y = st_with_sign_f32((float)guess, x);
  return (x == 0.0f) | (x - x != 0.0f) ? x : y;
}

#include "stitch_cpu_wide.h"

/* ---- float64: libm ------------------------------------------------------------------------------- */
/* libm looks at bits where DAZ does not act: denormal arguments become zeros first. */
ST_INLINE double st_flush_f64(double x) { return x == 0.0 ? x * 0.0 : x; }
ST_INLINE double st_exponential_f64(double x) { return exp(x); }
ST_INLINE double st_exponential_minus_one_f64(double x) { return expm1(x); }
ST_INLINE double st_log_f64(double x) { return log(st_flush_f64(x)); }
ST_INLINE double st_log_plus_one_f64(double x) { return log1p(x); }
ST_INLINE double st_logistic_f64(double x) { return 1.0 / (1.0 + exp(-x)); }
ST_INLINE double st_tanh_f64(double x) { return tanh(x); }
ST_INLINE double st_erf_f64(double x) { return erf(x); }
ST_INLINE double st_sqrt_f64(double x) { return __builtin_sqrt(x); }
ST_INLINE double st_rsqrt_f64(double x) { return 1.0 / __builtin_sqrt(x); }
ST_INLINE double st_cbrt_f64(double x) { return cbrt(x); }
ST_INLINE double st_sine_f64(double x) { return sin(x); }
ST_INLINE double st_cosine_f64(double x) { return cos(x); }
ST_INLINE double st_tan_f64(double x) { return tan(x); }
ST_INLINE double st_power_f64(double x, double y) { return pow(st_flush_f64(x), st_flush_f64(y)); }
ST_INLINE double st_atan2_f64(double y, double x) { return atan2(st_flush_f64(y), st_flush_f64(x)); }
ST_INLINE double st_remainder_f64(double x, double y) { return fmod(x, y); }
ST_INLINE float st_remainder_f32(float x, float y) { return fmodf(x, y); }
#endif
