// What stands around the delta rule of a KDA layer in a step: short convolutions (spec section 5, step 2), decay (step 6), beta
// (step 7) and the gated norm (step 9).
#pragma once

#include <cstdint>

#include "isa.h"

namespace interlace {

constexpr int kConvolutions = 4;  // of one call

// y_t = silu(sum over w of taps[w] x_{t - W + 1 + w}) per channel; before x stands the window of the last W - 1 inputs.
struct Convolve {
  struct One {
    const uint16_t* x;       // bf16 [B, T, D]
    const void* taps;        // [D, W]: bf16 or float32
    const uint16_t* window;  // bf16 [B, W - 1, D]
    uint16_t* out;           // bf16 [B, T, D]
    uint16_t* last;          // bf16 [B, W - 1, D]: the window after the call
    int64_t channels, x_stride[2];
    bool taps_float;
  } one[kConvolutions];
  int64_t batch, tokens, width;
  int count;
  bool silu;
};

INTERLACE_KERNEL(convolve, Convolve)

// g = -exp(A_log) softplus(z + bias), or bound * sigmoid(exp(A_log) (z + bias)); beta = sigmoid(b).
struct Decay {
  const uint16_t* z;    // bf16 [rows, H, K]
  const uint16_t* b;    // bf16 [rows, H]
  const float* rate;    // A_log [H]
  const float* bias;    // [H, K]
  float* g;             // [rows, H, K]
  float* beta;          // [rows, H]
  int64_t rows, heads, key, z_stride, b_stride;  // from row to row
  float bound;          // 0: the softplus form
};

INTERLACE_KERNEL(decay, Decay)

// RMSNorm of each head times weight times sigmoid(gate), rounded once.
struct GatedNorm {
  const void* x;         // [rows, V]: bf16 or float32
  const uint16_t* gate;  // bf16 [rows, V]
  const void* weight;    // [V]: bf16 or float32
  uint16_t* out;         // bf16 [rows, V]
  int64_t rows, width;
  float eps;
  bool x_float, weight_float;
};

INTERLACE_KERNEL(gated_norm, GatedNorm)

}  // namespace interlace
