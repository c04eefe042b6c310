#include "comm/local/thread_group.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <numeric>
#include <string>
#include <utility>

#include "comm/local/ring_links.h"
#include "comm/local/thread_links.h"

namespace primus::comm::local {
namespace {

std::shared_ptr<std::byte> make_region(int ranks) {
  void* const memory = std::aligned_alloc(4096, RingRegion::bytes(ranks));
  if (!memory) throw std::bad_alloc();
  std::memset(memory, 0, RingRegion::bytes(ranks));
  return {static_cast<std::byte*>(memory), [](std::byte* address) { std::free(address); }};
}

// The first member creates the group's shared state, and the last member removes it from the map.
class ThreadLinkFactory final : public LinkFactory {
 public:
  ThreadLinkFactory(int ranks, bool rings) : spins_(Doorbells::spins_for(ranks)), rings_(rings) {}

  std::unique_ptr<Links> make(const std::string& id, std::span<const int> members, int rank) override {
    const int size = static_cast<int>(members.size());
    const std::lock_guard lock(mutex_);
    Shared& shared = groups_[id];
    if (shared.joined == 0) {
      if (rings_) {
        shared.region = make_region(size);
      } else {
        shared.group = std::make_shared<ThreadGroup>(size);
      }
    }
    const Shared mine = shared;
    if (++shared.joined == size) groups_.erase(id);
    if (rings_) return std::make_unique<RingLinks>(mine.region, size, rank, spins_);
    return std::make_unique<ThreadLinks>(mine.group, rank, spins_);
  }

 private:
  struct Shared {
    std::shared_ptr<ThreadGroup> group;
    std::shared_ptr<std::byte> region;
    int joined = 0;
  };
  int spins_;
  bool rings_;
  std::mutex mutex_;
  std::map<std::string, Shared> groups_;
};

}  // namespace

std::shared_ptr<LinkFactory> make_thread_link_factory(int ranks, bool rings) {
  return std::make_shared<ThreadLinkFactory>(ranks, rings);
}

std::vector<std::unique_ptr<HostCommunicator>> make_thread_group(int ranks, const ThreadOptions& options) {
  const auto factory = make_thread_link_factory(ranks, options.rings);
  const auto abort = std::make_shared<AbortState>();
  // Other ranks may read a recorder after its communicator has been destroyed, so recorders are shared.
  const auto states = std::make_shared<std::vector<std::weak_ptr<RankState>>>();
  std::vector<std::shared_ptr<RankState>> made;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto state = std::make_shared<RankState>();
    state->rank = rank;
    state->world = ranks;
    state->abort = abort;
    state->timeout = options.timeout;
    state->ask_all = [states](const std::string& group) {
      std::vector<std::optional<RankStatus>> statuses;
      for (const auto& each : *states) {
        const auto alive = each.lock();
        statuses.push_back(alive ? std::optional(status_of(*alive, group)) : std::nullopt);
      }
      return statuses;
    };
    states->push_back(state);
    made.push_back(state);
  }
  std::vector<int> members(static_cast<std::size_t>(ranks));
  std::iota(members.begin(), members.end(), 0);
  std::vector<std::unique_ptr<HostCommunicator>> result;
  for (int rank = 0; rank < ranks; ++rank) {
    result.push_back(std::make_unique<HostCommunicator>("world", "world", members, rank, factory,
                                                        made[static_cast<std::size_t>(rank)]));
  }
  return result;
}

}  // namespace primus::comm::local
