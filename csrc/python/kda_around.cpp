#include "kernels/kda_around.h"

#include <string>

#include "python/arguments.h"
#include "python/bindings.h"

namespace interlace {
namespace {

using Objects = nb::typed<nb::sequence, nb::object>;

void convolve(Objects x, Objects taps, Objects windows, Objects outs, Objects lasts, bool silu) {
  Arguments args("convolve");
  Convolve call{};
  const size_t count = nb::len(x);
  args.require(count >= 1 && count <= size_t(kConvolutions), "there must be 1 to 4 inputs, got " + std::to_string(count));
  for (size_t others : {nb::len(taps), nb::len(windows), nb::len(outs), nb::len(lasts)})
    args.require(others == count, "x, taps, windows, outs and lasts must be as many, got " + std::to_string(count) + " and " +
                                      std::to_string(others));
  for (size_t i = 0; i < count; ++i) {
    const std::string number = "[" + std::to_string(i) + "]", channels = "D" + std::to_string(i);
    const char* d = channels.c_str();
    Convolve::One& one = call.one[i];
    const Array x_ = args.take(x[i], ("x" + number).c_str(), {Kind::bf16}, {"B", "T", d}, Layout::rows);
    const Array taps_ = args.take(taps[i], ("taps" + number).c_str(), {Kind::bf16, Kind::float32}, {d, "W"});
    if (i == 0) {
      args.require(args.size("W") >= 1 && args.size("W") <= 16, "W must be 1 to 16, got " + std::to_string(args.size("W")));
      args.bind("W - 1", args.size("W") - 1, "taps[0]");
    }
    const Array window = args.take(windows[i], ("windows" + number).c_str(), {Kind::bf16}, {"B", "W - 1", d});
    const Array out = args.take(outs[i], ("outs" + number).c_str(), {Kind::bf16}, {"B", "T", d});
    const Array last = args.take(lasts[i], ("lasts" + number).c_str(), {Kind::bf16}, {"B", "W - 1", d});
    one.x = x_.as<uint16_t>(), one.taps = taps_.data, one.window = window.as<uint16_t>(), one.out = out.as<uint16_t>();
    one.last = last.as<uint16_t>(), one.channels = x_.size[2], one.taps_float = taps_.kind == Kind::float32;
    one.x_stride[0] = x_.stride[0], one.x_stride[1] = x_.stride[1];
    args.require(one.last != one.window || args.size("W") == 1 || one.channels == 0 || args.size("B") == 0,
                 "lasts" + number + " must not be windows" + number);
  }
  call.batch = args.size("B"), call.tokens = args.size("T"), call.width = args.size("W"), call.count = int(count), call.silu = silu;
  nb::gil_scoped_release release;
  run_convolve(call);
}

void decay(nb::object z, nb::object b, nb::object rate, nb::object bias, nb::object g, nb::object beta, double bound) {
  Arguments args("decay");
  const Array z_ = args.take(z, "z", {Kind::bf16}, {"rows", "H*K"}, Layout::rows);
  const Array b_ = args.take(b, "b", {Kind::bf16}, {"rows", "H"}, Layout::rows);
  const Array rate_ = args.take(rate, "rate", {Kind::float32}, {"H"});
  const Array bias_ = args.take(bias, "bias", {Kind::float32}, {"H*K"});
  const Array g_ = args.take(g, "g", {Kind::float32}, {"rows", "H*K"});
  const Array beta_ = args.take(beta, "beta", {Kind::float32}, {"rows", "H"});
  const int64_t heads = args.size("H"), width = args.size("H*K");
  args.require(bound <= 0, "bound must be negative, or 0 for the softplus form, got " + std::to_string(bound));
  args.require(heads ? width % heads == 0 : width == 0, "H*K must be a multiple of H");
  const Decay call{z_.as<uint16_t>(), b_.as<uint16_t>(), rate_.as<float>(), bias_.as<float>(),
                   g_.as<float>(),    beta_.as<float>(), args.size("rows"), heads,
                   heads ? width / heads : 0, z_.stride[0], b_.stride[0], float(bound)};
  nb::gil_scoped_release release;
  run_decay(call);
}

void gated_norm(nb::object x, nb::object gate, nb::object weight, nb::object out, double eps) {
  Arguments args("gated_norm");
  const Array x_ = args.take(x, "x", {Kind::bf16, Kind::float32}, {"rows", "V"});
  const Array gate_ = args.take(gate, "gate", {Kind::bf16}, {"rows", "V"});
  const Array weight_ = args.take(weight, "weight", {Kind::bf16, Kind::float32}, {"V"});
  const Array out_ = args.take(out, "out", {Kind::bf16}, {"rows", "V"});
  const GatedNorm call{x_.data,    gate_.as<uint16_t>(), weight_.data, out_.as<uint16_t>(), args.size("rows"), args.size("V"),
                       float(eps), x_.kind == Kind::float32, weight_.kind == Kind::float32};
  nb::gil_scoped_release release;
  run_gated_norm(call);
}

}  // namespace

void bind_kda_around(nb::module_& m) {
  m.def("convolve", convolve, nb::arg("x"), nb::arg("taps"), nb::arg("windows"), nb::arg("outs"), nb::arg("lasts"), nb::arg("silu"),
        "Short causal convolutions of one to four inputs x [B, T, D] (bfloat16) with taps [D, W] (bfloat16 or float32); windows [B, W - 1, D] hold\n"
        "the inputs before. Fills outs [B, T, D] and lasts, the windows after the call.");
  m.def("decay", decay, nb::arg("z"), nb::arg("b"), nb::arg("rate"), nb::arg("bias"), nb::arg("g"), nb::arg("beta"), nb::arg("bound"),
        "g [rows, H*K] = -exp(rate) softplus(z + bias), or bound * sigmoid(exp(rate) (z + bias)) where bound is negative; beta [rows, H] =\n"
        "sigmoid(b). z and b are bfloat16, everything else float32.");
  m.def("gated_norm", gated_norm, nb::arg("x"), nb::arg("gate"), nb::arg("weight"), nb::arg("out"), nb::arg("eps"),
        "RMSNorm of each row of x [rows, V] times weight [V] times sigmoid(gate), into out; x and weight float32 or bfloat16.");
}

}  // namespace interlace
