#include <new>
#include <vector>

#include "kernels/mla_decode.h"
#include "kernels/mla_prefill.h"
#include "python/arguments.h"
#include "python/bindings.h"

namespace interlace {

// Both ways take the same call.
template <typename Call>
static void attend(const char* name, void (*run)(const Call&), nb::handle q, nb::handle latent, nb::handle w_uk, nb::handle w_uv,
                   nb::handle out, nb::handle lse, nb::handle lengths, double scale) {
  Arguments args(name);
  const Array q_ = args.take(q, "q", {Kind::bf16}, {"B", "T", "H", "K"}, Layout::rows);
  const Array latent_ = args.take(latent, "latent", {Kind::bf16}, {"B", "M", "latent"}, Layout::rows);
  const Array uk = args.take(w_uk, "w_uk", {Kind::bf16}, {"H", "N", "R"}, Layout::rows);
  const Array uv = args.take(w_uv, "w_uv", {Kind::bf16}, {"H", "V", "R"}, Layout::rows);
  const Array out_ = args.take(out, "out", {Kind::float32}, {"B", "T", "H", "V"});
  const Array lse_ = args.take_optional(lse, "lse", {Kind::float32}, {"B", "T", "H"});
  const Array lengths_ = args.take_optional(lengths, "lengths", {Kind::int64}, {"B"});
  Call call{};
  call.batch = args.size("B"), call.tokens = args.size("T"), call.heads = args.size("H"), call.cached = args.size("M");
  call.nope = args.size("N"), call.rank = args.size("R"), call.value = args.size("V");
  call.shared = args.size("latent") - call.rank;
  args.require(call.shared >= 0 && args.size("K") - call.nope == call.shared,
               "K - N and latent - R must be the same width of the shared key, at least 0, got K = " +
                   std::to_string(args.size("K")) + ", N = " + std::to_string(call.nope) + ", latent = " +
                   std::to_string(args.size("latent")) + ", R = " + std::to_string(call.rank));
  args.require(call.rank > 0, "R must be at least 1");
  call.q = q_.as<uint16_t>(), call.latent = latent_.as<uint16_t>(), call.w_uk = uk.as<uint16_t>(), call.w_uv = uv.as<uint16_t>();
  call.out = out_.as<float>(), call.lse = lse_.as<float>();
  for (int i = 0; i < 3; ++i) call.q_stride[i] = q_.stride[i];
  for (int i = 0; i < 2; ++i)
    call.latent_stride[i] = latent_.stride[i], call.uk_stride[i] = uk.stride[i], call.uv_stride[i] = uv.stride[i];
  call.scale = float(scale);
  // a copy, so that nobody changes a length while it is read
  std::vector<int64_t> ends;
  if (lengths_.data) {
    ends.assign(lengths_.as<int64_t>(), lengths_.as<int64_t>() + call.batch);
    for (int64_t end : ends)
      args.require(end >= 0 && end <= call.cached,
                   "lengths must lie in 0..M = " + std::to_string(call.cached) + ", got " + std::to_string(end));
    call.lengths = ends.data();
  }
  bool failed = false;
  call.failed = &failed;
  {
    nb::gil_scoped_release release;
    run(call);
  }
  if (failed) throw std::bad_alloc();
}

static void mla_decode(nb::object q, nb::object latent, nb::object w_uk, nb::object w_uv, nb::object out, nb::object lse,
                       nb::object lengths, double scale) {
  attend<MlaDecode>("mla_decode", run_mla_decode, q, latent, w_uk, w_uv, out, lse, lengths, scale);
}

static void mla_prefill(nb::object q, nb::object latent, nb::object w_uk, nb::object w_uv, nb::object out, nb::object lse,
                        nb::object lengths, double scale) {
  attend<MlaPrefill>("mla_prefill", run_mla_prefill, q, latent, w_uk, w_uv, out, lse, lengths, scale);
}

void bind_attention(nb::module_& m) {
  m.def("mla_decode", mla_decode, nb::arg("q"), nb::arg("latent"), nb::arg("w_uk"), nb::arg("w_uv"), nb::arg("out"),
        nb::arg("lse").none(), nb::arg("lengths").none(), nb::arg("scale"),
        "Causal attention of q [B, T, H, N + P] against latent [B, M, R + P], with w_uk [H, N, R] folded into the query and\n"
        "w_uv [H, V, R] into the output: all bfloat16. Fills out [B, T, H, V] and, when given, lse [B, T, H], float32. lengths\n"
        "[B] (int64): valid latents of each row; what lies behind is not read.");
  m.def("mla_prefill", mla_prefill, nb::arg("q"), nb::arg("latent"), nb::arg("w_uk"), nb::arg("w_uv"), nb::arg("out"),
        nb::arg("lse").none(), nb::arg("lengths").none(), nb::arg("scale"),
        "As mla_decode, with the keys and values of 256 latents rebuilt at a time for all queries of a head.");
}

}  // namespace interlace
