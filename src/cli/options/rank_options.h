// How many ranks work on a command, and where: the options of commands that start their ranks themselves, as
// launchers hand them a node's place in a job.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cli/command.h"
#include "comm/rendezvous/environment.h"
#include "launch/local_launch.h"

namespace primus::cli {

class RankOptions {
 public:
  // --nproc, --nnodes, --node_rank, --master_addr, --master_port and --numa.
  void declare(Arguments& args, const std::string& nproc_help);
  // Throws Error(kInvalid) for numbers that cannot be; with `starts`, where another machine could not be
  // reached, too.
  void check(bool starts = true) const;
  // Throws where a launcher has started other ranks than --nproc asks for.
  void check_place(const std::optional<comm::JobEnvironment>& place) const;

  std::optional<int> here() const { return nproc_ ? std::optional(static_cast<int>(*nproc_)) : std::nullopt; }
  std::int64_t nodes() const { return nodes_; }
  bool several() const { return nproc_.value_or(1) > 1 || nodes_ > 1; }
  // This same command, once for each of `ranks` on this machine.
  launch::LocalLaunch start(int ranks) const;

 private:
  std::optional<std::int64_t> nproc_;
  std::int64_t nodes_ = 1, node_ = 0, master_port_ = 0;
  std::string master_address_;
  bool numa_ = false;
};

}  // namespace primus::cli
