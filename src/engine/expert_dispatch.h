// Tokens to experts on other ranks and back by all-to-all: each rank sends a token's row once to each rank
// that has an expert of it, and gets from each of them the sum of what its experts make of the row.
//
//   Dispatch d = dispatch_experts(routing, experts, capacity);
//   y = return_rows(linear_combine(..., dispatch_linear(dispatch_rows(x, d), gate_up, d.routing)), d)
//
// It is the other way to do what gather_tokens(), share_routing() and scatter_tokens() do
// (engine/parallel_operators.h). All ranks of the group gather the choices of all tokens, a few numbers each;
// so each knows what it sends and gets, on the device, and no host waits (comm::all_to_all_rows). Memory is
// for the most rows there can be: a rank's tokens, or what capacities allow.
//
// All ranks of a group make the same calls in the same order, replays included.
#pragma once

#include "engine/parallel_operators.h"

namespace primus::engine {

struct Dispatch {
  Routing routing;  // of the rows that come in, to this rank's experts: `rank * most + i` is the i-th from it
  Value plan;       // turbo::DispatchPlan
  comm::Communicator* group = nullptr;
  std::int64_t tokens = 0, most = 0;  // of each rank; rows from one rank to another
};

// `routing`: of a microbatch, as for share_routing(). The gradient of the weights is complete for this rank's
// tokens, and zero for the others.
Dispatch dispatch_experts(const Routing& routing, const SharedExperts& experts, std::int64_t capacity);
// [tokens, c] -> [ranks * most, c]. Rows that nobody sends are anything.
Value dispatch_rows(const Value& x, const Dispatch& dispatch);
// [ranks * most, c] -> [tokens, c]: the sum of each token's rows, in rank order.
Value return_rows(const Value& rows, const Dispatch& dispatch);

}  // namespace primus::engine
