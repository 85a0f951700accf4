/* float32 functions whose inner arithmetic is double: trigonometry, power, atan2. Included by
 * stitch_cpu.h. About half the speed of the others, at most 1 ulp, and right for every argument:
 * the reduction of sine and cosine multiplies by as many bits of 2/pi as the exponent asks for. */
#ifndef STITCH_CPU_WIDE_H
#define STITCH_CPU_WIDE_H

/* Fraction of x * 2/pi: bits of 2/pi by the exponent of x. For x = m * 2^(e - 150), m < 2^24, entry e
 * holds bits [e - 152, e - 56) of 2/pi, so that m * entry, read modulo 2^64, is x * 2/pi modulo 4 with
 * 62 bits after the point. Written by tests/codegen/two_over_pi.py, which a test runs. */
#include "stitch_two_over_pi.h"

/* x in quarter turns: returns the quadrant, sets *angle to the rest in radians, |angle| <= pi/4. */
ST_INLINE int32_t st_quarter_turn_f32(float x, double *angle) {
  uint32_t u = st_bits_f32(x);
  long exponent = (long)((int32_t)u >> 23) & 0xff;
  uint64_t mantissa = (u & 0x007fffffu) | 0x00800000u;
  uint64_t product = mantissa * st_two_over_pi_high[exponent];
  product += (mantissa * st_two_over_pi_low[exponent]) >> 32;
  uint64_t quadrant = (product + 0x2000000000000000u) >> 62;
  uint64_t rest = product - (quadrant << 62);
  double high = (double)(int32_t)(uint32_t)(rest >> 32);
  double low = (double)(int32_t)((uint32_t)rest >> 1);
  double turn = (high * 4294967296.0 + low * 2.0) * (1.5707963267948966 / 4611686018427387904.0);
  bool negative = (u >> 31) != 0;
  /* below 2^-3 the table is not needed and the angle is exact */
  bool small = exponent < 124;
  *angle = small ? (double)x : negative ? -turn : turn;
  int32_t q = small ? 0 : (int32_t)(uint32_t)quadrant;
  return negative ? -q : q;
}
ST_INLINE double st_sine_core(double r) {
  double s = r * r;
  double p = -2.5050747762857807e-08;
  p = p * s + 2.7557313621385722e-06;
  p = p * s - 1.9841269829589539e-04;
  p = p * s + 8.3333333333220340e-03;
  p = p * s - 1.6666666666666631e-01;
  return r + r * s * p;
}
ST_INLINE double st_cosine_core(double r) {
  double s = r * r;
  double p = 2.0875723212985986e-09;
  p = p * s - 2.7557314297146940e-07;
  p = p * s + 2.4801587294767120e-05;
  p = p * s - 1.3888888888873063e-03;
  p = p * s + 4.1666666666666600e-02;
  return 1.0 - 0.5 * s + s * s * p;
}
ST_INLINE float st_sine_f32(float x) {
  double r;
  int32_t q = st_quarter_turn_f32(x, &r);
  double s = st_sine_core(r), c = st_cosine_core(r);
  double y = (q & 1) != 0 ? c : s;
  y = (q & 2) != 0 ? -y : y;
  float f = x == 0.0f ? x : (float)y;
  return x - x != 0.0f ? ST_NAN_F32 : f;
}
ST_INLINE float st_cosine_f32(float x) {
  double r;
  int32_t q = st_quarter_turn_f32(x, &r);
  double s = st_sine_core(r), c = st_cosine_core(r);
  double y = (q & 1) != 0 ? s : c;
  y = ((q + 1) & 2) != 0 ? -y : y;
  return x - x != 0.0f ? ST_NAN_F32 : (float)y;
}
ST_INLINE float st_tan_f32(float x) {
  double r;
  int32_t q = st_quarter_turn_f32(x, &r);
  double s = st_sine_core(r), c = st_cosine_core(r);
  double y = (q & 1) != 0 ? -c / s : s / c;
  float f = x == 0.0f ? x : (float)y;
  return x - x != 0.0f ? ST_NAN_F32 : f;
}

/* log2 of a positive finite float, absolute error 1e-12 relative to the integer part's grid */
ST_INLINE double st_log2_wide(float x) {
  uint32_t u = st_bits_f32(x) - 0x3f3504f3u;
  int32_t e = (int32_t)u >> 23;
  double m = (double)st_from_bits_f32((u & 0x007fffffu) + 0x3f3504f3u);
  double s = (m - 1.0) / (m + 1.0), t = s * s;
  double p = 1.0 / 17.0;
  p = p * t + 1.0 / 15.0;
  p = p * t + 1.0 / 13.0;
  p = p * t + 1.0 / 11.0;
  p = p * t + 1.0 / 9.0;
  p = p * t + 1.0 / 7.0;
  p = p * t + 1.0 / 5.0;
  p = p * t + 1.0 / 3.0;
  return (double)e + (s + s * t * p) * 2.8853900817779268;
}
/* 2^z for |z| <= 300 */
ST_INLINE double st_exp2_wide(double z) {
  double n = __builtin_rint(z);
  double r = (z - n) * 0.6931471805599453;
  double p = 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = p * r * r + r + 1.0;
  return p * st_from_bits_f64((uint64_t)((uint32_t)((int32_t)n + 1023)) << 52);
}
ST_INLINE float st_power_f32(float x, float y) {
  float a = st_abs_f32(x);
  double z = st_log2_wide(a) * (double)y;
  z = z > 300.0 ? 300.0 : z;
  z = z < -300.0 ? -300.0 : z;
  float magnitude = (float)st_exp2_wide(z);
  bool huge = st_abs_f32(y) >= 16777216.0f;
  bool whole = huge | (__builtin_truncf(y) == y);
  float half = y * 0.5f;
  bool odd = whole & !huge & (__builtin_truncf(half) != half);
  bool up = (a > 1.0f) == (y > 0.0f); /* |y| infinite: to infinity, else to zero */
  float edge = a == 1.0f ? 1.0f : up ? ST_INF_F32 : 0.0f;
  magnitude = st_abs_f32(y) == ST_INF_F32 ? edge : magnitude;
  magnitude = (a == 0.0f) | (a == ST_INF_F32) ? ((a == 0.0f) == (y > 0.0f) ? 0.0f : ST_INF_F32) : magnitude;
  bool minus = (st_bits_f32(x) >> 31) != 0;
  float signed_ = minus & odd ? -magnitude : magnitude;
  signed_ = (x < 0.0f) & !whole & (a != ST_INF_F32) ? ST_NAN_F32 : signed_;
  signed_ = (x != x) | (y != y) ? ST_NAN_F32 : signed_;
  return (x == 1.0f) | (y == 0.0f) ? 1.0f : signed_;
}

ST_INLINE float st_atan2_f32(float y, float x) {
  double a = (double)st_abs_f32(y), b = (double)st_abs_f32(x);
  bool steep = a > b;
  double top = steep ? b : a, bottom = steep ? a : b;
  bool both = (top == bottom); /* 0/0 and inf/inf: the angle of 0 or of 1 */
  double q = both ? (bottom == 0.0 ? 0.0 : 1.0) : top / bottom;
  /* one step of the half-angle formula: q <= tan(pi/8) */
  bool far = q > 0.41421356237309503;
  double r = far ? (q - 1.0) / (q + 1.0) : q;
  double s = r * r;
  double p = -1.0 / 23.0;
  p = p * s + 1.0 / 21.0;
  p = p * s - 1.0 / 19.0;
  p = p * s + 1.0 / 17.0;
  p = p * s - 1.0 / 15.0;
  p = p * s + 1.0 / 13.0;
  p = p * s - 1.0 / 11.0;
  p = p * s + 1.0 / 9.0;
  p = p * s - 1.0 / 7.0;
  p = p * s + 1.0 / 5.0;
  p = p * s - 1.0 / 3.0;
  double angle = (far ? 0.78539816339744831 : 0.0) + (r + r * s * p);
  angle = steep ? 1.5707963267948966 - angle : angle;
  angle = (st_bits_f32(x) >> 31) != 0 ? 3.1415926535897931 - angle : angle;
  float f = st_with_sign_f32((float)angle, y);
  return (x != x) | (y != y) ? ST_NAN_F32 : f;
}
#endif
