// Operators of several ranks that work on the same tokens: tensor, sequence and expert parallelism.
//
// Between layers every rank holds rows of its own: of the T tokens of a microbatch, rank r of n has rows
// [r T/n, (r + 1) T/n). A layer gathers the rows that it needs, works with its part of the weights, and
// scatters the sums back:
//
//   h [T/n, c] --gather_tokens--> [T, c] --part of the weights--> partial sums [T, c] --scatter_tokens-->
//   [T/n, c]
//
// Gather and scatter are each other's gradients.
//
// `group` null means a rank alone: nothing is recorded and the value returned is the one passed. All ranks of
// a group make the same calls in the same order, replays included; collectives run on the compute stream.
#pragma once

#include "comm/communicator.h"
#include "engine/moe_operators.h"
#include "engine/operators.h"

namespace primus::engine {

// What the backward pass does about gathered rows that it needs: gathers them again, or has them kept.
enum class Gathered : std::uint8_t { kAgain, kKept };

// The rows of all ranks, in rank order: [T/n, c] -> [T, c], where each rank computes a part of what follows:
// gradients are added up.
Value gather_tokens(const Value& x, comm::Communicator* group, Gathered gathered = Gathered::kAgain);
// The same where every rank computes the same of what follows: the gradient of its own rows is complete.
Value replicate_tokens(const Value& x, comm::Communicator* group);
// The sum of all ranks' x, of which each keeps its rows: [T, c] -> [T/n, c].
Value scatter_tokens(const Value& x, comm::Communicator* group);
// This rank's rows of what all ranks hold: [T] or [T, c] -> [T/n] or [T/n, c]. Not differentiable.
Value own_tokens(const Value& x, comm::Communicator* group);
Tensor own_tokens(const Tensor& x, const comm::Communicator* group);

// A vocabulary that the ranks of a group share: rank r has the rows vocabulary_rows(size, n, r) of the
// embedding and of the head. Parts differ by fewer than 128 rows.
FlatRange vocabulary_rows(std::int64_t size, int ranks, int rank);
struct SharedVocabulary {
  comm::Communicator* group = nullptr;
  std::int64_t size = 0;

  FlatRange own() const { return vocabulary_rows(size, group->size(), group->rank()); }
};
// Rows of this rank's part of the table, zero for tokens of other parts: [T] int32 -> [T, hidden], a partial
// sum for scatter_tokens().
Value embedding(const Value& tokens, Parameter& table, const SharedVocabulary& vocabulary);
// As lm_head_loss(hidden, weight, labels, weights) with this rank's part of the head. `hidden`: all T tokens.
// The loss of all tokens is on every rank, with the same bits; the gradient of `hidden` is a partial sum.
// `cap`, above 0: of the logits, as soft_cap() has it.
Value lm_head_loss(const Value& hidden, Parameter& weight, const Value& labels, const Value& weights,
                   const SharedVocabulary& vocabulary, double cap = 0);
// -ln p(label) of every token, [T] fp32, on any tape: lm_head_loss with weights of 1, whose values are there
// at once, and which is never differentiated. `ones`: [T] fp32, all 1.
Value token_losses(const Value& hidden, Parameter& weight, const Value& labels, const Value& ones,
                   const SharedVocabulary& vocabulary, double cap = 0);
// The logits of the whole vocabulary, on every rank, from those of this rank's part: [T, own] -> [T, size].
// Not differentiable: training works on parts (lm_head_loss).
Value gather_logits(const Value& own, const SharedVocabulary& vocabulary);

// Experts that the ranks of `group` share. Each rank has [first, first + count) of them, or its part of their
// width. `tokens`: the ranks that route a microbatch together and hold rows of it each.
struct SharedExperts {
  comm::Communicator* group = nullptr;
  const comm::Communicator* tokens = nullptr;
  std::int64_t first = 0, count = 0;

  // Of `tokens_of_all` ranks, the most rows of this rank's experts: a token chooses an expert once, and each
  // expert takes no more than its capacity of a microbatch of `of_microbatch` tokens (0: all).
  std::int64_t most_rows(std::int64_t tokens_of_all, std::int64_t of_microbatch, std::int64_t top_k,
                         std::int64_t capacity) const;
};
// The routing of all tokens of a microbatch becomes that of the tokens that the group's ranks hold, in rank
// order, to this rank's experts: what gather_tokens(x, group) is dispatched by. `capacity`: RoutingRule's.
// The gradient of the weights is complete for this rank's tokens, and zero for the others.
Routing share_routing(const Routing& routing, const SharedExperts& experts, std::int64_t capacity);

}  // namespace primus::engine
