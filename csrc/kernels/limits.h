// What this machine can do at most: loops that do one thing only, for `interlace bench limits`.
#pragma once

#include <cstdint>

#include "isa.h"

namespace interlace {

enum class Loop {
  dot,         // products of bf16 pairs in registers; one unit is a vector product of pairs
  multiply,    // float32 multiply-adds in registers; one unit is a vector of them
  read,        // every byte of `data` once
  read_write,  // every float of `data` read and written once, in place
};

struct Limit {
  Loop loop;
  float* data;     // for read and read_write
  int64_t floats;  // of data
  int64_t rounds;  // for dot and multiply: each thread does this many of `units_per_round`
  double* result;  // operations done, two per multiply-add; or bytes moved
};

INTERLACE_KERNEL(limit, Limit)

}  // namespace interlace
