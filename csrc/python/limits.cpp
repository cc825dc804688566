#include "kernels/limits.h"

#include <nanobind/stl/string.h>

#include <string>

#include "python/arguments.h"
#include "python/bindings.h"

namespace interlace {

static double limit(const std::string& loop, nb::object data, int64_t rounds) {
  Arguments args("limit");
  Limit call{};
  const bool memory = loop == "read" || loop == "read_write";
  args.require(memory || loop == "dot" || loop == "multiply",
               "loop must be 'dot', 'multiply', 'read' or 'read_write', got '" + loop + "'");
  call.loop = loop == "dot" ? Loop::dot : loop == "multiply" ? Loop::multiply : loop == "read" ? Loop::read : Loop::read_write;
  args.require(rounds >= 0, "rounds must not be negative, got " + std::to_string(rounds));
  if (memory) {
    const Array a = args.take(data, "data", {Kind::float32}, {"N"});
    call.data = a.as<float>(), call.floats = args.size("N");
  }
  call.rounds = rounds;
  double done = 0;
  call.result = &done;
  {
    nb::gil_scoped_release release;
    run_limit(call);
  }
  return done;
}

void bind_limits(nb::module_& m) {
  m.def("limit", limit, nb::arg("loop"), nb::arg("data").none(), nb::arg("rounds"),
        "One run of a loop that does one thing only: 'dot' (bf16 products) or 'multiply' (float32 multiply-adds) in registers, `rounds` times\n"
        "per thread; 'read' or 'read_write' of data [N], float32, once. Returns operations (two per multiply-add) or bytes moved.");
}

}  // namespace interlace
