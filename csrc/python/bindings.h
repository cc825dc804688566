// What each file of this folder adds to the module.
#pragma once

#include <nanobind/nanobind.h>

namespace interlace {

void bind_attention(nanobind::module_& m);
void bind_limits(nanobind::module_& m);
void bind_kda_around(nanobind::module_& m);
void bind_linear(nanobind::module_& m);
void bind_delta_rule(nanobind::module_& m);
void bind_norm(nanobind::module_& m);
void bind_step(nanobind::module_& m);

}  // namespace interlace
