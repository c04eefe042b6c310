// Operators for ranks that work on the same tokens: tensor, sequence and expert parallelism.
//
// Between layers every rank holds its own rows: of the T tokens of a microbatch, rank r of n has rows [r T/n,
// (r + 1) T/n). In a layer, each rank gathers the rows of all ranks, applies its part of the weights, and
// scatters the sums:
//
//   h [T/n, c] --gather_tokens--> [T, c] --part of the weights-->
//       partial sums [T, c] --scatter_tokens--> [T/n, c]
//
// The gradient of a gather is a scatter, and the gradient of a scatter is a gather.
//
// `group` null means a single rank: the functions return their argument and record no call. All ranks of a
// group make the same calls in the same order, replays included. Collectives run on the compute stream.
#pragma once

#include "comm/communicator.h"
#include "engine/operators/moe_operators.h"
#include "engine/operators/operators.h"
#include "turbo/distillation_loss/distillation_loss.h"

namespace primus::engine {

// How the backward pass obtains gathered rows. kAgain: the backward pass gathers the rows again. kKept: the
// forward pass keeps the rows.
enum class Gathered : std::uint8_t { kAgain, kKept };

// Gathers the rows of all ranks, in rank order: [T/n, c] -> [T, c]. Use it before operators that compute a
// partial result on each rank: the backward pass sums the ranks' gradients.
Value gather_tokens(const Value& x, comm::Communicator* group, Gathered gathered = Gathered::kAgain);
// Gathers rows for operators that compute equal results on every rank. Each rank then computes the complete
// gradient, so the backward pass only selects the rank's own rows.
Value replicate_tokens(const Value& x, comm::Communicator* group);
// Sums x over all ranks. Each rank gets its own rows of the sum: [T, c] -> [T/n, c].
Value scatter_tokens(const Value& x, comm::Communicator* group);
// Selects this rank's rows of a value that all ranks hold: [T] or [T, c] -> [T/n] or [T/n, c]. Not
// differentiable.
Value own_tokens(const Value& x, comm::Communicator* group);
Tensor own_tokens(const Tensor& x, const comm::Communicator* group);

// A vocabulary split over the ranks of a group: rank r has the rows vocabulary_rows(size, n, r) of the
// embedding and of the head. Parts differ by fewer than 128 rows.
FlatRange vocabulary_rows(std::int64_t size, int ranks, int rank);
struct SharedVocabulary {
  comm::Communicator* group = nullptr;
  std::int64_t size = 0;

  FlatRange own() const { return vocabulary_rows(size, group->size(), group->rank()); }
};
// Looks up tokens in this rank's part of the table, with zero rows for tokens of other parts: [T] int32 ->
// [T, hidden], a partial sum for scatter_tokens().
Value embedding(const Value& tokens, Parameter& table, const SharedVocabulary& vocabulary);
// Computes lm_head_loss(hidden, weight, labels, weights) with this rank's part of the head. `hidden`: all T
// tokens. Every rank gets the loss of all tokens, with the same bits; the gradient of `hidden` is a partial
// sum. `cap` above 0: applies soft_cap() to the logits. `entropy_weights` [T] fp32, or empty: adds to each
// token's loss the entropy of its distribution, multiplied by this weight.
Value lm_head_loss(const Value& hidden, Parameter& weight, const Value& labels, const Value& weights,
                   const SharedVocabulary& vocabulary, double cap = 0, const Value& entropy_weights = {});
// Returns -ln p(label) of every token, [T] fp32, on any tape. This is lm_head_loss with weights of 1. The
// values are available immediately. Not differentiable. `ones`: [T] fp32, all 1.
Value token_losses(const Value& hidden, Parameter& weight, const Value& labels, const Value& ones,
                   const SharedVocabulary& vocabulary, double cap = 0);
// Like token_losses(), with statistics of each token's distribution p over the vocabulary, each [T] fp32.
struct TokenStatistics {
  Value losses;
  Value entropies;   // -sum p ln p
  Value collisions;  // sum p^2: the probability that two samples are equal
};
TokenStatistics token_statistics(const Value& hidden, Parameter& weight, const Value& labels,
                                 const Value& ones, const SharedVocabulary& vocabulary, double cap = 0);
// The operands of the LM head of a teacher, whose distribution a model learns. No gradients are computed for
// them.
struct Teacher {
  Tensor hidden;  // [T, teacher's width], the inputs of the teacher's head for all T tokens
  Tensor weight;  // [rows of this rank's part of the student's head, teacher's width]
  turbo::DistillationForm form;
};
// Like lm_head_loss(), with the loss of turbo/distillation_loss. The complete logits of the teacher never
// exist either. `teacher` and its tensors must stay in place until the backward pass has run.
Value distilled_loss(const Value& hidden, Parameter& weight, const Value& labels, const Value& weights,
                     const SharedVocabulary& vocabulary, const Teacher& teacher);
// Gathers the logits of the entire vocabulary on every rank: [T, own] -> [T, size]. Not differentiable:
// training uses lm_head_loss(), which works on parts of the vocabulary.
Value gather_logits(const Value& own, const SharedVocabulary& vocabulary);

// Experts split over the ranks of `group`. Each rank has the experts [first, first + count), or a part of the
// width of these experts. `tokens`: the ranks that route a microbatch together and share its rows.
struct SharedExperts {
  comm::Communicator* group = nullptr;
  const comm::Communicator* tokens = nullptr;
  std::int64_t first = 0, count = 0;
  // the caller's upper limit for the number of rows of this rank's experts; 0: unknown
  std::int64_t limit = 0;
  std::int64_t keeps = 0;  // above 0: a plan with more rows than this has two parts (Routing::kept)
  // The range of each rank's tokens that this round sends (engine/parallel/expert_rounds.h). Empty: all.
  FlatRange round = {};

  // Returns the tokens of this rank and this round, of a tensor with a row for each token of a microbatch.
  Tensor own_of_round(const Tensor& of_microbatch) const;
  // Returns their number. `of_microbatch`: the number of tokens of a microbatch.
  std::int64_t own_of_round(std::int64_t of_microbatch) const;

  // Returns the maximum number of rows of this rank's experts, for `tokens_of_all` tokens. A token chooses an
  // expert at most once, and an expert accepts at most its capacity from a microbatch of `of_microbatch`
  // tokens (0: all tokens).
  std::int64_t max_rows(std::int64_t tokens_of_all, std::int64_t of_microbatch, std::int64_t top_k,
                        std::int64_t capacity) const;
};
// The rows of a rank's experts, and the layout of these rows in the rank's plan.
struct OwnRows {
  std::int64_t tokens = 0, top_k = 0;  // number of tokens whose choices are planned, and choices per token
  std::int64_t maximum = 0;            // Routing::rows
  std::int64_t kept = 0;               // Routing::kept

  Shape plan_shape(const SharedExperts& experts) const;
};
// Plans the rows of this rank's experts. `choices`: [tokens, top_k], each below `all`. `kept`: as for
// turbo::PlanRouting. `plan` is the output.
void plan_own_rows(OperatorCall& op, const SharedExperts& experts, std::int64_t all, const OwnRows& rows,
                   const Tensor& choices, const Tensor& kept, const Tensor& plan);
// Restricts the routing of a microbatch to this rank's experts. The tokens are the tokens of all ranks of the
// group, in rank order. The result dispatches the rows of gather_tokens(x, group). `capacity`: RoutingRule's.
// The gradient of the weights is complete for this rank's tokens, and zero for other tokens.
Routing share_routing(const Routing& routing, const SharedExperts& experts, std::int64_t capacity);

}  // namespace primus::engine
