#include "engine/parallel/context_attention.h"

#include <algorithm>
#include <optional>

#include "base/check.h"
#include "engine/operators/fp32_weight_gradient.h"
#include "engine/operators/fused_columns.h"
#include "tensor/scratch_tensor.h"
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

void ContextParallel::exchange(std::span<const comm::Transfer> transfers) {
  follow_compute();
  group_.exchange(rank_.communication(), transfers);
  rank_.communication().record(*values_arrived_);
}

std::vector<std::int64_t> context_positions(std::int64_t sequence, int ranks, int rank) {
  const std::int64_t slice = sequence / (2 * std::int64_t{ranks});
  std::vector<std::int64_t> positions;
  for (const std::int64_t first : {std::int64_t{rank}, 2 * std::int64_t{ranks} - 1 - rank}) {
    for (std::int64_t i = 0; i < slice; ++i) positions.push_back(first * slice + i);
  }
  return positions;
}

namespace {

using turbo::launch;

struct Attributes {
  turbo::AttentionShape shape;  // describes this rank's tokens
  ContextParallel* context;
  bool statistics;  // the call also computes the log-sum-exp
};

void copy(turbo::Context& context, const Tensor& from, const Tensor& to) {
  if (!context.measuring()) context.stream.copy_on_device(to.data, from.data, to.bytes());
}

// One kernel call: attention of this rank's queries to keys of any rank, within one sequence. A piece is one
// slice of a sequence. Pieces are numbered in the order of a rank's rows. One call may process two
// neighbouring pieces.
struct Block {
  std::int64_t q, q_pieces, k, k_pieces;
  bool own_keys;  // this block contains each query's own key, so this call also adds the sinks
  turbo::AttentionShape shape;
};

// The set of pieces that have results. The first block of a piece assigns its result, and later blocks add to
// it.
class Written {
 public:
  explicit Written(std::int64_t pieces) : pieces_(static_cast<std::size_t>(pieces)) {}
  // Returns whether the pieces [first, first + count) are in the set. Two neighbouring pieces must either
  // both be in the set or both be missing.
  bool has(std::int64_t first, std::int64_t count) const {
    const auto written = std::count(pieces_.begin() + first, pieces_.begin() + first + count, true);
    PRIMUS_CHECK("context_attention", written == 0 || written == count);
    return written > 0;
  }
  void add(std::int64_t first, std::int64_t count) {
    std::fill(pieces_.begin() + first, pieces_.begin() + first + count, true);
  }

 private:
  std::vector<bool> pieces_;
};

struct ContextOperands {
  enum In : InputName { kQkv, kFirstKey };
  enum Out : OutputName { kOut, kLse };  // in training, [sequences * heads, tokens of a sequence]
};

// A call of the operator. Every rank has two pieces of every sequence. This rank's pieces provide the
// queries, and the pieces of all ranks provide the keys.
class Call {
 public:
  explicit Call(OperatorCall& op)
      : op_(op),
        a_(op.attributes<Attributes>()),
        columns_(a_.shape),
        slice_tokens_(a_.shape.seq_q / 2),
        kv_width_(columns_.width - columns_.k) {}

  std::int64_t tokens() const { return a_.shape.batch * a_.shape.seq_q; }
  std::int64_t heads() const { return a_.shape.heads; }
  std::int64_t pieces() const { return 2 * a_.shape.batch; }
  std::int64_t sequences() const { return a_.shape.batch; }
  std::int64_t out_width() const { return a_.shape.heads * a_.shape.value_dim; }
  std::int64_t q_width() const { return columns_.k; }
  Shape kv_shape() const { return {tokens(), kv_width_}; }
  ContextParallel& context() const { return *a_.context; }
  const Attributes& attributes() const { return a_; }

  // copy_out copies columns [first, first + width of `to`) of a fused projection to the dense matrix `to`.
  // copy_in copies a dense matrix to such columns.
  void copy_out(const Tensor& fused, std::int64_t first, const Tensor& to) const {
    copy_rows(fused.from(first), to, tokens(), to.cols(), columns_.width, to.cols());
  }
  void copy_in(const Tensor& from, const Tensor& fused, std::int64_t first) const {
    copy_rows(from, fused.from(first), tokens(), from.cols(), from.cols(), columns_.width);
  }
  // Adds the rows `from` to columns of a fused projection. `first` is the memory of the first of these
  // columns.
  void add_in(const Tensor& from, const Tensor& first) const {
    auto add = turbo::CopyRows::strided(from, first, from.rows(), from.cols(), from.cols(), columns_.width);
    add.add = true;
    launch(op_.context(), add);
  }

  std::int64_t first_row(std::int64_t piece) const { return piece * slice_tokens_; }
  Tensor rows(const Tensor& of_tokens, std::int64_t piece, std::int64_t count) const {
    return of_tokens.slice(first_row(piece), first_row(piece + count));
  }

  // Statistics are [heads, tokens] per sequence. Kernels need the statistics of a block in contiguous memory.
  // For a block with only one of the two pieces, `apart` is the contiguous copy.
  Tensor dense_lse(const Tensor& all, const Block& block, const Tensor& apart) const {
    return block.q_pieces == 2 ? lse_place(all, block) : apart;
  }
  void get_lse(const Tensor& all, const Block& block, const Tensor& dense) const {
    if (block.q_pieces == 1)
      copy_rows(lse_place(all, block), dense, heads(), slice_tokens_, 2 * slice_tokens_, slice_tokens_);
  }
  void put_lse(const Tensor& dense, const Tensor& all, const Block& block) const {
    if (block.q_pieces == 1)
      copy_rows(dense, lse_place(all, block), heads(), slice_tokens_, slice_tokens_, 2 * slice_tokens_);
  }
  Shape lse_shape() const { return {sequences() * heads(), 2 * slice_tokens_}; }
  Shape piece_lse_shape() const { return {heads(), slice_tokens_}; }

  // Returns whether the mask is purely causal, without windows, chunks or packed documents. With such a mask,
  // attention within a rank is ordinary causal attention over its rows, which are in sequence order. A slice
  // of this rank's queries sees each slice of another rank's keys either completely or not at all.
  bool only_causal() const {
    const std::int64_t whole = 2 * slice_tokens_ * a_.context->ranks();
    return !op_.has_in(ContextOperands::kFirstKey) && (a_.shape.window == 0 || a_.shape.window >= whole) &&
           (a_.shape.chunk == 0 || a_.shape.chunk >= whole);
  }
  // Returns whether the result of a query is the sum of at most two blocks.
  bool at_most_two_parts() const { return only_causal() && a_.context->ranks() <= 2; }
  // Sums of three or more parts are accumulated in fp32. A sum of two parts is rounded only once in any type.
  bool sums_in_place(DType dtype) const { return dtype == DType::kF32 || at_most_two_parts(); }

  // Calls visit(block) for blocks that together cover every visible pair of this rank's queries and rank
  // `from`'s keys exactly once. Keys are visited in sequence order.
  template <class Visit>
  void for_each_block(int from, Visit visit) const {
    for (std::int64_t sequence = 0; sequence < sequences(); ++sequence) {
      if (only_causal()) {
        visit(causal_block(from, 2 * sequence));
      } else {
        for_each_pair(from, 2 * sequence, visit);
      }
    }
  }

  // Calls attend(rank, the keys and values of this rank, [tokens, ...]) once per rank of the group, beginning
  // with this rank.
  template <class Attend>
  void ring(const Tensor& own, Attend attend) const {
    const ScratchTensor buffers[] = {{op_.context().scratch, own.dtype, own.shape},
                                     {op_.context().scratch, own.dtype, own.shape}};
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

  turbo::AttentionForward forward(const Block& block, const Tensor& qkv, const Tensor& kv) const {
    const Tensor keys = rows(kv, block.k, block.k_pieces);
    return {.shape = block.shape,
            .q = rows(qkv, block.q, block.q_pieces),
            .k = keys,
            .v = keys.from(columns_.v - columns_.k),
            .q_stride = columns_.width,
            .k_stride = kv_width_,
            .v_stride = kv_width_,
            .first_key = op_.has_in(ContextOperands::kFirstKey)
                             ? rows(op_.in(ContextOperands::kFirstKey), block.q, block.q_pieces)
                             : Tensor(),
            .sinks = {},
            .out = {},
            .lse = {},
            .workspace = {}};
  }

  std::int64_t value_column() const { return columns_.v - columns_.k; }
  std::int64_t kv_width() const { return kv_width_; }
  std::int64_t width() const { return columns_.width; }

 private:
  void copy_rows(const Tensor& from, const Tensor& to, std::int64_t rows, std::int64_t cols,
                 std::int64_t from_stride, std::int64_t to_stride) const {
    launch(op_.context(), turbo::CopyRows::strided(from, to, rows, cols, from_stride, to_stride));
  }

  Tensor lse_place(const Tensor& all, const Block& block) const {
    const std::int64_t sequence = block.q / 2;
    return all.slice(sequence * heads(), (sequence + 1) * heads()).from(block.q % 2 * slice_tokens_);
  }

  Block block(std::int64_t q, std::int64_t q_pieces, std::int64_t k, std::int64_t k_pieces) const {
    Block b{q, q_pieces, k, k_pieces, false, a_.shape};
    b.shape.batch = 1;
    b.shape.seq_q = q_pieces * slice_tokens_;
    b.shape.seq_k = b.shape.capacity_k = k_pieces * slice_tokens_;
    return b;
  }

  // Returns the block of all visible pairs of a sequence's queries and a rank's keys. `first`: the sequence's
  // first piece.
  Block causal_block(int from, std::int64_t first) const {
    const int rank = a_.context->rank();
    // Queries see only earlier keys. Both slices of this rank come after an earlier rank's first slice, and
    // before its last slice. A later rank's slices lie between the slices of this rank, so only the last
    // slice sees them.
    Block b = from == rank  ? block(first, 2, first, 2)
              : from < rank ? block(first, 2, first, 1)
                            : block(first + 1, 1, first, 2);
    b.own_keys = b.shape.causal = from == rank;
    b.shape.window = b.shape.chunk = 0;
    return b;
  }

  template <class Visit>
  void for_each_pair(int from, std::int64_t first, Visit visit) const {
    for (int q_half = 0; q_half < 2; ++q_half) {
      for (int k_half = 0; k_half < 2; ++k_half) {
        Block b = block(first + q_half, 1, first + k_half, 1);
        b.shape.q_first = a_.context->slice(a_.context->rank(), q_half) * slice_tokens_;
        b.shape.k_first = a_.context->slice(from, k_half) * slice_tokens_;
        b.own_keys = b.shape.q_first == b.shape.k_first;
        if (sees(b.shape)) visit(b);
      }
    }
  }

  bool sees(const turbo::AttentionShape& s) const {
    const std::int64_t last_key = s.k_first + slice_tokens_ - 1;
    if (s.causal && s.k_first > s.q_first) return false;
    if (s.window > 0 && last_key <= s.q_first - s.window) return false;
    return s.chunk == 0 || last_key >= s.q_first / s.chunk * s.chunk;
  }

  OperatorCall& op_;
  Attributes a_;
  FusedColumns columns_;
  std::int64_t slice_tokens_, kv_width_;
};

void forward(OperatorCall& op) {
  const Call call(op);
  Arena& scratch = op.context().scratch;
  const Tensor qkv = op.in(ContextOperands::kQkv);
  const ScratchTensor own(scratch, qkv.dtype, call.kv_shape());
  call.copy_out(qkv, call.q_width(), own.get());
  const bool in_place = call.sums_in_place(qkv.dtype);
  std::optional<ScratchTensor> wide;
  if (!in_place) wide.emplace(scratch, DType::kF32, Shape{call.tokens(), call.out_width()});
  const Tensor sum = wide ? wide->get() : op.out(ContextOperands::kOut);
  const std::int64_t max_rows = call.attributes().shape.seq_q;
  const ScratchTensor part(scratch, qkv.dtype, {max_rows, call.out_width()});
  const ScratchTensor part_lse(scratch, DType::kF32, {call.heads(), max_rows});
  const ScratchTensor piece_lse(scratch, DType::kF32, call.piece_lse_shape());
  std::optional<ScratchTensor> own_lse;
  if (!call.attributes().statistics) own_lse.emplace(scratch, DType::kF32, call.lse_shape());
  const Tensor all_lse = own_lse ? own_lse->get() : op.out(ContextOperands::kLse);
  Written written(call.pieces());
  const auto attend = [&](int from, const Tensor& kv) {
    call.for_each_block(from, [&](const Block& block) {
      turbo::AttentionForward attention = call.forward(block, qkv, kv);
      if (block.own_keys && op.has_parameter()) attention.sinks = op.weight();
      const bool first = !written.has(block.q, block.q_pieces);
      const Tensor out = call.rows(sum, block.q, block.q_pieces);
      const Tensor lse = call.dense_lse(all_lse, block, piece_lse.get());
      if (!first) call.get_lse(all_lse, block, lse);
      const bool assigned = first && in_place;
      attention.out = assigned ? out : part.get().slice(0, block.shape.seq_q);
      attention.lse =
          assigned ? lse : Tensor(part_lse.get().data, DType::kF32, {call.heads(), block.shape.seq_q});
      launch(op.context(), attention);
      if (!assigned) {
        launch(op.context(), turbo::AttentionMerge{.heads = call.heads(),
                                                   .value_dim = block.shape.value_dim,
                                                   .part = attention.out,
                                                   .part_lse = attention.lse,
                                                   .out = out,
                                                   .lse = lse,
                                                   .accumulate = !first});
      }
      call.put_lse(lse, all_lse, block);
      written.add(block.q, block.q_pieces);
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
  if (!in_place) launch(op.context(), turbo::Cast{.x = sum, .out = op.out(ContextOperands::kOut)});
}

// Gradients of a call's inputs. `sum_` is d_qkv, or an fp32 tensor of its shape in scratch. `sum_` first
// receives the gradients of this rank's keys from this rank's queries. Contributions from queries of other
// ranks are added later.
class Gradients {
 public:
  Gradients(const OperatorCall& op, const Call& call, const Tensor& d_qkv)
      : op_(op), call_(call), d_qkv_(d_qkv), in_place_(call.sums_in_place(d_qkv.dtype)) {
    Arena& scratch = op.context().scratch;
    if (!in_place_) wide_.emplace(scratch, DType::kF32, d_qkv.shape);
    sum_ = wide_ ? wide_->get() : d_qkv;
    // With two ranks, each query gradient is the sum of two parts. The two parts are added while gradients of
    // keys and values are in flight.
    if (call.at_most_two_parts()) d_q_.emplace(scratch, sum_.dtype, Shape{call.tokens(), call.q_width()});
  }

  DType dtype() const { return sum_.dtype; }

  // Computes the contribution of this rank's queries and this rank's keys. The key gradients go to `d_kv`, or
  // to `sum_` if `d_kv` is absent.
  void of_own(const Tensor& kv, const Tensor& d_kv = {}) {
    const Rows queries{sum_, call_.width()};
    attend(call_.context().rank(), kv, queries, false,
           d_kv.absent() ? Rows{sum_.from(call_.q_width()), call_.width()} : Rows{d_kv, call_.kv_width()});
  }
  // Computes the contribution of this rank's queries and another rank's keys. Call it after of_own() and
  // before add_queries().
  void of_other(int from, const Tensor& kv, const Tensor& d_kv) {
    const Rows keys{d_kv, call_.kv_width()};
    if (d_q_) {
      attended_ = attend(from, kv, {d_q_->get(), call_.q_width()}, false, keys);
    } else {
      attend(from, kv, {sum_, call_.width()}, true, keys);
    }
    turbo::Context& context = op_.context();
    for (std::int64_t piece = 0; piece < call_.pieces(); ++piece) {
      const Tensor unseen = call_.rows(d_kv, piece, 1);
      if (!written_.has(piece, 1) && !context.measuring())
        context.stream.fill_zero(unseen.data, unseen.bytes());
    }
  }
  void add_queries() {
    if (!d_q_) return;
    for (std::int64_t piece = 0; piece < call_.pieces(); ++piece) {
      if (attended_.has(piece, 1))
        call_.add_in(call_.rows(d_q_->get(), piece, 1), call_.rows(sum_, piece, 1));
    }
  }
  void add_keys(const Tensor& d_kv) { call_.add_in(d_kv, sum_.from(call_.q_width())); }
  void put_keys(const Tensor& d_kv) { call_.copy_in(d_kv, sum_, call_.q_width()); }
  void finish() {
    if (wide_) launch(op_.context(), turbo::Cast{.x = sum_, .out = d_qkv_});
  }

 private:
  // Describes where the rows of tokens are: the first row, and the distance between rows.
  struct Rows {
    Tensor first;
    std::int64_t stride;
    Tensor at(std::int64_t row) const { return first.from(row * stride); }
  };

  // Returns the set of query pieces that saw at least one key. Sets written_ to the key pieces that at least
  // one query saw.
  Written attend(int from, const Tensor& kv, const Rows& d_q, bool add_d_q, const Rows& d_kv) {
    const ScratchTensor piece_lse(op_.context().scratch, DType::kF32, call_.piece_lse_shape());
    Written queries(call_.pieces());
    written_ = Written(call_.pieces());
    call_.for_each_block(from, [&](const Block& block) {
      const turbo::AttentionForward f = call_.forward(block, op_.in(ContextOperands::kQkv), kv);
      const Tensor lse = call_.dense_lse(op_.out(ContextOperands::kLse), block, piece_lse.get());
      call_.get_lse(op_.out(ContextOperands::kLse), block, lse);
      const Tensor d_keys = d_kv.at(call_.first_row(block.k));
      launch(op_.context(),
             turbo::AttentionBackward{
                 .shape = block.shape,
                 .q = f.q,
                 .k = f.k,
                 .v = f.v,
                 .q_stride = f.q_stride,
                 .k_stride = f.k_stride,
                 .v_stride = f.v_stride,
                 .first_key = f.first_key,
                 .out = call_.rows(op_.out(ContextOperands::kOut), block.q, block.q_pieces),
                 .lse = lse,
                 .d_out = call_.rows(op_.d_out(ContextOperands::kOut), block.q, block.q_pieces),
                 .d_q = d_q.at(call_.first_row(block.q)),
                 .d_k = d_keys,
                 .d_v = d_keys.from(call_.value_column()),
                 .d_q_stride = d_q.stride,
                 .d_k_stride = d_kv.stride,
                 .d_v_stride = d_kv.stride,
                 .accumulate_d_q = add_d_q || queries.has(block.q, block.q_pieces),
                 .accumulate_d_kv = written_.has(block.k, block.k_pieces),
                 .workspace = {}});
      queries.add(block.q, block.q_pieces);
      written_.add(block.k, block.k_pieces);
    });
    return queries;
  }

  const OperatorCall& op_;
  const Call& call_;
  const Tensor d_qkv_;
  const bool in_place_;
  std::optional<ScratchTensor> wide_, d_q_;
  Tensor sum_;
  Written written_{0}, attended_{0};
};

// Key and value gradients that are sums of three or more parts are sent in fp32. With two ranks, these
// gradients are sent once in their own type and added on the owner.
void backward_input(OperatorCall& op) {
  const Call call(op);
  turbo::Context& context = op.context();
  Arena& scratch = context.scratch;
  ContextParallel& group = call.context();
  const Tensor qkv = op.in(ContextOperands::kQkv);
  const auto [d_qkv, previous] = op.fresh_d_in(ContextOperands::kQkv);
  const ScratchTensor own(scratch, qkv.dtype, call.kv_shape());
  call.copy_out(qkv, call.q_width(), own.get());
  Gradients gradients(op, call, d_qkv);
  if (group.exchange() == ContextParallel::Exchange::kRing) {
    // The gradients of a rank's keys and values follow the keys and values around the ring, one step later.
    // The gradients start at the first rank after the owner, and end at the owner.
    const ScratchTensor part(scratch, gradients.dtype(), call.kv_shape());
    const ScratchTensor arriving(scratch, gradients.dtype(), call.kv_shape());
    std::optional<ScratchTensor> sum;
    if (group.ranks() > 2) sum.emplace(scratch, gradients.dtype(), call.kv_shape());
    int step = 0;
    call.ring(own.get(), [&](int from, const Tensor& kv) {
      if (step++ == 0) return gradients.of_own(kv);
      gradients.of_other(from, kv, part.get());
      const Tensor sent = sum ? sum->get() : part.get();
      if (step > 2) {
        group.wait(group.gradients_arrived());
        launch(context, turbo::Add{.a = arriving.get(), .b = part.get(), .out = sent});
      } else if (sum) {
        copy(context, part.get(), sent);
      }
      group.pass_on(sent, arriving.get(), group.gradients_arrived());
      gradients.add_queries();
    });
    group.wait(group.gradients_arrived());
    gradients.add_keys(arriving.get());
  } else {
    const ScratchTensor all(scratch, qkv.dtype, {group.ranks() * call.tokens(), call.kv_width()});
    const ScratchTensor d_all(scratch, gradients.dtype(), all.get().shape);
    const ScratchTensor d_own(scratch, gradients.dtype(), call.kv_shape());
    const auto part = [&](const ScratchTensor& of_all, int from) {
      return of_all.get().slice(from * call.tokens(), (from + 1) * call.tokens());
    };
    group.all_gather(own.get(), all.get());
    gradients.of_own(own.get(), part(d_all, group.rank()));
    for (int i = 1; i < group.ranks(); ++i) {
      const int from = (group.rank() + i) % group.ranks();
      gradients.of_other(from, part(all, from), part(d_all, from));
      gradients.add_queries();
    }
    group.reduce_scatter(d_all.get(), d_own.get());
    gradients.put_keys(d_own.get());
  }
  gradients.finish();
  add_previous(op, {d_qkv, previous});
}

// The operator's parameter holds the sinks, as in ordinary attention.
void backward_weight(OperatorCall& op) {
  const Call call(op);
  write_fp32_weight_gradient(op, [&](const Tensor& d_sinks, bool accumulate) {
    for (std::int64_t i = 0; i < call.sequences(); ++i) {
      launch(op.context(),
             turbo::AttentionBackwardSinks{
                 .heads = call.heads(),
                 .value_dim = call.attributes().shape.value_dim,
                 .sinks = op.weight(),
                 .out = call.rows(op.out(ContextOperands::kOut), 2 * i, 2),
                 .lse = op.out(ContextOperands::kLse).slice(i * call.heads(), (i + 1) * call.heads()),
                 .d_out = call.rows(op.d_out(ContextOperands::kOut), 2 * i, 2),
                 .d_sinks = d_sinks,
                 .accumulate = accumulate || i > 0});
    }
  });
}

constexpr Operator kContextAttention{.name = "context_attention",
                                     .operator_class = OperatorClass::kAttention,
                                     .forward = forward,
                                     .backward_input = backward_input,
                                     .backward_weight = backward_weight,
                                     .for_input = saves(ContextOperands::kQkv, ContextOperands::kFirstKey,
                                                        ContextOperands::kOut, ContextOperands::kLse),
                                     .for_weight = saves(ContextOperands::kOut, ContextOperands::kLse),
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
  const Tape::Output out{ContextOperands::kOut, qkv.dtype(), Shape{tokens, shape.heads * shape.value_dim}};
  const Attributes attributes{shape, options.context, tape.training()};
  if (!tape.training()) {
    return tape.record(kContextAttention,
                       {{ContextOperands::kQkv, qkv}, {ContextOperands::kFirstKey, options.first_key}},
                       options.sinks, {out}, attributes)[ContextOperands::kOut];
  }
  const Tape::Output lse{ContextOperands::kLse, DType::kF32, Shape{shape.batch * shape.heads, shape.seq_q},
                         false};
  return tape.record(kContextAttention,
                     {{ContextOperands::kQkv, qkv}, {ContextOperands::kFirstKey, options.first_key}},
                     options.sinks, {out, lse}, attributes)[ContextOperands::kOut];
}

}  // namespace primus::engine
