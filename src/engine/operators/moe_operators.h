// The training operators of a mixture of experts. Each of T tokens chooses top_k of E experts, which gives T
// · top_k rows, sorted by expert. The number of rows per expert is known only on the device, so memory and
// the shapes on the tape must be the same for every routing. If ranks share the experts, a routing covers
// only this rank's experts (engine/parallel/parallel_operators.h). The number of rows is then the maximum
// that these experts can get.
//
//   Routing r = route(router_logits(x, gate, {}), rule);
//   y = linear_combine(weighted_swiglu(dispatch_linear(x, gate_up, r), r), down, r);
#pragma once

#include "engine/operators/operators.h"
#include "turbo/quantile_balance/quantile_balance.h"
#include "turbo/router/router.h"

namespace primus::engine {

// Returns the router's raw scores, computed in fp32 from the fp32 master weight: [T, hidden] · [E, hidden]ᵀ
// -> [T, E] fp32. `jitter` multiplies every element of x by a random number in [1 - jitter, 1 + jitter],
// drawn from `random` and the numbers of `tokens` (turbo::RouterRandom::tokens).
Value router_logits(const Value& x, Parameter& weight, double jitter = 0,
                    const turbo::RouterRandom& random = {}, const Value& tokens = {});

// Returns logits + bias, [T, E] fp32, computed from the fp32 master of the bias. Pass logits by std::move to
// add in place.
Value router_bias(Value logits, Parameter& bias);

struct RoutingRule {
  turbo::RouterRule router;
  turbo::RouterRandom random = {};  // used by RouterRule::forced; leave `tokens` unset
  std::int64_t capacity = 0;        // maximum rows per expert; 0: no limit
  // if an expert gets more rows than `capacity`: true drops rows with the smallest weights, false the last
  // rows
  bool drop_lightest = true;
  std::int64_t sequences = 1;  // number of concatenated sequences of equal length (turbo::PlanRouting)
  // Auxiliary losses, whose gradients are added to the gradient of the logits: load balance over `segments`
  // equal ranges of tokens, and z loss (turbo::RouterLosses).
  float balance_scale = 0, z_scale = 0;
  std::int64_t segments = 1;
  // 1 / (number of token ranges whose loads step_load() has summed), see StepLoad.
  float load_share = 1;
};

// Returns the expert loads for the balance loss of this microbatch: [1, E] int32, summed over all data ranks
// and over the step's microbatches up to this one. `running`, [E] int32 in persistent memory, holds the loads
// between microbatches; it is zero when a step begins. Counts each token exactly once, even if later
// operators are recomputed. All ranks of the stage call step_load() in the same order.
Value step_load(const Value& logits, const RoutingRule& rule, const Tensor& running, DataParallel& parallel);

// The experts that each token chose, the weight of each choice, and the position of its row.
struct Routing {
  Value weights;  // [T, top_k] fp32, differentiable
  Value experts;  // [T, top_k] int32
  Value plan;     // a turbo::RoutingPlan
  std::int64_t expert_count = 0;
  std::int64_t rows = 0;  // maximum number of rows
  std::int64_t kept = 0;  // above 0: the plan has two parts, and the first part has at most this many rows
  // if this is one part of a routing: the range in `plan` that holds this part's plan
  std::int64_t plan_begin = 0, plan_end = 0;
  bool by_logits = true;  // the chosen experts are exactly the experts with the largest logits
};

// `choice_bias`, [E] fp32 or absent, is added to the scores only for the choice. `given`, [T, top_k] int32 or
// absent: replaces the chosen experts; weights still come from the scores. The memory of `given` must outlive
// the tape. `by_table`: like `given`, but a result of experts_by_table(), or empty. `tokens`: as for
// router_logits, or empty if no random numbers are drawn. `load`: the result of step_load(); empty: the load
// of these tokens.
Routing route(const Value& logits, const RoutingRule& rule, const Tensor& choice_bias = {},
              const Tensor& given = {}, const Value& tokens = {}, const Value& load = {},
              const Value& by_table = {});

// Returns the experts of each token, [T, top_k] int32: row `id` of `table`, [vocabulary, top_k] fp32, for a
// token with this id.
Value experts_by_table(const Value& tokens, Parameter& table);

// Copies the chosen experts to `experts` [T, top_k] int32 in memory that outlives the tape. Runs once, like
// observe().
void record(const Routing& routing, const Tensor& experts);
// Copies `numbers`, int32 values from which a pass derives choices, to `to`. The memory of `to` must outlive
// the tape.
void record(const Value& numbers, const Tensor& to);

// Adds this routing to counters in persistent memory: `load` [E + 1] int32 (turbo::ExpertLoad) and `losses`
// [2] fp32 (turbo::RouterLosses). Runs exactly once, even if the routing is recomputed.
// `step_load`: as for route().
void observe(const Value& logits, const Routing& routing, const RoutingRule& rule, const Tensor& load,
             const Tensor& losses, const Value& step_load = {});

// Adds each expert's histogram of its margins over the tokens (turbo/quantile_balance/quantile_balance.h) to
// `counts`, [E, bins] int32. Runs once, like observe().
void observe_margins(const Value& logits, const RoutingRule& rule, const Tensor& choice_bias,
                     const turbo::MarginBins& bins, const Tensor& counts);

// The two parts of a routing with Routing::kept > 0. The first part has the experts [0, n), with the largest
// n for which these experts have at most Routing::kept rows in total. The second part has all other experts;
// usually it is empty. If model code calls the second part's operators in a ReplayScope, a step keeps no
// activations of the second part, and all layers share the memory for its maximum number of rows.
//
// Results have the same bits as without parts, because an expert's rows are multiplied together and a token's
// rows are summed in the same order.
struct RoutingParts {
  Routing head, rest;
  // These Values represent the rows of the two parts, [rows, c]. They have gradients but no contents. One
  // kernel sums the gradient of x from the gradients of both parts. A matrix and its adapter, if it has one,
  // have different Values, so that their gradients are added to that of x one after the other.
  struct RowGradients {
    Value weight, adapter;
  };
  RowGradients head_gradient = {}, rest_gradient = {};
};
// Divides a routing into its parts. `x` and `weight`: the arguments of dispatch_linear().
RoutingParts parts_of(const Routing& routing, const Value& x, const Parameter& weight);

// Products with experts' matrices, including one low-rank adapter per expert. Multiplies each token's row by
// the matrix of each expert that the token chose: [T, in] · [E, out, in]ᵀ -> [T · top_k, out]. `gradients`:
// if `routing` is one part of a divided routing, this part's gradients in RoutingParts.
Value dispatch_linear(const Value& x, Parameter& weight, const Routing& routing,
                      const RoutingParts::RowGradients& gradients = {});
// Multiplies each row by the matrix of its expert: [rows, in] · [E, out, in]ᵀ -> [rows, out].
Value grouped_linear(const Value& rows, Parameter& weight, const Routing& routing);
// Returns, for each token, the weighted sum of its rows, plus `addend` if given.
Value combine(const Value& rows, const Routing& routing, const Value& addend = {});
// Computes combine() for the rows of both parts of a routing.
Value combine(const Value& head, const Value& rest, const RoutingParts& parts);
// Computes combine(grouped_linear(rows, weight, ...), ...) for rows that are already weighted. As one
// operator, it needs memory for the experts' output only while it runs.
Value linear_combine(const Value& rows, Parameter& weight, const Routing& routing, const Value& addend = {});
// Computes linear_combine() for the rows of both parts of a routing.
Value linear_combine(const Value& head, const Value& rest, Parameter& weight, const RoutingParts& parts,
                     const Value& addend = {});

// Adds to each row the bias of its expert, [E, n]. Pass rows by std::move to run in place.
Value grouped_bias(Value rows, Parameter& bias, const Routing& routing);

// Applies SwiGLU and multiplies by the weights of the choices: [rows, 2*ffn] -> [rows, ffn]. `weigh_input`:
// multiplies gate and up (Llama 4, which weights the experts' input). Otherwise the weight multiplies the
// result of SwiGLU, which equals weighting the expert's output.
Value weighted_swiglu(const Value& gate_up, const Routing& routing, bool weigh_input = false);
// SwiGLU with clamping (turbo::ClampedSwigluForward): [rows, 2*ffn] -> [rows, ffn].
struct SwigluClamp {
  double limit, alpha = 1.702, shift = 1;  // the defaults are gpt-oss's values; alpha = 1 and shift = 0 give
                                           // SwiGLU of clamped inputs
};
Value clamped_swiglu(const Value& gate_up, const SwigluClamp& clamp);

}  // namespace primus::engine
