/* Scalar rules that C and CUDA share: what HLO defines for integers, storage types and conversions.
 *
 * ST_INLINE is set by the including header (stitch_cpu.h, stitch_cuda.h). Every function is branch-free
 * or if-convertible, so that a loop over it vectorises. Values of narrow floats live in registers
 * as float, already rounded: only loads and stores see their patterns, and neither rounds. pred is bool.
 * Suffixes are HLO's type names: st_NAME_TYPE, and st_convert_FROM_TO. */
#ifndef STITCH_COMMON_H
#define STITCH_COMMON_H

/* ---- bit patterns ------------------------------------------------------------------------------ */
ST_INLINE uint32_t st_bits_f32(float x) { uint32_t u; ST_COPY(&u, &x, 4); return u; }
ST_INLINE float st_from_bits_f32(uint32_t u) { float x; ST_COPY(&x, &u, 4); return x; }
ST_INLINE uint64_t st_bits_f64(double x) { uint64_t u; ST_COPY(&u, &x, 8); return u; }
ST_INLINE double st_from_bits_f64(uint64_t u) { double x; ST_COPY(&x, &u, 8); return x; }

/* bfloat16: the upper half of a float; round to nearest even, NaN stays a quiet NaN. */
ST_INLINE float st_load_bf16(uint16_t h) { return st_from_bits_f32((uint32_t)h << 16); }
ST_INLINE uint16_t st_store_bf16(float x) { return (uint16_t)(st_bits_f32(x) >> 16); }
ST_INLINE float st_round_bf16(float x) {
  uint32_t u = st_bits_f32(x);
  uint32_t rounded = u + 0x7fffu + ((u >> 16) & 1u);
  rounded = (u & 0x7fffffffu) > 0x7f800000u ? (u | 0x00400000u) : rounded;
  return st_from_bits_f32(rounded & 0xffff0000u);
}

/* IEEE half, by integer and normal float arithmetic only: exact under flush-to-zero. */
ST_INLINE float st_load_f16(uint16_t h) {
  uint32_t magnitude = ((uint32_t)h & 0x7fffu) << 13;
  uint32_t exponent = magnitude & 0x0f800000u;
  uint32_t normal = magnitude + 0x38000000u;
  uint32_t special = magnitude + 0x70000000u;
  uint32_t tiny = st_bits_f32(st_from_bits_f32(magnitude + 0x38800000u) - 6.103515625e-05f);
  uint32_t u = exponent == 0x0f800000u ? special : normal;
  u = exponent == 0u ? tiny : u;
  return st_from_bits_f32(u | ((uint32_t)h & 0x8000u) << 16);
}
ST_INLINE uint16_t st_store_f16(float x) {
  uint32_t u = st_bits_f32(x);
  uint32_t a = u & 0x7fffffffu;
  /* below 2^-14: adding 0.5 aligns the half's last bit with the float's */
  uint32_t tiny = st_bits_f32(st_from_bits_f32(a) + 0.5f) - 0x3f000000u;
  uint32_t special = (a - 0x70000000u) >> 13; /* inf, NaN */
  uint32_t h = a < 0x38800000u ? tiny : (a - 0x38000000u) >> 13;
  h = a >= 0x7f800000u ? special : h;
  return (uint16_t)(h | ((u >> 16) & 0x8000u));
}
ST_INLINE float st_round_f16(float x) {
  uint32_t u = st_bits_f32(x);
  uint32_t a = u & 0x7fffffffu;
  uint32_t special = a > 0x7f800000u ? 0x7fc00000u : 0x7f800000u;
  /* below 2^-14: what adding 0.5 leaves of the float is what a half has, rounded to even */
  uint32_t tiny = st_bits_f32((st_from_bits_f32(a) + 0.5f) - 0.5f);
  uint32_t normal = (a + 0xfffu + ((a >> 13) & 1u)) & 0xffffe000u;
  uint32_t rounded = a < 0x38800000u ? tiny : normal;
  rounded = a >= 0x477ff000u ? special : rounded; /* 65520 and above, inf, NaN */
  return st_from_bits_f32(rounded | (u & 0x80000000u));
}

/* float8 with 5 bits of exponent: the upper half of a half. What is too large becomes infinite. */
ST_INLINE float st_load_f8e5m2(uint8_t h) { return st_load_f16((uint16_t)((uint32_t)h << 8)); }
ST_INLINE uint8_t st_store_f8e5m2(float x) { return (uint8_t)(st_store_f16(x) >> 8); }
ST_INLINE float st_round_f8e5m2(float x) {
  uint32_t u = st_bits_f32(x);
  uint32_t a = u & 0x7fffffffu;
  uint32_t special = a > 0x7f800000u ? 0x7fc00000u : 0x7f800000u;
  uint32_t tiny = st_bits_f32((st_from_bits_f32(a) + 128.0f) - 128.0f);
  uint32_t normal = (a + 0xfffffu + ((a >> 21) & 1u)) & 0xffe00000u;
  uint32_t rounded = a < 0x38800000u ? tiny : normal;
  rounded = a >= 0x47700000u ? special : rounded; /* 61440 and above, inf, NaN */
  return st_from_bits_f32(rounded | (u & 0x80000000u));
}

/* float8 with 4 bits of exponent and no infinity: what is too large becomes NaN, as XLA's, ml_dtypes'
 * and TensorFlow's conversions say (the GPU's own instruction saturates). */
ST_INLINE float st_load_f8e4m3fn(uint8_t h) {
  uint32_t magnitude = ((uint32_t)h & 0x7fu) << 20;
  uint32_t tiny = st_bits_f32(st_from_bits_f32(magnitude + 0x3c800000u) - 0.015625f);
  uint32_t u = magnitude < 0x00800000u ? tiny : magnitude + 0x3c000000u;
  u = magnitude == 0x07f00000u ? 0x7fc00000u : u;
  return st_from_bits_f32(u | ((uint32_t)h & 0x80u) << 24);
}
ST_INLINE uint8_t st_store_f8e4m3fn(float x) {
  uint32_t u = st_bits_f32(x);
  uint32_t a = u & 0x7fffffffu;
  uint32_t tiny = st_bits_f32(st_from_bits_f32(a) + 16384.0f) - 0x46800000u;
  uint32_t h = a < 0x3c800000u ? tiny : (a - 0x3c000000u) >> 20;
  h = a > 0x7f800000u ? 0x7fu : h;
  return (uint8_t)(h | ((u >> 24) & 0x80u));
}
ST_INLINE float st_round_f8e4m3fn(float x) {
  uint32_t u = st_bits_f32(x);
  uint32_t a = u & 0x7fffffffu;
  uint32_t tiny = st_bits_f32((st_from_bits_f32(a) + 16384.0f) - 16384.0f);
  uint32_t normal = (a + 0x7ffffu + ((a >> 20) & 1u)) & 0xfff00000u;
  uint32_t rounded = a < 0x3c800000u ? tiny : normal;
  rounded = a > 0x43e80000u ? 0x7fc00000u : rounded; /* above 464, inf, NaN */
  return st_from_bits_f32(rounded | (u & 0x80000000u));
}

/* ---- integers: two's complement, HLO's rules for zero divisors and wide shifts ------------------ */
#define ST_INTEGER_COMMON(t, T, U, BITS)                                                              \
  ST_INLINE T st_add_##t(T a, T b) { return (T)((U)a + (U)b); }                                       \
  ST_INLINE T st_subtract_##t(T a, T b) { return (T)((U)a - (U)b); }                                  \
  ST_INLINE T st_multiply_##t(T a, T b) { return (T)((uint64_t)a * (uint64_t)b); }                    \
  ST_INLINE T st_negate_##t(T a) { return (T)((U)0 - (U)a); }                                         \
  ST_INLINE T st_maximum_##t(T a, T b) { return a > b ? a : b; }                                      \
  ST_INLINE T st_minimum_##t(T a, T b) { return a < b ? a : b; }                                      \
  ST_INLINE T st_and_##t(T a, T b) { return (T)(a & b); }                                             \
  ST_INLINE T st_or_##t(T a, T b) { return (T)(a | b); }                                              \
  ST_INLINE T st_xor_##t(T a, T b) { return (T)(a ^ b); }                                             \
  ST_INLINE T st_not_##t(T a) { return (T)~a; }                                                       \
  ST_INLINE T st_select_##t(bool c, T a, T b) { return c ? a : b; }                                   \
  ST_INLINE T st_clamp_##t(T low, T x, T high) {                                                      \
    return st_minimum_##t(st_maximum_##t(low, x), high);                                              \
  }                                                                                                   \
  ST_INLINE T st_shift_left_##t(T a, T n) {                                                           \
    return (U)n >= BITS ? (T)0 : (T)((U)a << ((U)n & (BITS - 1)));                                    \
  }                                                                                                   \
  ST_INLINE T st_shift_right_logical_##t(T a, T n) {                                                  \
    return (U)n >= BITS ? (T)0 : (T)((U)a >> ((U)n & (BITS - 1)));                                    \
  }                                                                                                   \
  ST_INLINE T st_popcnt_##t(T a) { return (T)st_count_bits((uint64_t)(U)a); }                         \
  ST_INLINE T st_count_leading_zeros_##t(T a) { return (T)(st_leading_zeros((uint64_t)(U)a) - (64 - BITS)); }         \
  ST_INLINE T st_power_##t(T base, T exponent) {                                                      \
    uint64_t result = 1, square = (uint64_t)base;                                                     \
    for (int bit = 0; bit < BITS; bit++) {                                                            \
      result = ((uint64_t)exponent >> bit) & 1u ? result * square : result;                           \
      square *= square;                                                                               \
    }                                                                                                 \
    return st_finish_power_##t((T)result, base, exponent);                                            \
  }

/* x / 0 is all ones, x % 0 is x; the smallest value over -1 is itself with remainder 0. */
#define ST_INTEGER_SIGNED(t, T, U, BITS, LOWEST)                                                      \
  ST_INLINE T st_finish_power_##t(T result, T base, T exponent) {                                     \
    T inverse = base == 1 ? (T)1 : base == -1 ? ((exponent & 1) ? (T)-1 : (T)1) : (T)0;               \
    return exponent < 0 ? inverse : result;                                                           \
  }                                                                                                   \
  ST_INLINE T st_divide_##t(T a, T b) {                                                               \
    bool overflow = (a == LOWEST) & (b == -1);                                                        \
    T divisor = (b == 0) | overflow ? (T)1 : b;                                                       \
    return b == 0 ? (T)-1 : (T)(a / divisor);                                                         \
  }                                                                                                   \
  ST_INLINE T st_remainder_##t(T a, T b) {                                                            \
    bool overflow = (a == LOWEST) & (b == -1);                                                        \
    T divisor = (b == 0) | overflow ? (T)1 : b;                                                       \
    return b == 0 ? a : (T)(a % divisor);                                                             \
  }                                                                                                   \
  ST_INLINE T st_shift_right_arithmetic_##t(T a, T n) {                                               \
    return (T)(a >> ((U)n >= BITS ? BITS - 1 : (int)((U)n & (BITS - 1))));                            \
  }                                                                                                   \
  ST_INLINE T st_abs_##t(T a) { return a < 0 ? (T)((U)0 - (U)a) : a; }                                \
  ST_INLINE T st_sign_##t(T a) { return (T)((a > 0) - (a < 0)); }                                     \
  ST_INTEGER_COMMON(t, T, U, BITS)

#define ST_INTEGER_UNSIGNED(t, T, BITS)                                                               \
  ST_INLINE T st_finish_power_##t(T result, T base, T exponent) {                                     \
    (void)base; (void)exponent;                                                                       \
    return result;                                                                                    \
  }                                                                                                   \
  ST_INLINE T st_divide_##t(T a, T b) { return b == 0 ? (T)~(T)0 : (T)(a / (b == 0 ? (T)1 : b)); }    \
  ST_INLINE T st_remainder_##t(T a, T b) { return b == 0 ? a : (T)(a % (b == 0 ? (T)1 : b)); }        \
  ST_INLINE T st_shift_right_arithmetic_##t(T a, T n) {                                               \
    T fill = a >> (BITS - 1) ? (T)~(T)0 : (T)0;                                                       \
    T shift = (T)(n & (BITS - 1));                                                                    \
    T high = shift == 0 ? (T)0 : (T)(fill << (BITS - shift));                                         \
    return n >= BITS ? fill : (T)((a >> shift) | high);                                               \
  }                                                                                                   \
  ST_INLINE T st_abs_##t(T a) { return a; }                                                           \
  ST_INLINE T st_sign_##t(T a) { return (T)(a != 0); }                                                \
  ST_INTEGER_COMMON(t, T, T, BITS)

ST_INLINE int st_count_bits(uint64_t a) {
  a = a - ((a >> 1) & 0x5555555555555555u);
  a = (a & 0x3333333333333333u) + ((a >> 2) & 0x3333333333333333u);
  a = (a + (a >> 4)) & 0x0f0f0f0f0f0f0f0fu;
  return (int)((a * 0x0101010101010101u) >> 56);
}
ST_INLINE int st_leading_zeros(uint64_t a) {
  a |= a >> 1; a |= a >> 2; a |= a >> 4; a |= a >> 8; a |= a >> 16; a |= a >> 32;
  return 64 - st_count_bits(a);
}

ST_INTEGER_SIGNED(s8, int8_t, uint8_t, 8, INT8_MIN)
ST_INTEGER_SIGNED(s16, int16_t, uint16_t, 16, INT16_MIN)
ST_INTEGER_SIGNED(s32, int32_t, uint32_t, 32, INT32_MIN)
ST_INTEGER_SIGNED(s64, int64_t, uint64_t, 64, INT64_MIN)
ST_INTEGER_UNSIGNED(u8, uint8_t, 8)
ST_INTEGER_UNSIGNED(u16, uint16_t, 16)
ST_INTEGER_UNSIGNED(u32, uint32_t, 32)
ST_INTEGER_UNSIGNED(u64, uint64_t, 64)

/* ---- pred: addition and maximum are "or", multiplication and minimum are "and" ------------------ */
ST_INLINE bool st_and_pred(bool a, bool b) { return a & b; }
ST_INLINE bool st_or_pred(bool a, bool b) { return a | b; }
ST_INLINE bool st_xor_pred(bool a, bool b) { return a ^ b; }
ST_INLINE bool st_not_pred(bool a) { return !a; }
ST_INLINE bool st_add_pred(bool a, bool b) { return a | b; }
ST_INLINE bool st_multiply_pred(bool a, bool b) { return a & b; }
ST_INLINE bool st_maximum_pred(bool a, bool b) { return a | b; }
ST_INLINE bool st_minimum_pred(bool a, bool b) { return a & b; }
ST_INLINE bool st_select_pred(bool c, bool a, bool b) { return (c & a) | (!c & b); }
ST_INLINE bool st_clamp_pred(bool low, bool x, bool high) { return (x | low) & high; }

/* ---- floats: what does not depend on a math library -------------------------------------------- */
#define ST_FLOAT_COMMON(t, T)                                                                         \
  ST_INLINE T st_add_##t(T a, T b) { return a + b; }                                                  \
  ST_INLINE T st_subtract_##t(T a, T b) { return a - b; }                                             \
  ST_INLINE T st_multiply_##t(T a, T b) { return a * b; }                                             \
  ST_INLINE T st_divide_##t(T a, T b) { return a / b; }                                               \
  ST_INLINE T st_negate_##t(T a) { return -a; }                                                       \
  ST_INLINE T st_select_##t(bool c, T a, T b) { return c ? a : b; }                                   \
  /* NaN propagates from either side; which of two zeros is unspecified. A reduction passes its       \
   * accumulator as `a`: what waits for it is one comparison, and b's own test runs ahead. */         \
  ST_INLINE T st_maximum_##t(T a, T b) {                                                              \
    T larger = b > a ? b : a;                                                                         \
    return b != b ? b : larger;                                                                       \
  }                                                                                                   \
  ST_INLINE T st_minimum_##t(T a, T b) {                                                              \
    T smaller = b < a ? b : a;                                                                        \
    return b != b ? b : smaller;                                                                      \
  }                                                                                                   \
  ST_INLINE T st_clamp_##t(T low, T x, T high) {                                                      \
    return st_minimum_##t(st_maximum_##t(low, x), high);                                              \
  }                                                                                                   \
  ST_INLINE T st_sign_##t(T a) { return a > 0 ? (T)1 : a < 0 ? (T)-1 : a; }                           \
  ST_INLINE bool st_is_finite_##t(T a) { return a - a == 0; }

ST_FLOAT_COMMON(f32, float)
ST_FLOAT_COMMON(f64, double)
ST_INLINE float st_abs_f32(float a) { return st_from_bits_f32(st_bits_f32(a) & 0x7fffffffu); }
ST_INLINE double st_abs_f64(double a) { return st_from_bits_f64(st_bits_f64(a) & 0x7fffffffffffffffu); }
ST_INLINE float st_with_sign_f32(float magnitude, float sign) {
  return st_from_bits_f32((st_bits_f32(magnitude) & 0x7fffffffu) | (st_bits_f32(sign) & 0x80000000u));
}

/* ---- float to integer: what x86 does and TensorFlow on x86 shows. A value outside int32 (int64 for
 * u32, s64) becomes the lowest integer, NaN too; narrower types keep its low bits. ---------------- */
#define ST_FLOAT_TO_INTEGER(f, F)                                                                     \
  ST_INLINE int32_t st_convert_##f##_s32(F x) {                                                       \
    bool inside = (x > (F)-2147483904.0) & (x < (F)2147483648.0);                                     \
    return inside ? (int32_t)(inside ? x : (F)0) : INT32_MIN;                                         \
  }                                                                                                   \
  ST_INLINE int64_t st_convert_##f##_s64(F x) {                                                       \
    bool inside = (x >= (F)-9223372036854775808.0) & (x < (F)9223372036854775808.0);                  \
    return inside ? (int64_t)(inside ? x : (F)0) : INT64_MIN;                                         \
  }                                                                                                   \
  ST_INLINE uint64_t st_convert_##f##_u64(F x) {                                                      \
    bool upper = x >= (F)9223372036854775808.0;                                                       \
    F y = upper ? x - (F)9223372036854775808.0 : x;                                                   \
    return (uint64_t)st_convert_##f##_s64(y) ^ (upper ? 0x8000000000000000u : 0u);                    \
  }                                                                                                   \
  ST_INLINE uint32_t st_convert_##f##_u32(F x) { return (uint32_t)st_convert_##f##_s64(x); }          \
  ST_INLINE int16_t st_convert_##f##_s16(F x) { return (int16_t)st_convert_##f##_s32(x); }            \
  ST_INLINE uint16_t st_convert_##f##_u16(F x) { return (uint16_t)st_convert_##f##_s32(x); }          \
  ST_INLINE int8_t st_convert_##f##_s8(F x) { return (int8_t)st_convert_##f##_s32(x); }               \
  ST_INLINE uint8_t st_convert_##f##_u8(F x) { return (uint8_t)st_convert_##f##_s32(x); }             \
  ST_INLINE bool st_convert_##f##_pred(F x) { return x != 0; }                                        \
  ST_INLINE float st_convert_##f##_f32(F x) { return (float)x; }                                      \
  ST_INLINE double st_convert_##f##_f64(F x) { return (double)x; }                                    \
  ST_INLINE float st_convert_##f##_f8e4m3fn(F x) { return st_round_f8e4m3fn(st_odd_##f(x)); }         \
  ST_INLINE float st_convert_##f##_f8e5m2(F x) { return st_round_f8e5m2(st_odd_##f(x)); }             \
  ST_INLINE float st_convert_##f##_f16(F x) { return st_round_f16((float)x); }                        \
  ST_INLINE float st_convert_##f##_bf16(F x) { return st_round_bf16((float)x); }

/* double to a 16-bit type goes through float, as TensorFlow's conversions do; to float8 theirs round
 * once, so the float on the way is rounded to odd: what it drops stays visible in its last bit. */
ST_INLINE float st_odd_f32(float x) { return x; }
ST_INLINE float st_odd_f64(double x) {
  float y = (float)x;
  double wide = (double)y;
  bool above = (wide < 0 ? -wide : wide) > (x < 0 ? -x : x);
  return st_from_bits_f32((st_bits_f32(y) - (above ? 1u : 0u)) | (wide != x ? 1u : 0u));
}
ST_FLOAT_TO_INTEGER(f32, float)
ST_FLOAT_TO_INTEGER(f64, double)

#define ST_FROM_INTEGER(t, T)                                                                         \
  ST_INLINE int8_t st_convert_##t##_s8(T x) { return (int8_t)x; }                                     \
  ST_INLINE int16_t st_convert_##t##_s16(T x) { return (int16_t)x; }                                  \
  ST_INLINE int32_t st_convert_##t##_s32(T x) { return (int32_t)x; }                                  \
  ST_INLINE int64_t st_convert_##t##_s64(T x) { return (int64_t)x; }                                  \
  ST_INLINE uint8_t st_convert_##t##_u8(T x) { return (uint8_t)x; }                                   \
  ST_INLINE uint16_t st_convert_##t##_u16(T x) { return (uint16_t)x; }                                \
  ST_INLINE uint32_t st_convert_##t##_u32(T x) { return (uint32_t)x; }                                \
  ST_INLINE uint64_t st_convert_##t##_u64(T x) { return (uint64_t)x; }                                \
  ST_INLINE bool st_convert_##t##_pred(T x) { return x != 0; }                                        \
  ST_INLINE float st_convert_##t##_f32(T x) { return (float)x; }                                      \
  ST_INLINE double st_convert_##t##_f64(T x) { return (double)x; }                                    \
  ST_INLINE float st_convert_##t##_f8e4m3fn(T x) { return st_round_f8e4m3fn((float)x); }              \
  ST_INLINE float st_convert_##t##_f8e5m2(T x) { return st_round_f8e5m2((float)x); }                  \
  ST_INLINE float st_convert_##t##_f16(T x) { return st_round_f16((float)x); }                        \
  ST_INLINE float st_convert_##t##_bf16(T x) { return st_round_bf16((float)x); }
ST_FROM_INTEGER(s8, int8_t)
ST_FROM_INTEGER(s16, int16_t)
ST_FROM_INTEGER(s32, int32_t)
ST_FROM_INTEGER(s64, int64_t)
ST_FROM_INTEGER(u8, uint8_t)
ST_FROM_INTEGER(u16, uint16_t)
ST_FROM_INTEGER(u32, uint32_t)
ST_FROM_INTEGER(u64, uint64_t)
/* A conditional, as gcc does not vectorise the conversion of _Bool. */
#define ST_FROM_PRED(t, T)                                                                            \
  ST_INLINE T st_convert_pred_##t(bool x) { return x ? (T)1 : (T)0; }
ST_FROM_PRED(pred, bool)
ST_FROM_PRED(s8, int8_t)
ST_FROM_PRED(s16, int16_t)
ST_FROM_PRED(s32, int32_t)
ST_FROM_PRED(s64, int64_t)
ST_FROM_PRED(u8, uint8_t)
ST_FROM_PRED(u16, uint16_t)
ST_FROM_PRED(u32, uint32_t)
ST_FROM_PRED(u64, uint64_t)
ST_FROM_PRED(f32, float)
ST_FROM_PRED(f64, double)
ST_FROM_PRED(f8e4m3fn, float)
ST_FROM_PRED(f8e5m2, float)
ST_FROM_PRED(f16, float)
ST_FROM_PRED(bf16, float)

/* ---- bitcasts between types of one width ---------------------------------------------------------- */
#define ST_BITCAST(a, A, b, B) ST_INLINE B st_bitcast_##a##_##b(A x) { return (B)x; }
#define ST_BITCAST_INTEGERS(a, A, b, B)                                                               \
  ST_BITCAST(a, A, b, B) ST_BITCAST(b, B, a, A) ST_BITCAST(a, A, a, A) ST_BITCAST(b, B, b, B)
ST_BITCAST_INTEGERS(s8, int8_t, u8, uint8_t)
ST_BITCAST_INTEGERS(s16, int16_t, u16, uint16_t)
ST_BITCAST_INTEGERS(s32, int32_t, u32, uint32_t)
ST_BITCAST_INTEGERS(s64, int64_t, u64, uint64_t)
ST_BITCAST(f32, float, f32, float)
ST_BITCAST(f64, double, f64, double)
ST_BITCAST(f8e4m3fn, float, f8e4m3fn, float)
ST_BITCAST(f8e5m2, float, f8e5m2, float)
ST_BITCAST(f16, float, f16, float)
ST_BITCAST(bf16, float, bf16, float)
ST_BITCAST(pred, bool, pred, bool)
ST_INLINE uint32_t st_bitcast_f32_u32(float x) { return st_bits_f32(x); }
ST_INLINE int32_t st_bitcast_f32_s32(float x) { return (int32_t)st_bits_f32(x); }
ST_INLINE float st_bitcast_u32_f32(uint32_t x) { return st_from_bits_f32(x); }
ST_INLINE float st_bitcast_s32_f32(int32_t x) { return st_from_bits_f32((uint32_t)x); }
ST_INLINE uint64_t st_bitcast_f64_u64(double x) { return st_bits_f64(x); }
ST_INLINE int64_t st_bitcast_f64_s64(double x) { return (int64_t)st_bits_f64(x); }
ST_INLINE double st_bitcast_u64_f64(uint64_t x) { return st_from_bits_f64(x); }
ST_INLINE double st_bitcast_s64_f64(int64_t x) { return st_from_bits_f64((uint64_t)x); }
#define ST_BITCAST_NARROW(h, s, u, S, U)                                                              \
  ST_INLINE U st_bitcast_##h##_##u(float x) { return st_store_##h(x); }                               \
  ST_INLINE S st_bitcast_##h##_##s(float x) { return (S)st_store_##h(x); }                            \
  ST_INLINE float st_bitcast_##u##_##h(U x) { return st_load_##h(x); }                                \
  ST_INLINE float st_bitcast_##s##_##h(S x) { return st_load_##h((U)x); }
ST_BITCAST_NARROW(f8e4m3fn, s8, u8, int8_t, uint8_t)
ST_BITCAST_NARROW(f8e5m2, s8, u8, int8_t, uint8_t)
ST_BITCAST_NARROW(f16, s16, u16, int16_t, uint16_t)
ST_BITCAST_NARROW(bf16, s16, u16, int16_t, uint16_t)
#define ST_BITCAST_NARROWS(a, b)                                                                      \
  ST_INLINE float st_bitcast_##a##_##b(float x) { return st_load_##b(st_store_##a(x)); }              \
  ST_INLINE float st_bitcast_##b##_##a(float x) { return st_load_##a(st_store_##b(x)); }
ST_BITCAST_NARROWS(f16, bf16)
ST_BITCAST_NARROWS(f8e4m3fn, f8e5m2)

/* reduce-precision to exponent_bits and mantissa_bits, round to nearest even; tiny values become 0. */
#define ST_REDUCE_PRECISION(t, T, U, MANTISSA, BIAS, EXPONENT_BITS)                                   \
  ST_INLINE T st_reduce_precision_##t(T x, int exponent_bits, int mantissa_bits) {                    \
    U u = st_bits_##t(x);                                                                             \
    U sign = u & ((U)1 << (MANTISSA + EXPONENT_BITS));                                                \
    int drop = mantissa_bits < MANTISSA ? MANTISSA - mantissa_bits : 0;                               \
    U last = drop > 0 ? (u >> drop) & 1u : 0u;                                                        \
    U half = drop > 0 ? ((U)1 << (drop - 1)) - 1u + last : 0u;                                        \
    U magnitude = ((u ^ sign) + half) & ~(((U)1 << drop) - 1u);                                       \
    int largest = exponent_bits < EXPONENT_BITS ? (1 << (exponent_bits - 1)) - 1 : BIAS;              \
    U overflow = (U)(BIAS + largest + 1) << MANTISSA;                                                 \
    U underflow = (U)(BIAS - largest + 1) << MANTISSA;                                                \
    U infinity = (U)(2 * BIAS + 1) << MANTISSA;                                                       \
    U v = magnitude >= overflow ? infinity : magnitude;                                               \
    v = magnitude < underflow ? 0u : v;                                                               \
    return x != x ? x : st_from_bits_##t(v | sign);                                                   \
  }
ST_REDUCE_PRECISION(f32, float, uint32_t, 23, 127, 8)
ST_REDUCE_PRECISION(f64, double, uint64_t, 52, 1023, 11)
#endif
