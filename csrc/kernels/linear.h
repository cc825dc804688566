// Products of few rows with matrices as they lie in memory: y = x W^T, for weights in bf16, int8, int4 and MXFP4.
#pragma once

#include <cstdint>

#include "isa.h"

namespace interlace {

// How the numbers of a matrix are kept. Groups of 32 along a row share a scale.
enum class Format {
  bf16,   // [out, width] bf16
  int8,   // [out, width] int8, scale bf16
  int4,   // [out, width / 2] bytes: code + 8, even columns in the lower half; scale bf16
  mxfp4,  // [out, width / 2] bytes: sign, two bits of exponent, one of mantissa; scale 2^(byte - 127)
};

struct Matrix {
  const void* data;
  const void* scale;  // [out, width / 32]
  int64_t out, stride, scale_stride;  // rows; bytes from row to row of data, elements of scale
  Format format;
};

constexpr int kMatrices = 8;  // of one call

enum class Glu { none, swish, situ };

// out[i] = x W_i^T; with a glu there are two matrices, gate and up, and one output.
struct Linear {
  const uint16_t* x;  // bf16 [rows, width]
  int64_t rows, width, x_stride;
  Matrix matrices[kMatrices];
  void* out[kMatrices];  // [rows, out]: float32 or bf16
  int64_t out_stride[kMatrices];
  bool out_float[kMatrices];
  int count;
  Glu glu;
  float beta, linear_beta;  // caps of situ; 0: none
};

INTERLACE_KERNEL(linear, Linear)

}  // namespace interlace
