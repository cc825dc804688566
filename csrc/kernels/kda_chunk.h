// The gated delta rule over sequences of many tokens, with bf16 products (ops/delta_rule/README.md).
#pragma once

#include "kernels/kda_step.h"

namespace interlace {

// As kda_step, for bf16 alone: q, k, v and out must be.
INTERLACE_KERNEL(kda_chunk, KdaCall)

}  // namespace interlace
