#include "kernels/norm.h"

#include "python/arguments.h"
#include "python/bindings.h"

namespace interlace {

static void rms_norm(nb::object x, nb::object weight, nb::object out, double eps) {
  Arguments args("rms_norm");
  const Array x_ = args.take_rows(x, "x", {Kind::float32, Kind::bf16}, "rows", "D");
  const Array weight_ = args.take(weight, "weight", {x_.kind}, {"D"});
  const Array out_ = args.take_rows(out, "out", {x_.kind}, "rows", "D");
  args.require(out_.stride[0] >= out_.size[1] || out_.size[0] < 2, "out must have rows that do not overlap");
  const RmsNorm call{x_.data,      weight_.data,   out_.data,  x_.size[0],           x_.size[1],
                     x_.stride[0], out_.stride[0], float(eps), x_.kind == Kind::bf16};
  nb::gil_scoped_release release;
  run_rms_norm(call);
}

void bind_norm(nb::module_& m) {
  m.def("rms_norm", rms_norm, nb::arg("x"), nb::arg("weight"), nb::arg("out"), nb::arg("eps"),
        "RMSNorm over the last axis of x [..., D] into out, of the same size; weight [D]; float32 or bfloat16, all three alike.");
}

}  // namespace interlace
