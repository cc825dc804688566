// Products of bf16 with float32 sums, for operands that lie in a core's cache.
//
//   C[m][n] (+)= sum over k of A[m][k] * B[k][n]
//
// A has its rows as they are; B has pairs of rows interleaved, so that one 32-bit lane holds two neighbours in k, as A does along its rows.
// The order of summation depends on the level and on k alone. Included by files in kernels/ only (see simd.h).
#pragma once

#include "simd.h"

namespace interlace {
namespace INTERLACE_LEVEL {

constexpr i64 kRowStep = 16;   // rows of A and C come in multiples of this
constexpr i64 kColStep = 32;   // columns of B and C
constexpr i64 kDepthStep = 32; // k
static inline i64 round_up(i64 n, i64 step) { return (n + step - 1) / step * step; }

#ifdef INTERLACE_LEVEL_AMX

// Every thread that multiplies holds one of these for as long.
struct Tiles {
  Tiles() {
    struct alignas(64) {
      uint8_t palette = 1, start = 0, reserved[14] = {};
      uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } config;
    _tile_loadconfig(&config);
  }
  ~Tiles() { _tile_release(); }
};

static inline void gemm(const bf16* a, i64 lda, const uint32_t* b, i64 ldb, float* c, i64 ldc, i64 m, i64 n, i64 k, bool add) {
  for (i64 j = 0; j < n; j += 32)
    for (i64 i = 0; i < m; i += 32) {
      const bool two = i + 16 < m;
      float* c0 = c + i * ldc + j;
      float* c1 = c0 + 16 * ldc;
      if (add) {
        _tile_loadd(0, c0, ldc * 4);
        _tile_loadd(1, c0 + 16, ldc * 4);
        if (two) {
          _tile_loadd(2, c1, ldc * 4);
          _tile_loadd(3, c1 + 16, ldc * 4);
        }
      } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
      }
      const bf16* a0 = a + i * lda;
      const uint32_t* b0 = b + j;
      for (i64 p = 0; p < k; p += 32) {
        _tile_loadd(6, b0 + p / 2 * ldb, ldb * 4);
        _tile_loadd(7, b0 + p / 2 * ldb + 16, ldb * 4);
        _tile_loadd(4, a0 + p, lda * 2);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (two) {
          _tile_loadd(5, a0 + 16 * lda + p, lda * 2);
          _tile_dpbf16ps(2, 5, 6);
          _tile_dpbf16ps(3, 5, 7);
        }
      }
      _tile_stored(0, c0, ldc * 4);
      _tile_stored(1, c0 + 16, ldc * 4);
      if (two) {
        _tile_stored(2, c1, ldc * 4);
        _tile_stored(3, c1 + 16, ldc * 4);
      }
    }
}

#else

struct Tiles {};

// MR rows by NV vectors of columns in registers.
template <int MR, int NV>
static inline void micro(const bf16* a, i64 lda, const uint32_t* b, i64 ldb, float* c, i64 ldc, i64 k, bool add) {
  vf acc[MR][NV];
  for (int i = 0; i < MR; ++i)
    for (int v = 0; v < NV; ++v) acc[i][v] = add ? load(c + i * ldc + v * W) : vf{};
  for (i64 p = 0; p < k; p += 2) {
    vu columns[NV];
    for (int v = 0; v < NV; ++v) columns[v] = load_as<vu>(b + p / 2 * ldb + v * W);
#pragma GCC unroll 8
    for (int i = 0; i < MR; ++i) {
      uint32_t pair;
      std::memcpy(&pair, a + i * lda + p, 4);
      const vu row = vu{} + pair;
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) acc[i][v] = dot2(acc[i][v], row, columns[v]);
    }
  }
  for (int i = 0; i < MR; ++i)
    for (int v = 0; v < NV; ++v) store(c + i * ldc + v * W, acc[i][v]);
}

static inline void gemm(const bf16* a, i64 lda, const uint32_t* b, i64 ldb, float* c, i64 ldc, i64 m, i64 n, i64 k, bool add) {
  constexpr int NV = 2, MR = W == 16 ? 8 : 4;
  for (i64 j = 0; j < n; j += NV * W)
    for (i64 i = 0; i < m; i += MR) micro<MR, NV>(a + i * lda, lda, b + j, ldb, c + i * ldc + j, ldc, k, add);
}

#endif

// The same operand twice is one vector of pairs: (low, high) in each lane.
static inline vu pairs_of(vf low, vf high) {
  return __builtin_convertvector(narrow(low), vu) | (__builtin_convertvector(narrow(high), vu) << 16);
}

}  // namespace INTERLACE_LEVEL
}  // namespace interlace
