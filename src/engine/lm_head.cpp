// The LM head fused with its loss. See operators.h for the contract; here is why it runs when it does.
//
// Logits are the largest tensor of a small model, so a chunk of them lives only between two products. The
// input gradient, the weight gradient and the loss all need the same chunk of logits: computing them together
// costs three products instead of five. That is possible as soon as the gradient of the loss is known, which
// it is from the start (the weights carry the normalisation), so the forward pass of training has nothing to
// do, and everything happens where the backward pass begins. A deferred weight gradient computes the chunk a
// second time: the same bits.
//
// On a GPU the fp32 logits are there for a part of a chunk at a time, because the two products behind them
// read the bf16 gradient alone.
//
// Where ranks share the vocabulary, each makes the logits of its rows. What a chunk's columns come to are
// three numbers for each token (turbo::CrossEntropyPart), which all ranks gather.
#include <algorithm>

#include "engine/parallel_operators.h"
#include "tensor/scratch_tensor.h"
#include "turbo/cross_entropy/cross_entropy.h"
#include "turbo/elementwise/elementwise.h"
#include "turbo/linear/linear.h"

namespace primus::engine {
namespace {

using turbo::Gemm;
using turbo::GemmRole;
using turbo::launch;

struct Chunk {
  std::int64_t begin, end;
  Tensor rows(const Tensor& t) const { return t.slice(begin, end); }
};

// The cross-entropy of a chunk: loss, and d_logits where they are wanted.
void cross_entropy(OperatorCall& op, const Chunk& chunk, const Tensor& logits, const Tensor& d_logits) {
  const auto shared = op.attributes<SharedVocabulary>();
  const Tensor labels = chunk.rows(op.in(1)), weights = chunk.rows(op.in(2)), loss = chunk.rows(op.out(0));
  if (!shared.group) {
    launch(op.context(),
           turbo::CrossEntropy{
               .logits = logits, .labels = labels, .weights = weights, .loss = loss, .d_logits = d_logits});
    return;
  }
  const std::int64_t tokens = chunk.end - chunk.begin, ranks = shared.group->size(),
                     rank = shared.group->rank();
  const ScratchTensor parts(op.context().scratch, DType::kF32, {ranks, tokens, turbo::kCrossEntropyValues});
  const Tensor part = parts.get().slice(rank, rank + 1).reshaped({tokens, turbo::kCrossEntropyValues});
  const std::int64_t first = shared.own().begin;
  launch(op.context(),
         turbo::CrossEntropyPart{.logits = logits, .labels = labels, .part = part, .first = first});
  shared.group->all_gather(op.context().stream, part, parts.get());
  launch(op.context(), turbo::CrossEntropyOfParts{.parts = parts.get(),
                                                  .logits = logits,
                                                  .labels = labels,
                                                  .weights = weights,
                                                  .loss = loss,
                                                  .d_logits = d_logits,
                                                  .first = first,
                                                  .vocabulary = shared.size});
}

// Tokens per chunk: the same on all ranks that share the vocabulary, by the largest part.
std::int64_t chunk_tokens_of(const OperatorCall& op, std::int64_t tokens, std::int64_t vocab) {
  const auto shared = op.attributes<SharedVocabulary>();
  if (shared.group) vocab = (shared.size + shared.group->size() - 1) / shared.group->size() + 64;
  return lm_head_chunk_tokens(op.context().device, tokens, vocab);
}

// Tokens whose fp32 logits exist at a time, of a chunk whose gradient is narrower than they are.
std::int64_t part_tokens_of(const OperatorCall& op, std::int64_t chunk_tokens) {
  if (op.context().device.properties().host_memory) return chunk_tokens;
  // A quarter of a chunk's: many tiles of rows for each product, which reads all of the weight, and whole
  // ones.
  constexpr std::int64_t kParts = 4, kTile = 128;
  const std::int64_t part = (chunk_tokens / kParts + kTile - 1) / kTile * kTile;
  return std::min(part, chunk_tokens);
}

// Inputs: hidden, labels, weights. Output: loss.
// Computes logits and cross-entropy of each chunk and hands (chunk, d_logits) on. d_logits is absent in
// inference.
template <class Consume>
void for_each_chunk(OperatorCall& op, bool gradient, Consume&& consume) {
  const Tensor hidden = op.in(0), weight = op.weight();
  const std::int64_t tokens = hidden.rows(), vocab = weight.shape[0];
  const std::int64_t chunk_tokens = chunk_tokens_of(op, tokens, vocab);
  // fp32 gradients overwrite the logits; bf16 ones need their own, narrower rows.
  const bool narrow = hidden.dtype != DType::kF32;
  const std::int64_t part_tokens = narrow ? part_tokens_of(op, chunk_tokens) : chunk_tokens;
  ScratchTensor logits(op.context().scratch, DType::kF32, {part_tokens, vocab});
  ScratchTensor narrow_logits(op.context().scratch, hidden.dtype,
                              gradient && narrow ? Shape{chunk_tokens, vocab} : Shape{0});
  for (std::int64_t begin = 0; begin < tokens; begin += chunk_tokens) {
    const Chunk chunk{begin, std::min(tokens, begin + chunk_tokens)};
    for (std::int64_t at = begin; at < chunk.end; at += part_tokens) {
      op.stop_if_asked();
      const Chunk part{at, std::min(chunk.end, at + part_tokens)};
      const Tensor part_logits = logits.get().slice(0, part.end - at);
      Tensor d_logits;
      if (gradient) d_logits = narrow ? narrow_logits.get().slice(at - begin, part.end - begin) : part_logits;
      launch(op.context(), Gemm{.role = GemmRole::kForward,
                                .a = part.rows(hidden),
                                .b = weight,
                                .c = part_logits,
                                .accumulate = false,
                                .workspace = {}});
      cross_entropy(op, part, part_logits, d_logits);
    }
    if (gradient) consume(chunk, (narrow ? narrow_logits : logits).get().slice(0, chunk.end - begin));
  }
}

void add_weight_gradient(OperatorCall& op, const Chunk& chunk, const Tensor& d_logits) {
  const auto [d_weight, accumulate] = op.d_weight();
  launch(op.context(), Gemm{.role = GemmRole::kWeightGradient,
                            .a = d_logits,
                            .b = chunk.rows(op.in(0)),
                            .c = d_weight,
                            .accumulate = accumulate,
                            .workspace = {}});
}

void inference_forward(OperatorCall& op) {
  for_each_chunk(op, false, [](const Chunk&, const Tensor&) {});
}

void training_forward(OperatorCall&) {}

void backward_input(OperatorCall& op) {
  const bool weight_now = op.weight_gradient_now();
  OperatorCall::Target target;
  if (op.needs_d_in(0)) target = op.fresh_d_in(0);
  const Tensor& d_hidden = target.out;
  for_each_chunk(op, true, [&](const Chunk& chunk, const Tensor& d_logits) {
    // The weight gradient first: it is the largest of the model, and the first whose reduction can begin.
    if (weight_now) add_weight_gradient(op, chunk, d_logits);
    if (d_hidden.absent()) return;
    launch(op.context(), Gemm{.role = GemmRole::kInputGradient,
                              .a = d_logits,
                              .b = op.weight(),
                              .c = chunk.rows(d_hidden),
                              .accumulate = false,
                              .workspace = {}});
  });
  add_previous(op, target);
  if (weight_now) op.weight_gradient_done();
}

void backward_weight(OperatorCall& op) {
  for_each_chunk(op, true, [&](const Chunk& chunk, const Tensor& d_logits) {
    add_weight_gradient(op, chunk, d_logits);
  });
}

constexpr std::uint8_t kAllInputs = 0b111;
constexpr Operator kTraining{.name = "lm_head_loss",
                             .operator_class = OperatorClass::kLoss,
                             .forward = training_forward,
                             .backward_input = backward_input,
                             .backward_weight = backward_weight,
                             .for_input = {.inputs = kAllInputs, .outputs = 1},
                             .for_weight = {.inputs = kAllInputs, .outputs = 1},
                             .is_loss = true,
                             .weight_reads_parameter = true};
constexpr Operator kInference{
    .name = "lm_head_loss", .operator_class = OperatorClass::kLoss, .forward = inference_forward};

}  // namespace

std::int64_t lm_head_chunk_tokens(const Device& device, std::int64_t tokens, std::int64_t vocab) {
  // Every chunk reads and writes all of the weight's gradient. A GPU multiplies so fast that this shows until
  // a chunk has thousands of tokens.
  const DeviceProperties properties = device.properties();
  std::int64_t logits_bytes = std::int64_t{256} << 20;
  if (!properties.host_memory) {
    logits_bytes = std::int64_t{2} << 30;
    // A small GPU needs its memory for more than that.
    if (properties.memory > 0) logits_bytes = std::min(logits_bytes, properties.memory / 40);
  }
  // Chunks are of about the same size, and multiples of 64 rows keep the matrix products in their full tiles.
  const std::int64_t fit = std::max<std::int64_t>(64, logits_bytes / (vocab * 4) / 64 * 64);
  const std::int64_t chunks = (tokens + fit - 1) / fit;
  return std::min(tokens, (tokens / std::max<std::int64_t>(chunks, 1) + 63) / 64 * 64);
}

Value lm_head_loss(const Value& hidden, Parameter& weight, const Value& labels, const Value& weights) {
  return lm_head_loss(hidden, weight, labels, weights, {});
}

Value lm_head_loss(const Value& hidden, Parameter& weight, const Value& labels, const Value& weights,
                   const SharedVocabulary& vocabulary) {
  Tape& tape = hidden.tape();
  return tape.record(tape.training() ? kTraining : kInference, {&hidden, &labels, &weights}, &weight,
                     {{DType::kF32, Shape{hidden.shape()[0]}, false}}, vocabulary)[0];
}

}  // namespace primus::engine
