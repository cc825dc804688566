#include "step.h"

#include <nanobind/stl/string.h>

#include <new>
#include <string>

#include "python/arguments.h"
#include "python/bindings.h"
#include "python/matrices.h"

namespace interlace {
namespace {

using Objects = nb::typed<nb::sequence, nb::object>;

// The tensors are kept alive with the pointers into them, and a step asks whether they still are what they were.
struct HeldKda {
  KdaLayer layer{};
  Kept kept;

  HeldKda(Objects weights, Objects taps, nb::object rate, nb::object bias, nb::object norm, int64_t hidden, double bound, double eps,
          double unit_eps) {
    Arguments args("KdaLayer");
    static const char* names[KdaLayer::kWeights] = {"q", "k", "v", "f_a", "b", "gate", "f_b", "g_b", "o"};
    args.require(nb::len(weights) == KdaLayer::kWeights, "weights must be q, k, v, f_a, b, gate, f_b, g_b or None, and o");
    args.require(nb::len(taps) == 3, "taps must be those of q, k and v");
    const Array rate_ = args.take(rate, "rate", {Kind::float32}, {"H"});
    const Array bias_ = args.take(bias, "bias", {Kind::float32}, {"H*K"});
    const Array norm_ = args.take(norm, "norm", {Kind::bf16, Kind::float32}, {"K"});
    layer.heads = args.size("H"), layer.key = args.size("K"), layer.hidden = hidden;
    args.require(layer.heads > 0 && layer.key > 0 && hidden > 0 && args.size("H*K") == layer.heads * layer.key,
                 "there must be H * K = " + std::to_string(layer.heads * layer.key) + " biases and sizes of at least 1");
    args.bind("D", hidden, "hidden");
    const bool low = !nb::object(weights[int(KdaLayer::g_b)]).is_none();
    const char* rows[KdaLayer::kWeights] = {"H*K", "H*K", "H*K", "A", "H", low ? "G" : "H*K", "H*K", "H*K", "D"};
    const char* columns[KdaLayer::kWeights] = {"D", "D", "D", "D", "D", "D", "A", "G", "H*K"};
    for (int i = 0; i < KdaLayer::kWeights; ++i)
      if (i != KdaLayer::g_b || low) layer.weights[i] = take_matrix(args, nb::object(weights[i]), names[i], rows[i], columns[i]);
    for (int i = 0; i < 3; ++i) {
      const Array one = args.take(nb::object(taps[i]), ("taps[" + std::to_string(i) + "]").c_str(), {Kind::bf16, Kind::float32}, {"H*K", "1", "W"});
      args.require(i == 0 || (one.kind == Kind::float32) == layer.taps_float, "taps must have one dtype");
      layer.taps[i] = one.data, layer.taps_float = one.kind == Kind::float32;
    }
    layer.taps_width = args.size("W");
    args.require(layer.taps_width >= 1 && layer.taps_width <= 16, "W must be 1 to 16, got " + std::to_string(layer.taps_width));
    args.require(bound <= 0, "bound must be negative, or 0 for the softplus form, got " + std::to_string(bound));
    args.require(unit_eps >= 0, "unit_eps must be at least 0");
    layer.rate = rate_.as<float>(), layer.bias = bias_.as<float>(), layer.norm = norm_.data;
    layer.norm_float = norm_.kind == Kind::float32;
    layer.bound = float(bound), layer.eps = float(eps), layer.unit_eps = float(unit_eps);
    for (int i = 0; i < KdaLayer::kWeights; ++i) kept.keep(nb::object(weights[i]));
    for (int i = 0; i < 3; ++i) kept.keep(nb::object(taps[i]));
    for (const nb::object& one : {rate, bias, norm}) kept.keep(one);
  }

  bool step(nb::object x, nb::object state, nb::object window_q, nb::object window_k, nb::object window_v, nb::object y) const {
    if (!kept.same()) return false;
    Arguments args("KdaLayer.step");
    args.bind("D", layer.hidden, "the layer");
    args.bind("H", layer.heads, "the layer");
    args.bind("K", layer.key, "the layer");
    args.bind("H*K", layer.heads * layer.key, "the layer");
    args.bind("W - 1", layer.taps_width - 1, "the layer");
    const Array x_ = args.take(x, "x", {Kind::bf16}, {"B", "T", "D"});
    const Array state_ = args.take(state, "state", {Kind::float32}, {"B", "H", "K", "K"});
    const Array y_ = args.take(y, "y", {Kind::bf16}, {"B", "T", "D"});
    KdaLayer::Call call{x_.as<uint16_t>(), args.size("B"), args.size("T"), state_.as<float>(), {}, y_.as<uint16_t>()};
    const nb::object windows[3] = {window_q, window_k, window_v};
    for (int i = 0; i < 3; ++i)
      call.windows[i] = args.take(windows[i], i == 0 ? "window_q" : i == 1 ? "window_k" : "window_v", {Kind::bf16}, {"B", "W - 1", "H*K"})
                            .as<uint16_t>();
    bool done;
    {
      nb::gil_scoped_release release;
      done = layer.run(call);
    }
    if (!done) throw std::bad_alloc();
    return true;
  }
};

struct HeldMlp {
  MlpLayer layer{};
  Kept kept;

  HeldMlp(Objects weights, int64_t hidden, const std::string& glu, double beta, double linear_beta) {
    Arguments args("MlpLayer");
    args.require(nb::len(weights) == MlpLayer::kWeights, "weights must be gate, up and down");
    args.require(glu == "swish" || glu == "situ", "glu must be 'swish' or 'situ', got '" + glu + "'");
    args.require(hidden > 0, "hidden must be at least 1");
    args.bind("D", hidden, "hidden");
    static const char* names[] = {"gate", "up", "down"};
    for (int i = 0; i < MlpLayer::kWeights; ++i)
      layer.weights[i] = take_matrix(args, nb::object(weights[i]), names[i], i == MlpLayer::down ? "D" : "F", i == MlpLayer::down ? "F" : "D");
    layer.hidden = hidden, layer.glu = glu == "swish" ? Glu::swish : Glu::situ;
    layer.beta = float(beta), layer.linear_beta = float(linear_beta);
    for (int i = 0; i < MlpLayer::kWeights; ++i) kept.keep(nb::object(weights[i]));
  }

  bool step(nb::object x, nb::object y) const {
    if (!kept.same()) return false;
    Arguments args("MlpLayer.step");
    args.bind("D", layer.hidden, "the layer");
    const Array x_ = args.take(x, "x", {Kind::bf16}, {"rows", "D"});
    const Array y_ = args.take(y, "y", {Kind::bf16}, {"rows", "D"});
    bool done;
    {
      nb::gil_scoped_release release;
      done = layer.run(x_.as<uint16_t>(), args.size("rows"), y_.as<uint16_t>());
    }
    if (!done) throw std::bad_alloc();
    return true;
  }
};

}  // namespace

void bind_step(nb::module_& m) {
  nb::class_<HeldKda>(m, "KdaLayer",
                      "The weights of a KDA layer, checked once and kept alive: q, k, v, f_a, b, gate (or its first factor), f_b, g_b or None, o;\n"
                      "taps of q, k and v; rate (A_log) [H], bias [H*K] and norm [K]. hidden is the width of x.")
      .def(nb::init<Objects, Objects, nb::object, nb::object, nb::object, int64_t, double, double, double>(), nb::arg("weights"),
           nb::arg("taps"), nb::arg("rate"), nb::arg("bias"), nb::arg("norm"), nb::arg("hidden"), nb::arg("bound"), nb::arg("eps"),
           nb::arg("unit_eps"))
      .def("step", &HeldKda::step, nb::arg("x"), nb::arg("state"), nb::arg("window_q"), nb::arg("window_k"), nb::arg("window_v"), nb::arg("y"),
           "y [B, T, D] of x [B, T, D], bfloat16; state [B, H, K, K] (float32) and the windows [B, W - 1, H*K] are overwritten.\n"
           "False, and nothing done, when a tensor of the layer has other memory than it had.");
  nb::class_<HeldMlp>(m, "MlpLayer", "The weights of a gated feed-forward, checked once and kept alive: gate, up and down; glu 'swish' or 'situ'.")
      .def(nb::init<Objects, int64_t, const std::string&, double, double>(), nb::arg("weights"), nb::arg("hidden"), nb::arg("glu"),
           nb::arg("beta") = 0.0, nb::arg("linear_beta") = 0.0)
      .def("step", &HeldMlp::step, nb::arg("x"), nb::arg("y"), "y [rows, D] of x [rows, D], bfloat16. False, and nothing done, when a weight has other memory than it had.");
}

}  // namespace interlace
