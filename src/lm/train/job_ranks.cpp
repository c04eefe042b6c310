#include "lm/train/job_ranks.h"

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "comm/local/shared_memory.h"
#include "comm/rank_state.h"
#include "turbo/devices/devices.h"

namespace primus {

std::chrono::milliseconds RankPatience::after_step(double seconds) {
  longest_ = std::max(longest_, seconds);
  const std::chrono::duration<double> patience(3 * longest_);
  return comm::watchdog_timeout(std::chrono::duration_cast<std::chrono::milliseconds>(patience));
}

int ranks_per_host(const std::vector<std::string>& hosts) {
  const auto each = static_cast<std::size_t>(std::ranges::count(hosts, hosts.front()));
  if (hosts.size() % each != 0) return 0;
  std::set<std::string> seen;
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    const bool begins = i % each == 0;
    if (begins ? !seen.insert(hosts[i]).second : hosts[i] != hosts[i - 1]) return 0;
  }
  return static_cast<int>(each);
}

JobRanks::JobRanks(comm::Job* job) : job_(job) {
  if (single()) return;
  group_ = std::make_unique<StoreGroup>(*job->store(), "run", rank(), size());
  saving_group_ = std::make_shared<StoreGroup>(*job->store(), "saving", rank(), size());
  const std::vector<std::string> hosts = group_->gather(comm::local::host_identity());
  per_host_ = static_cast<int>(from_first(std::int64_t{first() ? ranks_per_host(hosts) : 0}));
}

void JobRanks::first_then_others(const std::function<void()>& work) {
  if (single()) return work();
  if (first()) work();
  group_->broadcast("");
  if (!first()) work();
}

std::string JobRanks::from_first(const std::string& own) { return single() ? own : group_->broadcast(own); }

std::int64_t JobRanks::from_first(std::int64_t own) { return std::stoll(from_first(std::to_string(own))); }

void JobRanks::require_same(const std::vector<std::pair<std::string, std::string>>& facts) {
  if (!single()) job_->require_same(facts);
}

bool JobRanks::any(bool own) { return !first_text(own ? "1" : "").empty(); }

std::string JobRanks::first_text(const std::string& own) {
  if (single()) return own;
  std::string first;
  for (const std::string& text : group_->gather(own)) {
    if (first.empty()) first = text;
  }
  return group_->broadcast(first);
}

void JobRanks::wait_for_busy(std::chrono::minutes limit,
                             std::function<void(const std::string& text)> notice) {
  if (single()) return;
  job_->state().activity_timeout = limit;
  job_->state().notice = std::move(notice);
}

engine::Mesh JobRanks::make_mesh(Device& device, const engine::MeshShape& shape, bool ordered_sums) {
  if (single()) return {};
  std::unique_ptr<comm::Communicator> world = job_->world(device, turbo::collectives_of(device));
  world->set_ordered_sums(ordered_sums);
  return {std::move(world), shape};
}

}  // namespace primus
