// Context parallelism by all-to-all (DeepSpeed-Ulysses, Jacobs et al. 2023): for attention every rank gets
// all tokens of some of the heads, and gives the results back.
#include <optional>
#include <vector>

#include "engine/context_attention.h"
#include "engine/fp32_weight_gradient.h"
#include "engine/fused_columns.h"
#include "tensor/scratch_tensor.h"
#include "turbo/elementwise/elementwise.h"

namespace primus::engine {
namespace {

using turbo::launch;

struct Attributes {
  turbo::AttentionShape shape;  // of this rank's heads over whole sequences
  ContextParallel* context;
  bool documents, statistics;
};

// Runs of columns that go to each rank: `count` columns from `first + rank * count` on.
struct Columns {
  std::int64_t first, count;
};

class Call {
 public:
  explicit Call(OperatorCall& op)
      : op_(op),
        a_(op.attributes<Attributes>()),
        ranks_(a_.context->ranks()),
        slice_tokens_(a_.shape.seq_q / (2 * ranks_)),
        columns_(a_.shape) {}

  const turbo::AttentionShape& shape() const { return a_.shape; }
  const Attributes& attributes() const { return a_; }
  std::int64_t own_tokens() const { return all_tokens() / ranks_; }
  std::int64_t all_tokens() const { return a_.shape.batch * a_.shape.seq_q; }
  std::int64_t width() const { return columns_.width; }  // of a row of this rank's heads
  std::int64_t out_width() const { return a_.shape.heads * a_.shape.value_dim; }
  const FusedColumns& columns() const { return columns_; }
  int rank() const { return a_.context->rank(); }

  // Of a row of the fused projection of all heads: queries, keys and values.
  std::vector<Columns> qkv_columns() const {
    const std::int64_t values = columns_.width - columns_.v;
    return {{0, columns_.k}, {ranks_ * columns_.k, columns_.v - columns_.k}, {ranks_ * columns_.v, values}};
  }
  std::vector<Columns> out_columns() const { return {{0, out_width()}}; }

  // `own`: rows of all heads, of this rank's tokens. `all`: rows of this rank's heads, of all tokens, in the
  // order of the sequences.
  void to_heads(const Tensor& own, const Tensor& all, const std::vector<Columns>& columns) const {
    const ScratchTensor sent(scratch(), own.dtype, {all_tokens() - own_tokens(), all.cols()});
    std::vector<comm::Transfer> transfers;
    for_each_peer([&](int peer, std::int64_t place) {
      const Tensor part = sent.get().slice(place, place + own_tokens());
      for_each_column(columns, peer, [&](std::int64_t of_own, std::int64_t of_row, std::int64_t count) {
        copy(own.from(of_own), part.from(of_row), own_tokens(), count, own.cols(), all.cols());
      });
      for_each_piece([&](std::int64_t sequence, int half) {
        transfers.push_back(comm::Transfer::send(piece(part, sequence, half), peer));
        transfers.push_back(comm::Transfer::receive(place_of(all, peer, sequence, half), peer));
      });
    });
    a_.context->exchange(transfers);
    // What stays here goes to its place meanwhile.
    for_each_piece([&](std::int64_t sequence, int half) {
      const Tensor from = piece(own, sequence, half), to = place_of(all, rank(), sequence, half);
      for_each_column(columns, rank(), [&](std::int64_t of_own, std::int64_t of_row, std::int64_t count) {
        copy(from.from(of_own), to.from(of_row), slice_tokens_, count, own.cols(), all.cols());
      });
    });
    a_.context->wait(a_.context->values_arrived());
  }
  // The reverse.
  void to_tokens(const Tensor& all, const Tensor& own, const std::vector<Columns>& columns) const {
    const ScratchTensor received(scratch(), own.dtype, {all_tokens() - own_tokens(), all.cols()});
    std::vector<comm::Transfer> transfers;
    for_each_peer([&](int peer, std::int64_t place) {
      const Tensor part = received.get().slice(place, place + own_tokens());
      for_each_piece([&](std::int64_t sequence, int half) {
        transfers.push_back(comm::Transfer::send(place_of(all, peer, sequence, half), peer));
        transfers.push_back(comm::Transfer::receive(piece(part, sequence, half), peer));
      });
    });
    a_.context->exchange(transfers);
    for_each_piece([&](std::int64_t sequence, int half) {
      const Tensor from = place_of(all, rank(), sequence, half), to = piece(own, sequence, half);
      for_each_column(columns, rank(), [&](std::int64_t of_own, std::int64_t of_row, std::int64_t count) {
        copy(from.from(of_row), to.from(of_own), slice_tokens_, count, all.cols(), own.cols());
      });
    });
    a_.context->wait(a_.context->values_arrived());
    for_each_peer([&](int peer, std::int64_t place) {
      const Tensor part = received.get().slice(place, place + own_tokens());
      for_each_column(columns, peer, [&](std::int64_t of_own, std::int64_t of_row, std::int64_t count) {
        copy(part.from(of_row), own.from(of_own), own_tokens(), count, all.cols(), own.cols());
      });
    });
  }

  // The first keys of all tokens, from those of this rank's.
  void gather_first_keys(const Tensor& all) const {
    const Tensor own = op_.in(1).reshaped({own_tokens(), 1}), whole = all.reshaped({all_tokens(), 1});
    std::vector<comm::Transfer> transfers;
    for_each_piece([&](std::int64_t sequence, int half) {
      for_each_peer([&](int peer, std::int64_t) {
        transfers.push_back(comm::Transfer::send(piece(own, sequence, half), peer));
        transfers.push_back(comm::Transfer::receive(place_of(whole, peer, sequence, half), peer));
      });
      copy(piece(own, sequence, half), place_of(whole, rank(), sequence, half), 1, slice_tokens_,
           slice_tokens_, slice_tokens_);
    });
    a_.context->exchange(transfers);
    a_.context->wait(a_.context->values_arrived());
  }

  Arena& scratch() const { return op_.context().scratch; }

 private:
  // visit(another rank, where its part begins in rows of all the others').
  template <class Visit>
  void for_each_peer(Visit visit) const {
    for (int i = 1; i < ranks_; ++i) visit((rank() + i) % ranks_, (i - 1) * own_tokens());
  }
  template <class Visit>
  void for_each_piece(Visit visit) const {
    for (std::int64_t sequence = 0; sequence < a_.shape.batch; ++sequence) {
      for (const int half : {0, 1}) visit(sequence, half);
    }
  }
  // Of what a rank holds; and where it belongs among whole sequences.
  Tensor piece(const Tensor& of_rank, std::int64_t sequence, int half) const {
    const std::int64_t begin = (2 * sequence + half) * slice_tokens_;
    return of_rank.slice(begin, begin + slice_tokens_);
  }
  Tensor place_of(const Tensor& all, int rank, std::int64_t sequence, int half) const {
    const std::int64_t begin = sequence * a_.shape.seq_q + a_.context->slice(rank, half) * slice_tokens_;
    return all.slice(begin, begin + slice_tokens_);
  }
  // visit(first column of all heads' rows, of the rank's own rows, how many), of the heads of a rank.
  template <class Visit>
  void for_each_column(const std::vector<Columns>& columns, int rank, Visit visit) const {
    std::int64_t of_row = 0;
    for (const Columns& c : columns) {
      visit(c.first + rank * c.count, of_row, c.count);
      of_row += c.count;
    }
  }

  void copy(const Tensor& from, const Tensor& to, std::int64_t rows, std::int64_t cols,
            std::int64_t from_stride, std::int64_t to_stride) const {
    launch(op_.context(), turbo::CopyRows::strided(from, to, rows, cols, from_stride, to_stride));
  }

  OperatorCall& op_;
  Attributes a_;
  int ranks_;
  std::int64_t slice_tokens_;
  FusedColumns columns_;
};

// This rank's part of one number for each head.
Tensor own_heads(const Call& call, const Tensor& of_heads) {
  const std::int64_t heads = call.shape().heads;
  return of_heads.slice(call.rank() * heads, (call.rank() + 1) * heads);
}

// Inputs: qkv, first keys. Outputs: out of this rank's tokens; that of its heads, their log-sum-exp and qkv.
// The backward pass needs the last one, which is as large as the input, instead of that.
void forward(OperatorCall& op) {
  const Call call(op);
  const Tensor own = op.in(0);
  std::optional<ScratchTensor> unkept;
  if (!call.attributes().statistics)
    unkept.emplace(call.scratch(), own.dtype, Shape{call.all_tokens(), call.width()});
  const Tensor qkv = unkept ? unkept->get() : op.out(3);
  call.to_heads(own, qkv, call.qkv_columns());
  const ScratchTensor first_keys(call.scratch(), DType::kI32, {call.all_tokens()});
  if (call.attributes().documents) call.gather_first_keys(first_keys.get());
  launch(op.context(),
         turbo::AttentionForward{.shape = call.shape(),
                                 .q = qkv,
                                 .k = qkv.from(call.columns().k),
                                 .v = qkv.from(call.columns().v),
                                 .q_stride = call.width(),
                                 .k_stride = call.width(),
                                 .v_stride = call.width(),
                                 .first_key = call.attributes().documents ? first_keys.get() : Tensor(),
                                 .sinks = op.has_parameter() ? own_heads(call, op.weight()) : Tensor(),
                                 .out = op.out(1),
                                 .lse = call.attributes().statistics ? op.out(2) : Tensor(),
                                 .workspace = {}});
  call.to_tokens(op.out(1), op.out(0), call.out_columns());
}

void backward_input(OperatorCall& op) {
  const Call call(op);
  const Tensor qkv = op.out(3);
  const auto [d_own, previous] = op.fresh_d_in(0);
  const ScratchTensor d_qkv(call.scratch(), qkv.dtype, qkv.shape);
  const ScratchTensor d_out(call.scratch(), qkv.dtype, {call.all_tokens(), call.out_width()});
  const ScratchTensor first_keys(call.scratch(), DType::kI32, {call.all_tokens()});
  call.to_heads(op.d_out(0), d_out.get(), call.out_columns());
  if (call.attributes().documents) call.gather_first_keys(first_keys.get());
  const Tensor k = qkv.from(call.columns().k), v = qkv.from(call.columns().v);
  launch(op.context(),
         turbo::AttentionBackward{.shape = call.shape(),
                                  .q = qkv,
                                  .k = k,
                                  .v = v,
                                  .q_stride = call.width(),
                                  .k_stride = call.width(),
                                  .v_stride = call.width(),
                                  .first_key = call.attributes().documents ? first_keys.get() : Tensor(),
                                  .out = op.out(1),
                                  .lse = op.out(2),
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

// The parameter is the sinks; other ranks have the other heads'.
void backward_weight(OperatorCall& op) {
  const Call call(op);
  write_fp32_weight_gradient(op, [&](const Tensor& d_sinks, bool accumulate) {
    if (!accumulate) launch(op.context(), turbo::Fill{.out = d_sinks, .value = 0});
    const Tensor own = op.d_out(0);
    const ScratchTensor d_out(call.scratch(), own.dtype, {call.all_tokens(), call.out_width()});
    call.to_heads(own, d_out.get(), call.out_columns());
    launch(op.context(), turbo::AttentionBackwardSinks{.heads = call.shape().heads,
                                                       .value_dim = call.shape().value_dim,
                                                       .sinks = own_heads(call, op.weight()),
                                                       .out = op.out(1),
                                                       .lse = op.out(2),
                                                       .d_out = d_out.get(),
                                                       .d_sinks = own_heads(call, d_sinks),
                                                       .accumulate = true});
  });
}

constexpr Operator kContextAllToAll{.name = "context_all_to_all",
                                    .operator_class = OperatorClass::kAttention,
                                    .forward = forward,
                                    .backward_input = backward_input,
                                    .backward_weight = backward_weight,
                                    .for_input = {.inputs = bit(1), .outputs = bit(1) | bit(2) | bit(3)},
                                    .for_weight = {.outputs = bit(1) | bit(2)},
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
  const Value* documents = options.first_key ? &options.first_key : nullptr;
  const Attributes attributes{shape, options.context, documents != nullptr, tape.training()};
  const std::int64_t tokens = shape.batch * shape.seq_q;
  const Tape::Output of_heads{qkv.dtype(), Shape{tokens, shape.heads * shape.value_dim}, false};
  const Tape::Output statistics{DType::kF32, Shape{shape.heads, tokens}, false};
  const Tape::Output qkv_of_heads{qkv.dtype(), Shape{tokens, FusedColumns(shape).width}, false};
  if (!tape.training()) {
    return tape.record(kContextAllToAll, {&qkv, documents}, options.sinks, {{qkv.dtype(), out}, of_heads},
                       attributes)[0];
  }
  return tape.record(kContextAllToAll, {&qkv, documents}, options.sinks,
                     {{qkv.dtype(), out}, of_heads, statistics, qkv_of_heads}, attributes)[0];
}

}  // namespace primus::engine
