#include "kernels/linear.h"

#include <nanobind/stl/string.h>

#include <string>

#include "python/arguments.h"
#include "python/bindings.h"
#include "python/matrices.h"

namespace interlace {

Matrix take_matrix(Arguments& args, nb::handle given, const std::string& name, const char* rows, const char* columns) {
  Matrix out{};
  const int64_t width = args.size(columns);
  if (!nb::isinstance<nb::tuple>(given)) {
    const Array w = args.take(given, name.c_str(), {Kind::bf16}, {rows, columns}, Layout::rows);
    out.data = w.data, out.out = w.size[0], out.stride = w.stride[0] * 2, out.format = Format::bf16;
    return out;
  }
  const nb::tuple pair = nb::cast<nb::tuple>(given);
  args.require(pair.size() == 2, name + " must be a tensor, or a pair of codes and scales, got a tuple of " + std::to_string(pair.size()));
  const std::string codes = name + " (codes)", scales = name + " (scales)";
  args.require(width % 32 == 0, "the width of x must be a multiple of 32 for codes, got " + std::to_string(width));
  const std::string groups = std::string(columns) + "/32";
  args.bind(groups.c_str(), width / 32, "x");
  const nb::handle first = pair[0], second = pair[1];
  const std::string letter = "width of " + codes;
  const Array w = args.take(first, codes.c_str(), {Kind::int8, Kind::uint8}, {rows, letter.c_str()}, Layout::rows);
  out.format = w.kind == Kind::int8 ? Format::int8 : Format::int4;
  const int64_t wide = w.kind == Kind::int8 ? width : width / 2;
  args.require(w.size[1] == wide, codes + " must be " + (w.kind == Kind::int8 ? "int8" : "uint8") + " [F, " + std::to_string(wide) +
                                      "] for x of width " + std::to_string(width) + ", got width " + std::to_string(w.size[1]));
  const Array scale = args.take(second, scales.c_str(), {Kind::bf16, Kind::uint8}, {rows, groups.c_str()}, Layout::rows);
  if (scale.kind == Kind::uint8) {
    args.require(out.format == Format::int4, scales + " must be bfloat16 for int8 codes, got uint8");
    out.format = Format::mxfp4;
  }
  out.data = w.data, out.scale = scale.data, out.out = w.size[0], out.stride = w.stride[0], out.scale_stride = scale.stride[0];
  return out;
}

namespace {

using Objects = nb::typed<nb::sequence, nb::object>;

void linear(nb::object x, Objects weights, Objects outs, const std::string& glu, double beta, double linear_beta) {
  Arguments args("linear");
  const Array x_ = args.take(x, "x", {Kind::bf16}, {"M", "D"}, Layout::rows);
  const size_t count = nb::len(weights), results = nb::len(outs);
  Linear call{};
  args.require(count >= 1 && count <= size_t(kMatrices), "there must be 1 to 8 weights, got " + std::to_string(count));
  call.glu = glu.empty() ? Glu::none : glu == "swish" ? Glu::swish : Glu::situ;
  args.require(glu.empty() || glu == "swish" || glu == "situ", "glu must be '', 'swish' or 'situ', got '" + glu + "'");
  args.require(glu.empty() || count == 2, "a glu takes two weights, gate and up, got " + std::to_string(count));
  args.require(results == (glu.empty() ? count : 1), "outs must hold " + std::to_string(glu.empty() ? count : 1) +
                                                          " tensors, got " + std::to_string(results));
  call.x = x_.as<uint16_t>(), call.rows = args.size("M"), call.width = args.size("D"), call.x_stride = x_.stride[0];
  call.count = int(count), call.beta = float(beta), call.linear_beta = float(linear_beta);
  for (size_t i = 0; i < count; ++i) {
    const std::string number = std::to_string(i), rows = "F" + (glu.empty() ? number : std::string());
    call.matrices[i] = take_matrix(args, weights[i], "weights[" + number + "]", rows.c_str(), "D");
    if (i >= results) continue;
    const Array out = args.take(outs[i], ("outs[" + number + "]").c_str(), {Kind::bf16, Kind::float32}, {"M", rows.c_str()}, Layout::rows);
    args.require(out.size[0] < 2 || out.stride[0] >= out.size[1], "rows of outs[" + number + "] must not overlap");
    call.out[i] = out.data, call.out_stride[i] = out.stride[0], call.out_float[i] = out.kind == Kind::float32;
  }
  nb::gil_scoped_release release;
  run_linear(call);
}

}  // namespace

void bind_linear(nb::module_& m) {
  m.def("linear", linear, nb::arg("x"), nb::arg("weights"), nb::arg("outs"), nb::arg("glu") = "", nb::arg("beta") = 0.0,
        nb::arg("linear_beta") = 0.0,
        "y = x W^T of bfloat16 x [M, D] for each of one to eight weights, into outs [M, F], bfloat16 or float32. A weight is bfloat16 [F, D],\n"
        "or a pair: int8 codes [F, D], or bytes of two codes [F, D/2], with scales [F, D/32] in bfloat16, or in uint8 for MXFP4. With glu\n"
        "'swish' or 'situ' (caps beta, linear_beta; 0: none) the two weights are gate and up, and there is one output.");
}

}  // namespace interlace
