// All-to-all of tokens and experts in two hops, for a group of ranks on several hosts. Links between hosts
// are slower than links within a host, so a token's row travels once to each host that has an expert of the
// token, and not once to each rank:
//
//   host 0, place 0 --network--> host 1, place 0 --within the host--> host 1, places 0, 1, 2, ...
//
// The first hop goes to the rank with the sender's place on the other host. This rank sends the row on to the
// ranks of its host that have experts of the token. Results return the same way: this rank adds the sums
// of its host's ranks in rank order, and sends back one row. The sender adds the rows of the hosts in host
// order. DeepEP uses this method (Zhao et al. 2025, "DeepEP: an efficient expert-parallel communication
// library").
//
// Both plans are computed on the device, from the choices of all tokens of the group (turbo::PlanDispatch).
// Tokens are numbered by place, then host, then position, which is the order in which choices are gathered.
#pragma once

#include "engine/parallel/expert_parallel.h"
#include "turbo/moe_permute/moe_permute.h"

namespace primus::engine {

struct ExpertHops {
  std::int64_t hosts = 1, places = 1;  // number of hosts, and of the group's ranks on each host
  std::int64_t tokens = 0, top_k = 0;  // `tokens`: per rank
  // maximum number of rows from one rank to one host, and from one rank to one other rank
  std::int64_t to_host = 0, to_rank = 0;

  std::int64_t host_rows() const { return hosts * to_host; }           // rows of the first hop
  std::int64_t rank_rows() const { return places * hosts * to_rank; }  // rows of the second hop
  Shape plan_shape() const;
  turbo::DispatchPlan between_hosts(const Tensor& plan) const;
  turbo::DispatchPlan within_host(const Tensor& plan) const;  // its rows `held` equal the first hop's
};

// Returns the maximum number of rows from one rank to one host of `places` ranks. Each expert accepts at most
// `capacity` tokens of the rank (0: all). `experts_of_rank` and `ranks_of_expert`: as for
// turbo::PlanDispatch.
std::int64_t max_rows_to_host(std::int64_t tokens, std::int64_t capacity, std::int64_t places,
                              std::int64_t experts_of_rank, std::int64_t ranks_of_expert);

// Gathers the rows that the group's ranks have, in two hops: [tokens, c] -> [ranks * tokens, c], by place,
// then host, then position. scatter_by_hosts() returns sums: [ranks * tokens, c] -> [tokens, c]; the operand
// `all` is overwritten.
void gather_by_hosts(Stream& stream, const ExpertHosts& hosts, const Tensor& own, const Tensor& all);
void scatter_by_hosts(Stream& stream, const ExpertHosts& hosts, const Tensor& all, const Tensor& own);

// Writes both plans. `choices`, `kept`: as for turbo::PlanDispatch, in the order of gather_by_hosts().
// `number`: identifies the counts of both plans (comm::RowCounts).
void plan_hops(turbo::Context& context, const ExpertHosts& hosts, const ExpertHops& hops,
               const Tensor& choices, const Tensor& kept, std::int64_t experts_of_rank,
               std::int64_t ranks_of_expert, const Tensor& plan, std::uint64_t number);

// Working memory of a transfer in two hops.
struct HopBuffers {
  Tensor of_hosts;  // [host_rows(), c]: rows between the hops
  Tensor of_ranks;  // [rank_rows(), c]: rows that leave for, or return from, the ranks of this host
};
// Sends the rows `packed` [host_rows(), c], one per token and host, to `out` [rank_rows(), c]. `number`: as
// for plan_hops().
void send_by_hosts(turbo::Context& context, const ExpertHosts& hosts, const ExpertHops& hops,
                   const Tensor& plan, std::uint64_t number, const Tensor& packed, const HopBuffers& buffers,
                   const Tensor& out);
// Sends `rows` [rank_rows(), c] back to `returned` [host_rows(), c], one sum per token and host.
void return_by_hosts(turbo::Context& context, const ExpertHosts& hosts, const ExpertHops& hops,
                     const Tensor& plan, std::uint64_t number, const Tensor& rows, const HopBuffers& buffers,
                     const Tensor& returned);

}  // namespace primus::engine
