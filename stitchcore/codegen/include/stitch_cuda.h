/* Helpers of generated CUDA kernels; compiled by NVRTC, which has no standard headers.
 *
 * Math is CUDA's own (full range, at most 2 ulp for the functions used); no fast-math, and fused
 * multiply-add is off on the command line (--fmad=false). Denormals are kept, as TensorFlow does on
 * GPUs. bf16 and f16 go through stitch_common.h's integer conversions, so no further header. */
#ifndef STITCH_CUDA_H
#define STITCH_CUDA_H

typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
#define INT8_MIN ((int8_t)-128)
#define INT16_MIN ((int16_t)-32768)
#define INT32_MIN (-2147483647 - 1)
#define INT64_MIN (-9223372036854775807ll - 1)

#define ST_INLINE static __device__ __forceinline__
#define ST_COPY(to, from, bytes) memcpy(to, from, bytes)
#define ST_INF_F32 __int_as_float(0x7f800000)
#define ST_NAN_F32 __int_as_float(0x7fc00000)
#define ST_INF_F64 __longlong_as_double(0x7ff0000000000000ll)
#define ST_NAN_F64 __longlong_as_double(0x7ff8000000000000ll)
#define ST_PRAGMA(text) _Pragma(#text)
#define ST_UNROLL(count) ST_PRAGMA(unroll count)
#include "stitch_common.h"

template <typename A, typename B>
ST_INLINE auto st_min(A a, B b) {
  return a < b ? a : b;
}
template <typename A, typename B>
ST_INLINE auto st_max(A a, B b) {
  return a > b ? a : b;
}

/* A kernel's parameter: addresses and symbols, in constant memory. */
template <int N>
struct st_words {
  uint64_t at[N];
};

/* Lanes are numbered from 0. Told so, the compiler knows how often each goes through a loop of fixed
 * size: without a branch in each pass the loads of several are under way together. */
#define ST_LANES(count) __builtin_assume(st_lane >= 0 && st_lane < count)

/* Neighbouring elements that a thread moves at once. */
template <typename T, int N>
struct __align__(sizeof(T) * N) st_run {
  T at[N];
};

/* Memory that nobody writes in this launch: the compiler may load it before any store. */
template <int BYTES>
struct st_bits;
template <>
struct st_bits<2> {
  typedef unsigned short type;
};
template <>
struct st_bits<4> {
  typedef unsigned type;
};
template <>
struct st_bits<8> {
  typedef uint2 type;
};
template <>
struct st_bits<16> {
  typedef uint4 type;
};
template <typename T, int N>
ST_INLINE st_run<T, N> st_read_only(const st_run<T, N> *from) {
  typedef typename st_bits<sizeof(T) * N>::type bits;
  const bits loaded = __ldg((const bits *)from);
  st_run<T, N> run;
  memcpy(&run, &loaded, sizeof(run));
  return run;
}

/* What a block is to the next section, when this one's tasks were dealt from block 0 on: the first
 * block that has got no more than others is block 0 then. */
template <typename Index, typename Tasks>
ST_INLINE Index st_next_block(Index block, Tasks tasks) {
  const Index grid = gridDim.x;
  block -= tasks % grid;
  return block < 0 ? block + grid : block;
}

/* The row of a table in which a task lies; rows begin with the number of their first task. */
template <int ROWS, int COLUMNS, typename T, typename Index>
ST_INLINE const T *st_find(const T *table, Index task) {
  int low = 0, high = ROWS;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (table[middle * COLUMNS] <= task)
      low = middle;
    else
      high = middle;
  }
  return table + low * COLUMNS;
}

/* All blocks of a cooperative launch meet. What they add in one meeting is 2^31, so the top bit turns
 * over when the last has come and all others are zero again: the next meeting, of this launch or of
 * another with whatever grid, begins where this one ended. */
ST_INLINE void st_grid_barrier(unsigned *arrived) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    const unsigned share = blockIdx.x == 0 ? 0x80000000u - (gridDim.x - 1u) : 1u;
    const unsigned before = atomicAdd(arrived, share);
    while (((*(volatile unsigned *)arrived ^ before) & 0x80000000u) == 0u) __nanosleep(64);
    __threadfence();
  }
  __syncthreads();
}

/* ---- reductions over lanes: narrow types travel as int ------------------------------------------- */
#define ST_SHUFFLE(T, CARRIER)                                                                        \
  ST_INLINE T st_shuffle(T x, int mask) {                                                             \
    return (T)__shfl_xor_sync(0xffffffffu, (CARRIER)x, mask);                                         \
  }
ST_SHUFFLE(bool, int)
ST_SHUFFLE(int8_t, int)
ST_SHUFFLE(int16_t, int)
ST_SHUFFLE(int32_t, int)
ST_SHUFFLE(int64_t, long long)
ST_SHUFFLE(uint8_t, unsigned)
ST_SHUFFLE(uint16_t, unsigned)
ST_SHUFFLE(uint32_t, unsigned)
ST_SHUFFLE(uint64_t, unsigned long long)
ST_SHUFFLE(float, float)
ST_SHUFFLE(double, double)

#define ST_REDUCER(name, T, joined)                                                                   \
  struct name {                                                                                       \
    __device__ __forceinline__ T operator()(T value, T other) const { return joined; }                \
  };

/* Every lane of a warp gets the same tree of all 32. */
template <typename T, typename Reducer>
ST_INLINE T st_combine_warp(T value, Reducer reduce) {
  for (int mask = 16; mask > 0; mask >>= 1) value = reduce(value, st_shuffle(value, mask));
  return value;
}

/* Every thread of a block gets the warps' parts in their order. Also orders shared memory. */
template <typename T, typename Reducer>
ST_INLINE T st_combine_group(T value, Reducer reduce) {
  __shared__ T part[32];
  value = st_combine_warp(value, reduce);
  __syncthreads(); /* the parts of the reduction before have been read */
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = value;
  __syncthreads();
  value = part[0];
  for (int warp = 1; warp < (int)blockDim.x / 32; warp++) value = reduce(value, part[warp]);
  return value;
}

/* ---- math ----------------------------------------------------------------------------------------- */
#define ST_MATH1(name, f32, f64)                                                                      \
  ST_INLINE float st_##name##_f32(float x) { return f32(x); }                                         \
  ST_INLINE double st_##name##_f64(double x) { return f64(x); }
#define ST_MATH2(name, f32, f64)                                                                      \
  ST_INLINE float st_##name##_f32(float x, float y) { return f32(x, y); }                             \
  ST_INLINE double st_##name##_f64(double x, double y) { return f64(x, y); }
ST_MATH1(floor, floorf, floor)
ST_MATH1(ceil, ceilf, ceil)
ST_MATH1(round_nearest_even, rintf, rint)
ST_MATH1(round_nearest_afz, roundf, round)
ST_MATH1(exponential, expf, exp)
ST_MATH1(exponential_minus_one, expm1f, expm1)
ST_MATH1(log, logf, log)
ST_MATH1(log_plus_one, log1pf, log1p)
ST_MATH1(tanh, tanhf, tanh)
ST_MATH1(erf, erff, erf)
ST_MATH1(sqrt, sqrtf, sqrt)
ST_MATH1(cbrt, cbrtf, cbrt)
ST_MATH1(sine, sinf, sin)
ST_MATH1(cosine, cosf, cos)
ST_MATH1(tan, tanf, tan)
ST_MATH2(power, powf, pow)
ST_MATH2(atan2, atan2f, atan2)
ST_MATH2(remainder, fmodf, fmod)
ST_INLINE float st_rsqrt_f32(float x) { return 1.0f / sqrtf(x); }
ST_INLINE double st_rsqrt_f64(double x) { return 1.0 / sqrt(x); }
ST_INLINE float st_logistic_f32(float x) { return 1.0f / (1.0f + expf(-x)); }
ST_INLINE double st_logistic_f64(double x) { return 1.0 / (1.0 + exp(-x)); }
#endif
