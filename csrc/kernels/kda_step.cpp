#include "kernels/kda_step.h"

#include "kda.h"

// Columns of the state do not know of each other, so a head is taken in blocks of columns whose rows stay in the first-level cache while
// the tokens go by, C tokens at a time. One pass over a block writes what C tokens leave and reads what the next C ask:
//
//   S <- D S + sum_j kw_j u_j^T        D: the decay of all C tokens; kw_j = k_j times the decays after j
//   kr_j^T S,  qr_j^T S                kr_j, qr_j: times the decays up to and with j
//
// and between two passes u is solved token by token (A, P: products of keys, and of queries and keys, with the decays between them):
//
//   u_j = beta_j (v_j - kr_j^T S - sum_{i<j} A_ji u_i)         o_j = qr_j^T S + sum_{i<=j} P_ji u_i
//
// All factors are products of decays, at most 1. For one token this is one read and one write of the state.

namespace interlace {
namespace INTERLACE_LEVEL {
namespace {

template <int C_, int NV_>
struct Float32 {
  static constexpr int C = C_, NV = NV_;
  // D, kw_1..C, kr_1..C, qr_1..C: a line of kRows each
  static constexpr i64 kLines = 1 + 3 * C;

  static i64 step_bytes(i64 key) { return round_up_to(key, kRows) * kLines * 4; }

  static void factors(const float* k, const float* q, const float* a, i64 padded, char* reads_, char* writes_) {
    float *reads = reinterpret_cast<float*>(reads_), *writes = reinterpret_cast<float*>(writes_);
    for (i64 c = 0; c < padded; c += W) {
      const i64 at = c / kRows * kLines * kRows + c % kRows;
      vf decay = splat(1.0f);
#pragma GCC unroll 8
      for (int j = 0; j < C; ++j) {
        decay *= load(a + j * padded + c);
        store(reads + at + (1 + C + j) * kRows, load(k + j * padded + c) * decay);
        store(reads + at + (1 + 2 * C + j) * kRows, load(q + j * padded + c) * decay);
      }
      store(writes + at, decay);
      decay = splat(1.0f);
#pragma GCC unroll 8
      for (int j = C - 1; j >= 0; --j) {
        store(writes + at + (1 + j) * kRows, load(k + j * padded + c) * decay);
        decay *= load(a + j * padded + c);
      }
    }
  }

  template <bool kWrite, bool kRead>
  static void pass(const float* from, i64 from_stride, float* to, i64 to_stride, i64 key, const char* step, const float* u,
                   float* read) {
    const float* factors = reinterpret_cast<const float*>(step);
    vf acc[2 * C][NV], written[C][NV];
#pragma GCC unroll 8
    for (int j = 0; j < C; ++j)
#pragma GCC unroll 8
      for (int i = 0; i < NV; ++i) {
        acc[j][i] = acc[C + j][i] = vf{};
        if (kWrite) written[j][i] = load(u + (j * NV + i) * W);
      }
    for (i64 first = 0; first < key; first += kRows, factors += kLines * kRows) {
      const i64 rows = key - first < kRows ? key - first : kRows;
      for (i64 c = 0; c < rows; ++c, from += from_stride, to += to_stride) {
        vf s[NV];
#pragma GCC unroll 8
        for (int i = 0; i < NV; ++i) {
          s[i] = load(from + i * W);
          if (kWrite) {
            s[i] = rounded(s[i], factors[c]);
#pragma GCC unroll 8
            for (int j = 0; j < C; ++j) s[i] += written[j][i] * factors[(1 + j) * kRows + c];
            store(to + i * W, s[i]);
          }
        }
        if (kRead) {
#pragma GCC unroll 16
          for (int j = 0; j < 2 * C; ++j)
#pragma GCC unroll 8
            for (int i = 0; i < NV; ++i) acc[j][i] += s[i] * factors[(1 + C + j) * kRows + c];
        }
      }
    }
    if (kRead)
#pragma GCC unroll 16
      for (int j = 0; j < 2 * C; ++j)
#pragma GCC unroll 8
        for (int i = 0; i < NV; ++i) store(read + (j * NV + i) * W, acc[j][i]);
  }
};

// One token goes through memory in whole rows; of several, a block of columns stays in the first-level cache.
using One = Float32<1, W == 16 ? 8 : 4>;
using Four = Float32<4, W == 16 ? 2 : 1>;

// One token of each sequence whose state is given: while one head's state is written from the second-level cache, the next one's comes
// from memory. Blocks of columns are whole.
void exchange(const float* from, float* to, const float* next, i64 stride, i64 key, const char* before, const char* step, const float* u,
              float* read) {
  constexpr int NV = One::NV;
  const float *writes = reinterpret_cast<const float*>(before), *reads = reinterpret_cast<const float*>(step);
  vf written[NV], k[NV], q[NV];
#pragma GCC unroll 8
  for (int i = 0; i < NV; ++i) k[i] = q[i] = vf{}, written[i] = load(u + i * W);
  for (i64 first = 0; first < key; first += kRows, writes += One::kLines * kRows, reads += One::kLines * kRows) {
    const i64 rows = key - first < kRows ? key - first : kRows;
    for (i64 c = 0; c < rows; ++c, from += stride, to += stride, next += stride) {
#pragma GCC unroll 8
      for (int i = 0; i < NV; ++i) {
        const vf s = load(next + i * W);
        k[i] += s * reads[2 * kRows + c];
        q[i] += s * reads[3 * kRows + c];
      }
#pragma GCC unroll 8
      for (int i = 0; i < NV; ++i) {
        vf s = rounded(load(from + i * W), writes[c]);
        s += written[i] * writes[kRows + c];
        store(to + i * W, s);
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < NV; ++i) store(read + i * W, k[i]), store(read + (NV + i) * W, q[i]);
}

// Heads [begin, end) of all sequences, one token each.
template <typename T>
void in_line(const KdaCall& call, i64 begin, i64 end, char* memory) {
  constexpr i64 kLine = One::NV * W;
  const i64 half = round_up_to(Scratch<One>::bytes(call.key), 64), size = call.key * call.value, stride = call.value;
  Scratch<One> s(call.key, memory), before(call.key, memory + half);
  const float* kept = nullptr;
  float* written = nullptr;  // what `before` is still to write
  for (i64 item = begin; item < end; ++item) {
    const Sequence at = sequence_of(call, item / call.heads, item % call.heads);
    if (!at.count) {
      keep_state(call, at);
      continue;
    }
    prepare<One, T>(call, at, 0, s, 0);
    for (i64 column = 0; column < call.value; column += kLine) {
      const float* from = call.state + item * size + column;
      if (written)
        exchange(kept, written, from, stride, call.key, before.step(1), s.step(0), before.u, s.read);
      else
        One::pass<false, true>(from, stride, s.tile, 0, call.key, s.step(0), nullptr, s.read);
      solve<One, T>(call, at, *s.blocks, column, kLine, s.read, s.u);
      kept = from;
      written = call.last + item * size + column;
      if (column + kLine < call.value) {
        // the next columns are of the same head: its factors are in `s`
        One::pass<true, false>(kept, stride, written, stride, call.key, s.step(1), s.u, nullptr);
        written = nullptr;
      }
    }
    const Scratch<One> other = before;
    before = s;
    s = other;
  }
  if (written) One::pass<true, false>(kept, stride, written, stride, call.key, before.step(1), before.u, nullptr);
}

template <typename T>
void typed(const KdaCall& call) {
  const i64 items = call.sequences * call.heads;
  if (call.tokens != 1)
    all_heads<Four, T>(call);
  else if (!call.state || call.value % (One::NV * W))
    all_heads<One, T>(call);
  else
    over_heads(call, items < 16 ? 1 : items / 8, 2 * round_up_to(Scratch<One>::bytes(call.key), 64),
               [&call](i64 begin, i64 end, char* memory) { in_line<T>(call, begin, end, memory); });
}

}  // namespace

void kda_step(const KdaCall& call) {
  *call.failed = false;
  silence_padding(call);
  if (call.bf16)
    typed<bf16>(call);
  else
    typed<float>(call);
}

}  // namespace INTERLACE_LEVEL
}  // namespace interlace
