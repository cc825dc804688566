// Vectors of floats in the width of the level that a kernel is compiled for.
//
// Included by files in kernels/ only. Everything is in the namespace of the level: the same name compiled for two instruction sets
// must stay two functions, or the linker keeps one of them for all machines. For that reason kernels use no templates or containers of
// the standard library.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(INTERLACE_LEVEL_AVX512) || defined(INTERLACE_LEVEL_AVX512_BF16) || defined(INTERLACE_LEVEL_AMX)
#define INTERLACE_WIDTH 16
#elif defined(INTERLACE_LEVEL_AVX2)
#define INTERLACE_WIDTH 8
#else
#define INTERLACE_WIDTH 4
#endif
#if defined(INTERLACE_LEVEL_AVX512_BF16) || defined(INTERLACE_LEVEL_AMX)
#define INTERLACE_BF16_DOT 1
#endif

namespace interlace {
namespace INTERLACE_LEVEL {

using bf16 = uint16_t;  // the upper half of a float
using i64 = int64_t;

constexpr int W = INTERLACE_WIDTH;
typedef float vf __attribute__((vector_size(W * 4)));
typedef int32_t vi __attribute__((vector_size(W * 4)));
typedef uint32_t vu __attribute__((vector_size(W * 4)));
typedef uint16_t vh __attribute__((vector_size(W * 2)));

static inline vf splat(float x) { return vf{} + x; }

template <typename V, typename T>
static inline V load_as(const T* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
static inline vf load(const float* p) { return load_as<vf>(p); }
static inline void store(float* p, vf v) { std::memcpy(p, &v, sizeof v); }

static inline float widen(bf16 x) {
  uint32_t u = uint32_t(x) << 16;
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}
static inline vf load(const bf16* p) { return (vf)(__builtin_convertvector(load_as<vh>(p), vu) << 16); }

// Round to nearest even; NaN stays NaN.
static inline bf16 narrow(float x) {
  uint32_t u;
  std::memcpy(&u, &x, 4);
  if (x != x) return bf16((u >> 16) | 0x40);
  return bf16((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
static inline vh narrow(vf x) {
  vu u = (vu)x;
  vu rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
  vu nan = (u >> 16) | 0x40;
  vu is_nan = (vu)(x != x);
  return __builtin_convertvector((is_nan & nan) | (~is_nan & rounded), vh);
}
static inline void store(bf16* p, vf v) {
  vh h = narrow(v);
  std::memcpy(p, &h, sizeof h);
}
// The same in one instruction where there is one, for numbers that are no denormals: those may become 0.
static inline void store_normal(bf16* p, vf v) {
#ifdef INTERLACE_BF16_DOT
  const auto h = _mm512_cvtneps_pbh((__m512)v);
  std::memcpy(p, &h, sizeof h);
#else
  store(p, v);
#endif
}

// As std::max(b, a) and std::min(b, a): b where one is NaN. Compilers make two instructions of the ternary.
#if INTERLACE_WIDTH == 16
static inline vf max(vf a, vf b) { return (vf)_mm512_maskz_max_ps(0xffff, (__m512)a, (__m512)b); }
static inline vf min(vf a, vf b) { return (vf)_mm512_maskz_min_ps(0xffff, (__m512)a, (__m512)b); }
#elif INTERLACE_WIDTH == 8
static inline vf max(vf a, vf b) { return (vf)_mm256_max_ps((__m256)a, (__m256)b); }
static inline vf min(vf a, vf b) { return (vf)_mm256_min_ps((__m256)a, (__m256)b); }
#else
static inline vf max(vf a, vf b) { return a > b ? a : b; }
static inline vf min(vf a, vf b) { return a < b ? a : b; }
#endif

// Halves are folded, so the order of summation is fixed by the width alone.
static inline float sum(vf v) {
#if INTERLACE_WIDTH == 16
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256((__m512)v), _mm512_maskz_extractf32x8_ps(0xff, (__m512)v, 1));
#elif INTERLACE_WIDTH == 8
  const __m256 half = (__m256)v;
#endif
#if INTERLACE_WIDTH > 4
  __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  quarter = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_add_ss(quarter, _mm_movehdup_ps(quarter)));
#else
  float lane[W];
  store(lane, v);
  for (int half = W / 2; half; half /= 2)
    for (int i = 0; i < half; ++i) lane[i] += lane[i + half];
  return lane[0];
#endif
}
static inline float max(vf v) {
  float lane[W];
  store(lane, v);
  for (int half = W / 2; half; half /= 2)
    for (int i = 0; i < half; ++i) lane[i] = lane[i] > lane[i + half] ? lane[i] : lane[i + half];
  return lane[0];
}

// acc + a_even * b_even + a_odd * b_odd, where a and b hold pairs of bf16 in each 32-bit lane (even element in the lower half).
static inline vf dot2(vf acc, vu a, vu b) {
#ifdef INTERLACE_BF16_DOT
  return (vf)_mm512_dpbf16_ps((__m512)acc, (__m512bh)a, (__m512bh)b);
#else
  acc += (vf)(a << 16) * (vf)(b << 16);
  return acc + (vf)(a & 0xffff0000u) * (vf)(b & 0xffff0000u);
#endif
}
static inline vu load_pairs(const bf16* p) { return load_as<vu>(p); }

// exp with a relative error of at most 2 units in the last place; 0 below -87.3, infinity above 88.7, NaN stays NaN.
static inline vf exp(vf x) {
  const vf low = splat(-87.33654f), high = splat(88.72283f);
  vf clipped = min(max(x, low), high);
  // 2^k * e^r with |r| <= ln(2) / 2; ln 2 in two parts, so that k * ln 2 loses nothing
  vf k = clipped * 1.44269504f + 12582912.0f;
  k = k - 12582912.0f;
  vf r = clipped - k * 0.693359375f;
  r = r + k * 2.12194440e-4f;
  vf p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  // in two steps: 2^128 is no float, but its half is
  vi e = __builtin_convertvector(k, vi);
  vi half = e >> 1;
  vf scaled = p * (vf)((half + 127) << 23) * (vf)((e - half + 127) << 23);
  scaled = x < low ? vf{} : scaled;
  scaled = x > high ? splat(__builtin_inff()) : scaled;
  return x == x ? scaled : x;
}

// 2^x for x up to 1, for the weights of a softmax, with a relative error of 2e-7; 0 below -125, NaN stays NaN.
static inline vf exp2_weight(vf x) {
  const vf low = splat(-125.0f), shift = splat(12582912.0f);
  const vf clipped = max(low, x);
  // the sum holds the nearest integer in its lowest bits, and the rest is exact
  const vf shifted = clipped + shift;
  const vf r = clipped - (shifted - shift);
  // least relative error among polynomials that are 1 at 0
  vf p = splat(1.326472731e-3f);
  p = p * r + 9.671512991e-3f;
  p = p * r + 5.550733581e-2f;
  p = p * r + 2.402224243e-1f;
  p = p * r + 6.931470037e-1f;
  p = p * r + 1.0f;
  const vf scaled = (vf)((vu)p + ((vu)shifted << 23));
  return x < low ? vf{} : scaled;
}

static inline vf sigmoid(vf x) { return 1.0f / (1.0f + exp(-x)); }

}  // namespace INTERLACE_LEVEL
}  // namespace interlace
