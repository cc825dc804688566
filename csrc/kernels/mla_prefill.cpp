#include "kernels/mla_prefill.h"

#ifdef _OPENMP
#include <omp.h>
#endif

#include <cfloat>
#include <cmath>
#include <cstdlib>

#include "gemm.h"

// An item is one head of one row with a group of its queries, as a rule all of them. The head's up-projections are laid out once; then a
// block of 256 keys and values is rebuilt and serves the whole group, 64 queries at a time, while it is in the core's cache. Lanes are keys
// in the scores and values in the output. A right operand lies in panels of 32 columns, so that a product reads it straight through.
// The blocks begin at multiples of 256 whatever the call, and what a query may not see adds exact zeros or is left out: neither the
// neighbours of a row, nor the group that a query is in, nor the number of threads change a bit.

namespace interlace {
namespace INTERLACE_LEVEL {
namespace {

constexpr i64 kKeys = 256;      // keys and values that are rebuilt together
constexpr i64 kQueries = 64;    // queries of one product
constexpr i64 kPanel = kColStep;
constexpr i64 kGroup = 8192;    // queries of an item, at most: bounds the scratch
constexpr float kLog2E = 1.44269504f;
constexpr i64 kLeast = 256;     // and at least, where the queries of a head are shared out among threads

struct Plan {
  i64 nope, depth;         // width of the nope part, even; of a whole key, padded
  i64 rank, value;         // padded
  i64 k_panels, v_panels;  // panels of the two up-projections
  i64 groups, group;       // of queries of a row, and queries in one
};

struct Scratch {
  uint32_t* up;       // [k_panels + v_panels][rank / 2][32]
  uint32_t* keys;     // [kKeys / 32][depth / 2][32]
  uint32_t* values;   // [v_panels][kKeys / 2][32]
  bf16* rows;         // [kKeys][rank], for a block that is cut or whose width is odd
  float* line;        // [kKeys][32]
  float* scores;      // [kQueries][kKeys]
  bf16* weights;      // [kQueries][kKeys]
  bf16* q;            // [group][depth]
  float* summed;      // [group][value]
  float* total;       // [group][W]: a lane each, added up at the end
  float* top;         // [group]
};

i64 length_of(const MlaPrefill& call, i64 row) { return call.lengths ? call.lengths[row] : call.cached; }

Plan plan_of(const MlaPrefill& call) {
  Plan plan;
  plan.nope = round_up(call.nope, 2);
  plan.depth = round_up(plan.nope + round_up(call.shared, 2), kDepthStep);
  plan.rank = round_up(call.rank, kDepthStep);
  plan.value = round_up(call.value, kPanel);
  plan.k_panels = round_up(call.nope, kPanel) / kPanel;
  plan.v_panels = plan.value / kPanel;
  i64 threads = 1;
#ifdef _OPENMP
  threads = omp_get_max_threads();
#endif
  // two items for each thread, but a group that is too small would rebuild more than it attends
  const i64 items = call.batch * call.heads;
  i64 groups = (2 * threads + items - 1) / items;
  const i64 most = call.tokens / kLeast, least = (call.tokens + kGroup - 1) / kGroup;
  groups = groups > most ? most : groups;
  groups = groups < least ? least : groups;
  plan.group = round_up((call.tokens + groups - 1) / groups, kQueries);
  plan.groups = (call.tokens + plan.group - 1) / plan.group;
  return plan;
}

// With `at` null: the bytes that are needed.
i64 lay_out(const Plan& plan, char* at, Scratch* s) {
  i64 used = 0;
  auto take = [&](auto*& place, i64 count) {
    using T = __typeof__(*place);
    if (at) place = reinterpret_cast<T*>(at + used);
    used += round_up(count * i64(sizeof(T)), 64);
  };
  take(s->up, (plan.k_panels + plan.v_panels) * plan.rank / 2 * kPanel);
  take(s->keys, kKeys * plan.depth / 2);
  take(s->values, plan.value * kKeys / 2);
  take(s->rows, kKeys * plan.rank);
  take(s->line, kKeys * kPanel);
  take(s->scores, kQueries * kKeys);
  take(s->weights, kQueries * kKeys);
  take(s->q, plan.group * plan.depth);
  take(s->summed, plan.group * plan.value);
  take(s->total, plan.group * W);
  take(s->top, plan.group);
  return used;
}

// Columns of a right operand from the rows of a weight [columns, rank].
void pack_weight(const bf16* w, i64 stride, i64 columns, i64 rank, i64 padded, uint32_t* out) {
  for (i64 c = 0; c < round_up(columns, kPanel); ++c) {
    uint32_t* lane = out + c / kPanel * (padded / 2) * kPanel + c % kPanel;
    i64 r = 0;
    if (c < columns) {
      const bf16* row = w + c * stride;
      for (; r + 2 <= rank; r += 2) std::memcpy(lane + r / 2 * kPanel, row + r, 4);
      if (r < rank) lane[r / 2 * kPanel] = row[r], r += 2;
    }
    for (; r < padded; r += 2) lane[r / 2 * kPanel] = 0;
  }
}

// Keys [begin, begin + count) of a row and a head, and their values, as right operands; behind `count` they are zero.
void rebuild(const MlaPrefill& call, const Plan& plan, const Scratch& s, i64 row, i64 begin, i64 count) {
  const i64 stride = call.latent_stride[1], padded = round_up(count, kPanel);
  const bf16* latent = call.latent + row * call.latent_stride[0] + begin * stride;
  const bf16* a = latent;
  i64 lda = stride;
  if (count < padded || plan.rank != call.rank) {
    for (i64 t = 0; t < padded; ++t) {
      bf16* line = s.rows + t * plan.rank;
      const i64 filled = t < count ? call.rank : 0;
      if (filled) std::memcpy(line, latent + t * stride, size_t(filled) * 2);
      std::memset(line + filled, 0, size_t(plan.rank - filled) * 2);
    }
    a = s.rows;
    lda = plan.rank;
  }
  const i64 panel = plan.rank / 2 * kPanel, block = plan.depth / 2 * kPanel;
  for (i64 p = 0; p < plan.k_panels; ++p) {
    gemm(a, lda, s.up + p * panel, kPanel, s.line, kPanel, padded, kPanel, plan.rank, false);
    const i64 left = (plan.nope - p * kPanel) / 2, pairs = left < kPanel / 2 ? left : kPanel / 2;
    for (i64 t = 0; t < padded; ++t) {
      bf16 rounded[kPanel];
      for (i64 n = 0; n < kPanel; n += W) store(rounded + n, load(s.line + t * kPanel + n));
      uint32_t* lane = s.keys + t / kPanel * block + p * kPanel / 2 * kPanel + t % kPanel;
      for (i64 i = 0; i < pairs; ++i) std::memcpy(lane + i * kPanel, rounded + 2 * i, 4);
    }
  }
  for (i64 t = 0; t < padded; ++t) {
    uint32_t* lane = s.keys + t / kPanel * block + plan.nope / 2 * kPanel + t % kPanel;
    const bf16* key = latent + t * stride + call.rank;
    for (i64 i = 0; i < call.shared; i += 2) {
      uint32_t pair = 0;
      if (t < count) pair = key[i] | uint32_t(i + 1 < call.shared ? key[i + 1] : 0) << 16;
      lane[i / 2 * kPanel] = pair;
    }
  }
  for (i64 p = 0; p < plan.v_panels; ++p) {
    gemm(a, lda, s.up + (plan.k_panels + p) * panel, kPanel, s.line, kPanel, padded, kPanel, plan.rank, false);
    for (i64 t = 0; t < padded; t += 2)
      for (i64 v = 0; v < kPanel; v += W) {
        const vu pairs = pairs_of(load(s.line + t * kPanel + v), load(s.line + (t + 1) * kPanel + v));
        std::memcpy(s.values + (p * kKeys / 2 + t / 2) * kPanel + v, &pairs, sizeof pairs);
      }
  }
}

// Scores of one query, of which the first `visible` count, become weights 2^(scale s - top) in bf16, zero from there to `padded`.
void soften(const float* scores, i64 visible, i64 padded, float scale, float* top, float* total, float* summed, i64 value, bf16* weights) {
  if (visible <= 0) {
    std::memset(weights, 0, size_t(padded) * 2);
    return;
  }
  const i64 whole = visible / W * W;
  vi lanes;
  for (int i = 0; i < W; ++i) lanes[i] = i;
  const vi seen = lanes < int32_t(visible - whole);
  vf best = splat(-__builtin_inff());
  for (i64 t = 0; t < whole; t += W) best = max(load(scores + t) * scale, best);
  if (whole < visible) {
    const vf rest = load(scores + whole) * scale;
    best = max(seen ? rest : splat(-__builtin_inff()), best);
  }
  const float before = *top, found = max(best), now = found > before ? found : before;
  vf sums = load(total);
  if (now != before) {
    const float keep = exp2_weight(splat(before - now))[0];
    *top = now;
    sums *= keep;
    for (i64 v = 0; v < value; v += W) store(summed + v, load(summed + v) * keep);
  }
  for (i64 t = 0; t < whole; t += W) {
    const vf weight = exp2_weight(load(scores + t) * scale - now);
    sums += weight;
    store_normal(weights + t, weight);
  }
  i64 filled = whole;
  if (whole < visible) {
    const vf weight = seen ? exp2_weight(load(scores + whole) * scale - now) : vf{};
    sums += weight;
    store_normal(weights + whole, weight);
    filled += W;
  }
  store(total, sums);
  if (filled < padded) std::memset(weights + filled, 0, size_t(padded - filled) * 2);
}

// `some` queries of a group from `from` on, the first of them at position `place`, and the keys [begin, begin + count).
void attend(const MlaPrefill& call, const Plan& plan, const Scratch& s, i64 from, i64 some, i64 place, i64 begin, i64 count) {
  const i64 last = place + some - begin;  // keys that the last query sees
  const i64 width = round_up(count < last ? count : last, kPanel), rows = round_up(some, kRowStep);
  const bf16* q = s.q + from * plan.depth;
  for (i64 at = 0; at < width; at += kPanel)
    gemm(q, plan.depth, s.keys + at / kPanel * (plan.depth / 2) * kPanel, kPanel, s.scores + at, kKeys, rows, kPanel, plan.depth, false);
  for (i64 i = 0; i < rows; ++i) {
    const i64 sees = i < some ? place + i + 1 - begin : 0;
    soften(s.scores + i * kKeys, count < sees ? count : sees, width, call.scale * kLog2E, s.top + from + i, s.total + (from + i) * W,
           s.summed + (from + i) * plan.value, plan.value, s.weights + i * kKeys);
  }
  for (i64 p = 0; p < plan.v_panels; ++p)
    gemm(s.weights, kKeys, s.values + p * kKeys / 2 * kPanel, kPanel, s.summed + from * plan.value + p * kPanel, plan.value, rows, kPanel,
         width, true);
}

// Queries [first, first + some) of a row and a head.
void work(const MlaPrefill& call, const Plan& plan, const Scratch& s, i64 row, i64 head, i64 first, i64 some) {
  const i64 padded = round_up(some, kRowStep);
  for (i64 i = 0; i < padded; ++i) {
    bf16* line = s.q + i * plan.depth;
    std::memset(line, 0, size_t(plan.depth) * 2);
    if (i >= some) continue;
    const bf16* q = call.q + row * call.q_stride[0] + (first + i) * call.q_stride[1] + head * call.q_stride[2];
    if (call.nope) std::memcpy(line, q, size_t(call.nope) * 2);
    if (call.shared) std::memcpy(line + plan.nope, q + call.nope, size_t(call.shared) * 2);
  }
  for (i64 i = 0; i < padded; ++i) s.top[i] = -FLT_MAX;
  std::memset(s.total, 0, size_t(padded * W) * 4);
  std::memset(s.summed, 0, size_t(padded * plan.value) * 4);
  std::memset(s.keys, 0, size_t(kKeys * plan.depth) * 2);
  pack_weight(call.w_uk + head * call.uk_stride[0], call.uk_stride[1], call.nope, call.rank, plan.rank, s.up);
  pack_weight(call.w_uv + head * call.uv_stride[0], call.uv_stride[1], call.value, call.rank, plan.rank,
              s.up + plan.k_panels * plan.rank / 2 * kPanel);
  const i64 place = length_of(call, row) - call.tokens + first;  // of the group's first query; negative: it sees nothing
  const i64 end = place + some;
  for (i64 begin = 0; begin < end; begin += kKeys) {
    const i64 count = end - begin < kKeys ? end - begin : kKeys;
    rebuild(call, plan, s, row, begin, count);
    const i64 skipped = begin > place ? (begin - place) / kQueries * kQueries : 0;  // queries that see none of the block
    for (i64 from = skipped; from < some; from += kQueries)
      if (place + from + kQueries > begin)
        attend(call, plan, s, from, some - from < kQueries ? some - from : kQueries, place + from, begin, count);
  }
  for (i64 i = 0; i < some; ++i) {
    const float total = sum(load(s.total + i * W)), factor = total != 0 ? 1.0f / total : 0.0f;
    const i64 at = (row * call.tokens + first + i) * call.heads + head;
    if (call.lse) call.lse[at] = total != 0 ? std::log(total) + s.top[i] / kLog2E : -__builtin_inff();
    for (i64 v = 0; v < call.value; ++v) call.out[at * call.value + v] = s.summed[i * plan.value + v] * factor;
  }
}

}  // namespace

void mla_prefill(const MlaPrefill& call) {
  *call.failed = false;
  if (!call.batch || !call.tokens || !call.heads) return;
  const Plan plan = plan_of(call);
  bool failed = false;
#pragma omp parallel
  {
    Tiles tiles;
    (void)tiles;
    Scratch s{};
    char* mine = static_cast<char*>(std::aligned_alloc(64, size_t(lay_out(plan, nullptr, &s))));
    if (!mine) {
#pragma omp atomic write
      failed = true;
    }
#pragma omp barrier
    if (!failed) {
      lay_out(plan, mine, &s);
      // the last group of a row sees the most keys and goes first
#pragma omp for schedule(dynamic)
      for (i64 item = 0; item < call.batch * call.heads * plan.groups; ++item) {
        const i64 group = plan.groups - 1 - item / (call.batch * call.heads), rest = item % (call.batch * call.heads);
        const i64 first = group * plan.group, left = call.tokens - first;
        work(call, plan, s, rest / call.heads, rest % call.heads, first, left < plan.group ? left : plan.group);
      }
    }
    std::free(mine);
  }
  *call.failed = failed;
}

}  // namespace INTERLACE_LEVEL
}  // namespace interlace
