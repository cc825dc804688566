#include "kernels/limits.h"

#include "simd.h"

namespace interlace {
namespace INTERLACE_LEVEL {
namespace {

constexpr int kChains = 12;  // independent sums: more than latency times throughput of any processor so far
constexpr i64 kPiece = 1 << 14;  // floats of one piece of memory

template <bool Dot>
float spin(i64 rounds, float start) {
  vf acc[kChains];
  for (int i = 0; i < kChains; ++i) acc[i] = splat(start + float(i));
  vu a = (vu)splat(start), b = (vu)splat(start + 1.0f);
  const vf x = splat(start), y = splat(1.0f - start);
  for (i64 r = 0; r < rounds; ++r) {
    // a and b could be anything, as far as the compiler knows, so it leaves no product out
    asm volatile("" : "+m"(a), "+m"(b));
    const vu c = a, d = b;
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) {
      if constexpr (Dot)
        acc[i] = dot2(acc[i], c, d);
      else
        acc[i] = acc[i] * y + x;
    }
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) {
      if constexpr (Dot)
        acc[i] = dot2(acc[i], d, c);
      else
        acc[i] = acc[i] * y + x;
    }
  }
  vf all = {};
  for (int i = 0; i < kChains; ++i) all += acc[i];
  return sum(all);
}

float read(const float* data, i64 count) {
  vu acc[4] = {};
  i64 i = 0;
  for (; i + 4 * W <= count; i += 4 * W)
    for (int j = 0; j < 4; ++j) acc[j] ^= load_as<vu>(data + i + j * W);
  uint32_t rest = 0;
  for (; i < count; ++i) rest ^= load_as<uint32_t>(data + i);
  const vu all = acc[0] ^ acc[1] ^ acc[2] ^ acc[3];
  for (int j = 0; j < W; ++j) rest ^= all[j];
  return float(rest);
}

void read_write(float* data, i64 count) {
  i64 i = 0;
  // a change of sign keeps the numbers what they are for whoever takes them next
  for (; i + W <= count; i += W) store(data + i, -load(data + i));
  for (; i < count; ++i) data[i] = -data[i];
}

}  // namespace

void limit(const Limit& call) {
  double done = 0;
  float sink = 0;
  if (call.loop == Loop::dot || call.loop == Loop::multiply) {
    const bool dot = call.loop == Loop::dot;
#pragma omp parallel reduction(+ : done, sink)
    {
      sink += dot ? spin<true>(call.rounds, 0.25f) : spin<false>(call.rounds, 0.25f);
      done += double(call.rounds) * 2 * kChains * W * (dot ? 4 : 2);
    }
  } else {
    const i64 pieces = (call.floats + kPiece - 1) / kPiece;
#pragma omp parallel for schedule(static) reduction(+ : sink)
    for (i64 p = 0; p < pieces; ++p) {
      const i64 begin = p * kPiece, rest = call.floats - begin, count = rest < kPiece ? rest : kPiece;
      if (call.loop == Loop::read)
        sink += read(call.data + begin, count);
      else
        read_write(call.data + begin, count);
    }
    done = double(call.floats) * (call.loop == Loop::read ? 4 : 8);
  }
  // kept, so that no loop is for nothing
  *call.result = sink == 0.125f ? done + 1e-9 : done;
}

}  // namespace INTERLACE_LEVEL
}  // namespace interlace
