// Attention of many queries to keys and values rebuilt from the latent (spec section 4; ops/attention/rebuilt.py).
#pragma once

#include <cstdint>

#include "isa.h"

namespace interlace {

struct MlaPrefill {
  const uint16_t* q;       // [B, T, H, N + P], bf16
  const uint16_t* latent;  // [B, M, R + P], bf16
  const uint16_t* w_uk;    // [H, N, R], bf16
  const uint16_t* w_uv;    // [H, V, R], bf16
  float* out;              // [B, T, H, V]
  float* lse;              // [B, T, H], or null
  const int64_t* lengths;  // [B], 0 to M; null: M
  int64_t batch, tokens, heads, nope, shared, rank, value, cached;
  int64_t q_stride[3], latent_stride[2], uk_stride[2], uv_stride[2];  // elements; the last axis is dense
  float scale;
  bool* failed;  // set when there was no memory
};

INTERLACE_KERNEL(mla_prefill, MlaPrefill)

}  // namespace interlace
