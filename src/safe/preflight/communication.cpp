#include "safe/preflight/communication.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <numeric>
#include <thread>

namespace primus::preflight {
namespace {

using comm::Communicator;
using Clock = std::chrono::steady_clock;

// An all-to-all spans at most 16 nodes, because every rank opens a connection to each other rank.
constexpr int kMaxAllToAllNodes = 16;
constexpr std::int64_t kSearchMib = 4;

class Exchanges {
 public:
  Exchanges(Communicator& world, Device& device, const Nodes& nodes, const CommunicationPlan& plan)
      : world_(world),
        device_(device),
        nodes_(nodes),
        plan_(plan),
        stream_(device.create_stream(StreamKind::kCommunication)) {
    std::int64_t maximum = kSearchMib;
    for (const auto* sizes : {&plan.intra_mib, &plan.inter_mib, &plan.ring_mib})
      for (const std::int64_t size : *sizes) maximum = std::max(maximum, size);
    for (void*& buffer : buffers_) buffer = device.allocate(maximum << 20);
    for (std::size_t node = 0; node < nodes.size(); ++node) {
      const auto here = std::find(nodes[node].begin(), nodes[node].end(), world.rank());
      if (here == nodes[node].end()) continue;
      node_ = static_cast<int>(node);
      local_ = static_cast<int>(here - nodes[node].begin());
    }
  }
  ~Exchanges() {
    for (void* const buffer : buffers_) device_.release(buffer);
  }
  Exchanges(const Exchanges&) = delete;
  Exchanges& operator=(const Exchanges&) = delete;

  CommunicationResult run() {
    const int ranks_here = static_cast<int>(nodes_[static_cast<std::size_t>(node_)].size());
    const bool alike = std::all_of(nodes_.begin(), nodes_.end(), [&](const auto& ranks) {
      return static_cast<int>(ranks.size()) == ranks_here;
    });
    within_nodes(ranks_here);
    if (nodes_.size() < 2) {
      result_.skipped.emplace_back("tests between nodes: the job has only one node");
    } else if (!alike) {
      result_.skipped.emplace_back("tests between nodes: the nodes have different numbers of ranks");
    } else {
      between_nodes();
    }
    return std::move(result_);
  }

 private:
  Tensor tensor(int buffer, std::int64_t mib, int parts = 1) const {
    const std::int64_t count = (mib << 20) / 4 / parts * parts;
    return {buffers_[buffer], DType::kF32, {count}};
  }

  // Returns the seconds per call, after a warm-up.
  double time(Communicator& group, const std::function<void()>& call) {
    for (int i = 0; i < plan_.warmup; ++i) call();
    group.barrier(*stream_);
    stream_->synchronize();
    const auto start = Clock::now();
    for (int i = 0; i < plan_.iterations; ++i) call();
    stream_->synchronize();
    return std::chrono::duration<double>(Clock::now() - start).count() / std::max(plan_.iterations, 1);
  }

  // Returns GB/s on the busiest link, assuming that all ranks exchange directly.
  double all_reduce(Communicator& group, std::int64_t mib) {
    const Tensor in = tensor(0, mib), out = tensor(1, mib);
    const double seconds = time(group, [&] { group.all_reduce(*stream_, in, out, comm::Reduction::kSum); });
    const double n = group.size();
    return 2 * static_cast<double>(in.bytes()) * (n - 1) / n / seconds * 1e-9;
  }
  double all_to_all(Communicator& group, std::int64_t mib) {
    const int n = group.size();
    const Tensor in = tensor(0, mib, n), out = tensor(1, mib, n);
    const std::vector<std::int64_t> counts(static_cast<std::size_t>(n), in.elements() / n);
    const double seconds = time(group, [&] { group.all_to_all(*stream_, in, counts, out, counts); });
    return static_cast<double>(in.bytes()) * (n - 1) / n / seconds * 1e-9;
  }
  // Sends to `next` and receives from `previous` at the same time.
  double exchange(Communicator& group, int next, int previous, std::int64_t mib) {
    const Tensor out = tensor(0, mib), in = tensor(1, mib);
    const comm::Transfer transfers[] = {comm::Transfer::send(out, next),
                                        comm::Transfer::receive(in, previous)};
    return static_cast<double>(out.bytes()) / time(group, [&] { group.exchange(*stream_, transfers); }) *
           1e-9;
  }

  // Calls `work` with the communicator of this rank's group, if this rank is in a group. All ranks
  // synchronize before and after.
  void with_group(const std::vector<std::vector<int>>& groups, const std::string& name,
                  const std::function<void(Communicator&, std::size_t group)>& work) {
    for (std::size_t g = 0; g < groups.size(); ++g) {
      if (std::find(groups[g].begin(), groups[g].end(), world_.rank()) == groups[g].end()) continue;
      const std::unique_ptr<Communicator> group = world_.split(groups[g], name);
      work(*group, g);
    }
    world_.barrier(*stream_);
    stream_->synchronize();
    if (plan_.pause_seconds > 0)
      std::this_thread::sleep_for(std::chrono::duration<double>(plan_.pause_seconds));
  }

  void add(const std::string& what, const std::string& size, std::int64_t mib, double rate, bool largest) {
    result_.measurements.push_back({.name = fmt::format("{}, {}{} MiB", what, size, mib),
                                    .where = fmt::format("rank {}", world_.rank()),
                                    .unit = "GB/s",
                                    .value = rate,
                                    .size = static_cast<double>(mib << 20),
                                    .compared = largest});
  }

  void within_nodes(int ranks_here) {
    if (!plan_.intra_all_reduce && !plan_.intra_all_to_all) return;
    bool any = false;
    for (const int size : plan_.intra_groups) {
      if (size < 2 && plan_.intra_groups.size() > 1)
        result_.skipped.emplace_back("tests within nodes, groups of 1 rank: a single rank exchanges nothing");
      if (size < 2) continue;
      // Divides the ranks of every node into groups of this size. Ranks that do not fill a group are left
      // out.
      std::vector<std::vector<int>> groups;
      for (const std::vector<int>& ranks : nodes_) {
        for (std::size_t at = 0; at + static_cast<std::size_t>(size) <= ranks.size();
             at += static_cast<std::size_t>(size))
          groups.emplace_back(ranks.begin() + static_cast<std::ptrdiff_t>(at),
                              ranks.begin() + static_cast<std::ptrdiff_t>(at) + size);
      }
      any = any || size <= ranks_here;
      with_group(groups, fmt::format("intra{}", size), [&](Communicator& group, std::size_t) {
        for (const std::int64_t mib : plan_.intra_mib) {
          const bool largest = mib == plan_.intra_mib.back();
          const std::string of = fmt::format("{} ranks, ", size);
          if (plan_.intra_all_reduce)
            add("all-reduce within nodes", of, mib, all_reduce(group, mib), largest);
          if (plan_.intra_all_to_all)
            add("all-to-all within nodes", of, mib, all_to_all(group, mib), largest);
        }
      });
    }
    if (!any) result_.skipped.emplace_back("tests within nodes: each node has only one rank");
  }

  // Returns the ranks of the given nodes.
  std::vector<int> ranks_of(const Group& nodes) const {
    std::vector<int> ranks;
    for (const int node : nodes) {
      const std::vector<int>& here = nodes_[static_cast<std::size_t>(node)];
      ranks.insert(ranks.end(), here.begin(), here.end());
    }
    std::sort(ranks.begin(), ranks.end());
    return ranks;
  }

  void between_nodes() {
    const int count = static_cast<int>(nodes_.size());
    for (const bool reduces : {true, false}) {
      if (!(reduces ? plan_.inter_all_reduce : plan_.inter_all_to_all)) continue;
      const char* const test = reduces ? "all-reduce between nodes" : "all-to-all between nodes";
      std::vector<int> sizes;
      int reached = 0;  // number of nodes that the groups contain
      for (const int asked : plan_.inter_groups) {
        const int size = reduces ? asked : std::min(asked, kMaxAllToAllNodes);
        if (size < 2 || size > count) {
          result_.skipped.push_back(fmt::format("{}, groups of {}: the job has {} nodes", test, size, count));
        } else if (std::find(sizes.begin(), sizes.end(), size) == sizes.end()) {
          sizes.push_back(size);
          reached = std::max(reached, count / size * size);
        }
      }
      if (reached < count)
        result_.skipped.push_back(fmt::format("{}: the last {} of {} nodes are in no group of these sizes",
                                              test, count - reached, count));
      for (const int size : sizes) {
        std::vector<std::vector<int>> groups;
        for (int first = 0; first + size <= count; first += size) {
          Group group(static_cast<std::size_t>(size));
          std::iota(group.begin(), group.end(), first);
          groups.push_back(ranks_of(group));
        }
        with_group(groups, fmt::format("inter{}{}", reduces, size), [&](Communicator& group, std::size_t) {
          for (const std::int64_t mib : plan_.inter_mib) {
            add(test, fmt::format("{} nodes, ", size), mib,
                reduces ? all_reduce(group, mib) : all_to_all(group, mib), mib == plan_.inter_mib.back());
          }
        });
      }
    }
    if (plan_.inter_pairs) {
      if (count % 2 == 1)
        result_.skipped.push_back(fmt::format("pairs of nodes: the last of {} nodes has no partner", count));
      std::vector<std::vector<int>> groups;
      for (int node = 0; node + 1 < count; node += 2) groups.push_back(ranks_of({node, node + 1}));
      with_group(groups, "pairs", [&](Communicator& group, std::size_t g) {
        // Each rank exchanges messages with the rank that has the same local index on the other node.
        const int other_node = node_ % 2 == 0 ? node_ + 1 : node_ - 1;
        const int other = nodes_[static_cast<std::size_t>(other_node)][static_cast<std::size_t>(local_)];
        const int peer =
            static_cast<int>(std::find(groups[g].begin(), groups[g].end(), other) - groups[g].begin());
        for (const std::int64_t mib : plan_.inter_mib)
          add("pairs of nodes", "", mib, exchange(group, peer, peer, mib), mib == plan_.inter_mib.back());
      });
    }
    if (plan_.inter_ring) {
      const auto at = [&](int node) {
        return nodes_[static_cast<std::size_t>((node + count) % count)][static_cast<std::size_t>(local_)];
      };
      for (const std::int64_t mib : plan_.ring_mib)
        add("ring of nodes", "", mib, exchange(world_, at(node_ + 1), at(node_ - 1), mib),
            mib == plan_.ring_mib.back());
    }
    if (plan_.slow_search) search(count);
  }

  void search(int count) {
    result_.search_plan = plan_search(count);
    const auto measure = [&](const std::vector<Round>& rounds, std::vector<std::vector<double>>& rates,
                             const char* name) {
      for (std::size_t r = 0; r < rounds.size(); ++r) {
        std::vector<std::vector<int>> groups;
        for (const Group& group : rounds[r]) groups.push_back(ranks_of(group));
        rates.emplace_back(groups.size(), 0.0);
        with_group(groups, fmt::format("{}{}", name, r), [&](Communicator& group, std::size_t g) {
          rates.back()[g] = all_reduce(group, kSearchMib);
        });
      }
    };
    measure(result_.search_plan.halves, result_.search_rates.halves, "halves");
    measure(result_.search_plan.pairs, result_.search_rates.pairs, "rounds");
  }

  Communicator& world_;
  Device& device_;
  const Nodes& nodes_;
  const CommunicationPlan& plan_;
  std::unique_ptr<Stream> stream_;
  void* buffers_[2] = {};
  int node_ = 0, local_ = 0;
  CommunicationResult result_;
};

}  // namespace

CommunicationResult measure_communication(Communicator& world, Device& device, const Nodes& nodes,
                                          const CommunicationPlan& plan) {
  return Exchanges(world, device, nodes, plan).run();
}

}  // namespace primus::preflight
