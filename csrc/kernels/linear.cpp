#include "kernels/linear.h"

#include "simd.h"

// One output number is one dot product along a row of W, in an order that the level and the width fix: one running sum per lane,
// folded at the end. So a row's result does not depend on the rows beside it, nor on the number of threads. What limits a call is reading W,
// once: a thread takes blocks of kBlock rows of W, and all rows of x pass over a block while it is in the core's cache.

namespace interlace {
namespace INTERLACE_LEVEL {
namespace {

constexpr i64 kBlock = 16;            // rows of W of one block
constexpr i64 kStep = 2 * W;          // bf16 numbers of one vector
constexpr i64 kAhead = 4096;          // bytes that are fetched ahead: rows of W are short for what follows an address by itself
constexpr i64 kGroup = 32;            // numbers that share a scale
constexpr int kParts = kGroup / (2 * W);  // vectors of one group

// Codes of W pairs of columns become pairs of bf16, in order.
template <Format F>
struct Codes;

template <>
struct Codes<Format::int8> {
  static constexpr i64 bytes = 2 * W;
  static inline vu pairs(const char* at) {
    // integers below 256 are exact in bf16, so the upper halves of the floats are all there is
#if INTERLACE_WIDTH == 16
    const __m512i low = (__m512i)__builtin_convertvector((vi)_mm512_maskz_cvtepi8_epi32(0xffff, load_as<__m128i>(at)), vf);
    const __m512i high = (__m512i)__builtin_convertvector((vi)_mm512_maskz_cvtepi8_epi32(0xffff, load_as<__m128i>(at + 16)), vf);
    return (vu)_mm512_permutex2var_epi16(low, (__m512i)load_as<vu>(kUpper), high);
#else
    typedef int16_t vs __attribute__((vector_size(W * 2)));
    const vi both = __builtin_convertvector(load_as<vs>(at), vi);
    const vu low = (vu) __builtin_convertvector((both << 24) >> 24, vf), high = (vu) __builtin_convertvector(both >> 8, vf);
    return (low >> 16) | (high & 0xffff0000u);
#endif
  }
  // the upper halves of the lanes of two vectors
  static constexpr uint16_t kUpper[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
                                          33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
};

// int4 and MXFP4 by the same lookup: sixteen bf16 numbers, twice, since the widest lookup has 32.
#define INTERLACE_TWICE(...) {__VA_ARGS__, __VA_ARGS__}
template <Format F>
struct Nibbles {
  static constexpr i64 bytes = W;
  static constexpr bf16 kInt4[32] = INTERLACE_TWICE(0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80, 0x0000, 0x3f80, 0x4000,
                                                    0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0);
  static constexpr bf16 kFloat4[32] = INTERLACE_TWICE(0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0, 0x8000, 0xbf00, 0xbf80,
                                                      0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0);
  static constexpr const bf16* table = F == Format::int4 ? kInt4 : kFloat4;
  static inline vu pairs(const char* at) {
#if INTERLACE_WIDTH == 16
    const vu both = (vu)_mm512_maskz_cvtepu8_epi32(0xffff, load_as<__m128i>(at));
    const vu index = (both & 0xfu) | ((both & 0xf0u) << 12);
    return (vu)_mm512_permutexvar_epi16((__m512i)index, (__m512i)load_as<vu>(table));
#elif INTERLACE_WIDTH == 8
    // the lower and the upper bytes of the sixteen numbers, each by one lookup
    const __m128i even = _mm_set1_epi16(0x00ff), both = load_as<__m128i>(table), rest = load_as<__m128i>(table + 8);
    const __m128i lower = _mm_packus_epi16(_mm_and_si128(both, even), _mm_and_si128(rest, even));
    const __m128i upper = _mm_packus_epi16(_mm_srli_epi16(both, 8), _mm_srli_epi16(rest, 8));
    const __m128i bytes_ = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at)), mask = _mm_set1_epi8(15);
    const __m128i index = _mm_unpacklo_epi8(_mm_and_si128(bytes_, mask), _mm_and_si128(_mm_srli_epi16(bytes_, 4), mask));
    const __m128i low = _mm_shuffle_epi8(lower, index), high = _mm_shuffle_epi8(upper, index);
    return (vu)_mm256_set_m128i(_mm_unpackhi_epi8(low, high), _mm_unpacklo_epi8(low, high));
#else
    uint32_t out[W];
    for (int i = 0; i < W; ++i) out[i] = table[uint8_t(at[i]) & 0xf] | uint32_t(table[uint8_t(at[i]) >> 4]) << 16;
    return load_as<vu>(out);
#endif
  }
};
template <>
struct Codes<Format::int4> : Nibbles<Format::int4> {};
template <>
struct Codes<Format::mxfp4> : Nibbles<Format::mxfp4> {};

template <Format F>
static inline float scale_at(const void* scale, i64 group) {
  if (F != Format::mxfp4) return widen(static_cast<const bf16*>(scale)[group]);
  const uint8_t exponent = static_cast<const uint8_t*>(scale)[group];
  // 2^-127 is below the normal floats; 255 means no number
  const uint32_t bits = exponent == 0 ? 0x00400000u : exponent == 255 ? 0x7fc00000u : uint32_t(exponent) << 23;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// Where a row of W begins, at column k.
struct Row {
  const char* data;
  const void* scale;
};
template <Format F>
static inline Row row_of(const Matrix& w, i64 n, i64 k) {
  const i64 bytes = F == Format::bf16 ? k * 2 : F == Format::int8 ? k : k / 2, size = F == Format::mxfp4 ? 1 : 2;
  return {static_cast<const char*>(w.data) + n * w.stride + bytes,
          static_cast<const char*>(w.scale) + (n * w.scale_stride + k / kGroup) * size};
}

// Sums over columns [0, width) of M rows of x by N rows of W, on top of acc[m * kBlock + n].
template <int M, int N>
static inline void dots_bf16(const bf16* x, i64 x_stride, const Row* w, i64 width, vf* sums) {
  vf acc[M][N];
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) acc[m][n] = sums[m * kBlock + n];
  i64 k = 0;
  for (; k + kStep <= width; k += kStep) {
    vu row[N];
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      row[n] = load_as<vu>(w[n].data + k * 2);
      if (M <= 2) __builtin_prefetch(w[n].data + k * 2 + kAhead);
    }
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      const vu column = load_pairs(x + m * x_stride + k);
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) acc[m][n] = dot2(acc[m][n], column, row[n]);
    }
  }
  if (k < width) {
    const size_t left = size_t(width - k) * 2;
    vu row[N] = {};
    for (int n = 0; n < N; ++n) std::memcpy(&row[n], w[n].data + k * 2, left);
    for (int m = 0; m < M; ++m) {
      vu column = {};
      std::memcpy(&column, x + m * x_stride + k, left);
      for (int n = 0; n < N; ++n) acc[m][n] = dot2(acc[m][n], column, row[n]);
    }
  }
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) sums[m * kBlock + n] = acc[m][n];
}

// The same from codes: the sum of a group is formed first, then scaled. The width is a multiple of a group.
template <Format F, int M, int N>
static inline void dots_codes(const bf16* x, i64 x_stride, const Row* w, i64 width, vf* sums) {
  vf acc[M][N];
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) acc[m][n] = sums[m * kBlock + n];
  for (i64 group = 0; group < width / kGroup; ++group) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      const float scale = scale_at<F>(w[n].scale, group);
      const char* codes = w[n].data + group * kParts * Codes<F>::bytes;
      vu row[kParts];
      for (int p = 0; p < kParts; ++p) row[p] = Codes<F>::pairs(codes + p * Codes<F>::bytes);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) {
        vf part = {};
        for (int p = 0; p < kParts; ++p) part = dot2(part, load_pairs(x + m * x_stride + group * kGroup + p * kStep), row[p]);
        acc[m][n] += part * scale;
      }
    }
  }
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) sums[m * kBlock + n] = acc[m][n];
}

template <Format F, int M, int N>
static inline void dots(const bf16* x, i64 x_stride, const Row* w, i64 width, vf* sums) {
  if constexpr (F == Format::bf16)
    dots_bf16<M, N>(x, x_stride, w, width, sums);
  else
    dots_codes<F, M, N>(x, x_stride, w, width, sums);
}

// Rows [row, row + M) of x by rows [first, first + count) of W, into out[m * kBlock + n]. The columns of x that are used by every row of W
// stay in the nearest cache.
template <Format F, int M, int N>
void pass(const Linear& call, const Matrix& w, i64 row, i64 first, i64 count, float* out) {
  constexpr i64 columns = M > 2 ? 1024 : 1 << 20;
  vf sums[M * kBlock];
  for (vf& s : sums) s = vf{};
  for (i64 k = 0; k < call.width; k += columns) {
    const bf16* x = call.x + row * call.x_stride + k;
    const i64 some = call.width - k < columns ? call.width - k : columns;
    Row rows[N];
    i64 n = 0;
    for (; n + N <= count; n += N) {
      for (int i = 0; i < N; ++i) rows[i] = row_of<F>(w, first + n + i, k);
      dots<F, M, N>(x, call.x_stride, rows, some, sums + n);
    }
    for (; n < count; ++n) {
      rows[0] = row_of<F>(w, first + n, k);
      dots<F, M, 1>(x, call.x_stride, rows, some, sums + n);
    }
  }
  for (int m = 0; m < M; ++m)
    for (i64 n = 0; n < count; ++n) out[m * kBlock + n] = sum(sums[m * kBlock + n]);
}

template <Format F>
void block(const Linear& call, const Matrix& w, i64 row, i64 some, i64 first, i64 count, float* out) {
  switch (some) {
    case 8: return pass<F, 8, 2>(call, w, row, first, count, out);
    case 4: return pass<F, 4, 4>(call, w, row, first, count, out);
    case 2: return pass<F, 2, 4>(call, w, row, first, count, out);
    default: return pass<F, 1, 4>(call, w, row, first, count, out);
  }
}
void block(const Linear& call, const Matrix& w, i64 row, i64 some, i64 first, i64 count, float* out) {
  switch (w.format) {
    case Format::bf16: return block<Format::bf16>(call, w, row, some, first, count, out);
    case Format::int8: return block<Format::int8>(call, w, row, some, first, count, out);
    case Format::int4: return block<Format::int4>(call, w, row, some, first, count, out);
    case Format::mxfp4: return block<Format::mxfp4>(call, w, row, some, first, count, out);
  }
}

static inline vf tanh(vf x) {
  // by the sign, so that e^2x cannot overflow; small values by the first terms of the series, where 1 - e^-2x would lose digits
  const vf size = max(x, -x), square = x * x;
  const vf e = exp(size * -2.0f);
  const vf large = (1.0f - e) / (1.0f + e);
  const vf small = size * (1.0f + square * (-0.333333333f + square * (0.133333333f + square * -0.0539682540f)));
  const vf value = size < 0.25f ? small : large;
  return x < 0.0f ? -value : value;
}

static inline vf glu(const Linear& call, vf gate, vf up) {
  const vf open = sigmoid(gate);
  if (call.glu == Glu::swish) return gate * open * up;
  const vf capped = call.beta != 0 ? tanh(gate * (1.0f / call.beta)) * call.beta : gate;
  const vf side = call.linear_beta != 0 ? tanh(up * (1.0f / call.linear_beta)) * call.linear_beta : up;
  return capped * open * side;
}

void put(const Linear& call, int i, i64 row, i64 first, i64 count, const float* from) {
  if (call.out_float[i]) {
    std::memcpy(static_cast<float*>(call.out[i]) + row * call.out_stride[i] + first, from, size_t(count) * 4);
  } else {
    bf16* to = static_cast<bf16*>(call.out[i]) + row * call.out_stride[i] + first;
    if (count == kBlock)
      for (i64 n = 0; n < kBlock; n += W) store(to + n, load(from + n));
    else
      for (i64 n = 0; n < count; ++n) to[n] = narrow(from[n]);
  }
}

}  // namespace

void linear(const Linear& call) {
  if (!call.rows) return;
  const int matrices = call.glu == Glu::none ? call.count : 1;
  i64 begins[kMatrices + 1] = {0}, bytes = 0;
  for (int i = 0; i < matrices; ++i) begins[i + 1] = begins[i] + (call.matrices[i].out + kBlock - 1) / kBlock;
  for (int i = 0; i < call.count; ++i) bytes += call.matrices[i].out * call.matrices[i].stride;
  const i64 blocks = begins[matrices];
#pragma omp parallel for schedule(dynamic, 4) if (bytes * (call.rows < 4 ? 1 : call.rows / 4) > 1 << 17)
  for (i64 item = 0; item < blocks; ++item) {
    int i = 0;
    while (begins[i + 1] <= item) ++i;
    const i64 first = (item - begins[i]) * kBlock, rest = call.matrices[i].out - first, count = rest < kBlock ? rest : kBlock;
    float found[8 * kBlock], gated[8 * kBlock];
    for (i64 row = 0; row < call.rows;) {
      const i64 left = call.rows - row, some = left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
      block(call, call.matrices[i], row, some, first, count, found);
      if (call.glu != Glu::none) {
        block(call, call.matrices[1], row, some, first, count, gated);
        for (i64 at = 0; at < some * kBlock; at += W) {
          if (count < kBlock && at % kBlock + W > count)  // lanes behind the last row of W hold nothing
            for (i64 n = at; n < at + W; ++n)
              if (n % kBlock >= count) found[n] = gated[n] = 0;
          store(found + at, glu(call, load(found + at), load(gated + at)));
        }
      }
      for (i64 m = 0; m < some; ++m) put(call, i, row + m, first, count, found + m * kBlock);
      row += some;
    }
  }
}

}  // namespace INTERLACE_LEVEL
}  // namespace interlace
