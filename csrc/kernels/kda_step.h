// The gated delta rule over sequences of any length in float32 (spec section 5, step 8; ops/delta_rule/README.md).
#pragma once

#include <cstdint>

#include "isa.h"

namespace interlace {

struct KdaCall {
  const void* q;           // [B, T, H, K], bf16 or float32
  const void* k;           // [B, T, H, K], as q
  const void* v;           // [B, T, H, V], as q
  const float* g;          // [B, T, H, K], logarithms of decays, or null: no decay
  const float* beta;       // [B, T, H]
  const float* state;      // [S, H, K, V], or null: zeros
  void* out;               // [B, T, H, V], as v
  float* last;             // [S, H, K, V]; may be `state` itself
  const int64_t* lengths;  // [B], 0 to T, or null: T; tokens behind are not read, their outputs are 0
  const int64_t* offsets;  // [S + 1] into the rows laid end to end; no sequence leaves its row. Null: S = B, one sequence a row
  int64_t batch, tokens, heads, key, value, sequences;
  int64_t q_stride[3], k_stride[3], v_stride[3], g_stride[3], beta_stride[2];  // elements; the last axis is dense
  float scale;             // on q
  float unit_eps;          // q and k are divided by sqrt(sum of squares + this) first; negative: they are not
  bool bf16;               // q, k, v, out
  bool* failed;            // set when there was no memory
};

INTERLACE_KERNEL(kda_step, KdaCall)

}  // namespace interlace
