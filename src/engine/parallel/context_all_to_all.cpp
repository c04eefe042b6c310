// Attention by heads: every context rank receives all tokens of some heads, attends, and sends the outputs
// back to the ranks that hold the tokens.
#include <array>
#include <optional>

#include "engine/operators/fp32_weight_gradient.h"
#include "engine/operators/fused_columns.h"
#include "engine/parallel/head_exchange.h"
#include "turbo/elementwise/elementwise.h"

namespace primus::engine {
namespace {

using turbo::launch;

struct Attributes {
  turbo::AttentionShape shape;  // describes this rank's heads and complete sequences
  ContextParallel* context;
  bool statistics;
};

struct AllToAll {
  enum In : InputName { kQkv, kFirstKey };
  // kOut: output for this rank's tokens. kOfHeads: output and qkv of this rank's heads, for all tokens. kLse:
  // the log-sum-exp of these heads, in training.
  enum Out : OutputName { kOut, kOfHeads, kLse };
};

class Call : public HeadExchange {
 public:
  explicit Call(OperatorCall& op) : Call(op, op.attributes<Attributes>()) {}

  const turbo::AttentionShape& shape() const { return a_.shape; }
  const Attributes& attributes() const { return a_; }
  std::int64_t width() const { return columns_.width; }  // row width of qkv of this rank's heads
  std::int64_t out_width() const { return a_.shape.heads * a_.shape.value_dim; }
  const FusedColumns& columns() const { return columns_; }
  int rank() const { return a_.context->rank(); }
  Arena& scratch() const { return op_.context().scratch; }

  // Returns where queries, keys and values begin in a row of the fused projection, and their widths on a
  // rank.
  std::array<Columns, 3> qkv_columns() const {
    const std::int64_t ranks = a_.context->ranks(), k = columns_.k, v = columns_.v;
    return {{{0, k}, {ranks * k, v - k}, {ranks * v, columns_.width - v}}};
  }
  std::array<Columns, 1> out_columns() const { return {{{0, out_width()}}}; }

  // Returns the attention output of this rank's heads for all tokens. In training, qkv of these heads follows
  // this output in memory.
  Tensor out_of_heads() const {
    const Tensor both = op_.out(AllToAll::kOfHeads);
    return {both.data, both.dtype, {all_tokens(), out_width()}};
  }
  Tensor qkv_of_heads() const {
    const Tensor rest = op_.out(AllToAll::kOfHeads).from(all_tokens() * out_width());
    return {rest.data, rest.dtype, {all_tokens(), width()}};
  }

 private:
  Call(OperatorCall& op, const Attributes& a)
      : HeadExchange(op.context(), *a.context, a.shape.batch, a.shape.seq_q),
        op_(op),
        a_(a),
        columns_(a.shape) {}
  OperatorCall& op_;
  Attributes a_;
  FusedColumns columns_;
};

// Returns the elements of this rank's heads in a tensor that has one number per head.
Tensor own_heads(const Call& call, const Tensor& of_heads) {
  const std::int64_t heads = call.shape().heads;
  return of_heads.slice(call.rank() * heads, (call.rank() + 1) * heads);
}

// For the backward pass, the call keeps qkv of this rank's heads instead of its input. Both tensors have the
// same size.
void forward(OperatorCall& op) {
  const Call call(op);
  const Tensor own = op.in(AllToAll::kQkv);
  std::optional<ScratchTensor> unkept;
  if (!call.attributes().statistics)
    unkept.emplace(call.scratch(), own.dtype, Shape{call.all_tokens(), call.width()});
  const Tensor qkv = unkept ? unkept->get() : call.qkv_of_heads();
  call.to_heads(own, qkv, call.qkv_columns());
  const ScratchTensor first_keys(call.scratch(), DType::kI32, {call.all_tokens()});
  if (op.has_in(AllToAll::kFirstKey)) call.gather_first_keys(op.in(AllToAll::kFirstKey), first_keys.get());
  launch(op.context(),
         turbo::AttentionForward{.shape = call.shape(),
                                 .q = qkv,
                                 .k = qkv.from(call.columns().k),
                                 .v = qkv.from(call.columns().v),
                                 .q_stride = call.width(),
                                 .k_stride = call.width(),
                                 .v_stride = call.width(),
                                 .first_key = op.has_in(AllToAll::kFirstKey) ? first_keys.get() : Tensor(),
                                 .sinks = op.has_parameter() ? own_heads(call, op.weight()) : Tensor(),
                                 .out = call.out_of_heads(),
                                 .lse = call.attributes().statistics ? op.out(AllToAll::kLse) : Tensor(),
                                 .workspace = {}});
  call.to_tokens(call.out_of_heads(), op.out(AllToAll::kOut), call.out_columns());
}

void backward_input(OperatorCall& op) {
  const Call call(op);
  const Tensor qkv = call.qkv_of_heads();
  const auto [d_own, previous] = op.fresh_d_in(AllToAll::kQkv);
  const ScratchTensor d_qkv(call.scratch(), qkv.dtype, qkv.shape);
  const ScratchTensor d_out(call.scratch(), qkv.dtype, {call.all_tokens(), call.out_width()});
  const ScratchTensor first_keys(call.scratch(), DType::kI32, {call.all_tokens()});
  call.to_heads(op.d_out(AllToAll::kOut), d_out.get(), call.out_columns());
  if (op.has_in(AllToAll::kFirstKey)) call.gather_first_keys(op.in(AllToAll::kFirstKey), first_keys.get());
  const Tensor k = qkv.from(call.columns().k), v = qkv.from(call.columns().v);
  launch(op.context(),
         turbo::AttentionBackward{.shape = call.shape(),
                                  .q = qkv,
                                  .k = k,
                                  .v = v,
                                  .q_stride = call.width(),
                                  .k_stride = call.width(),
                                  .v_stride = call.width(),
                                  .first_key = op.has_in(AllToAll::kFirstKey) ? first_keys.get() : Tensor(),
                                  .out = call.out_of_heads(),
                                  .lse = op.out(AllToAll::kLse),
                                  .d_out = d_out.get(),
                                  .d_q = d_qkv.get(),
                                  .d_k = d_qkv.get().from(call.columns().k),
                                  .d_v = d_qkv.get().from(call.columns().v),
                                  .d_q_stride = call.width(),
                                  .d_k_stride = call.width(),
                                  .d_v_stride = call.width(),
                                  .workspace = {}});
  call.to_tokens(d_qkv.get(), d_own, call.qkv_columns());
  add_previous(op, {d_own, previous});
}

// The operator's parameter holds only the sinks of this rank's heads.
void backward_weight(OperatorCall& op) {
  const Call call(op);
  write_fp32_weight_gradient(op, [&](const Tensor& d_sinks, bool accumulate) {
    if (!accumulate) launch(op.context(), turbo::Fill{.out = d_sinks, .value = 0});
    const Tensor own = op.d_out(AllToAll::kOut);
    const ScratchTensor d_out(call.scratch(), own.dtype, {call.all_tokens(), call.out_width()});
    call.to_heads(own, d_out.get(), call.out_columns());
    launch(op.context(), turbo::AttentionBackwardSinks{.heads = call.shape().heads,
                                                       .value_dim = call.shape().value_dim,
                                                       .sinks = own_heads(call, op.weight()),
                                                       .out = call.out_of_heads(),
                                                       .lse = op.out(AllToAll::kLse),
                                                       .d_out = d_out.get(),
                                                       .d_sinks = own_heads(call, d_sinks),
                                                       .accumulate = true});
  });
}

constexpr Operator kContextAllToAll{
    .name = "context_all_to_all",
    .operator_class = OperatorClass::kAttention,
    .forward = forward,
    .backward_input = backward_input,
    .backward_weight = backward_weight,
    .for_input = saves(AllToAll::kFirstKey, AllToAll::kOfHeads, AllToAll::kLse),
    .for_weight = saves(AllToAll::kOfHeads, AllToAll::kLse),
    .weight_reads_parameter = true};

}  // namespace

Value attention_by_heads(const Value& qkv, turbo::AttentionShape shape, const AttentionOptions& options) {
  Tape& tape = qkv.tape();
  const int ranks = options.context->ranks();
  const Shape out{qkv.shape()[0], shape.heads * shape.value_dim};
  shape.seq_q *= ranks;
  shape.seq_k = shape.capacity_k = shape.seq_q;
  shape.heads /= ranks;
  shape.kv_heads /= ranks;
  const Attributes attributes{shape, options.context, tape.training()};
  const std::int64_t tokens = shape.batch * shape.seq_q;
  const std::int64_t of_token = shape.heads * shape.value_dim;
  const Tape::Output lse{AllToAll::kLse, DType::kF32, Shape{shape.heads, tokens}, false};
  if (!tape.training()) {
    const Tape::Output of_heads{AllToAll::kOfHeads, qkv.dtype(), Shape{tokens, of_token}, false};
    return tape.record(kContextAllToAll, {{AllToAll::kQkv, qkv}, {AllToAll::kFirstKey, options.first_key}},
                       options.sinks, {{AllToAll::kOut, qkv.dtype(), out}, of_heads},
                       attributes)[AllToAll::kOut];
  }
  const Tape::Output of_heads{AllToAll::kOfHeads, qkv.dtype(),
                              Shape{tokens, of_token + FusedColumns(shape).width}, false};
  return tape.record(kContextAllToAll, {{AllToAll::kQkv, qkv}, {AllToAll::kFirstKey, options.first_key}},
                     options.sinks, {{AllToAll::kOut, qkv.dtype(), out}, of_heads, lse},
                     attributes)[AllToAll::kOut];
}

}  // namespace primus::engine
