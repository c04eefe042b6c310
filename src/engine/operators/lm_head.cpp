// The LM head fused with its loss. operators.h has the contract; this explains when it runs.
//
// Logits are the largest tensor of a small model, so only one slice of the logits exists at a time, between
// two products. The input gradient, the weight gradient and the loss all need the same slice of logits:
// computing them together costs three products instead of five. For this, the gradient with respect to each
// token's loss must be known. That gradient equals the token's weight, which includes the normalisation, so
// it is known in the forward pass. In training, all work happens when the backward pass begins, and no work
// in the forward pass. A deferred weight gradient computes the slice a second time, with the same bits.
//
// On a GPU the fp32 logits exist for only a part of a slice at a time, because the two following products
// read only the bf16 gradient.
//
// If the vocabulary is divided over ranks, each rank computes the logits of its rows of the head. A slice is
// reduced to three numbers per token (turbo::CrossEntropyPart), which all ranks gather. Entropies need five
// numbers per token, on a single rank, too.
//
// A distilled model has the same slices. A slice of the teacher's logits exists next to a slice of its own.
#include <algorithm>

#include "base/check.h"
#include "engine/parallel/parallel_operators.h"
#include "tensor/scratch_tensor.h"
#include "turbo/cross_entropy/cross_entropy.h"
#include "turbo/elementwise/elementwise.h"
#include "turbo/linear/linear.h"

namespace primus::engine {
namespace {

using turbo::Gemm;
using turbo::GemmRole;
using turbo::launch;

struct LossAttributes {
  SharedVocabulary vocabulary;
  float cap;                         // soft cap of the logits; 0: no cap
  const Teacher* teacher = nullptr;  // null: the loss is the cross-entropy
};

struct Slice {
  std::int64_t begin, end;
  Tensor rows(const Tensor& t) const { return t.slice(begin, end); }
};

struct LmHead {
  enum In : InputName { kHidden, kLabels, kWeights, kEntropyWeights };
  enum Out : OutputName { kLoss, kEntropies, kCollisions };
};

// Memory for results that every rank computes for its part of the vocabulary.
struct PartialResults {
  PartialResults(OperatorCall& op, const SharedVocabulary& shared, std::int64_t tokens, std::int64_t values)
      : call(op),
        vocabulary(shared),
        memory(op.context().scratch, DType::kF32, {shared.group ? shared.group->size() : 1, tokens, values}),
        own(memory.get()
                .slice(shared.group ? shared.group->rank() : 0, (shared.group ? shared.group->rank() : 0) + 1)
                .reshaped({tokens, values})) {}
  // Returns the results of all ranks, after this rank has computed `own`.
  Tensor gathered() const {
    if (vocabulary.group) vocabulary.group->all_gather(call.context().stream, own, memory.get());
    return memory.get();
  }

  OperatorCall& call;
  const SharedVocabulary& vocabulary;
  ScratchTensor memory;
  Tensor own;
};

// Computes the loss of a slice of a distilled model, and d_logits if needed.
void distillation(OperatorCall& op, const Slice& slice, const Tensor& logits, const Tensor& d_logits) {
  const auto [shared, cap, teacher] = op.attributes<LossAttributes>();
  const Tensor labels = slice.rows(op.in(LmHead::kLabels)), weights = slice.rows(op.in(LmHead::kWeights));
  const std::int64_t tokens = slice.end - slice.begin, first = shared.group ? shared.own().begin : 0;
  const ScratchTensor of_teacher(op.context().scratch, DType::kF32, logits.shape);
  launch(op.context(), Gemm{.role = GemmRole::kForward,
                            .a = slice.rows(teacher->hidden),
                            .b = teacher->weight,
                            .c = of_teacher.get(),
                            .accumulate = false,
                            .workspace = {}});
  const PartialResults parts(op, shared, tokens, turbo::kDistillationValues);
  launch(op.context(), turbo::DistillationPart{.student = logits,
                                               .teacher = of_teacher.get(),
                                               .labels = labels,
                                               .part = parts.own,
                                               .first = first,
                                               .form = teacher->form});
  const Tensor all_parts = parts.gathered();
  const PartialResults sums(op, shared, tokens, turbo::kDistillationSumValues);
  launch(op.context(), turbo::DistillationSums{.parts = all_parts,
                                               .student = logits,
                                               .teacher = of_teacher.get(),
                                               .weights = weights,
                                               .sums = sums.own,
                                               .form = teacher->form});
  launch(op.context(), turbo::DistillationLoss{.parts = all_parts,
                                               .sums = sums.gathered(),
                                               .student = logits,
                                               .teacher = of_teacher.get(),
                                               .labels = labels,
                                               .weights = weights,
                                               .loss = slice.rows(op.out(LmHead::kLoss)),
                                               .d_logits = d_logits,
                                               .first = first,
                                               .vocabulary = shared.group ? shared.size : logits.cols(),
                                               .form = teacher->form});
}

// Computes the cross-entropy of a slice: the loss, and d_logits if needed.
void cross_entropy(OperatorCall& op, const Slice& slice, const Tensor& logits, const Tensor& d_logits) {
  const auto [shared, cap, teacher] = op.attributes<LossAttributes>();
  const Tensor labels = slice.rows(op.in(LmHead::kLabels)), weights = slice.rows(op.in(LmHead::kWeights)),
               loss = slice.rows(op.out(LmHead::kLoss));
  const bool statistics = op.output_count() > LmHead::kEntropies;
  const bool entropies = statistics || op.has_in(LmHead::kEntropyWeights);
  if (!shared.group && !entropies) {
    launch(op.context(), turbo::CrossEntropy{.logits = logits,
                                             .labels = labels,
                                             .weights = weights,
                                             .loss = loss,
                                             .d_logits = d_logits,
                                             .cap = cap});
    return;
  }
  const PartialResults parts(op, shared, slice.end - slice.begin,
                             entropies ? turbo::kEntropyValues : turbo::kCrossEntropyValues);
  const std::int64_t first = shared.group ? shared.own().begin : 0;
  launch(op.context(),
         turbo::CrossEntropyPart{
             .logits = logits, .labels = labels, .part = parts.own, .first = first, .cap = cap});
  turbo::CrossEntropyOfParts whole{.parts = parts.gathered(),
                                   .logits = logits,
                                   .labels = labels,
                                   .weights = weights,
                                   .loss = loss,
                                   .d_logits = d_logits,
                                   .first = first,
                                   .vocabulary = shared.group ? shared.size : logits.cols(),
                                   .cap = cap};
  if (op.has_in(LmHead::kEntropyWeights)) whole.entropy_weights = slice.rows(op.in(LmHead::kEntropyWeights));
  if (statistics) {
    whole.entropies = slice.rows(op.out(LmHead::kEntropies));
    whole.collisions = slice.rows(op.out(LmHead::kCollisions));
  }
  launch(op.context(), whole);
}

// Returns the number of tokens per slice. This number follows from the largest part of the vocabulary, so it
// is equal on all ranks that share the vocabulary.
std::int64_t slice_tokens_of(const OperatorCall& op, std::int64_t tokens, std::int64_t vocab) {
  const SharedVocabulary shared = op.attributes<LossAttributes>().vocabulary;
  if (shared.group) vocab = (shared.size + shared.group->size() - 1) / shared.group->size() + 64;
  return lm_head_slice_tokens(op.context().device, tokens, vocab);
}

// Returns the number of tokens whose fp32 logits exist at a time, if the gradient of the logits has a
// narrower type.
std::int64_t part_tokens_of(const OperatorCall& op, std::int64_t slice_tokens) {
  if (op.context().device.properties().host_memory) return slice_tokens;
  // A part is a quarter of a slice. Every product reads the entire weight, so a part should fill many
  // complete tiles of rows.
  constexpr std::int64_t kParts = 4, kTile = 128;
  const std::int64_t even = (slice_tokens + kParts - 1) / kParts;
  const std::int64_t part = (even + kTile - 1) / kTile * kTile;
  return std::min(part, slice_tokens);
}

// Computes logits and cross-entropy of each slice and calls consume(slice, d_logits). d_logits is absent in
// inference.
template <class Consume>
void for_each_slice(OperatorCall& op, bool gradient, Consume&& consume) {
  const Tensor hidden = op.in(LmHead::kHidden), weight = op.weight();
  const std::int64_t tokens = hidden.rows(), vocab = weight.shape[0];
  const std::int64_t slice_tokens = slice_tokens_of(op, tokens, vocab);
  // fp32 gradients overwrite the logits. bf16 gradients have narrower rows and need separate memory.
  const bool narrow = hidden.dtype != DType::kF32;
  const std::int64_t part_tokens = narrow ? part_tokens_of(op, slice_tokens) : slice_tokens;
  ScratchTensor logits(op.context().scratch, DType::kF32, {part_tokens, vocab});
  ScratchTensor narrow_logits(op.context().scratch, hidden.dtype,
                              gradient && narrow ? Shape{slice_tokens, vocab} : Shape{0});
  for (std::int64_t begin = 0; begin < tokens; begin += slice_tokens) {
    const Slice slice{begin, std::min(tokens, begin + slice_tokens)};
    for (std::int64_t at = begin; at < slice.end; at += part_tokens) {
      const Slice part{at, std::min(slice.end, at + part_tokens)};
      const Tensor part_logits = logits.get().slice(0, part.end - at);
      Tensor d_logits;
      if (gradient) d_logits = narrow ? narrow_logits.get().slice(at - begin, part.end - begin) : part_logits;
      launch(op.context(), Gemm{.role = GemmRole::kForward,
                                .a = part.rows(hidden),
                                .b = weight,
                                .c = part_logits,
                                .accumulate = false,
                                .workspace = {}});
      const bool distilled = op.attributes<LossAttributes>().teacher != nullptr;
      (distilled ? distillation : cross_entropy)(op, part, part_logits, d_logits);
    }
    if (gradient) consume(slice, (narrow ? narrow_logits : logits).get().slice(0, slice.end - begin));
  }
}

void add_weight_gradient(OperatorCall& op, const Slice& slice, const Tensor& d_logits) {
  const auto [d_weight, accumulate] = op.d_weight();
  launch(op.context(), Gemm{.role = GemmRole::kWeightGradient,
                            .a = d_logits,
                            .b = slice.rows(op.in(LmHead::kHidden)),
                            .c = d_weight,
                            .accumulate = accumulate,
                            .workspace = {}});
}

void inference_forward(OperatorCall& op) {
  for_each_slice(op, false, [](const Slice&, const Tensor&) {});
}

void training_forward(OperatorCall&) {}

void backward_input(OperatorCall& op) {
  const bool weight_now = op.weight_gradient_now();
  OperatorCall::Target target;
  if (op.needs_d_in(LmHead::kHidden)) target = op.fresh_d_in(LmHead::kHidden);
  const Tensor& d_hidden = target.out;
  for_each_slice(op, true, [&](const Slice& slice, const Tensor& d_logits) {
    // Computes the weight gradient first. It is the model's largest gradient, so its reduction should start
    // early.
    if (weight_now) add_weight_gradient(op, slice, d_logits);
    if (d_hidden.absent()) return;
    launch(op.context(), Gemm{.role = GemmRole::kInputGradient,
                              .a = d_logits,
                              .b = op.weight(),
                              .c = slice.rows(d_hidden),
                              .accumulate = false,
                              .workspace = {}});
  });
  add_previous(op, target);
  if (weight_now) op.weight_gradient_done();
}

void backward_weight(OperatorCall& op) {
  for_each_slice(op, true, [&](const Slice& slice, const Tensor& d_logits) {
    add_weight_gradient(op, slice, d_logits);
  });
}

constexpr Saves kAll =
    saves(LmHead::kHidden, LmHead::kLabels, LmHead::kWeights, LmHead::kEntropyWeights, LmHead::kLoss);
constexpr Operator kTraining{.name = "lm_head_loss",
                             .operator_class = OperatorClass::kLoss,
                             .forward = training_forward,
                             .backward_input = backward_input,
                             .backward_weight = backward_weight,
                             .for_input = kAll,
                             .for_weight = kAll,
                             .is_loss = true,
                             .weight_reads_parameter = true};
constexpr Operator kDistillation = [] {
  Operator distillation = kTraining;
  distillation.name = "distilled_loss";
  return distillation;
}();
constexpr Operator kInference{
    .name = "lm_head_loss", .operator_class = OperatorClass::kLoss, .forward = inference_forward};

// --- head_logits

void head_logits_forward(OperatorCall& op) {
  launch(op.context(), Gemm{.role = GemmRole::kForward,
                            .a = op.in(Unary::kX),
                            .b = op.weight(),
                            .c = op.out(Unary::kY),
                            .accumulate = false,
                            .workspace = {}});
}

constexpr Operator kHeadLogits{
    .name = "head_logits", .operator_class = OperatorClass::kLoss, .forward = head_logits_forward};

}  // namespace

Value head_logits(const Value& hidden, Parameter& weight) {
  PRIMUS_CHECK("head_logits", !hidden.tape().training());
  return hidden.tape().record(
      kHeadLogits, {{Unary::kX, hidden}}, &weight,
      {{Unary::kY, DType::kF32, Shape{hidden.shape()[0], weight.shape[0]}, false}})[Unary::kY];
}

std::int64_t lm_head_slice_tokens(const Device& device, std::int64_t tokens, std::int64_t vocab) {
  // Every slice reads and writes the entire weight gradient. On a fast GPU, slices need thousands of tokens
  // to make this time negligible.
  const DeviceProperties properties = device.properties();
  std::int64_t logits_bytes = std::int64_t{256} << 20;
  if (!properties.host_memory) {
    logits_bytes = std::int64_t{2} << 30;
    // A small GPU needs most of its memory for other data.
    if (properties.memory > 0) logits_bytes = std::min(logits_bytes, properties.memory / 40);
  }
  // Slices have about the same size, a multiple of 64 rows, which fills the tiles of matrix products.
  const std::int64_t fit = std::max<std::int64_t>(64, logits_bytes / (vocab * 4) / 64 * 64);
  const std::int64_t slices = (tokens + fit - 1) / fit;
  return std::min(tokens, (tokens / std::max<std::int64_t>(slices, 1) + 63) / 64 * 64);
}

Value lm_head_loss(const Value& hidden, Parameter& weight, const Value& labels, const Value& weights) {
  return lm_head_loss(hidden, weight, labels, weights, SharedVocabulary());
}

Value lm_head_loss(const Value& hidden, Parameter& weight, const Value& labels, const Value& weights,
                   const SharedVocabulary& vocabulary, double cap, const Value& entropy_weights) {
  Tape& tape = hidden.tape();
  return tape.record(tape.training() ? kTraining : kInference,
                     {{LmHead::kHidden, hidden},
                      {LmHead::kLabels, labels},
                      {LmHead::kWeights, weights},
                      {LmHead::kEntropyWeights, entropy_weights}},
                     &weight, {{LmHead::kLoss, DType::kF32, Shape{hidden.shape()[0]}, false}},
                     LossAttributes{vocabulary, static_cast<float>(cap)})[LmHead::kLoss];
}

Value distilled_loss(const Value& hidden, Parameter& weight, const Value& labels, const Value& weights,
                     const SharedVocabulary& vocabulary, const Teacher& teacher) {
  PRIMUS_CHECK("distilled_loss", hidden.tape().training());
  PRIMUS_CHECK("distilled_loss", teacher.hidden.rows() == hidden.shape()[0]);
  PRIMUS_CHECK("distilled_loss", teacher.weight.shape[0] == weight.shape[0]);
  return hidden.tape().record(
      kDistillation, {{LmHead::kHidden, hidden}, {LmHead::kLabels, labels}, {LmHead::kWeights, weights}},
      &weight, {{LmHead::kLoss, DType::kF32, Shape{hidden.shape()[0]}, false}},
      LossAttributes{vocabulary, teacher.form.cap, &teacher})[LmHead::kLoss];
}

Value token_losses(const Value& hidden, Parameter& weight, const Value& labels, const Value& ones,
                   const SharedVocabulary& vocabulary, double cap) {
  return hidden.tape().record(
      kInference, {{LmHead::kHidden, hidden}, {LmHead::kLabels, labels}, {LmHead::kWeights, ones}}, &weight,
      {{LmHead::kLoss, DType::kF32, Shape{hidden.shape()[0]}, false}},
      LossAttributes{vocabulary, static_cast<float>(cap)})[LmHead::kLoss];
}

TokenStatistics token_statistics(const Value& hidden, Parameter& weight, const Value& labels,
                                 const Value& ones, const SharedVocabulary& vocabulary, double cap) {
  const Shape tokens{hidden.shape()[0]};
  Tape::Outputs out = hidden.tape().record(
      kInference, {{LmHead::kHidden, hidden}, {LmHead::kLabels, labels}, {LmHead::kWeights, ones}}, &weight,
      {{LmHead::kLoss, DType::kF32, tokens, false},
       {LmHead::kEntropies, DType::kF32, tokens, false},
       {LmHead::kCollisions, DType::kF32, tokens, false}},
      LossAttributes{vocabulary, static_cast<float>(cap)});
  return {out[LmHead::kLoss], out[LmHead::kEntropies], out[LmHead::kCollisions]};
}

}  // namespace primus::engine
