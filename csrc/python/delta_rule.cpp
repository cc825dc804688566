#include <nanobind/stl/optional.h>

#include <new>
#include <optional>
#include <vector>

#include "kernels/kda_chunk.h"
#include "kernels/kda_step.h"
#include "python/arguments.h"
#include "python/bindings.h"

namespace interlace {

static void kda(const char* name, void (*run)(const KdaCall&), std::initializer_list<Kind> kinds, nb::object q, nb::object k, nb::object v, nb::object g, nb::object beta,
                nb::object state, nb::object out, nb::object last, nb::object lengths, nb::object offsets, double scale,
                std::optional<double> unit_eps) {
  Arguments args(name);
  const Array q_ = args.take(q, "q", kinds, {"B", "T", "H", "K"}, Layout::rows);
  const Array k_ = args.take(k, "k", {q_.kind}, {"B", "T", "H", "K"}, Layout::rows);
  const Array v_ = args.take(v, "v", {q_.kind}, {"B", "T", "H", "V"}, Layout::rows);
  const Array g_ = args.take_optional(g, "g", {Kind::float32}, {"B", "T", "H", "K"}, Layout::rows);
  const Array beta_ = args.take(beta, "beta", {Kind::float32}, {"B", "T", "H"}, Layout::rows);
  const Array state_ = args.take_optional(state, "state", {Kind::float32}, {"S", "H", "K", "V"});
  const Array out_ = args.take(out, "out", {q_.kind}, {"B", "T", "H", "V"});
  const Array last_ = args.take(last, "last", {Kind::float32}, {"S", "H", "K", "V"});
  const Array lengths_ = args.take_optional(lengths, "lengths", {Kind::int64}, {"B"});
  const Array offsets_ = args.take_optional(offsets, "offsets", {Kind::int64}, {"S + 1"});
  KdaCall call{};
  call.batch = args.size("B"), call.tokens = args.size("T"), call.heads = args.size("H");
  call.key = args.size("K"), call.value = args.size("V"), call.sequences = args.size("S");
  call.q = q_.data, call.k = k_.data, call.v = v_.data, call.g = g_.as<float>(), call.beta = beta_.as<float>();
  call.state = state_.as<float>(), call.out = out_.data, call.last = last_.as<float>();
  for (int i = 0; i < 3; ++i)
    call.q_stride[i] = q_.stride[i], call.k_stride[i] = k_.stride[i], call.v_stride[i] = v_.stride[i], call.g_stride[i] = g_.stride[i];
  for (int i = 0; i < 2; ++i) call.beta_stride[i] = beta_.stride[i];
  call.scale = float(scale), call.unit_eps = float(unit_eps.value_or(-1.0)), call.bf16 = q_.kind == Kind::bf16;
  args.require(unit_eps.value_or(0.0) >= 0.0, "unit_eps must be at least 0");
  args.require(!lengths_.rank || !offsets_.rank, "lengths and offsets must not be given together");
  // copies, so that nobody changes them while they are read
  std::vector<int64_t> ends, begins;
  if (lengths_.rank) {
    ends.assign(lengths_.as<int64_t>(), lengths_.as<int64_t>() + call.batch);
    for (int64_t end : ends)
      args.require(end >= 0 && end <= call.tokens,
                   "lengths must lie in 0..T = " + std::to_string(call.tokens) + ", got " + std::to_string(end));
    call.lengths = ends.data();
  }
  if (offsets_.rank) {
    const int64_t total = call.batch * call.tokens;
    args.bind("S + 1", call.sequences + 1, "last");
    begins.assign(offsets_.as<int64_t>(), offsets_.as<int64_t>() + call.sequences + 1);
    bool good = begins.front() == 0 && begins.back() == total;
    for (int64_t s = 0; good && s < call.sequences; ++s) {
      const int64_t begin = begins[s], end = begins[s + 1];
      // a sequence lies within one row; compared, not subtracted: a wrong offset may be any number
      good = begin <= end && end <= total && (begin == end || begin / call.tokens == (end - 1) / call.tokens);
    }
    args.require(good, "offsets must start at 0, never decrease, end at B * T = " + std::to_string(total) +
                           " and cut where each row begins");
    call.offsets = begins.data();
  } else {
    args.bind("S", call.batch, "q");
  }
  bool failed = false;
  call.failed = &failed;
  {
    nb::gil_scoped_release release;
    run(call);
  }
  if (failed) throw std::bad_alloc();
}

template <typename Run>
static void define(nb::module_& m, const char* name, Run run, const char* doc) {
  m.def(name, run, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("g").none(), nb::arg("beta"), nb::arg("state").none(),
        nb::arg("out"), nb::arg("last"), nb::arg("lengths").none(), nb::arg("offsets").none(), nb::arg("scale"),
        nb::arg("unit_eps").none(), doc);
}

static void kda_step(nb::object q, nb::object k, nb::object v, nb::object g, nb::object beta, nb::object state, nb::object out,
                     nb::object last, nb::object lengths, nb::object offsets, double scale, std::optional<double> unit_eps) {
  kda("kda_step", run_kda_step, {Kind::float32, Kind::bf16}, q, k, v, g, beta, state, out, last, lengths, offsets, scale, unit_eps);
}

static void kda_chunk(nb::object q, nb::object k, nb::object v, nb::object g, nb::object beta, nb::object state, nb::object out,
                      nb::object last, nb::object lengths, nb::object offsets, double scale, std::optional<double> unit_eps) {
  kda("kda_chunk", run_kda_chunk, {Kind::bf16}, q, k, v, g, beta, state, out, last, lengths, offsets, scale, unit_eps);
}

void bind_delta_rule(nb::module_& m) {
  define(m, "kda_step", kda_step,
         "Gated delta rule in float32 of q, k [B, T, H, K] and v [B, T, H, V] (float32 or bfloat16, alike), with log decays g like q\n"
         "(float32; None: no decay) and beta [B, T, H] (float32). Fills out, like v, and last [S, H, K, V] (float32), from state like\n"
         "last (None: zeros), which may be last itself. S is B, or with offsets [S + 1] (int64) of packed sequences their number;\n"
         "lengths [B] (int64): real tokens of each row, the outputs behind are 0. scale is on q; with unit_eps q and k are brought to\n"
         "unit length first, unit_eps inside the root.");
  define(m, "kda_chunk", kda_chunk,
         "As kda_step, for bfloat16 q, k, v and out, eight tokens at a time: products with the state, and what is written to it, of\n"
         "operands rounded to bfloat16, with float32 sums.");
}

}  // namespace interlace
