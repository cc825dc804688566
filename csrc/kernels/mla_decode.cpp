#include "kernels/mla_decode.h"

#include <cfloat>
#include <cmath>
#include <cstdlib>

#include "gemm.h"

// Lanes are heads. A cache row is broadcast in pairs and never transposed for the scores; for the second product a tile of 128 rows is
// interleaved by pairs once and serves every head while it is in the cache. Maximum, exponential and sum run over the heads' lanes.
// A row's tokens are split into spans by its own length alone, so neither its neighbours nor the number of threads change a bit.

namespace interlace {
namespace INTERLACE_LEVEL {
namespace {

constexpr i64 kTile = 128;       // tokens that both products share while they are in the cache
constexpr i64 kQueries = 128;    // queries of one pass over the tokens, at most
constexpr i64 kSpans = 32;       // parts of a row, at most
constexpr i64 kSpanTokens = 512; // tokens of a part, at least

struct Plan {
  i64 queries, padded, blocks, depth, rank;  // per row: T * H, padded; blocks of kQueries; R + P and R, padded
  i64 work;                                  // bytes of one thread's scratch
};

Plan plan_of(const MlaDecode& call) {
  Plan plan;
  plan.queries = call.tokens * call.heads;
  plan.padded = round_up(plan.queries, kColStep);
  plan.blocks = (plan.padded + kQueries - 1) / kQueries;
  plan.depth = round_up(call.rank + call.shared, kDepthStep);
  plan.rank = round_up(call.rank, kColStep);
  const i64 width = plan.padded < kQueries ? plan.padded : kQueries;
  plan.work = kTile * width * 4 + width * kTile * 2 + kTile * plan.depth * 2 + kTile / 2 * plan.rank * 4 + 64 * 8;
  return plan;
}

i64 length_of(const MlaDecode& call, i64 row) { return call.lengths ? call.lengths[row] : call.cached; }

// Tokens of one part: a multiple of the tile.
i64 span_of(i64 length) {
  i64 spans = length / kSpanTokens;
  spans = spans < 1 ? 1 : spans > kSpans ? kSpans : spans;
  const i64 span = round_up((length + spans - 1) / spans, kTile);
  return span ? span : kTile;
}

// What one part leaves behind: maximum and sum of each query, and the weighted latents.
struct Part {
  float *top, *total, *summed;  // [padded], [padded], [padded, rank]
};

// line[i][r] = scale * sum over n of q[i][n] * w_uk[n][r], for M queries of a head.
template <int M>
void fold_queries(const MlaDecode& call, const bf16* w, const bf16* const* q, float* line, i64 stride) {
  constexpr int V = (W == 16 ? 16 : 8) / M;
  for (i64 r = 0; r < call.rank;) {
    if (r + V * W <= call.rank) {
      vf acc[M][V] = {};
      for (i64 n = 0; n < call.nope; ++n) {
        const bf16* row = w + n * call.uk_stride[1] + r;
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) {
          const vf column = load(row + v * W);
#pragma GCC unroll 4
          for (int i = 0; i < M; ++i) acc[i][v] += widen(q[i][n]) * column;
        }
      }
      for (int i = 0; i < M; ++i)
        for (int v = 0; v < V; ++v) store(line + i * stride + r + v * W, acc[i][v] * call.scale);
      r += V * W;
    } else {
      for (int i = 0; i < M; ++i) {
        float acc = 0;
        for (i64 n = 0; n < call.nope; ++n) acc += widen(q[i][n]) * widen(w[n * call.uk_stride[1] + r]);
        line[i * stride + r] = acc * call.scale;
      }
      ++r;
    }
  }
}

// The queries of one head, folded and rounded into pairs.
void fold_head(const MlaDecode& call, const Plan& plan, i64 head, uint32_t* folded, float* line) {
  const bf16* w = call.w_uk + head * call.uk_stride[0];
  const i64 all = call.batch * call.tokens;
  for (i64 first = 0; first < all;) {
    const i64 some = all - first >= 4 ? 4 : 1;
    const bf16* q[4];
    for (i64 i = 0; i < some; ++i) {
      const i64 b = (first + i) / call.tokens, t = (first + i) % call.tokens;
      q[i] = call.q + b * call.q_stride[0] + t * call.q_stride[1] + head * call.q_stride[2];
    }
    if (some == 4)
      fold_queries<4>(call, w, q, line, plan.depth);
    else
      fold_queries<1>(call, w, q, line, plan.depth);
    for (i64 i = 0; i < some; ++i) {
      float* full = line + i * plan.depth;
      for (i64 p = 0; p < call.shared; ++p) full[call.rank + p] = widen(q[i][call.nope + p]) * call.scale;
      for (i64 d = call.rank + call.shared; d < plan.depth; ++d) full[d] = 0;
      const i64 b = (first + i) / call.tokens, t = (first + i) % call.tokens;
      uint32_t* lane = folded + b * (plan.depth / 2) * plan.padded + t * call.heads + head;
      for (i64 d = 0; d < plan.depth; d += 2)
        lane[d / 2 * plan.padded] = narrow(full[d]) | uint32_t(narrow(full[d + 1])) << 16;
    }
    first += some;
  }
}

// Rows t, t+1 of the latent as lanes of pairs, [tile / 2][rank]; rows behind `count` are zero.
void interleave(const bf16* rows, i64 stride, i64 count, i64 rank, i64 padded, uint32_t* out) {
  for (i64 t = 0; t < kTile; t += 2) {
    const bf16* low = rows + t * stride;
    const bf16* high = low + stride;
    uint32_t* line = out + t / 2 * padded;
    i64 r = 0;
    if (t + 1 < count)
      for (; r + W <= rank; r += W) {
        const vu a = __builtin_convertvector(load_as<vh>(low + r), vu), b = __builtin_convertvector(load_as<vh>(high + r), vu);
        const vu both = a | (b << 16);
        std::memcpy(line + r, &both, sizeof both);
      }
    for (; r < rank; ++r) line[r] = (t < count ? low[r] : 0) | uint32_t(t + 1 < count ? high[r] : 0) << 16;
    for (; r < padded; ++r) line[r] = 0;
  }
}

struct Scratch {
  float* scores;     // [tile][width]
  bf16* weights;     // [width][tile]
  bf16* rows;        // [tile][depth], for a tile that is cut or whose width is odd
  uint32_t* paired;  // [tile / 2][rank]
};

Scratch scratch_of(char* at, const Plan& plan, i64 width) {
  Scratch s;
  auto take = [&at](i64 bytes) {
    char* here = at;
    at += round_up(bytes, 64);
    return here;
  };
  s.scores = reinterpret_cast<float*>(take(kTile * width * 4));
  s.weights = reinterpret_cast<bf16*>(take(width * kTile * 2));
  s.rows = reinterpret_cast<bf16*>(take(kTile * plan.depth * 2));
  s.paired = reinterpret_cast<uint32_t*>(take(kTile / 2 * plan.rank * 4));
  return s;
}

// Scores of one tile become weights: e^(s - top) in bf16, token by token along a query's row. `ends` holds each query's last key + 1.
void soften(const Scratch& s, const Part& part, i64 width, i64 count, i64 first, const float* ends, bool masked, i64 rank) {
  for (i64 lane = 0; lane < width; lane += W) {
    const vf end = load(ends + lane);
    vf top = load(part.top + lane);
    const vf before = top;
    for (i64 t = 0; t < count; ++t) {
      float* place = s.scores + t * width + lane;
      if (masked) store(place, splat(float(first + t)) < end ? load(place) : splat(-__builtin_inff()));
      top = max(load(place), top);
    }
    const vf keep = exp(before - top);
    vf total = load(part.total + lane) * keep;
    for (i64 t = 0; t < kTile; t += 2) {
      const vf low = t < count ? exp(load(s.scores + t * width + lane) - top) : vf{};
      const vf high = t + 1 < count ? exp(load(s.scores + (t + 1) * width + lane) - top) : vf{};
      total += low + high;
      uint32_t both[W];
      const vu pairs = pairs_of(low, high);
      std::memcpy(both, &pairs, sizeof both);
      for (int i = 0; i < W; ++i) std::memcpy(s.weights + (lane + i) * kTile + t, &both[i], 4);
    }
    store(part.top + lane, top);
    store(part.total + lane, total);
    float factor[W];
    store(factor, keep);
    for (int i = 0; i < W; ++i) {
      if (factor[i] == 1.0f) continue;
      float* line = part.summed + (lane + i) * rank;
      for (i64 r = 0; r < rank; r += W) store(line + r, load(line + r) * factor[i]);
    }
  }
}

// Queries [from, from + width) of a row over its tokens [begin, stop).
void attend(const MlaDecode& call, const Plan& plan, i64 row, i64 begin, i64 stop, i64 from, i64 width, const uint32_t* folded,
            const Scratch& s, const Part& part) {
  for (i64 i = 0; i < width; ++i) part.top[i] = -FLT_MAX, part.total[i] = 0;
  std::memset(part.summed, 0, size_t(width * plan.rank) * 4);
  const i64 first_query = length_of(call, row) - call.tokens;
  // floats hold every integer up to 2^24; a mask is needed near the end of a row only, so positions are counted from the span's start
  float ends[kQueries];
  for (i64 i = 0; i < width; ++i) {
    const i64 query = from + i < plan.queries ? from + i : plan.queries - 1;
    ends[i] = float(first_query + query / call.heads + 1 - begin);
  }
  const uint32_t* q = folded + row * (plan.depth / 2) * plan.padded + from;
  const i64 stride = call.latent_stride[1];
  for (i64 at = begin; at < stop; at += kTile) {
    const i64 count = stop - at < kTile ? stop - at : kTile;
    const bf16* rows = call.latent + row * call.latent_stride[0] + at * stride;
    const bf16* a = rows;
    i64 lda = stride;
    if (count < kTile || plan.depth != call.rank + call.shared) {
      for (i64 t = 0; t < kTile; ++t) {
        bf16* line = s.rows + t * plan.depth;
        const i64 filled = t < count ? call.rank + call.shared : 0;
        if (filled) std::memcpy(line, rows + t * stride, size_t(filled) * 2);
        std::memset(line + filled, 0, size_t(plan.depth - filled) * 2);
      }
      a = s.rows;
      lda = plan.depth;
    }
    gemm(a, lda, q, plan.padded, s.scores, width, round_up(count, kRowStep), width, plan.depth, false);
    interleave(rows, stride, count, call.rank, plan.rank, s.paired);
    soften(s, part, width, count, at - begin, ends, at + count - 1 > first_query, plan.rank);
    gemm(s.weights, kTile, s.paired, plan.rank, part.summed, plan.rank, width, plan.rank, kTile, true);
  }
}

// Parts of one query into one, then out[v] = sum over r of w_uv[v][r] * o[r].
void unfold_head(const MlaDecode& call, const Plan& plan, i64 head, const Part* parts, const i64* begins, float* o) {
  const bf16* w = call.w_uv + head * call.uv_stride[0];
  for (i64 b = 0; b < call.batch; ++b)
    for (i64 t = 0; t < call.tokens; ++t) {
      const i64 query = t * call.heads + head;
      float top = -FLT_MAX, total = 0;
      for (i64 i = begins[b]; i < begins[b + 1]; ++i) top = parts[i].top[query] > top ? parts[i].top[query] : top;
      std::memset(o, 0, size_t(plan.rank) * 4);
      for (i64 i = begins[b]; i < begins[b + 1]; ++i) {
        const float keep = std::exp(parts[i].top[query] - top);
        total += parts[i].total[query] * keep;
        const float* line = parts[i].summed + query * plan.rank;
        for (i64 r = 0; r < plan.rank; r += W) store(o + r, load(o + r) + load(line + r) * keep);
      }
      const float factor = total > 0 ? 1.0f / total : 0.0f;
      for (i64 r = 0; r < plan.rank; r += W) store(o + r, load(o + r) * factor);
      const i64 place = (b * call.tokens + t) * call.heads + head;
      if (call.lse) call.lse[place] = total > 0 ? std::log(total) + top : -__builtin_inff();
      float* out = call.out + place * call.value;
      i64 v = 0;
      for (; v + 4 <= call.value; v += 4) {
        vf acc[4] = {};
        i64 r = 0;
        for (; r + W <= call.rank; r += W)
          for (int i = 0; i < 4; ++i) acc[i] += load(w + (v + i) * call.uv_stride[1] + r) * load(o + r);
        for (int i = 0; i < 4; ++i) {
          float rest = sum(acc[i]);
          for (i64 j = r; j < call.rank; ++j) rest += widen(w[(v + i) * call.uv_stride[1] + j]) * o[j];
          out[v + i] = rest;
        }
      }
      for (; v < call.value; ++v) {
        float acc = 0;
        for (i64 r = 0; r < call.rank; ++r) acc += widen(w[v * call.uv_stride[1] + r]) * o[r];
        out[v] = acc;
      }
    }
}

}  // namespace

void mla_decode(const MlaDecode& call) {
  *call.failed = false;
  if (!call.batch || !call.tokens || !call.heads) return;
  const Plan plan = plan_of(call);
  // where each row's parts begin
  i64* begins = static_cast<i64*>(std::malloc(size_t(call.batch + 1) * sizeof(i64)));
  if (!begins) {
    *call.failed = true;
    return;
  }
  begins[0] = 0;
  for (i64 b = 0; b < call.batch; ++b) {
    const i64 length = length_of(call, b);
    begins[b + 1] = begins[b] + (length + span_of(length) - 1) / span_of(length);
  }
  const i64 count = begins[call.batch];
  const i64 folded_bytes = round_up(call.batch * (plan.depth / 2) * plan.padded * 4, 64);
  const i64 part_bytes = round_up(plan.padded * (plan.rank + 2) * 4, 64);
  char* memory = static_cast<char*>(std::aligned_alloc(64, size_t(folded_bytes + count * part_bytes + 64)));
  Part* parts = static_cast<Part*>(std::malloc(size_t(count + 1) * sizeof(Part)));
  bool failed = !memory || !parts;
  if (!failed) {
    uint32_t* folded = reinterpret_cast<uint32_t*>(memory);
    if (plan.padded != plan.queries) std::memset(folded, 0, size_t(folded_bytes));
    for (i64 i = 0; i < count; ++i) {
      float* at = reinterpret_cast<float*>(memory + folded_bytes + i * part_bytes);
      parts[i] = {at + plan.padded * plan.rank, at + plan.padded * (plan.rank + 1), at};
    }
#pragma omp parallel
    {
      Tiles tiles;
      (void)tiles;
      const i64 own = plan.work + 5 * plan.depth * 4 + 64 * 4;
      char* mine = static_cast<char*>(std::aligned_alloc(64, size_t(round_up(own, 64))));
      if (!mine) {
#pragma omp atomic write
        failed = true;
      }
#pragma omp barrier
      if (!failed) {
#pragma omp for schedule(dynamic)
        for (i64 head = 0; head < call.heads; ++head) fold_head(call, plan, head, folded, reinterpret_cast<float*>(mine));
#pragma omp for schedule(dynamic)
        for (i64 item = 0; item < count * plan.blocks; ++item) {
          const i64 index = item / plan.blocks, from = item % plan.blocks * kQueries;
          i64 row = 0;
          while (begins[row + 1] <= index) ++row;
          const i64 length = length_of(call, row), span = span_of(length), begin = (index - begins[row]) * span;
          const i64 stop = begin + span < length ? begin + span : length;
          const i64 width = plan.padded - from < kQueries ? plan.padded - from : kQueries;
          const Part& whole = parts[index];
          const Part part{whole.top + from, whole.total + from, whole.summed + from * plan.rank};
          attend(call, plan, row, begin, stop, from, width, folded, scratch_of(mine, plan, width), part);
        }
#pragma omp for schedule(dynamic)
        for (i64 head = 0; head < call.heads; ++head)
          unfold_head(call, plan, head, parts, begins, reinterpret_cast<float*>(mine));
      }
      std::free(mine);
    }
  }
  *call.failed = failed;
  std::free(parts);
  std::free(memory);
  std::free(begins);
}

}  // namespace INTERLACE_LEVEL
}  // namespace interlace
