// Tokens to experts on other ranks, and what these make of them back.
//
//   Dispatch d = plan_dispatch(routing, experts, capacity, {.parallel = ...});
//   Travelling there = begin_dispatch(x, d);
//   ...                                                  // runs while the rows travel
//   rows = linear_combine(..., dispatch_linear(end_dispatch(there, d), gate_up, d.routing))
//   Travelling back = begin_return(rows, d);
//   ...
//   y = end_return(back, d);
//
// There are two ways. By all-gather every rank gets all tokens of the group, and each token the sum of what
// all ranks return. By all-to-all each rank sends a token's row once to each rank that has an expert of it,
// and gets from each of them the sum of what its experts make of the row. For that all ranks gather the
// choices of all tokens, a few numbers each; so each knows what it sends and gets, on the device, and no host
// waits (comm::all_to_all_rows). Memory is for the most rows there can be: a rank's tokens, or what
// capacities allow.
//
// Both are duals: the gradient of what end_return() gives begins to travel where end_return() is, beside the
// gradients of what stands in front of it, and is waited for where begin_return() is; likewise the other two.
// What runs beside changes no bit.
//
// All ranks of a group make the same calls in the same order, replays included. What is begun is ended in
// the reverse order.
#pragma once

#include "engine/expert_parallel.h"
#include "engine/parallel_operators.h"

namespace primus::engine {

struct DispatchOptions {
  ExpertParallel* parallel = nullptr;  // null where the experts' group is
  bool all_to_all = false;
  bool beside = false;  // something runs while tokens travel; with ExpertParallel::overlaps() alone
};

struct Dispatch {
  Routing routing;  // of the rows that come in to this rank's experts; by all-to-all row `rank * most + i` is
                    // the i-th from that rank
  Value plan;       // turbo::DispatchPlan; empty: by all-gather
  ExpertParallel* parallel = nullptr;  // null: the rank has all experts, and nothing travels
  std::int64_t tokens = 0, ranks = 1;  // tokens of each rank
  std::int64_t most = 0;               // rows from one rank to another
  bool beside = false;
};

// `routing`: of a microbatch, as for share_routing(). The gradient of the weights is complete for this rank's
// tokens, and zero for the others.
Dispatch plan_dispatch(const Routing& routing, const SharedExperts& experts, std::int64_t capacity,
                       const DispatchOptions& options);

// Rows on their way, and what they are sent from, which stays until they have arrived.
struct Travelling {
  Value rows, from;
};
// [tokens, c] -> [ranks * most, c]. By all-to-all, rows that nobody sends are anything.
Travelling begin_dispatch(const Value& x, const Dispatch& dispatch);
Value end_dispatch(Travelling rows, const Dispatch& dispatch);
// [ranks * most, c] -> [tokens, c]: the sum of each token's rows; by all-to-all in rank order.
Travelling begin_return(Value rows, const Dispatch& dispatch);
Value end_return(Travelling rows, const Dispatch& dispatch);

}  // namespace primus::engine
