#include "step.h"

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "kernels/kda_step.h"

namespace interlace {
namespace {

// Pieces of one allocation, each on a line of the cache.
class Scratch {
 public:
  ~Scratch() { std::free(memory_); }
  bool reserve(int64_t bytes) {
    memory_ = static_cast<char*>(std::aligned_alloc(64, size_t((bytes + 63) / 64 * 64 + 64)));
    at_ = memory_;
    return memory_ != nullptr;
  }
  template <typename T>
  T* take(int64_t count) {
    T* here = reinterpret_cast<T*>(at_);
    at_ += (count * int64_t(sizeof(T)) + 63) / 64 * 64;
    return here;
  }

 private:
  char *memory_ = nullptr, *at_ = nullptr;
};

void product(const uint16_t* x, int64_t rows, int64_t width, int64_t x_stride, const Matrix& weight, uint16_t* out) {
  Linear call{};
  call.x = x, call.rows = rows, call.width = width, call.x_stride = x_stride, call.count = 1;
  call.matrices[0] = weight, call.out[0] = out, call.out_stride[0] = weight.out;
  run_linear(call);
}

}  // namespace

bool KdaLayer::run(const Call& call) const {
  const int64_t rows = call.batch * call.tokens, channels = heads * key, window = call.batch * (taps_width - 1) * channels;
  if (!rows) return true;
  const int64_t low = weights[f_a].out, gate_width = weights[gate].out;
  const int64_t line = 64;
  Scratch scratch;
  if (!scratch.reserve(2 * (rows * (8 * channels + low + heads + gate_width) + 3 * window) + 4 * rows * (channels + heads) + 24 * line))
    return false;
  uint16_t *in[3], *mixed[3], *lasts[3];
  for (auto& p : in) p = scratch.take<uint16_t>(rows * channels);
  for (auto& p : mixed) p = scratch.take<uint16_t>(rows * channels);
  for (auto& p : lasts) p = scratch.take<uint16_t>(window);
  uint16_t* f = scratch.take<uint16_t>(rows * low);
  uint16_t* b_ = scratch.take<uint16_t>(rows * heads);
  uint16_t* g_ = scratch.take<uint16_t>(rows * gate_width);
  uint16_t* z = scratch.take<uint16_t>(rows * channels);
  uint16_t* opened = scratch.take<uint16_t>(rows * channels);
  float* decays = scratch.take<float>(rows * channels);
  float* beta = scratch.take<float>(rows * heads);

  Linear first{};
  first.x = call.x, first.rows = rows, first.width = hidden, first.x_stride = hidden, first.count = 6;
  uint16_t* outs[6] = {in[0], in[1], in[2], f, b_, g_};
  for (int i = 0; i < 6; ++i) first.matrices[i] = weights[i], first.out[i] = outs[i], first.out_stride[i] = weights[i].out;
  run_linear(first);

  Convolve convolve{};
  convolve.batch = call.batch, convolve.tokens = call.tokens, convolve.width = taps_width, convolve.count = 3, convolve.silu = true;
  for (int i = 0; i < 3; ++i) {
    Convolve::One& one = convolve.one[i];
    one.x = in[i], one.taps = taps[i], one.window = call.windows[i], one.out = mixed[i], one.last = lasts[i];
    one.channels = channels, one.taps_float = taps_float, one.x_stride[0] = call.tokens * channels, one.x_stride[1] = channels;
  }
  run_convolve(convolve);

  product(f, rows, low, low, weights[f_b], z);
  run_decay(Decay{z, b_, rate, bias, decays, beta, rows, heads, key, channels, heads, bound});

  KdaCall rule{};
  bool failed = false;
  rule.q = mixed[0], rule.k = mixed[1], rule.v = mixed[2], rule.g = decays, rule.beta = beta;
  rule.state = call.state, rule.last = call.state, rule.out = in[0];  // the products are used up
  rule.batch = call.batch, rule.tokens = call.tokens, rule.heads = heads, rule.key = key, rule.value = key, rule.sequences = call.batch;
  const int64_t strides[3] = {call.tokens * channels, channels, key};
  for (int i = 0; i < 3; ++i) rule.q_stride[i] = rule.k_stride[i] = rule.v_stride[i] = rule.g_stride[i] = strides[i];
  rule.beta_stride[0] = call.tokens * heads, rule.beta_stride[1] = heads;
  rule.scale = float(std::pow(double(key), -0.5)), rule.unit_eps = unit_eps, rule.bf16 = true, rule.failed = &failed;
  run_kda_step(rule);
  if (failed) return false;
  // only now: until here a call that fails has changed nothing
  for (int i = 0; i < 3; ++i) std::memcpy(call.windows[i], lasts[i], size_t(window) * 2);

  uint16_t* wide = g_;
  if (weights[g_b].data) {
    wide = z;
    product(g_, rows, gate_width, gate_width, weights[g_b], wide);
  }
  run_gated_norm(GatedNorm{in[0], wide, norm, opened, rows * heads, key, eps, false, norm_float});
  product(opened, rows, channels, channels, weights[o], call.y);
  return true;
}

bool MlpLayer::run(const uint16_t* x, int64_t rows, uint16_t* y) const {
  if (!rows) return true;
  const int64_t inner = weights[gate].out;
  Scratch scratch;
  if (!scratch.reserve(rows * inner * 2)) return false;
  uint16_t* middle = scratch.take<uint16_t>(rows * inner);
  Linear call{};
  call.x = x, call.rows = rows, call.width = hidden, call.x_stride = hidden, call.count = 2;
  call.matrices[0] = weights[gate], call.matrices[1] = weights[up], call.out[0] = middle, call.out_stride[0] = inner;
  call.glu = glu, call.beta = beta, call.linear_beta = linear_beta;
  run_linear(call);
  product(middle, rows, inner, inner, weights[down], y);
  return true;
}

}  // namespace interlace
