#include "engine/operators/score_head.h"

#include "engine/parallel/parallel_operators.h"
#include "tensor/scratch_tensor.h"
#include "turbo/elementwise/elementwise.h"
#include "turbo/linear/linear.h"

namespace primus::engine {
namespace {

using turbo::Gemm;
using turbo::GemmRole;
using turbo::launch;

struct ScoreHead {
  enum In : InputName { kHidden, kWeights };
  enum Out : OutputName { kScores };
};

struct ScoreAttributes {
  comm::Communicator* group;
};

// Returns this rank's entries of a vector of all tokens, as a column.
Tensor own_column(const OperatorCall& op, const Tensor& all) {
  const Tensor own = own_tokens(all, op.attributes<ScoreAttributes>().group);
  return own.reshaped({own.elements(), 1});
}

void forward(OperatorCall& op) {
  const Tensor scores = op.out(ScoreHead::kScores), own = own_column(op, scores);
  launch(op.context(), Gemm{.role = GemmRole::kForward,
                            .a = op.in(ScoreHead::kHidden),
                            .b = op.weight(),
                            .c = own,
                            .accumulate = false,
                            .workspace = {}});
  if (comm::Communicator* const group = op.attributes<ScoreAttributes>().group)
    group->all_gather(op.context().stream, own.reshaped({own.elements()}), scores);
}

// Calls use(d_scores): the gradient of this rank's scores, in the type of the hidden states.
template <class Use>
void with_gradient(OperatorCall& op, const Use& use) {
  const Tensor hidden = op.in(ScoreHead::kHidden), weights = own_column(op, op.in(ScoreHead::kWeights));
  if (hidden.dtype == weights.dtype) return use(weights);
  const ScratchTensor narrow(op.context().scratch, hidden.dtype, weights.shape);
  launch(op.context(), turbo::Cast{.x = weights, .out = narrow.get()});
  use(narrow.get());
}

void add_weight_gradient(OperatorCall& op, const Tensor& d_scores) {
  const auto [d_weight, accumulate] = op.d_weight();
  launch(op.context(), Gemm{.role = GemmRole::kWeightGradient,
                            .a = d_scores,
                            .b = op.in(ScoreHead::kHidden),
                            .c = d_weight,
                            .accumulate = accumulate,
                            .workspace = {}});
}

void backward_input(OperatorCall& op) {
  with_gradient(op, [&](const Tensor& d_scores) {
    if (op.weight_gradient_now()) {
      add_weight_gradient(op, d_scores);
      op.weight_gradient_done();
    }
    if (!op.needs_d_in(ScoreHead::kHidden)) return;
    const OperatorCall::Target target = op.fresh_d_in(ScoreHead::kHidden);
    launch(op.context(), Gemm{.role = GemmRole::kInputGradient,
                              .a = d_scores,
                              .b = op.weight(),
                              .c = target.out,
                              .accumulate = false,
                              .workspace = {}});
    add_previous(op, target);
  });
}

void backward_weight(OperatorCall& op) {
  with_gradient(op, [&](const Tensor& d_scores) { add_weight_gradient(op, d_scores); });
}

constexpr Operator kScoreHead{.name = "score_head",
                              .operator_class = OperatorClass::kLoss,
                              .forward = forward,
                              .backward_input = backward_input,
                              .backward_weight = backward_weight,
                              .for_input = saves(ScoreHead::kHidden, ScoreHead::kWeights),
                              .for_weight = saves(ScoreHead::kHidden, ScoreHead::kWeights),
                              .is_loss = true};

}  // namespace

Value score_head(const Value& hidden, Parameter& weight, const Value& weights, comm::Communicator* group) {
  const std::int64_t tokens = hidden.shape()[0] * (group ? group->size() : 1);
  return hidden.tape().record(kScoreHead, {{ScoreHead::kHidden, hidden}, {ScoreHead::kWeights, weights}},
                              &weight, {{ScoreHead::kScores, DType::kF32, Shape{tokens}, false}},
                              ScoreAttributes{group})[ScoreHead::kScores];
}

}  // namespace primus::engine
