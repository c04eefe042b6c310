#include "lm/train/settings/expert_hosts.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace primus {
namespace {

int expert_ranks(const engine::MeshShape& shape) { return shape.expert * shape.expert_tensor; }

// Returns the probability that a token chooses at least one of `some` of all experts.
double reached(const MoeConfig& moe, std::int64_t some) {
  const auto all = static_cast<double>(moe.experts);
  double none = 1;
  for (std::int64_t k = 0; k < moe.router.top_k; ++k) {
    const auto chosen = static_cast<double>(k);
    none *= std::max(0.0, all - static_cast<double>(some) - chosen) / std::max(1.0, all - chosen);
  }
  return 1 - none;
}

struct Reach {
  double rank, host;  // probabilities that a token has an expert on a given rank, and on a given host
};
Reach reach_of(const MoeConfig& moe, const engine::MeshShape& shape) {
  const std::int64_t of_rank = moe.experts / shape.expert;
  const std::int64_t groups = (shape.host + shape.expert_tensor - 1) / shape.expert_tensor;
  return {reached(moe, of_rank), reached(moe, std::min<std::int64_t>(moe.experts, groups * of_rank))};
}

}  // namespace

ExpertRows rows_in_one_hop(const MoeConfig& moe, const engine::MeshShape& shape) {
  const double rank = reach_of(moe, shape).rank;
  return {(expert_ranks(shape) - shape.host) * rank, (shape.host - 1) * rank};
}

ExpertRows rows_in_two_hops(const MoeConfig& moe, const engine::MeshShape& shape) {
  const Reach reach = reach_of(moe, shape);
  const int hosts = expert_ranks(shape) / shape.host;
  return {(hosts - 1) * reach.host, hosts * (shape.host - 1) * reach.rank};
}

bool two_hops_are_faster(const MoeConfig& moe, const engine::MeshShape& shape) {
  constexpr double kLinks = 9, kMemory = 60;  // bandwidths, as multiples of the network's
  const Reach reach = reach_of(moe, shape);
  const ExpertRows one = rows_in_one_hop(moe, shape), two = rows_in_two_hops(moe, shape);
  // Between the hops, rows are read once for each host, and written once for each rank.
  const double copied = expert_ranks(shape) / shape.host * reach.host + expert_ranks(shape) * reach.rank;
  return two.between_hosts + two.within_host / kLinks + copied / kMemory <
         one.between_hosts + one.within_host / kLinks;
}

ExpertHostChoice choose_expert_hosts(const MoeConfig& moe, const engine::MeshShape& shape, int on_host) {
  const int ranks = expert_ranks(shape);
  if (moe.experts == 0 || ranks == 1 || !moe.training.all_to_all || on_host == 1 ||
      (on_host > 0 && ranks <= on_host && on_host % ranks == 0))
    return {};
  constexpr std::string_view kOne = "tokens reach the experts of other hosts in one hop";
  if (on_host == 0)
    return {0, fmt::format("{}: hosts have different numbers of ranks, or their ranks are not consecutive",
                           kOne)};
  engine::MeshShape with_hosts = shape;
  with_hosts.host = on_host;
  if (!with_hosts.experts_on_hosts())
    return {0, fmt::format("{}: the {} ranks that share the experts do not fill several hosts of {} ranks",
                           kOne, ranks, on_host)};
  if (moe.training.fp8_dispatch) return {0, fmt::format("{}: rows are in fp8 (moe_dispatch_fp8)", kOne)};
  if (!two_hops_are_faster(moe, with_hosts))
    return {0, fmt::format("{}: with {} of {} experts per token on {} hosts, two hops are not expected to be "
                           "faster (moe_ranks_per_host: {} requests them)",
                           kOne, moe.router.top_k, moe.experts, ranks / on_host, on_host)};
  return {on_host, fmt::format("tokens reach the experts of {} hosts in two hops, with one row per host",
                               ranks / on_host)};
}

}  // namespace primus
