#include "kernels/kda_chunk.h"

#include "kda.h"

// The passes of kda_step over four tokens, with products of bf16 pairs. The state is float32 in memory and in registers; where it is
// read, a copy of two neighbouring rows is rounded into pairs along K. Where it is written, pairs lie along the tokens. The decay of the
// four tokens, all scores between them and the solution for u are float32.

namespace interlace {
namespace INTERLACE_LEVEL {
namespace {

// (low, high) of each lane, rounded to bf16.
static inline vu pairs_of(vf low, vf high) {
#ifdef INTERLACE_BF16_DOT
  // one conversion leaves low's sixteen before high's; the permutation brings partners together
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18,
                                         2, 17, 1, 16, 0);
  const __m512bh both = _mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
  return (vu)_mm512_permutexvar_epi16(order, (__m512i)both);
#else
  return __builtin_convertvector(narrow(low), vu) | (__builtin_convertvector(narrow(high), vu) << 16);
#endif
}

struct Paired {
  static constexpr int C = 4, NV = W == 16 ? 2 : 1;
  // a line each, of kRows numbers of 32 bits: D; the write factors of tokens 2j and 2j + 1 as pairs. Then of kRows / 2 pairs along K:
  // the read factors kr and qr of each token
  static constexpr i64 kReads = 1 + C / 2, kLines = kReads + C;

  static i64 step_bytes(i64 key) { return round_up_to(key, kRows) * kLines * 4; }

  static void factors(const float* k, const float* q, const float* a, i64 padded, char* reads_, char* writes_) {
    for (i64 c = 0; c < padded; c += W) {
      const i64 place = c / kRows * kLines * kRows;
      bf16* reads = reinterpret_cast<bf16*>(reinterpret_cast<uint32_t*>(reads_) + place + kReads * kRows) + c % kRows;
      uint32_t* writes = reinterpret_cast<uint32_t*>(writes_) + place + c % kRows;
      vf decay = splat(1.0f);
#pragma GCC unroll 8
      for (int j = 0; j < C; ++j) {
        decay *= load(a + j * padded + c);
        round_to(reads + j * kRows, load(k + j * padded + c) * decay);
        round_to(reads + (C + j) * kRows, load(q + j * padded + c) * decay);
      }
      std::memcpy(writes, &decay, sizeof decay);
      decay = splat(1.0f);
#pragma GCC unroll 4
      for (int j = C - 1; j >= 0; j -= 2) {
        const vf high = load(k + j * padded + c) * decay;
        decay *= load(a + j * padded + c);
        const vf low = load(k + (j - 1) * padded + c) * decay;
        decay *= load(a + (j - 1) * padded + c);
        const vu pairs = pairs_of(low, high);
        std::memcpy(writes + (1 + j / 2) * kRows, &pairs, sizeof pairs);
      }
    }
  }

  template <bool kWrite, bool kRead>
  static void pass(const float* from, i64 from_stride, float* to, i64 to_stride, i64 key, const char* step, const float* u,
                   float* read) {
    const uint32_t* factors = reinterpret_cast<const uint32_t*>(step);
    vf acc[2 * C][NV];
    vu written[C / 2][NV];
#pragma GCC unroll 8
    for (int i = 0; i < NV; ++i) {
#pragma GCC unroll 16
      for (int j = 0; j < 2 * C; ++j) acc[j][i] = vf{};
#pragma GCC unroll 8
      for (int j = 0; j < C / 2; ++j)
        if (kWrite) written[j][i] = pairs_of(load(u + (2 * j * NV + i) * W), load(u + ((2 * j + 1) * NV + i) * W));
    }
    auto row = [&](const float* line, float* onto, i64 c, vf(&s)[NV]) {
#pragma GCC unroll 8
      for (int i = 0; i < NV; ++i) {
        s[i] = load(line + i * W);
        if (kWrite) {
          float decay;
          std::memcpy(&decay, factors + c, 4);
          s[i] *= decay;
#pragma GCC unroll 8
          for (int j = 0; j < C / 2; ++j) s[i] = dot2(s[i], written[j][i], vu{} + factors[(1 + j) * kRows + c]);
          store(onto + i * W, s[i]);
        }
      }
    };
    auto ask = [&](i64 c, const vf(&low)[NV], const vf(&high)[NV]) {
      const uint32_t* pairs = factors + kReads * kRows + c / 2;
#pragma GCC unroll 8
      for (int i = 0; i < NV; ++i) {
        const vu both = pairs_of(low[i], high[i]);
#pragma GCC unroll 16
        for (int j = 0; j < 2 * C; ++j) acc[j][i] = dot2(acc[j][i], both, vu{} + pairs[j * (kRows / 2)]);
      }
    };
    for (i64 first = 0; first < key; first += kRows, factors += kLines * kRows) {
      const i64 rows = key - first < kRows ? key - first : kRows;
      vf low[NV], high[NV];
      i64 c = 0;
      for (; c + 2 <= rows; c += 2, from += 2 * from_stride, to += 2 * to_stride) {
        row(from, to, c, low);
        row(from + from_stride, to + to_stride, c + 1, high);
        if (kRead) ask(c, low, high);
      }
      if (c < rows) {
        row(from, to, c, low);
#pragma GCC unroll 8
        for (int i = 0; i < NV; ++i) high[i] = vf{};
        if (kRead) ask(c, low, high);
      }
    }
    if (kRead)
#pragma GCC unroll 8
      for (int i = 0; i < NV; ++i)
#pragma GCC unroll 16
        for (int j = 0; j < 2 * C; ++j) store(read + (j * NV + i) * W, acc[j][i]);
  }
};

}  // namespace

void kda_chunk(const KdaCall& call) {
  *call.failed = false;
  silence_padding(call);
  all_heads<Paired, bf16>(call);
}

}  // namespace INTERLACE_LEVEL
}  // namespace interlace
