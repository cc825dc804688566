// A decoding step of a whole mixer or feed-forward: the kernels of its parts, one after another, on scratch of its own.
//
// The same kernels in the same order as when the parts are called by themselves, so the same bits. Knows no Python.
#pragma once

#include <cstdint>

#include "kernels/kda_around.h"
#include "kernels/linear.h"

namespace interlace {

// Kimi Delta Attention of few tokens (spec section 5): x [B, T, D] bf16 to y [B, T, D] bf16. State and windows are overwritten.
struct KdaLayer {
  enum { q, k, v, f_a, b, gate, f_b, g_b, o, kWeights };
  Matrix weights[kWeights];  // g_b.data is null where the gate has full rank; every matrix but f_b, g_b and o reads x
  const void* taps[3];       // [H*K, W]
  bool taps_float;
  const float *rate, *bias;  // [H], [H*K]
  const void* norm;          // [V]
  bool norm_float;
  int64_t heads, key, taps_width, hidden;
  float bound, eps, unit_eps;  // bound 0: the softplus form

  struct Call {
    const uint16_t* x;
    int64_t batch, tokens;
    float* state;          // [B, H, K, V]
    uint16_t* windows[3];  // [B, W - 1, H*K]
    uint16_t* y;
  };
  bool run(const Call& call) const;  // false: no memory
};

// down(glu(gate(x), up(x))): x [rows, D] bf16 to y [rows, D] bf16.
struct MlpLayer {
  enum { gate, up, down, kWeights };
  Matrix weights[kWeights];
  int64_t hidden;
  Glu glu;
  float beta, linear_beta;

  bool run(const uint16_t* x, int64_t rows, uint16_t* y) const;
};

}  // namespace interlace
