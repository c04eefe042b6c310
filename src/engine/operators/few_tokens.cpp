#include "engine/operators/few_tokens.h"

#include <optional>

#include "engine/operators/row_adapters.h"
#include "tensor/scratch_tensor.h"
#include "turbo/grouped_linear/grouped_linear.h"
#include "turbo/rope/rope.h"

namespace primus::engine {
namespace {

using turbo::ChosenExperts;
using turbo::GroupedGemm;
using turbo::launch;

// ---- experts ------------------------------------------------------------------------------------

Tensor value_of(const Parameter* bias) { return bias ? bias->value : Tensor(); }

// The intermediate results of the shared expert; both are absent if there is none.
struct SharedRows {
  Tensor rows, gates;

  // Returns the shapes for this number of tokens, without memory.
  static SharedRows shapes(const FewExperts& of, std::int64_t tokens) {
    SharedRows result;
    if (of.shared_down) result.rows = Tensor(nullptr, DType::kBF16, {tokens, of.shared_down->shape[1]});
    if (of.shared_gate) result.gates = Tensor(nullptr, DType::kF32, {tokens});
    return result;
  }
};

// Returns the call that computes gate and up and applies the activation. `weights`: the routing weights.
GroupedGemm gated(const FewExperts& of, const Tensor& x, const Tensor& experts, const Tensor& weights,
                  const Tensor& rows, const SharedRows& shared) {
  return {.role = turbo::GemmRole::kForward,
          .a = x,
          .b = of.gate_up->value,
          .c = rows,
          .chosen = {.experts = experts,
                     .end = ChosenExperts::End::kGated,
                     .weights = of.weighs_rows ? weights : Tensor(),
                     .bias = value_of(of.gate_up_bias),
                     .shared = {.weights = value_of(of.shared_gate_up),
                                .rows = shared.rows,
                                .gate = value_of(of.shared_gate),
                                .gates = shared.gates},
                     .weigh_input = of.weigh_input,
                     .limit = static_cast<float>(of.clamp.limit),
                     .alpha = static_cast<float>(of.clamp.alpha),
                     .shift = static_cast<float>(of.clamp.shift)},
          .workspace = {}};
}

// Returns the call of the last product, which sums the results over the experts of a token.
GroupedGemm summed(const FewExperts& of, const Tensor& rows, const Tensor& experts, const Tensor& weights,
                   const Tensor& out, const SharedRows& shared) {
  return {
      .role = turbo::GemmRole::kForward,
      .a = rows,
      .b = of.down->value,
      .c = out,
      .chosen = {.experts = experts,
                 .end = ChosenExperts::End::kSummed,
                 .weights = of.weighs_rows ? Tensor() : weights,
                 .bias = value_of(of.down_bias),
                 .shared = {.weights = value_of(of.shared_down), .rows = shared.rows, .gates = shared.gates}},
      .workspace = {}};
}

struct Experts {
  enum In : InputName { kX, kExperts, kWeights, kAddend };  // kAddend is optional
  enum Out : OutputName { kOut };
};

void experts_forward(OperatorCall& op) {
  const auto of = op.attributes<FewExperts>();
  const Tensor experts = op.in(Experts::kExperts), weights = op.in(Experts::kWeights);
  Arena& scratch = op.context().scratch;
  const ScratchTensor rows(scratch, DType::kBF16, {experts.elements(), of.down->shape[2]});
  SharedRows shared = SharedRows::shapes(of, experts.shape[0]);
  std::optional<ScratchTensor> shared_rows, gates;
  if (of.shared_down) shared.rows = shared_rows.emplace(scratch, DType::kBF16, shared.rows.shape).get();
  if (of.shared_gate) shared.gates = gates.emplace(scratch, DType::kF32, shared.gates.shape).get();
  launch(op.context(), gated(of, op.in(Experts::kX), experts, weights, rows.get(), shared));
  GroupedGemm sum = summed(of, rows.get(), experts, weights, op.out(Experts::kOut), shared);
  sum.chosen.previous = op.optional_in(Experts::kAddend);
  launch(op.context(), sum);
}

constexpr Operator kExperts{
    .name = "few_experts", .operator_class = OperatorClass::kExperts, .forward = experts_forward};

// ---- heads --------------------------------------------------------------------------------------

struct RopeAttributes {
  Tensor table;
  RopeShape shape;
  std::int64_t query_heads;
  float epsilon;
};

struct Heads {
  enum In : InputName { kX, kPositions };
  enum Out : OutputName { kY };
};

turbo::Rope normed_rotation(const Tensor& x, const Tensor& y, const Parameter& norm, const Tensor& positions,
                            const RopeAttributes& a) {
  return {
      .x = x,
      .y = y,
      .positions = positions,
      .table = a.table,
      .heads = a.shape.heads,
      .head_dim = a.shape.head_dim,
      .rotary_dim = a.shape.rotary_dim,
      .rotary_begin = a.shape.rotary_begin,
      .interleaved = a.shape.interleaved,
      .inverse = a.shape.inverse,
      .norm = {
          .weight = norm.value, .query_heads = a.query_heads, .eps = a.epsilon, .offset = norm.norm_offset}};
}

void normed_rope_forward(OperatorCall& op) {
  launch(op.context(), normed_rotation(op.in(Heads::kX), op.out(Heads::kY), op.parameter(),
                                       op.in(Heads::kPositions), op.attributes<RopeAttributes>()));
}

constexpr Operator kNormedRope{
    .name = "normed_rope", .operator_class = OperatorClass::kRope, .forward = normed_rope_forward};

}  // namespace

bool takes_few_experts(const Value& x, std::int64_t top_k, const FewExperts& experts) {
  Tape& tape = x.tape();
  // These kernels read several matrices at once, but only one matrix in 4 bits is expanded at a time.
  const auto adapted = [&](Parameter* p) {
    return p && (tape.adapter_of(*p) || !tape.part_adapters_of(*p).empty() || adapts_rows(tape, *p) ||
                 p->four_bit);
  };
  if (x.dtype() != DType::kBF16 || adapted(experts.gate_up) || adapted(experts.down) ||
      adapted(experts.shared_gate_up) || adapted(experts.shared_down))
    return false;
  const std::int64_t tokens = x.shape()[0];
  const Tensor chosen(nullptr, DType::kI32, {tokens, top_k});
  const Tensor rows(nullptr, DType::kBF16, {tokens * top_k, experts.down->shape[2]});
  const SharedRows shared = SharedRows::shapes(experts, tokens);
  Device& device = tape.context().device;
  return is_taken(device, gated(experts, x.tensor(), chosen, {}, rows, shared)) &&
         is_taken(device, summed(experts, rows, chosen, {}, x.tensor(), shared));
}

Value few_experts(const Value& x, const Routing& routing, const FewExperts& experts, const Value& addend) {
  return x.tape().record(kExperts,
                         {{Experts::kX, x},
                          {Experts::kExperts, routing.experts},
                          {Experts::kWeights, routing.weights},
                          {Experts::kAddend, addend}},
                         experts.down, {{Experts::kOut, x.dtype(), {x.shape()[0], experts.down->shape[1]}}},
                         experts)[Experts::kOut];
}

Value normed_rope(const Value& x, Parameter& norm, const turbo::HeadNormShape& heads, double epsilon,
                  const Value& positions, const Tensor& table, const RopeShape& shape) {
  const RopeAttributes a{table, shape, heads.heads, static_cast<float>(epsilon)};
  if (shape.heads != heads.normed() ||
      !is_taken(x.tape().context().device, normed_rotation(x.tensor(), x.tensor(), norm, {}, a)))
    return rope(head_norm(x, &norm, heads, epsilon), positions, table, shape);
  return x.tape().record(kNormedRope, {{Heads::kX, x}, {Heads::kPositions, positions}}, &norm,
                         {{Heads::kY, x.dtype(), x.shape()}}, a)[Heads::kY];
}

}  // namespace primus::engine
