// Sends tokens to experts on other ranks, and the experts' outputs back.
//
//   Dispatch d = plan_dispatch(routing, experts, capacity, {.parallel = ...});
//   InFlight there = begin_dispatch(x, d);
//   ...                                                  // overlaps the transfer
//   rows = linear_combine(..., dispatch_linear(end_dispatch(there, d), gate_up, d.routing))
//   InFlight back = begin_return(rows, d);
//   ...
//   y = end_return(back, d);
//
// Tokens travel by one of three methods. With all-gather, every rank gets all tokens of the group, and each
// token gets the sum of the rows that all ranks return. With all-to-all, each rank sends a token's row once
// to each rank that holds an expert of the token. Each of these ranks returns the sum of its experts' outputs
// for the row. For the all-to-all, every rank first gathers the expert numbers that all tokens chose, a few
// numbers per token. From these numbers, each rank computes on the device which rows it sends and receives.
// Only these rows are sent (comm::all_to_all_rows). CPU ranks need no host sync; on GPUs, the host waits in
// the forward pass until it knows how many rows to send, while the device packs them. The buffers hold the
// most rows that are possible: a rank's tokens, or as many as the capacities allow. The backward pass needs
// the received tokens. It receives them again, unless DispatchOptions::keeps is set. The third method is
// all-to-all in two hops, first between hosts and then within a host. It is used if ExpertParallel::hosts()
// is not empty (engine/parallel/expert_hops.h).
//
// The gradient of one transfer is the other transfer. When the backward pass reaches end_return(), it starts
// to send the gradient of end_return()'s result. When the backward pass reaches begin_return(), it waits for
// that transfer. The transfer overlaps the gradients of the operators between the two calls. Dispatch works
// in the same way. Results have the same bits with and without overlap.
//
// All ranks of a group make the same calls in the same order, replays included. If several transfers are in
// flight, end them in reverse order.
#pragma once

#include "engine/parallel/expert_parallel.h"
#include "engine/parallel/parallel_operators.h"

namespace primus::engine {

struct DispatchOptions {
  ExpertParallel* parallel = nullptr;  // null if and only if SharedExperts::group is null
  bool all_to_all = false;
  // Tokens travel to the experts in fp8 (turbo/fp8_rows); only with all_to_all. Their gradients and the
  // results of the experts keep their type.
  bool fp8 = false;     // tokens are sent to experts in fp8
  bool shared = false;  // the model has shared experts, which can overlap the transfers
  bool keeps = false;   // received tokens are kept for the backward pass; false: they are received again
};

struct Dispatch {
  Routing routing;  // routing of the rows for this rank's experts; with all-to-all in one hop, row `rank *
                    // maximum + i` is the i-th row from that rank
  Value plan;       // turbo::DispatchPlan, or the plans of two hops; empty for all-gather
  ExpertParallel* parallel = nullptr;  // null: this rank has all experts and sends no rows
  std::int64_t tokens = 0, ranks = 1;  // `tokens`: per rank, of this round
  std::int64_t maximum = 0;            // maximum number of rows from one rank to another
  std::int64_t to_host = 0;            // with two hops: maximum number of rows from one rank to one host
  bool fp8 = false;                    // tokens are sent to experts in fp8
  bool keeps = false;                  // DispatchOptions::keeps
  bool overlap = false;
  std::uint64_t number = 0;  // identifies the plan's counts of rows (comm::RowCounts)
};

// Plans the transfers of a microbatch, or of one of its rounds (SharedExperts::round). `routing`: the routing
// of the microbatch, as for share_routing(). The gradient of the routing weights is complete for this rank's
// tokens, and zero for other tokens.
Dispatch plan_dispatch(const Routing& routing, const SharedExperts& experts, std::int64_t capacity,
                       const DispatchOptions& options);

// Rows in flight, and the memory from which they are sent. The memory is not released before the rows have
// arrived.
struct InFlight {
  Value rows, from;
};
// Send tokens to the experts: [tokens, c] -> [ranks * maximum, c]. With all-to-all, unused rows have
// undefined contents.
InFlight begin_dispatch(const Value& x, const Dispatch& dispatch);
Value end_dispatch(InFlight rows, const Dispatch& dispatch);
// Send rows back: [ranks * maximum, c] -> [tokens, c], the sum of each token's rows; with all-to-all, added
// in rank order. With two hops, each host adds its rows first, and rounds the sum to the type of the rows.
InFlight begin_return(Value rows, const Dispatch& dispatch);
Value end_return(InFlight rows, const Dispatch& dispatch);

}  // namespace primus::engine
