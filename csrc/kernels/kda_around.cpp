#include "kernels/kda_around.h"

#include <cmath>

#include "simd.h"

namespace interlace {
namespace INTERLACE_LEVEL {
namespace {

constexpr i64 kWidest = 16;  // taps

static inline float value(const void* p, i64 at, bool wide) {
  return wide ? static_cast<const float*>(p)[at] : widen(static_cast<const bf16*>(p)[at]);
}

// Up to W channels, from `channel` on.
void convolve_some(const Convolve& call, const Convolve::One& one, i64 row, i64 channel, i64 some) {
  const i64 width = call.width, before = width - 1;
  float taps[kWidest][W] = {};
  for (i64 i = 0; i < some; ++i)
    for (i64 w = 0; w < width; ++w) taps[w][i] = value(one.taps, (channel + i) * width + w, one.taps_float);
  // the last `width` inputs, as a ring
  vf ring[kWidest] = {};
  auto get = [some](const bf16* at) {
    if (some == W) return load(at);
    bf16 padded[W] = {};
    std::memcpy(padded, at, size_t(some) * 2);
    return load(padded);
  };
  auto put = [some](bf16* at, vf v) {
    bf16 padded[W];
    store(padded, v);
    std::memcpy(at, padded, size_t(some) * 2);
  };
  const bf16* window = one.window + row * before * one.channels + channel;
  bf16* last = one.last + row * before * one.channels + channel;
  for (i64 w = 0; w < before; ++w) ring[w] = get(window + w * one.channels);
  const bf16* x = one.x + row * one.x_stride[0] + channel;
  bf16* out = one.out + row * call.tokens * one.channels + channel;
  for (i64 t = 0; t < call.tokens; ++t) {
    ring[(t + before) % width] = get(x + t * one.x_stride[1]);
    vf y = {};
    for (i64 w = 0; w < width; ++w) y += ring[(t + w) % width] * load(taps[w]);
    put(out + t * one.channels, call.silu ? y * sigmoid(y) : y);
  }
  for (i64 w = 0; w < before; ++w) put(last + w * one.channels, ring[(call.tokens + w) % width]);
}

// log(1 + u) for u in 0..1, to 2 units in the last place: u times log(y) / (y - 1) with y = 1 + u rounded.
static inline vf log1p(vf u) {
  const vf y = u + 1.0f;
  // y in 1..2; above the root of 2 it is halved, and log 2 added
  const vf top = y > 1.41421356f ? splat(1.0f) : vf{};
  const vf m = (y > 1.41421356f ? y * 0.5f : y) - 1.0f;
  vf p = splat(7.0376836292e-2f);
  p = p * m - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  const vf square = m * m;
  vf log = m * square * p - 0.5f * square + m;
  log = log + top * 0.693147181f;
  const vf step = y - 1.0f;
  return step > 0.0f ? log * (u / step) : u;
}

static inline vf softplus(vf x) {
  const vf size = max(x, -x);
  const vf value = max(x, vf{}) + log1p(exp(-size));
  return x == x ? value : x;
}

}  // namespace

void convolve(const Convolve& call) {
  i64 begins[kConvolutions + 1] = {0}, channels = 0;
  for (int i = 0; i < call.count; ++i) {
    begins[i + 1] = begins[i] + (call.one[i].channels + W - 1) / W * call.batch;
    channels += call.one[i].channels;
  }
  const i64 items = begins[call.count];
#pragma omp parallel for schedule(static) if (channels * call.batch * (call.tokens + 2) > 1 << 13)
  for (i64 item = 0; item < items; ++item) {
    int i = 0;
    while (begins[i + 1] <= item) ++i;
    const Convolve::One& one = call.one[i];
    const i64 per_row = (one.channels + W - 1) / W, row = (item - begins[i]) / per_row;
    const i64 channel = (item - begins[i]) % per_row * W, rest = one.channels - channel;
    convolve_some(call, one, row, channel, rest < W ? rest : W);
  }
}

void decay(const Decay& call) {
#pragma omp parallel for schedule(static) collapse(2) if (call.rows * call.heads * call.key > 1 << 13)
  for (i64 row = 0; row < call.rows; ++row)
    for (i64 head = 0; head < call.heads; ++head) {
      const bf16* z = call.z + row * call.z_stride + head * call.key;
      const float* bias = call.bias + head * call.key;
      float* g = call.g + (row * call.heads + head) * call.key;
      const float rate = std::exp(call.rate[head]);
      for (i64 k = 0; k < call.key; k += W) {
        const i64 rest = call.key - k, some = rest < W ? rest : W;
        vf x;
        if (some == W) {
          x = load(z + k) + load(bias + k);
        } else {
          float padded[W] = {};
          for (i64 i = 0; i < some; ++i) padded[i] = widen(z[k + i]) + bias[k + i];
          x = load(padded);
        }
        const vf y = call.bound == 0 ? softplus(x) * -rate : sigmoid(x * rate) * call.bound;
        if (some == W) {
          store(g + k, y);
        } else {
          float padded[W];
          store(padded, y);
          std::memcpy(g + k, padded, size_t(some) * 4);
        }
      }
      const vf b = splat(widen(call.b[row * call.b_stride + head]));
      float lanes[W];
      store(lanes, sigmoid(b));
      call.beta[row * call.heads + head] = lanes[0];
    }
}

void gated_norm(const GatedNorm& call) {
#pragma omp parallel for schedule(static) if (call.rows * call.width > 1 << 14)
  for (i64 row = 0; row < call.rows; ++row) {
    const i64 at = row * call.width;
    auto x = [&](i64 i) {
      return call.x_float ? load(static_cast<const float*>(call.x) + at + i) : load(static_cast<const bf16*>(call.x) + at + i);
    };
    auto weight = [&](i64 i) {
      return call.weight_float ? load(static_cast<const float*>(call.weight) + i) : load(static_cast<const bf16*>(call.weight) + i);
    };
    vf squares = {};
    i64 i = 0;
    for (; i + W <= call.width; i += W) {
      const vf v = x(i);
      squares += v * v;
    }
    float total = sum(squares);
    for (i64 j = i; j < call.width; ++j) {
      const float v = value(call.x, at + j, call.x_float);
      total += v * v;
    }
    const float root = 1.0f / std::sqrt(total / float(call.width) + call.eps);
    for (i = 0; i + W <= call.width; i += W)
      store(call.out + at + i, sigmoid(load(call.gate + at + i)) * (x(i) * root) * weight(i));
    if (i < call.width) {
      float gate[W] = {}, rest[W] = {};
      for (i64 j = i; j < call.width; ++j) {
        gate[j - i] = widen(call.gate[at + j]);
        rest[j - i] = value(call.x, at + j, call.x_float) * root * value(call.weight, j, call.weight_float);
      }
      bf16 lanes[W];
      store(lanes, sigmoid(load(gate)) * load(rest));
      std::memcpy(call.out + at + i, lanes, size_t(call.width - i) * 2);
    }
  }
}

}  // namespace INTERLACE_LEVEL
}  // namespace interlace
