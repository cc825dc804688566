// RMSNorm over rows (spec section 3), and RMSNorm times sigmoid of a gate (spec section 5, step 9).
#pragma once

#include <cstdint>

#include "isa.h"

namespace interlace {

struct RmsNorm {
  const void* x;       // [rows, D]
  const void* weight;  // [D]
  void* out;           // [rows, D]
  int64_t rows, width;
  int64_t x_stride, out_stride;  // elements from row to row
  float eps;                     // added to the mean of the squares
  bool bf16;                     // all three are bf16, otherwise float32
};

INTERLACE_KERNEL(rms_norm, RmsNorm)

}  // namespace interlace
