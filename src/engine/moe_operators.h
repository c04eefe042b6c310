// The training operators of a mixture of experts. T tokens choose top_k of E experts each: T · top_k rows,
// sorted by expert. How many rows each expert has is known on the device alone, so the shapes on the tape,
// and memory, are the same for every routing. Where ranks share the experts, a routing is for some of them
// (engine/parallel_operators.h), and there are fewer rows: those that they can have at most.
//
//   Routing r = route(router_logits(x, gate, {}), rule);
//   y = linear_combine(weighted_swiglu(dispatch_linear(x, gate_up, r), r), down, r);
#pragma once

#include "engine/operators.h"
#include "turbo/quantile_balance/quantile_balance.h"
#include "turbo/router/router.h"

namespace primus::engine {

// Scores before anything else is done to them, in fp32 from the fp32 master weight: [T, hidden] · [E,
// hidden]ᵀ
// -> [T, E] fp32. `jitter` multiplies every element of x by a random number in [1 - jitter, 1 + jitter],
// drawn by `random` and the numbers of `tokens` (turbo::RouterRandom::tokens).
Value router_logits(const Value& x, Parameter& weight, double jitter = 0,
                    const turbo::RouterRandom& random = {}, const Value& tokens = {});

// logits + bias, [T, E] fp32, from the fp32 master. Pass logits by std::move to let it happen in place.
Value router_bias(Value logits, Parameter& bias);

struct RoutingRule {
  turbo::RouterRule router;
  turbo::RouterRandom random = {};  // for RouterRule::forced, without its tokens
  std::int64_t capacity = 0;        // rows that an expert takes at most; 0: as many as there are
  bool drop_lightest = true;        // beyond the capacity: those of the smallest weights; false: the last
  std::int64_t sequences = 1;       // that the tokens are, for which are last (turbo::PlanRouting)
  // Losses on the logits, which enter their gradient: load balance over `segments` equal runs of tokens, and
  // z (turbo::RouterLosses).
  float balance_scale = 0, z_scale = 0;
  std::int64_t segments = 1;
  // Where loads of more runs of tokens count (StepLoad): 1 / their number.
  float load_share = 1;
};

// The loads of all data ranks in the step so far, this microbatch included, which its balance loss is made
// of: [1, E] int32. `running` [E] int32, in persistent memory, holds them between microbatches; zero when a
// step begins. Counts exactly once, however often what follows is recomputed; all ranks of the stage call it
// in the same order.
Value step_load(const Value& logits, const RoutingRule& rule, const Tensor& running, DataParallel& parallel);

// Which expert each token chose, what each choice weighs, and where its row is.
struct Routing {
  Value weights;  // [T, top_k] fp32, differentiable
  Value experts;  // [T, top_k] int32
  Value plan;     // turbo::RoutingPlan
  std::int64_t expert_count = 0;
  std::int64_t rows = 0;  // that there may be
  bool by_logits = true;  // the chosen are those of the largest logits, with nothing else to decide
};

// `choice_bias`, [E] fp32 or absent, is added to the scores for choosing only. `given`, [T, top_k] int32 in
// memory that outlives the tape, or absent: these experts instead of the best; weights are still computed
// from the scores. `tokens`: as for router_logits, or empty where nothing random is drawn.
// `load`: what step_load() gave, or empty: that of these tokens. `by_table`: as `given`, from
// experts_by_table(), or empty.
Routing route(const Value& logits, const RoutingRule& rule, const Tensor& choice_bias = {},
              const Tensor& given = {}, const Value& tokens = {}, const Value& load = {},
              const Value& by_table = {});

// The experts of each token by its number alone, [T, top_k] int32: rows of `table`, [vocabulary, top_k] fp32.
Value experts_by_table(const Value& tokens, Parameter& table);

// Copies the chosen experts to `experts` [T, top_k] int32 in memory that outlives the tape. Once, as
// observe().
void record(const Routing& routing, const Tensor& experts);
// The same of any whole numbers that a pass decides by.
void record(const Value& numbers, const Tensor& to);

// Adds this routing to counters in persistent memory: `load` [E + 1] int32 (turbo::ExpertLoad) and `losses`
// [2] fp32 (turbo::RouterLosses). Runs exactly once, however often the routing is recomputed.
// `step_load`: as for route().
void observe(const Value& logits, const Routing& routing, const RoutingRule& rule, const Tensor& load,
             const Tensor& losses, const Value& step_load = {});

// The same of what each expert's score exceeds a token's cutoff by: `counts` [E, bins] int32
// (turbo::MarginHistogram).
void observe_margins(const Value& logits, const RoutingRule& rule, const Tensor& choice_bias,
                     const turbo::MarginBins& bins, const Tensor& counts);

// Products with experts' matrices, and what these have of low rank: an adapter for each expert.
//
// The row of each choice of each token times the matrix of its expert: [T, in] · [E, out, in]ᵀ -> [T · top_k,
// out].
Value dispatch_linear(const Value& x, Parameter& weight, const Routing& routing);
// Each row times the matrix of its expert: [rows, in] · [E, out, in]ᵀ -> [rows, out].
Value grouped_linear(const Value& rows, Parameter& weight, const Routing& routing);
// Back to tokens: the sum of each token's rows, times their weights, and of `addend` if there is one.
Value combine(const Value& rows, const Routing& routing, const Value& addend = {});
// Both at once, for rows that have their weights already: what experts return is never stored for long.
Value linear_combine(const Value& rows, Parameter& weight, const Routing& routing, const Value& addend = {});

// Each row plus the bias of its expert, [E, n]. Pass rows by std::move to let it happen in place.
Value grouped_bias(Value rows, Parameter& bias, const Routing& routing);

// SwiGLU with the weights of the choices: [rows, 2*ffn] -> [rows, ffn]. `weigh_input`: gate and up are
// multiplied (Llama 4, which weighs what an expert reads), else the result is, as if the expert's output
// were.
Value weighted_swiglu(const Value& gate_up, const Routing& routing, bool weigh_input = false);
// A clamped activation (turbo::ClampedSwigluForward): [rows, 2*ffn] -> [rows, ffn].
struct SwigluClamp {
  double limit, alpha = 1.702, shift = 1;  // gpt-oss's; alpha 1 and shift 0: SwiGLU of what is clamped
};
Value clamped_swiglu(const Value& gate_up, const SwigluClamp& clamp);

}  // namespace primus::engine
