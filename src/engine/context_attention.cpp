#include "engine/context_attention.h"

#include <algorithm>
#include <optional>

#include "base/check.h"
#include "engine/fused_columns.h"
#include "engine/scratch.h"
#include "turbo/elementwise/elementwise.h"

namespace primus::engine {

ContextParallel::ContextParallel(Rank& rank, Exchange exchange)
    : rank_(rank),
      group_(*rank.mesh().context()),
      exchange_(exchange),
      computed_(rank.device().create_event()),
      values_arrived_(rank.device().create_event()),
      gradients_arrived_(rank.device().create_event()) {}

void ContextParallel::follow_compute() {
  rank_.compute().record(*computed_);
  rank_.communication().wait(*computed_);
}

void ContextParallel::pass_on(const Tensor& from, const Tensor& into, Event& arrived) {
  follow_compute();
  const comm::Transfer transfers[] = {comm::Transfer::send(from, (rank() + 1) % ranks()),
                                      comm::Transfer::receive(into, (rank() + ranks() - 1) % ranks())};
  group_.exchange(rank_.communication(), transfers);
  rank_.communication().record(arrived);
}

void ContextParallel::all_gather(const Tensor& own, const Tensor& all) {
  follow_compute();
  group_.all_gather(rank_.communication(), own, all);
  rank_.communication().record(*values_arrived_);
  rank_.compute().wait(*values_arrived_);
}

void ContextParallel::reduce_scatter(const Tensor& all, const Tensor& own) {
  follow_compute();
  group_.reduce_scatter(rank_.communication(), all, own, comm::Reduction::kSum);
  rank_.communication().record(*gradients_arrived_);
  rank_.compute().wait(*gradients_arrived_);
}

void ContextParallel::all_to_all(const Tensor& from, const Tensor& into) {
  follow_compute();
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(ranks()), from.elements() / ranks());
  group_.all_to_all(rank_.communication(), from, counts, into, counts);
  rank_.communication().record(*values_arrived_);
  rank_.compute().wait(*values_arrived_);
}

std::vector<std::int64_t> context_positions(std::int64_t sequence, int ranks, int rank) {
  const std::int64_t chunk = sequence / (2 * std::int64_t{ranks});
  std::vector<std::int64_t> positions;
  for (const std::int64_t first : {std::int64_t{rank}, 2 * std::int64_t{ranks} - 1 - rank}) {
    for (std::int64_t i = 0; i < chunk; ++i) positions.push_back(first * chunk + i);
  }
  return positions;
}

namespace {

using turbo::launch;

struct Attributes {
  turbo::AttentionShape shape;  // of this rank's tokens
  ContextParallel* context;
  bool documents;   // input 1 is the first key of each query
  bool statistics;  // output 1 is the log-sum-exp
};

void copy(turbo::Context& context, const Tensor& from, const Tensor& to) {
  if (!context.measuring()) context.stream.copy_on_device(to.data, from.data, to.bytes());
}

// A call of the operator: its queries are cut into pieces, a chunk of one sequence each, and so are the keys
// of every rank.
class Call {
 public:
  explicit Call(Step& step)
      : step_(step),
        a_(step.attributes<Attributes>()),
        columns_(a_.shape),
        chunk_(a_.shape.seq_q / 2),
        pieces_(2 * a_.shape.batch),
        kv_width_(columns_.width - columns_.k) {}

  std::int64_t tokens() const { return a_.shape.batch * a_.shape.seq_q; }
  std::int64_t heads() const { return a_.shape.heads; }
  std::int64_t chunk() const { return chunk_; }
  std::int64_t pieces() const { return pieces_; }
  std::int64_t out_width() const { return a_.shape.heads * a_.shape.value_dim; }
  std::int64_t q_width() const { return columns_.k; }
  Shape kv_shape() const { return {tokens(), kv_width_}; }
  Shape lse_shape() const { return {pieces_ * a_.shape.heads, chunk_}; }
  ContextParallel& context() const { return *a_.context; }
  const Attributes& attributes() const { return a_; }

  // Columns [first, first + width of `to`) of rows of the fused projection, to rows of their own, and back.
  void copy_out(const Tensor& fused, std::int64_t first, const Tensor& to) const {
    copy_rows(fused.from(first), to, to.cols(), columns_.width, to.cols());
  }
  void copy_in(const Tensor& from, const Tensor& fused, std::int64_t first) const {
    copy_rows(from, fused.from(first), from.cols(), from.cols(), columns_.width);
  }

  Tensor rows(const Tensor& of_tokens, std::int64_t piece) const {
    return of_tokens.slice(piece * chunk_, (piece + 1) * chunk_);
  }
  Tensor lse(const Tensor& statistics, std::int64_t piece) const {
    return statistics.slice(piece * heads(), (piece + 1) * heads());
  }

  // Calls visit(piece of the queries, piece of the keys, shape) for every pair of a query chunk of this rank
  // and a key chunk of rank `from` in which a query may see a key. Keys come in the order of the sequence.
  template <class Visit>
  void for_each_pair(int from, Visit visit) const {
    for (std::int64_t sequence = 0; sequence < a_.shape.batch; ++sequence) {
      for (int q_half = 0; q_half < 2; ++q_half) {
        for (int k_half = 0; k_half < 2; ++k_half) {
          turbo::AttentionShape shape = a_.shape;
          shape.batch = 1;
          shape.seq_q = shape.seq_k = shape.capacity_k = chunk_;
          shape.q_first = a_.context->chunk(a_.context->rank(), q_half) * chunk_;
          shape.k_first = a_.context->chunk(from, k_half) * chunk_;
          if (sees(shape)) visit(2 * sequence + q_half, 2 * sequence + k_half, shape);
        }
      }
    }
  }

  // Calls attend(rank, its keys and values [tokens, ...]) once for each rank, this one first.
  template <class Attend>
  void ring(const Tensor& own, Attend attend) const {
    const ScratchTensor buffers[] = {{step_.context().scratch, own.dtype, own.shape},
                                     {step_.context().scratch, own.dtype, own.shape}};
    Tensor current = own;
    for (int i = 0; i < context().ranks(); ++i) {
      const Tensor next = buffers[i % 2].get();
      const bool more = i + 1 < context().ranks();
      if (more) context().pass_on(current, next, context().values_arrived());
      attend((context().rank() + context().ranks() - i) % context().ranks(), current);
      if (more) context().wait(context().values_arrived());
      current = next;
    }
  }

  turbo::AttentionForward forward(const turbo::AttentionShape& shape, const Tensor& qkv, std::int64_t q,
                                  const Tensor& kv, std::int64_t k) const {
    const Tensor keys = rows(kv, k);
    return {.shape = shape,
            .q = rows(qkv, q),
            .k = keys,
            .v = keys.from(columns_.v - columns_.k),
            .q_stride = columns_.width,
            .k_stride = kv_width_,
            .v_stride = kv_width_,
            .first_key = first_key(q),
            .sinks = {},
            .out = {},
            .lse = {},
            .workspace = {}};
  }

  Tensor first_key(std::int64_t piece) const {
    return a_.documents ? step_.in(1).slice(piece * chunk_, (piece + 1) * chunk_) : Tensor();
  }
  // Whether keys of the pair are the queries' own: the part that sinks belong to.
  static bool diagonal(const turbo::AttentionShape& shape) { return shape.q_first == shape.k_first; }
  std::int64_t value_column() const { return columns_.v - columns_.k; }
  std::int64_t kv_width() const { return kv_width_; }

 private:
  void copy_rows(const Tensor& from, const Tensor& to, std::int64_t cols, std::int64_t from_stride,
                 std::int64_t to_stride) const {
    launch(step_.context(), turbo::CopyRows{.from = from,
                                            .to = to,
                                            .rows = tokens(),
                                            .cols = cols,
                                            .from_stride = from_stride,
                                            .to_stride = to_stride,
                                            .group_rows = std::max<std::int64_t>(tokens(), 1),
                                            .to_group_stride = 0});
  }

  bool sees(const turbo::AttentionShape& s) const {
    const std::int64_t last_key = s.k_first + chunk_ - 1;
    if (s.causal && s.k_first > s.q_first) return false;
    if (s.window > 0 && last_key <= s.q_first - s.window) return false;
    return s.chunk == 0 || last_key >= s.q_first / s.chunk * s.chunk;
  }

  Step& step_;
  Attributes a_;
  FusedColumns columns_;
  std::int64_t chunk_, pieces_, kv_width_;
};

// Inputs: qkv, first keys. Outputs: out, log-sum-exp by piece.
void forward(Step& s) {
  const Call call(s);
  Arena& scratch = s.context().scratch;
  const Tensor qkv = s.in(0);
  const ScratchTensor own(scratch, qkv.dtype, call.kv_shape());
  call.copy_out(qkv, call.q_width(), own.get());
  // What parts add up to keeps all digits.
  const ScratchTensor sum(scratch, DType::kF32, {call.tokens(), call.out_width()});
  const ScratchTensor part(scratch, qkv.dtype, {call.chunk(), call.out_width()});
  const ScratchTensor part_lse(scratch, DType::kF32, {call.heads(), call.chunk()});
  std::optional<ScratchTensor> own_lse;
  if (!call.attributes().statistics) own_lse.emplace(scratch, DType::kF32, call.lse_shape());
  const Tensor lse = own_lse ? own_lse->get() : s.out(1);
  std::vector<bool> begun(static_cast<std::size_t>(call.pieces()));
  const auto attend = [&](int from, const Tensor& kv) {
    call.for_each_pair(from, [&](std::int64_t q, std::int64_t k, const turbo::AttentionShape& shape) {
      turbo::AttentionForward attention = call.forward(shape, qkv, q, kv, k);
      if (Call::diagonal(shape) && s.has_parameter()) attention.sinks = s.weight();
      attention.out = part.get();
      attention.lse = part_lse.get();
      launch(s.context(), attention);
      launch(s.context(), turbo::AttentionMerge{.heads = call.heads(),
                                                .value_dim = shape.value_dim,
                                                .part = part.get(),
                                                .part_lse = part_lse.get(),
                                                .out = call.rows(sum.get(), q),
                                                .lse = call.lse(lse, q),
                                                .accumulate = begun[static_cast<std::size_t>(q)]});
      begun[static_cast<std::size_t>(q)] = true;
    });
  };
  if (call.context().exchange() == ContextParallel::Exchange::kRing) {
    call.ring(own.get(), attend);
  } else {
    const int ranks = call.context().ranks();
    const ScratchTensor all(scratch, qkv.dtype, {ranks * call.tokens(), call.kv_width()});
    call.context().all_gather(own.get(), all.get());
    for (int i = 0; i < ranks; ++i) {
      const int from = (call.context().rank() + ranks - i) % ranks;
      attend(from, all.get().slice(from * call.tokens(), (from + 1) * call.tokens()));
    }
  }
  if (qkv.dtype == DType::kF32) {
    copy(s.context(), sum.get(), s.out(0));
  } else {
    launch(s.context(), turbo::Cast{.x = sum.get(), .out = s.out(0)});
  }
}

// Gradients are added up in fp32, over both halves of the queries and over ranks.
void backward_input(Step& s) {
  const Call call(s);
  turbo::Context& context = s.context();
  Arena& scratch = context.scratch;
  const Tensor qkv = s.in(0);
  const auto [d_qkv, previous] = s.fresh_d_in(0);
  const ScratchTensor own(scratch, qkv.dtype, call.kv_shape());
  call.copy_out(qkv, call.q_width(), own.get());
  const auto zero = [&](const Tensor& tensor) {
    if (!context.measuring()) context.stream.fill_zero(tensor.data, tensor.bytes());
  };
  const ScratchTensor d_q(scratch, DType::kF32, {call.tokens(), call.q_width()});
  zero(d_q.get());
  const auto attend = [&](int from, const Tensor& kv, const Tensor& d_kv) {
    zero(d_kv);
    call.for_each_pair(from, [&](std::int64_t q, std::int64_t k, const turbo::AttentionShape& shape) {
      const turbo::AttentionForward f = call.forward(shape, qkv, q, kv, k);
      const Tensor d_keys = call.rows(d_kv, k);
      launch(context, turbo::AttentionBackward{.shape = shape,
                                               .q = f.q,
                                               .k = f.k,
                                               .v = f.v,
                                               .q_stride = f.q_stride,
                                               .k_stride = f.k_stride,
                                               .v_stride = f.v_stride,
                                               .first_key = f.first_key,
                                               .out = call.rows(s.out(0), q),
                                               .lse = call.lse(s.out(1), q),
                                               .d_out = call.rows(s.d_out(0), q),
                                               .d_q = call.rows(d_q.get(), q),
                                               .d_k = d_keys,
                                               .d_v = d_keys.from(call.value_column()),
                                               .d_q_stride = call.q_width(),
                                               .d_k_stride = call.kv_width(),
                                               .d_v_stride = call.kv_width(),
                                               .accumulate_d_q = true,
                                               .accumulate_d_kv = true,
                                               .workspace = {}});
    });
  };
  const ScratchTensor d_own(scratch, DType::kF32, call.kv_shape());
  ContextParallel& group = call.context();
  if (group.exchange() == ContextParallel::Exchange::kRing) {
    // A rank's gradients follow its keys and values round the ring, one step behind, and end at home.
    const ScratchTensor sum(scratch, DType::kF32, call.kv_shape());
    const ScratchTensor arriving(scratch, DType::kF32, call.kv_shape());
    bool first = true;
    call.ring(own.get(), [&](int from, const Tensor& kv) {
      attend(from, kv, d_own.get());
      if (first) {
        copy(context, d_own.get(), sum.get());
      } else {
        group.wait(group.gradients_arrived());
        launch(context, turbo::Add{.a = arriving.get(), .b = d_own.get(), .out = sum.get()});
      }
      group.pass_on(sum.get(), arriving.get(), group.gradients_arrived());
      first = false;
    });
    group.wait(group.gradients_arrived());
    copy(context, arriving.get(), d_own.get());
  } else {
    const ScratchTensor all(scratch, qkv.dtype, {group.ranks() * call.tokens(), call.kv_width()});
    const ScratchTensor d_all(scratch, DType::kF32, all.get().shape);
    group.all_gather(own.get(), all.get());
    for (int from = 0; from < group.ranks(); ++from) {
      const std::int64_t begin = from * call.tokens(), end = begin + call.tokens();
      attend(from, all.get().slice(begin, end), d_all.get().slice(begin, end));
    }
    group.reduce_scatter(d_all.get(), d_own.get());
  }
  const auto put = [&](const Tensor& gradient, std::int64_t column) {
    if (d_qkv.dtype == DType::kF32) {
      call.copy_in(gradient, d_qkv, column);
      return;
    }
    const ScratchTensor narrow(scratch, d_qkv.dtype, gradient.shape);
    launch(context, turbo::Cast{.x = gradient, .out = narrow.get()});
    call.copy_in(narrow.get(), d_qkv, column);
  };
  put(d_q.get(), 0);
  put(d_own.get(), call.q_width());
  if (!previous.absent()) launch(context, turbo::Add{.a = previous, .b = d_qkv, .out = d_qkv});
}

// The parameter is the sinks, as in ordinary attention.
void backward_weight(Step& s) {
  const Call call(s);
  const auto [d_sinks, accumulate] = s.d_weight();
  for (std::int64_t piece = 0; piece < call.pieces(); ++piece) {
    launch(s.context(), turbo::AttentionBackwardSinks{.heads = call.heads(),
                                                      .value_dim = call.attributes().shape.value_dim,
                                                      .sinks = s.weight(),
                                                      .out = call.rows(s.out(0), piece),
                                                      .lse = call.lse(s.out(1), piece),
                                                      .d_out = call.rows(s.d_out(0), piece),
                                                      .d_sinks = d_sinks,
                                                      .accumulate = accumulate || piece > 0});
  }
}

constexpr Operator kContextAttention{.name = "context_attention",
                                     .operator_class = OperatorClass::kAttention,
                                     .forward = forward,
                                     .backward_input = backward_input,
                                     .backward_weight = backward_weight,
                                     .for_input = {.inputs = bit(0) | bit(1), .outputs = bit(0) | bit(1)},
                                     .for_weight = {.outputs = bit(0) | bit(1)},
                                     .weight_reads_parameter = true};

}  // namespace

Value context_attention(const Value& qkv, const turbo::AttentionShape& shape,
                        const AttentionOptions& options) {
  Tape& tape = qkv.tape();
  PRIMUS_CHECK("context_attention", options.cache.layer == nullptr && shape.causal && shape.seq_q % 2 == 0);
  if (options.context->exchange() == ContextParallel::Exchange::kAllToAll) {
    const int ranks = options.context->ranks();
    PRIMUS_CHECK("context_attention", shape.heads % ranks == 0 && shape.kv_heads % ranks == 0);
    return attention_by_heads(qkv, shape, options);
  }
  const std::int64_t tokens = shape.batch * shape.seq_q;
  const Tape::Output out{qkv.dtype(), Shape{tokens, shape.heads * shape.value_dim}};
  const Value* documents = options.first_key ? &options.first_key : nullptr;
  const Attributes attributes{shape, options.context, documents != nullptr, tape.training()};
  if (!tape.training()) {
    return tape.record(kContextAttention, {&qkv, documents}, options.sinks, {out}, attributes)[0];
  }
  const Tape::Output statistics{DType::kF32, Shape{2 * shape.batch * shape.heads, shape.seq_q / 2}, false};
  return tape.record(kContextAttention, {&qkv, documents}, options.sinks, {out, statistics}, attributes)[0];
}

}  // namespace primus::engine
