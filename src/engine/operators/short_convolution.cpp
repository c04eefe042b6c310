#include "engine/operators/short_convolution.h"

#include <optional>

#include "base/check.h"
#include "engine/parallel/context_attention.h"
#include "engine/runtime/parameter_values.h"
#include "tensor/scratch_tensor.h"
#include "turbo/elementwise/elementwise.h"

namespace primus::engine {
namespace {

using turbo::launch;

// --- short_convolution

struct Attributes {
  turbo::CausalConvShape shape;
  ContextParallel* context;

  // Returns whether some tokens have neighbours on other ranks. If so, the call also outputs the inputs that
  // precede each slice.
  bool has_edges() const { return context && shape.width > 1; }
  // Returns whether the call also outputs the sums before the activation, which gradients of the activation
  // need.
  bool sums() const { return shape.form == turbo::CausalConvShape::Form::kSilu; }
};

struct Convolution {
  enum In : InputName { kBcx, kFirstKey, kBias };
  enum Out : OutputName { kY, kBefore };
};

Tensor first_key(const OperatorCall& op) { return op.optional_in(Convolution::kFirstKey); }
Tensor bias(const OperatorCall& op) { return op.optional_in(Convolution::kBias); }
Tensor before(const OperatorCall& op, const Attributes& a) {
  return a.has_edges() ? op.out(Convolution::kBefore) : Tensor();
}

// Exchanges edges between ranks. `out`: the edges of the slices before this rank's slices (`by` -1) or after
// this rank's slices (`by` 1). Edges of missing slices are zero.
void neighbours(turbo::Context& context, const Attributes& a, const Tensor& own, int by, const Tensor& out) {
  ContextParallel& group = *a.context;
  const std::int64_t ranks = group.ranks(), edge = own.elements() / a.shape.segments;
  const ScratchTensor all(context.scratch, DType::kF32, {ranks * own.rows(), own.cols()});
  group.all_gather(own, all.get());
  if (!context.measuring()) context.stream.fill_zero(out.data, out.bytes());
  for (int half = 0; half < 2; ++half) {
    const std::int64_t slice = group.slice(group.rank(), half) + by;
    if (slice < 0 || slice >= 2 * ranks) continue;
    const std::int64_t rank = slice < ranks ? slice : 2 * ranks - 1 - slice;
    const std::int64_t from = rank * own.elements() + (slice < ranks ? 0 : edge);
    launch(context, turbo::CopyRows::strided(all.get().from(from), out.from(half * edge),
                                             a.shape.segments / 2, edge, 2 * edge, 2 * edge));
  }
}

void forward(OperatorCall& op) {
  const auto a = op.attributes<Attributes>();
  if (a.has_edges()) {
    const ScratchTensor own(op.context().scratch, DType::kF32, a.shape.edge());
    launch(op.context(),
           turbo::CausalConvEdge{.shape = a.shape, .bcx = op.in(Convolution::kBcx), .edge = own.get()});
    neighbours(op.context(), a, own.get(), -1, op.out(Convolution::kBefore));
  }
  launch(op.context(), turbo::CausalConvForward{.shape = a.shape,
                                                .bcx = op.in(Convolution::kBcx),
                                                .weight = op.weight(),
                                                .bias = bias(op),
                                                .before = before(op, a),
                                                .first_key = first_key(op),
                                                .y = op.out(Convolution::kY)});
}

void weight_gradient(OperatorCall& op, const Tensor& d_weight, bool of_bias, bool accumulate) {
  const auto a = op.attributes<Attributes>();
  launch(op.context(), turbo::CausalConvBackwardWeight{.shape = a.shape,
                                                       .bcx = op.in(Convolution::kBcx),
                                                       .before = before(op, a),
                                                       .first_key = first_key(op),
                                                       .weight = a.sums() ? op.weight() : Tensor(),
                                                       .bias = a.sums() ? bias(op) : Tensor(),
                                                       .d_y = op.d_out(Convolution::kY),
                                                       .of_bias = of_bias,
                                                       .d_weight = d_weight,
                                                       .accumulate = accumulate,
                                                       .workspace = {}});
}

void backward_input(OperatorCall& op) {
  const auto a = op.attributes<Attributes>();
  if (op.needs_d_in(Convolution::kBias)) {
    const auto target = op.fresh_d_in(Convolution::kBias);
    weight_gradient(op, target.out, true, false);
    add_previous(op, target);
  }
  if (!op.needs_d_in(Convolution::kBcx)) return;
  Arena& scratch = op.context().scratch;
  std::optional<ScratchTensor> d_after;
  if (a.has_edges()) {
    d_after.emplace(scratch, DType::kF32, a.shape.edge());
    const ScratchTensor d_before(scratch, DType::kF32, a.shape.edge());
    launch(op.context(), turbo::CausalConvBackwardEdge{.shape = a.shape,
                                                       .bcx = op.in(Convolution::kBcx),
                                                       .weight = op.weight(),
                                                       .first_key = first_key(op),
                                                       .bias = a.sums() ? bias(op) : Tensor(),
                                                       .before = a.sums() ? before(op, a) : Tensor(),
                                                       .d_y = op.d_out(Convolution::kY),
                                                       .d_edge = d_before.get()});
    neighbours(op.context(), a, d_before.get(), 1, d_after->get());
  }
  const auto target = op.fresh_d_in(Convolution::kBcx);
  launch(op.context(), turbo::CausalConvBackwardInput{.shape = a.shape,
                                                      .bcx = op.in(Convolution::kBcx),
                                                      .weight = op.weight(),
                                                      .bias = bias(op),
                                                      .before = before(op, a),
                                                      .first_key = first_key(op),
                                                      .d_y = op.d_out(Convolution::kY),
                                                      .d_after = d_after ? d_after->get() : Tensor(),
                                                      .d_bcx = target.out});
  add_previous(op, target);
}

void backward_weight(OperatorCall& op) {
  const auto [d_weight, accumulate] = op.d_weight();
  weight_gradient(op, d_weight, false, accumulate);
}

constexpr Operator short_convolution_operator(bool silu) {
  return {
      .name = silu ? "silu_convolution" : "short_convolution",
      .operator_class = OperatorClass::kActivation,
      .forward = forward,
      .backward_input = backward_input,
      .backward_weight = backward_weight,
      .for_input = saves(Convolution::kBcx, Convolution::kFirstKey, Convolution::kBias, Convolution::kBefore),
      .for_weight =
          silu ? saves(Convolution::kBcx, Convolution::kFirstKey, Convolution::kBias, Convolution::kBefore)
               : saves(Convolution::kBcx, Convolution::kFirstKey, Convolution::kBefore),
      .weight_reads_parameter = silu};
}
constexpr Operator kShortConvolution = short_convolution_operator(false),
                   kSiluConvolution = short_convolution_operator(true);

// --- with a cache

struct CachedAttributes {
  turbo::PagedSequences sequences;
  Tensor ring;
  std::int64_t width;
  turbo::CausalConvShape::Form form;
};

struct CachedConvolution {
  enum In : InputName { kBcx, kBias };
  enum Out : OutputName { kY };
};

void cached_forward(OperatorCall& op) {
  const auto a = op.attributes<CachedAttributes>();
  launch(op.context(), turbo::CachedCausalConv{.sequences = a.sequences,
                                               .width = a.width,
                                               .form = a.form,
                                               .bcx = op.in(CachedConvolution::kBcx),
                                               .weight = op.weight(),
                                               .bias = op.optional_in(CachedConvolution::kBias),
                                               .ring = a.ring,
                                               .y = op.out(CachedConvolution::kY)});
}

constexpr Operator kCachedShortConvolution{.name = "cached_short_convolution",
                                           .operator_class = OperatorClass::kActivation,
                                           .forward = cached_forward};

}  // namespace

Value short_convolution(const Value& bcx, Parameter& weight, const ShortConvolutionShape& shape,
                        const ShortConvolutionOptions& options) {
  Tape& tape = bcx.tape();
  const Shape out{shape.batch * shape.sequence, shape.channels};
  Value bias;
  if (options.bias) bias = parameter_values(tape, *options.bias);
  if (const KvCacheLayer* layer = options.cache.layer) {
    PRIMUS_CHECK("short_convolution", !tape.training() && !options.first_key && !options.context);
    return tape.record(kCachedShortConvolution,
                       {{CachedConvolution::kBcx, bcx}, {CachedConvolution::kBias, bias}}, &weight,
                       {{CachedConvolution::kY, bcx.dtype(), out}},
                       CachedAttributes{*options.cache.sequences, layer->ring, shape.width,
                                        shape.form})[CachedConvolution::kY];
  }
  Attributes a{.shape = {shape.batch, shape.sequence, shape.channels, shape.width, 0, 0, shape.form},
               .context = options.context};
  const auto record = [&](std::initializer_list<Tape::Output> outputs) {
    const Operator& op = a.sums() ? kSiluConvolution : kShortConvolution;
    return tape.record(
        op,
        {{Convolution::kBcx, bcx}, {Convolution::kFirstKey, options.first_key}, {Convolution::kBias, bias}},
        &weight, outputs, a)[Convolution::kY];
  };
  if (a.context) {
    const std::int64_t slice = shape.sequence / 2;
    PRIMUS_CHECK("short_convolution", slice >= shape.width - 1);
    const auto first = [&](int half) { return a.context->slice(a.context->rank(), half) * slice; };
    a.shape.segments = 2 * shape.batch, a.shape.tokens = slice;
    a.shape.first_of_even = first(0), a.shape.first_of_odd = first(1);
  }
  const Tape::Output y{Convolution::kY, bcx.dtype(), out};
  if (!a.has_edges()) return record({y});
  return record({y, {Convolution::kBefore, DType::kF32, a.shape.edge(), false}});
}

}  // namespace primus::engine
