#include "cli/options/rank_options.h"

#include <fmt/format.h>

#include <cstdlib>

#include "base/error.h"
#include "cli/options/own_command.h"
#include "launch/node/hardware.h"
#include "launch/node/numa.h"

namespace primus::cli {

void RankOptions::declare(Arguments& args, const std::string& nproc_help) {
  args.option("--nproc,--nproc_per_node", "N", &nproc_, nproc_help);
  args.option("--nnodes", "N", &nodes_, "number of machines; each starts --nproc ranks");
  args.option("--node_rank,--node-rank", "R", &node_, "with --nnodes: number of this machine, from 0");
  args.option("--master_addr,--master-addr", "HOST", &master_address_,
              "with --nnodes: address of machine 0, the same on all machines");
  args.option("--master_port,--master-port", "PORT", &master_port_,
              "with --nnodes: a free port of machine 0, the same on all machines");
  args.flag("--numa", numa_, "with several ranks: bind each to the cores and memory next to its GPU");
}

void RankOptions::check(bool starts) const {
  constexpr std::int64_t kMaxRanks = 4096, kMaxNodes = 1 << 16, kMaxPort = 65535;
  if (nproc_ && (*nproc_ < 1 || *nproc_ > kMaxRanks))
    throw invalid(fmt::format("--nproc {}: not a number of ranks", *nproc_),
                  fmt::format("choose 1 to {}", kMaxRanks));
  if (nodes_ < 1 || nodes_ > kMaxNodes)
    throw invalid(fmt::format("--nnodes {}: not a number of machines", nodes_),
                  fmt::format("choose 1 to {}", kMaxNodes));
  if (node_ < 0 || node_ >= nodes_)
    throw invalid(fmt::format("--node_rank {} is not below --nnodes {}", node_, nodes_),
                  "machines are numbered from 0");
  if (!starts) return;
  if (numa_ && !launch::find_accelerators(launch::Surroundings::here()).any())
    throw invalid("--numa binds each rank to the memory next to its GPU, but this machine has no GPU",
                  "remove --numa");
  if (nodes_ > 1 && master_address_.empty())
    throw invalid("--nnodes needs --master_addr",
                  "set it to the address of machine 0, the same on all machines");
  if (nodes_ > 1 && (master_port_ < 1 || master_port_ > kMaxPort))
    throw invalid("--nnodes needs --master_port",
                  "set it to a free port of machine 0, the same on all machines");
}

void RankOptions::check(bool starts, const Console& console) const {
  check(starts);
  const auto note = unused_master();
  if (note && !comm::JobEnvironment::read()) console.note("note: " + *note);
}

void RankOptions::check_world(std::int64_t world) const {
  const bool agrees = nproc_ ? *nproc_ * nodes_ == world : world % nodes_ == 0;
  if (agrees || (!nproc_ && nodes_ == 1)) return;
  throw invalid(
      nproc_ ? fmt::format("--world is {}, but --nproc {} and --nnodes {} make {} ranks", world, *nproc_,
                           nodes_, *nproc_ * nodes_)
             : fmt::format("--world is {}, which {} machines (--nnodes) cannot share equally", world, nodes_),
      "remove --world, or remove --nproc and --nnodes");
}

void RankOptions::check_place(const std::optional<comm::JobEnvironment>& place) const {
  if (place && nodes_ > 1 && nodes_ * place->local_world != place->world)
    throw invalid(
        fmt::format("--nnodes is {}, but a launcher has already started {} ranks with {} on this machine",
                    nodes_, place->world, place->local_world),
        "remove --nnodes");
  if (!place || !nproc_ || *nproc_ == 1 || *nproc_ == place->local_world) return;
  throw invalid(
      fmt::format(
          "--nproc is {}, but a launcher has already started {} ranks on this machine (LOCAL_WORLD_SIZE)",
          *nproc_, place->local_world),
      "remove --nproc");
}

std::optional<std::string> RankOptions::unused_master() const {
  if (nodes_ > 1 || (master_address_.empty() && master_port_ == 0)) return std::nullopt;
  return fmt::format(
      "{} has no effect: all ranks of the job are on this machine; --nnodes sets more machines",
      master_address_.empty() ? "--master_port"
      : master_port_ == 0     ? "--master_addr"
                              : "--master_addr and --master_port");
}

launch::LocalLaunch RankOptions::start(int ranks) const {
  launch::LocalLaunch start{.command = own_command(), .environment = {}, .ranks = ranks};
  if (numa_) {
    const std::string program = start.command.front();
    start.command.insert(start.command.begin() + 1, {std::string(launch::kNumaWord), program});
  }
  if (nodes_ > 1) {
    start.hosts = static_cast<int>(nodes_);
    start.host = static_cast<int>(node_);
    start.master_address = master_address_;
    start.master_port = static_cast<std::uint16_t>(master_port_);
    const char* const listener = std::getenv(launch::kListenerVariable);
    if (listener && node_ == 0) start.listener = std::atoi(listener);
  }
  return start;
}

}  // namespace primus::cli
