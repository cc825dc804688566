// The Python module interlace._native. Only this folder knows Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "isa.h"
#include "python/bindings.h"

namespace interlace {
namespace nb = nanobind;

static std::vector<std::string> levels() {
  std::vector<std::string> out;
  for (int i = 0; i < kLevels; ++i)
    if (supported(Level(i))) out.emplace_back(kLevelNames[i]);
  return out;
}

static void use_level(const std::string& name) {
  for (int i = 0; i < kLevels; ++i)
    if (name == kLevelNames[i]) {
      if (use(Level(i))) return;
      throw nb::value_error(("this machine or this build cannot run " + name).c_str());
    }
  throw nb::value_error(("no instruction set is called " + name).c_str());
}

NB_MODULE(_native, m) {
  m.doc() = "Kernels of Interlace for one processor: tensors in, tensors filled; csrc/README.md says what each computes.";
  m.def("levels", levels, "Instruction sets that this build holds and this machine runs, in rising order.");
  m.def("level", [] { return std::string(kLevelNames[int(level())]); }, "The instruction set in use.");
  m.def("use_level", use_level, nb::arg("name"), "Use another instruction set, for tests. Not while a kernel runs.");
  bind_attention(m);
  bind_limits(m);
  bind_kda_around(m);
  bind_linear(m);
  bind_delta_rule(m);
  bind_norm(m);
  bind_step(m);
}

}  // namespace interlace
