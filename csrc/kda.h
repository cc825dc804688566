// What the kernels of the gated delta rule share: sequences of a call, a block of C tokens, and the way through a head.
// Included by files in kernels/ only (see simd.h).
#pragma once

#include <cmath>
#include <cstdlib>

#include "kernels/kda_step.h"
#include "simd.h"

namespace interlace {
namespace INTERLACE_LEVEL {

static inline i64 round_up_to(i64 n, i64 step) { return (n + step - 1) / step * step; }

// One sequence and one head of it: which tokens of which row, and where its state is.
struct Sequence {
  i64 index, row, begin, count, head;

  i64 place(const KdaCall& call, i64 token) const { return (row * call.tokens + begin + token) * call.heads + head; }
  template <typename T>
  const T* read(const void* base, const i64* stride, i64 token) const {
    return static_cast<const T*>(base) + row * stride[0] + (begin + token) * stride[1] + head * stride[2];
  }
  template <typename T>
  const T* v(const KdaCall& call, i64 token) const {
    return read<T>(call.v, call.v_stride, token);
  }
  template <typename T>
  T* out(const KdaCall& call, i64 token) const {
    return static_cast<T*>(call.out) + place(call, token) * call.value;
  }
  float beta(const KdaCall& call, i64 token) const {
    return call.beta[row * call.beta_stride[0] + (begin + token) * call.beta_stride[1] + head];
  }
  i64 kept(const KdaCall& call) const { return (index * call.heads + head) * call.key * call.value; }
};

static inline Sequence sequence_of(const KdaCall& call, i64 index, i64 head) {
  if (!call.offsets) return {index, index, 0, call.lengths ? call.lengths[index] : call.tokens, head};
  const i64 begin = call.offsets[index], count = call.offsets[index + 1] - begin;
  if (!count) return {index, 0, 0, 0, head};
  return {index, begin / call.tokens, begin % call.tokens, count, head};
}

// A sequence without tokens hands its state on.
static inline void keep_state(const KdaCall& call, const Sequence& at) {
  float* to = call.last + at.kept(call);
  const size_t bytes = size_t(call.key * call.value) * sizeof(float);
  // there may be no array at all where nothing is in it
  if (!bytes) return;
  if (!call.state)
    std::memset(to, 0, bytes);
  else if (call.state != call.last)
    std::memcpy(to, call.state + at.kept(call), bytes);
}

// Outputs of padded tokens are 0.
static inline void silence_padding(const KdaCall& call) {
  if (!call.lengths) return;
  const i64 line = call.heads * call.value * (call.bf16 ? 2 : 4);
  if (!line || !call.tokens) return;
  for (i64 row = 0; row < call.batch; ++row) {
    char* out = static_cast<char*>(call.out) + row * call.tokens * line;
    std::memset(out + call.lengths[row] * line, 0, size_t((call.tokens - call.lengths[row]) * line));
  }
}

constexpr i64 kRows = 128;  // key channels whose factors lie together
constexpr i64 kGroup = 8;   // blocks of C tokens whose factors are made at once, for all columns

// C tokens of a sequence: how many there are, their beta, A below the diagonal of `keys` and P with the diagonal of `queries`.
template <int C>
struct Block {
  i64 first, count;
  float beta[C], keys[C][C], queries[C][C];
};

// a * b as a number of its own: the compiler would join it with one of the sums around it, and not in every form with the same one.
static inline vf rounded(vf a, float b) {
  vf product = a * b;
#if defined(__x86_64__) && INTERLACE_WIDTH == 16
  asm("" : "+v"(product));
#elif defined(__x86_64__)
  asm("" : "+x"(product));
#elif defined(__aarch64__)
  asm("" : "+w"(product));
#endif
  return product;
}

static inline void round_to(float* to, vf x) { store(to, x); }
static inline void round_to(bf16* to, vf x) {
#ifdef INTERLACE_BF16_DOT
  const __m256bh rounded = _mm512_cvtneps_pbh((__m512)x);
  std::memcpy(to, &rounded, sizeof rounded);
#else
  store(to, x);
#endif
}

#if INTERLACE_WIDTH == 16
// out[i] = sum of the lanes of v[i].
static inline void sums_of(vf (&v)[16], float* out) {
  const vi low8 = {0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23};
  const vi low4 = {0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27};
  const vi low2 = {0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29};
  const vi low1 = {0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30};
  for (int i = 0; i < 8; ++i) v[i] = __builtin_shuffle(v[i], v[i + 8], low8) + __builtin_shuffle(v[i], v[i + 8], low8 + 8);
  for (int i = 0; i < 4; ++i) v[i] = __builtin_shuffle(v[i], v[i + 4], low4) + __builtin_shuffle(v[i], v[i + 4], low4 + 4);
  for (int i = 0; i < 2; ++i) v[i] = __builtin_shuffle(v[i], v[i + 2], low2) + __builtin_shuffle(v[i], v[i + 2], low2 + 2);
  store(out, __builtin_shuffle(v[0], v[1], low1) + __builtin_shuffle(v[0], v[1], low1 + 1));
}
#else
static inline void sums_of(vf (&v)[16], float* out) {
  for (int i = 0; i < 16; ++i) out[i] = sum(v[i]);
}
#endif

// n numbers as float32 with zeros behind them; returns their squares, to be summed over the lanes.
template <typename T>
static inline vf widen_line(const T* from, i64 n, float* to) {
  vf squares = {};
  i64 c = 0;
  for (; c + W <= n; c += W) {
    const vf x = load(from + c);
    store(to + c, x);
    squares += x * x;
  }
  if (c < n) {
    T rest[W] = {};
    std::memcpy(rest, from + c, size_t(n - c) * sizeof(T));
    const vf x = load(rest);
    store(to + c, x);
    squares += x * x;
  }
  return squares;
}

static inline void scale_line(float* line, i64 padded, float factor) {
  for (i64 c = 0; c < padded; c += W) store(line + c, load(line + c) * factor);
}

// A and P: products of keys, and of queries and keys, with the decays between their tokens.
template <int C>
static inline void scores(const float* k, const float* q, const float* a, i64 padded, Block<C>* block) {
  static_assert(C <= 4, "six products of keys and ten with queries fill sixteen vectors");
  vf v[16] = {};
  for (i64 c = 0; c < padded; c += W) {
#pragma GCC unroll 4
    for (int i = 0; i < C; ++i) {
      vf since = load(k + i * padded + c);
      v[6 + i * (i + 1) / 2 + i] += since * load(q + i * padded + c);
#pragma GCC unroll 4
      for (int j = i + 1; j < C; ++j) {
        since *= load(a + j * padded + c);
        v[j * (j - 1) / 2 + i] += since * load(k + j * padded + c);
        v[6 + j * (j + 1) / 2 + i] += since * load(q + j * padded + c);
      }
    }
  }
  float totals[16];
  sums_of(v, totals);
  for (int j = 0; j < C; ++j)
    for (int i = 0; i <= j; ++i) {
      if (i < j) block->keys[j][i] = totals[j * (j - 1) / 2 + i];
      block->queries[j][i] = totals[6 + j * (j + 1) / 2 + i];
    }
}

// A Form computes with C tokens at a time and NV vectors of columns:
//   step_bytes(key)                           what one pass over the state needs: the decay and write factors of the C tokens before
//   factors(k, q, a, padded, reads, writes)   it and the read factors of the C tokens behind it, made from k, q and the decays a
//   pass<kWrite, kRead>(...)                  one pass over a block of columns
template <typename Form>
struct Scratch {
  char* steps;
  float *lines, *tile, *u, *read;
  Block<Form::C>* blocks;  // [kGroup]
  i64 step_bytes;

  static i64 bytes(i64 key) {
    return (kGroup + 1) * Form::step_bytes(key) + 4 * (3 * Form::C * round_up_to(key, W) + (key + 3 * Form::C) * Form::NV * W) +
           round_up_to(kGroup * sizeof(Block<Form::C>), 64);
  }
  Scratch(i64 key, char* at) : steps(at), step_bytes(Form::step_bytes(key)) {
    u = reinterpret_cast<float*>(at + (kGroup + 1) * step_bytes);
    read = u + Form::C * Form::NV * W;
    tile = read + 2 * Form::C * Form::NV * W;
    lines = tile + key * Form::NV * W;
    blocks = reinterpret_cast<Block<Form::C>*>(lines + 3 * Form::C * round_up_to(key, W));
  }
  char* step(i64 index) const { return steps + index * step_bytes; }
};

// A head's rows lie H rows apart, where no processor looks for the next one by itself: what the next group needs is called for.
template <typename T>
static inline void call_for(const KdaCall& call, const Sequence& at, i64 token) {
  auto lines = [](const void* from, i64 bytes) {
    for (i64 i = 0; i < bytes; i += 64) __builtin_prefetch(static_cast<const char*>(from) + i, 0, 2);
  };
  lines(at.read<T>(call.k, call.k_stride, token), call.key * i64(sizeof(T)));
  lines(at.read<T>(call.q, call.q_stride, token), call.key * i64(sizeof(T)));
  if (call.g) lines(at.read<float>(call.g, call.g_stride, token), call.key * 4);
  lines(at.v<T>(call, token), call.value * i64(sizeof(T)));
  char* out = reinterpret_cast<char*>(at.out<T>(call, token));
  for (i64 i = 0; i < call.value * i64(sizeof(T)); i += 64) __builtin_prefetch(out + i, 1, 2);
}

// Tokens first .. first + C of a sequence: block `index` of a group.
template <typename Form, typename T>
static inline void prepare(const KdaCall& call, const Sequence& at, i64 first, const Scratch<Form>& s, i64 index) {
  constexpr int C = Form::C;
  const i64 padded = round_up_to(call.key, W);
  Block<C>* block = s.blocks + index;
  float *k = s.lines, *q = k + C * padded, *a = q + C * padded;
  block->first = first;
  block->count = at.count - first < C ? at.count - first : C;
  vf squares[16] = {};
  for (int j = 0; j < C; ++j) {
    float *k_ = k + j * padded, *q_ = q + j * padded, *a_ = a + j * padded;
    const bool real = j < block->count;
    if (first + C * kGroup + j < at.count) call_for<T>(call, at, first + C * kGroup + j);
    block->beta[j] = real ? at.beta(call, first + j) : 0.0f;
    if (real) {
      squares[j] = widen_line(at.read<T>(call.k, call.k_stride, first + j), call.key, k_);
      squares[8 + j] = widen_line(at.read<T>(call.q, call.q_stride, first + j), call.key, q_);
    } else {
      std::memset(k_, 0, size_t(padded) * 4);
      std::memset(q_, 0, size_t(padded) * 4);
    }
    if (real && call.g) {
      widen_line(at.read<float>(call.g, call.g_stride, first + j), call.key, a_);
      for (i64 c = 0; c < padded; c += W) store(a_ + c, exp(load(a_ + c)));
    } else {
      for (i64 c = 0; c < padded; c += W) store(a_ + c, splat(1.0f));
    }
  }
  if (call.unit_eps >= 0) {
    float length[16];
    sums_of(squares, length);
    for (float& x : length) x = 1.0f / std::sqrt(x + call.unit_eps);
    for (int j = 0; j < block->count; ++j) {
      scale_line(k + j * padded, padded, length[j]);
      scale_line(q + j * padded, padded, length[8 + j] * call.scale);
    }
  } else {
    for (int j = 0; j < block->count; ++j) scale_line(q + j * padded, padded, call.scale);
  }
  scores<C>(k, q, a, padded, block);
  Form::factors(k, q, a, padded, s.step(index), s.step(index + 1));
}

// u and o of one block of tokens, for `width` columns from `column` on.
template <typename Form, typename T>
static inline void solve(const KdaCall& call, const Sequence& at, const Block<Form::C>& block, i64 column, i64 width, const float* read,
                         float* u) {
  constexpr int C = Form::C, NV = Form::NV;
  const bool whole = width == NV * W;
  T lines[C][NV * W];
  const T* v[C];
  for (int j = 0; j < C; ++j) {
    v[j] = lines[j];
    if (j < block.count && whole) {
      v[j] = at.v<T>(call, block.first + j) + column;
    } else {
      std::memset(lines[j], 0, sizeof lines[j]);
      if (j < block.count) std::memcpy(lines[j], at.v<T>(call, block.first + j) + column, size_t(width) * sizeof(T));
    }
  }
  for (int i = 0; i < NV; ++i) {
    vf u_[C];
#pragma GCC unroll 8
    for (int j = 0; j < C; ++j) {
      vf missing = load(v[j] + i * W) - load(read + (j * NV + i) * W);
#pragma GCC unroll 8
      for (int p = 0; p < j; ++p) missing -= u_[p] * block.keys[j][p];
      u_[j] = missing * block.beta[j];
      store(u + (j * NV + i) * W, u_[j]);
    }
#pragma GCC unroll 8
    for (int j = 0; j < C; ++j) {
      vf o = load(read + ((C + j) * NV + i) * W);
#pragma GCC unroll 8
      for (int p = 0; p <= j; ++p) o += u_[p] * block.queries[j][p];
      if (j >= block.count) continue;
      round_to(whole ? at.out<T>(call, block.first + j) + column + i * W : lines[j] + i * W, o);
    }
  }
  if (!whole)
    for (int j = 0; j < block.count; ++j) std::memcpy(at.out<T>(call, block.first + j) + column, lines[j], size_t(width) * sizeof(T));
}

// The tokens of one group of blocks, for a block of columns of one head. `from` holds the state before (null: zeros), `to` gets the one
// after.
template <typename Form, typename T>
static inline void columns(const KdaCall& call, const Sequence& at, i64 count, const Scratch<Form>& s, const float* from, float* to,
                           i64 column) {
  constexpr i64 kLine = Form::NV * W;
  const i64 width = call.value - column < kLine ? call.value - column : kLine;
  const bool whole = width == kLine;
  const float* source = s.tile;
  i64 source_stride = kLine;
  if (from && whole) {
    source = from + column;
    source_stride = call.value;
  } else {
    std::memset(s.tile, 0, size_t(call.key * kLine) * 4);
    if (from)
      for (i64 c = 0; c < call.key; ++c) std::memcpy(s.tile + c * kLine, from + c * call.value + column, size_t(width) * 4);
  }
  Form::template pass<false, true>(source, source_stride, s.tile, 0, call.key, s.step(0), nullptr, s.read);
  for (i64 block = 0; block < count; ++block) {
    solve<Form, T>(call, at, s.blocks[block], column, width, s.read, s.u);
    if (block + 1 < count)
      Form::template pass<true, true>(source, source_stride, s.tile, kLine, call.key, s.step(block + 1), s.u, s.read);
    else
      Form::template pass<true, false>(source, source_stride, whole ? to + column : s.tile, whole ? call.value : kLine, call.key,
                                       s.step(block + 1), s.u, nullptr);
    source = s.tile;
    source_stride = kLine;
  }
  if (!whole)
    for (i64 c = 0; c < call.key; ++c) std::memcpy(to + c * call.value + column, s.tile + c * kLine, size_t(width) * 4);
}

// All tokens of one head of a sequence.
template <typename Form, typename T>
static inline void whole_head(const KdaCall& call, i64 sequence, i64 head, char* memory) {
  constexpr int C = Form::C;
  const Sequence at = sequence_of(call, sequence, head);
  const Scratch<Form> s(call.key, memory);
  const float* from = call.state ? call.state + at.kept(call) : nullptr;
  float* to = call.last + at.kept(call);
  if (!at.count) keep_state(call, at);
  for (i64 first = 0; first < at.count; first += C * kGroup) {
    const i64 some = at.count - first < C * kGroup ? at.count - first : C * kGroup;
    const i64 blocks = (some + C - 1) / C;
    for (i64 block = 0; block < blocks; ++block) prepare<Form, T>(call, at, first + block * C, s, block);
    for (i64 column = 0; column < call.value; column += Form::NV * W) columns<Form, T>(call, at, blocks, s, from, to, column);
    from = to;
  }
}

// run(begin, end, memory) over parts of `some` heads of all sequences, on all threads.
template <typename Run>
static inline void over_heads(const KdaCall& call, i64 some, i64 bytes, const Run& run) {
  bool failed = false;
  const i64 items = call.sequences * call.heads, parts = (items + some - 1) / some;
#pragma omp parallel if (parts > 1 && items * call.tokens * call.key * call.value > 1 << 16)
  {
    char* mine = static_cast<char*>(std::aligned_alloc(64, size_t(round_up_to(bytes, 64))));
    if (!mine) {
#pragma omp atomic write
      failed = true;
    }
#pragma omp barrier
    if (!failed) {
#pragma omp for schedule(dynamic)
      for (i64 part = 0; part < parts; ++part) run(part * some, part * some + some < items ? part * some + some : items, mine);
    }
    std::free(mine);
  }
  *call.failed = failed;
}

template <typename Form, typename T>
static inline void all_heads(const KdaCall& call) {
  over_heads(call, 1, Scratch<Form>::bytes(call.key), [&call](i64 begin, i64 end, char* memory) {
    for (i64 item = begin; item < end; ++item) whole_head<Form, T>(call, item / call.heads, item % call.heads, memory);
  });
}

}  // namespace INTERLACE_LEVEL
}  // namespace interlace
