// Decides whether the all-to-all of experts has one hop or two (engine/parallel/expert_hops.h), and estimates
// the rows that both methods send.
//
// Free functions without state.
#pragma once

#include <string>

#include "engine/parallel/mesh.h"
#include "lm/model/moe_config.h"

namespace primus {

// Rows that a rank sends for each of its tokens, without rows to itself.
struct ExpertRows {
  double between_hosts = 0, within_host = 0;
};
// Return the expected rows if every choice of experts is equally probable. `shape`: experts_on_hosts() is
// true.
ExpertRows rows_in_one_hop(const MoeConfig& moe, const engine::MeshShape& shape);
ExpertRows rows_in_two_hops(const MoeConfig& moe, const engine::MeshShape& shape);

// Returns whether two hops are expected to take less time than one, on hosts whose network has a ninth of the
// bandwidth of their links (50 and 450 GB/s for each GPU), with a memory bandwidth of 60 times the network's.
bool two_hops_are_faster(const MoeConfig& moe, const engine::MeshShape& shape);

struct ExpertHostChoice {
  int host = 0;      // MeshShape::host
  std::string note;  // a sentence for the log without its full stop; empty if there is nothing to choose
};
// Chooses the method for a job with `on_host` consecutive ranks on each host (0: the hosts have different
// numbers of ranks, or their ranks are not consecutive). `shape`: mesh_shape_of() without moe_ranks_per_host.
ExpertHostChoice choose_expert_hosts(const MoeConfig& moe, const engine::MeshShape& shape, int on_host);

}  // namespace primus
