// Weights from Python: a bf16 tensor, or a pair of codes and scales.
#pragma once

#include <string>

#include "kernels/linear.h"
#include "python/arguments.h"

namespace interlace {

// A matrix [rows, columns]; `columns` has its value already. The pointers are those of the tensors, which the caller keeps alive.
Matrix take_matrix(Arguments& args, nb::handle given, const std::string& name, const char* rows, const char* columns);

}  // namespace interlace
