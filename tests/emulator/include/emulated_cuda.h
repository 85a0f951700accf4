/* CUDA C++ for g++: force-included before unmodified kernel text, which then calls the emulator.
 *
 * Like NVRTC it brings no standard header: kernel text defines its own integer types. `__shared__`
 * becomes thread_local, which is static inside a function and has an address the runtime can find.
 * `__restrict__` is taken away, as it would let g++ move loads over a barrier. */
#pragma once

#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __shared__ thread_local
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __builtin_assume(holds)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __restrict__
#define __restrict

#define EMULATED_INLINE static inline __attribute__((always_inline))
#define EMULATED_UNSEEN __attribute__((noinline, no_sanitize("thread", "alignment", "bounds"))) static

/* ---- vector types --------------------------------------------------------------------------------------------- */
#define EMULATED_VECTORS(name, T, make_align2, make_align4)                                                           \
  struct __attribute__((aligned(sizeof(T)))) name##1 { T x; };                                                        \
  struct __attribute__((aligned(make_align2))) name##2 { T x, y; };                                                   \
  struct name##3 { T x, y, z; };                                                                                      \
  struct __attribute__((aligned(make_align4))) name##4 { T x, y, z, w; };                                             \
  EMULATED_INLINE name##1 make_##name##1(T x) { return {x}; }                                                         \
  EMULATED_INLINE name##2 make_##name##2(T x, T y) { return {x, y}; }                                                 \
  EMULATED_INLINE name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                                         \
  EMULATED_INLINE name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
EMULATED_VECTORS(char, signed char, 2, 4)
EMULATED_VECTORS(uchar, unsigned char, 2, 4)
EMULATED_VECTORS(short, short, 4, 8)
EMULATED_VECTORS(ushort, unsigned short, 4, 8)
EMULATED_VECTORS(int, int, 8, 16)
EMULATED_VECTORS(uint, unsigned, 8, 16)
EMULATED_VECTORS(float, float, 8, 16)
EMULATED_VECTORS(longlong, long long, 16, 16)
EMULATED_VECTORS(ulonglong, unsigned long long, 16, 16)
EMULATED_VECTORS(double, double, 16, 16)
struct dim3 { unsigned x = 1, y = 1, z = 1; };

/* ---- the runtime: `const` where a fiber always gets the same answer; libc has a __nanosleep of its own ----------- */
extern "C" {
uint3 emulated_thread_index() __attribute__((const));
uint3 emulated_block_index() __attribute__((const));
uint3 emulated_block_size() __attribute__((const));
uint3 emulated_grid_size() __attribute__((const));
void __syncthreads() __asm__("emulated_syncthreads");
void __syncwarp(unsigned mask = 0xffffffffu) __asm__("emulated_syncwarp");
void __threadfence() __asm__("emulated_threadfence");
void __threadfence_block() __asm__("emulated_threadfence_block");
void __nanosleep(unsigned nanoseconds) __asm__("emulated_nanosleep");
void __trap() __asm__("emulated_trap");
unsigned __ballot_sync(unsigned mask, int holds) __asm__("emulated_ballot");
unsigned long long emulated_shuffle(unsigned mask, unsigned long long bits, int source);
void emulated_atomic(const volatile void *address, unsigned long bytes, void *place);
void emulated_atomic_done(bool changed);
void emulated_not_coherent(const void *address, unsigned long bytes);
void emulated_range(const void *address, unsigned long bytes, bool writes);
}
#define threadIdx emulated_thread_index()
#define blockIdx emulated_block_index()
#define blockDim emulated_block_size()
#define gridDim emulated_grid_size()
enum { warpSize = 32 };
EMULATED_INLINE void __threadfence_system() { __threadfence(); }
EMULATED_INLINE int __any_sync(unsigned mask, int holds) { return __ballot_sync(mask, holds) != 0; }
EMULATED_INLINE int __all_sync(unsigned mask, int holds) { return __ballot_sync(mask, !holds) == 0; }

/* ---- shuffles: the lane to read is found here, the meeting is the runtime's -------------------------------------- */
template <class T> EMULATED_INLINE T emulated_exchange(unsigned mask, T value, int source) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "CUDA shuffles 4 or 8 bytes");
  unsigned long long bits = 0;
  __builtin_memcpy(&bits, &value, sizeof(T));
  bits = emulated_shuffle(mask, bits, source);
  __builtin_memcpy(&value, &bits, sizeof(T));
  return value;
}
EMULATED_INLINE int emulated_lane() {
  return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) & 31;
}
template <class T> EMULATED_INLINE T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  return emulated_exchange(mask, value, (emulated_lane() & -width) + (source & (width - 1)));
}
template <class T> EMULATED_INLINE T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
  int lane = emulated_lane(), within = lane & (width - 1);
  return emulated_exchange(mask, value, within < (int)by ? lane : lane - (int)by);
}
template <class T> EMULATED_INLINE T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
  int lane = emulated_lane(), within = lane & (width - 1);
  return emulated_exchange(mask, value, within + (int)by >= width ? lane : lane + (int)by);
}
template <class T> EMULATED_INLINE T __shfl_xor_sync(unsigned mask, T value, int by, int width = 32) {
  int lane = emulated_lane(), source = lane ^ by;
  return emulated_exchange(mask, value, source >= (lane & -width) + width ? lane : source);
}

/* ---- atomics: checked and ordered by the runtime, then done here with no other fiber running --------------------- */
template <class T, class F> EMULATED_UNSEEN T emulated_update(T *address, F updated) {
  emulated_atomic(address, sizeof(T), __builtin_return_address(0));
  T before = *address, after = updated(before);
  *address = after;
  emulated_atomic_done(before != after);
  return before;
}
#define EMULATED_ATOMIC(name, T, after)                                                                               \
  EMULATED_INLINE T name(T *address, T value) {                                                                       \
    return emulated_update(address, [value](T before) -> T { return after; });                                        \
  }
#define EMULATED_ATOMIC_INTEGERS(name, after)                                                                         \
  EMULATED_ATOMIC(name, int, after)                                                                                   \
  EMULATED_ATOMIC(name, unsigned, after)                                                                              \
  EMULATED_ATOMIC(name, unsigned long long, after)
EMULATED_ATOMIC_INTEGERS(atomicAdd, before + value)
EMULATED_ATOMIC(atomicAdd, float, before + value)
EMULATED_ATOMIC(atomicAdd, double, before + value)
EMULATED_ATOMIC(atomicSub, int, before - value)
EMULATED_ATOMIC(atomicSub, unsigned, before - value)
EMULATED_ATOMIC_INTEGERS(atomicMin, value < before ? value : before)
EMULATED_ATOMIC(atomicMin, long long, value < before ? value : before)
EMULATED_ATOMIC_INTEGERS(atomicMax, value > before ? value : before)
EMULATED_ATOMIC(atomicMax, long long, value > before ? value : before)
EMULATED_ATOMIC_INTEGERS(atomicAnd, before & value)
EMULATED_ATOMIC_INTEGERS(atomicOr, before | value)
EMULATED_ATOMIC_INTEGERS(atomicXor, before ^ value)
EMULATED_ATOMIC_INTEGERS(atomicExch, value)
EMULATED_ATOMIC(atomicExch, float, value)
#define EMULATED_COMPARE_AND_SWAP(T)                                                                                  \
  EMULATED_INLINE T atomicCAS(T *address, T compare, T value) {                                                       \
    return emulated_update(address, [=](T before) { return before == compare ? value : before; });                    \
  }
EMULATED_COMPARE_AND_SWAP(int)
EMULATED_COMPARE_AND_SWAP(unsigned)
EMULATED_COMPARE_AND_SWAP(unsigned short)
EMULATED_COMPARE_AND_SWAP(unsigned long long)

/* ---- loads and stores with a cache hint: weak accesses like any other -------------------------------------------- */
#define EMULATED_HINTED(load, store)                                                                                  \
  template <class T> EMULATED_INLINE T load(const T *address) { return *address; }                                    \
  template <class T> EMULATED_INLINE void store(T *address, T value) { *address = value; }
EMULATED_HINTED(__ldca, __stwb)
EMULATED_HINTED(__ldcg, __stcg)
EMULATED_HINTED(__ldcs, __stcs)
EMULATED_HINTED(__ldcv, __stwt)
/* A vector is one access: g++ would load its members one by one. */
template <class T> struct __attribute__((aligned(alignof(T)))) EmulatedWhole { unsigned char at[sizeof(T)]; };
template <class T> EMULATED_INLINE T __ldg(const T *address) {
  emulated_not_coherent(address, sizeof(T));
  EmulatedWhole<T> whole = *(const EmulatedWhole<T> *)address;
  return __builtin_bit_cast(T, whole);
}

/* ---- memory: g++ does not instrument the library's functions ----------------------------------------------------- */
typedef decltype(sizeof 0) size_t;
EMULATED_INLINE void *emulated_copy(void *to, const void *from, size_t bytes) {
  if (__builtin_constant_p(bytes) && bytes <= 16) return __builtin_memcpy(to, from, bytes);
  emulated_range(from, bytes, false);
  emulated_range(to, bytes, true);
  return __builtin_memcpy(to, from, bytes);
}
EMULATED_INLINE void *emulated_fill(void *to, int value, size_t bytes) {
  emulated_range(to, bytes, true);
  return __builtin_memset(to, value, bytes);
}
#define memcpy emulated_copy
#define memset emulated_fill

/* ---- bits -------------------------------------------------------------------------------------------------------- */
#define EMULATED_CAST(name, From, To)                                                                                 \
  EMULATED_INLINE To name(From value) { return __builtin_bit_cast(To, value); }
EMULATED_CAST(__int_as_float, int, float)
EMULATED_CAST(__float_as_int, float, int)
EMULATED_CAST(__uint_as_float, unsigned, float)
EMULATED_CAST(__float_as_uint, float, unsigned)
EMULATED_CAST(__longlong_as_double, long long, double)
EMULATED_CAST(__double_as_longlong, double, long long)
EMULATED_INLINE int __popc(unsigned value) { return __builtin_popcount(value); }
EMULATED_INLINE int __popcll(unsigned long long value) { return __builtin_popcountll(value); }
EMULATED_INLINE int __clz(int value) { return value == 0 ? 32 : __builtin_clz(value); }
EMULATED_INLINE int __clzll(long long value) { return value == 0 ? 64 : __builtin_clzll(value); }
EMULATED_INLINE int __ffs(int value) { return __builtin_ffs(value); }
EMULATED_INLINE unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
EMULATED_INLINE unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)((unsigned __int128)a * b >> 64);
}

/* ---- math: the host's library, which rounds elsewhere than CUDA's ------------------------------------------------ */
#define EMULATED_MATH1(name) extern "C" float name##f(float) noexcept; extern "C" double name(double) noexcept;
#define EMULATED_MATH2(name)                                                                                          \
  extern "C" float name##f(float, float) noexcept; extern "C" double name(double, double) noexcept;
EMULATED_MATH1(floor) EMULATED_MATH1(ceil) EMULATED_MATH1(rint) EMULATED_MATH1(round) EMULATED_MATH1(trunc)
EMULATED_MATH1(exp) EMULATED_MATH1(exp2) EMULATED_MATH1(expm1) EMULATED_MATH1(log) EMULATED_MATH1(log2)
EMULATED_MATH1(log1p) EMULATED_MATH1(tanh) EMULATED_MATH1(erf) EMULATED_MATH1(erfc) EMULATED_MATH1(sqrt)
EMULATED_MATH1(cbrt) EMULATED_MATH1(sin) EMULATED_MATH1(cos) EMULATED_MATH1(tan) EMULATED_MATH1(fabs)
EMULATED_MATH2(pow) EMULATED_MATH2(atan2) EMULATED_MATH2(fmod) EMULATED_MATH2(fmax) EMULATED_MATH2(fmin)
EMULATED_MATH2(copysign)
extern "C" float fmaf(float, float, float) noexcept;
extern "C" double fma(double, double, double) noexcept;
EMULATED_INLINE float rsqrtf(float x) { return (float)(1.0 / sqrt((double)x)); }
EMULATED_INLINE double rsqrt(double x) { return 1.0 / sqrt(x); }
EMULATED_INLINE float __fadd_rn(float x, float y) { return x + y; }
EMULATED_INLINE float __fmul_rn(float x, float y) { return x * y; }
EMULATED_INLINE float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }

/* ---- entries: what the runtime calls for each thread, with the address of every argument ------------------------- */
template <size_t...> struct EmulatedPositions {};
template <size_t N, size_t... At> struct EmulatedCount : EmulatedCount<N - 1, N - 1, At...> {};
template <size_t... At> struct EmulatedCount<0, At...> { typedef EmulatedPositions<At...> type; };
template <class T> struct EmulatedPlain { typedef T type; };
template <class T> struct EmulatedPlain<const T> { typedef T type; };
template <class... Parameters, size_t... At>
EMULATED_UNSEEN void emulated_spread(void (*kernel)(Parameters...), void *const *given, EmulatedPositions<At...>) {
  kernel(*static_cast<typename EmulatedPlain<Parameters>::type *>(given[At])...);
}
template <class... Parameters> EMULATED_UNSEEN void emulated_call(void (*kernel)(Parameters...), void *const *given) {
  emulated_spread(kernel, given, typename EmulatedCount<sizeof...(Parameters)>::type());
}
