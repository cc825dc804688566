#include "kernels/norm.h"

#include <cmath>

#include "simd.h"

namespace interlace {
namespace INTERLACE_LEVEL {
namespace {

static inline void round_to(float*, vf&) {}
static inline void round_to(bf16*, vf& v) {
  bf16 narrowed[W];
  store(narrowed, v);
  v = load(narrowed);
}
static inline float value(float x) { return x; }
static inline float value(bf16 x) { return widen(x); }
static inline void put(float* p, float x) { *p = x; }
static inline void put(bf16* p, float x) { *p = narrow(x); }

template <typename T>
void rows(const RmsNorm& call) {
  const T* weight = static_cast<const T*>(call.weight);
#pragma omp parallel for if (call.rows * call.width > 1 << 16)
  for (i64 row = 0; row < call.rows; ++row) {
    const T* x = static_cast<const T*>(call.x) + row * call.x_stride;
    T* out = static_cast<T*>(call.out) + row * call.out_stride;
    vf squares = {};
    i64 i = 0;
    for (; i + W <= call.width; i += W) {
      vf v = load(x + i);
      squares += v * v;
    }
    float total = sum(squares);
    for (i64 j = i; j < call.width; ++j) total += value(x[j]) * value(x[j]);
    const float root = 1.0f / std::sqrt(total / float(call.width) + call.eps);
    for (i = 0; i + W <= call.width; i += W) {
      // the normed value is rounded to the input's dtype before the weight comes (spec section 3)
      vf v = load(x + i) * root;
      round_to(out, v);
      store(out + i, v * load(weight + i));
    }
    for (; i < call.width; ++i) {
      T normed;
      put(&normed, value(x[i]) * root);
      put(out + i, value(normed) * value(weight[i]));
    }
  }
}

}  // namespace

void rms_norm(const RmsNorm& call) {
  if (call.bf16)
    rows<bf16>(call);
  else
    rows<float>(call);
}

}  // namespace INTERLACE_LEVEL
}  // namespace interlace
