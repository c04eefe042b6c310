// The options for the number and placement of a command's ranks, for commands that start their own ranks.
// Launchers use the same names for a node's place in a job.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cli/command.h"
#include "comm/rendezvous/environment.h"
#include "launch/ranks/local_launch.h"

namespace primus::cli {

class RankOptions {
 public:
  // Declares --nproc, --nnodes, --node_rank, --master_addr, --master_port and --numa.
  void declare(Arguments& args, const std::string& nproc_help);
  // Throws Error(kInvalid) for invalid numbers and, with `starts`, for a master address that other machines
  // could not reach.
  void check(bool starts = true) const;
  // Also prints the note of unused_master(), unless a launcher started this process as a rank.
  void check(bool starts, const Console& console) const;
  // Throws if --nproc and --nnodes make another number of ranks than --world.
  void check_world(std::int64_t world) const;
  // Throws if a launcher started a number of ranks that differs from --nproc.
  void check_place(const std::optional<comm::JobEnvironment>& place) const;

  // Returns a note on --master_addr and --master_port of a job on one machine, whose ranks do not use them;
  // nullopt: neither is given.
  std::optional<std::string> unused_master() const;

  std::optional<int> here() const { return nproc_ ? std::optional(static_cast<int>(*nproc_)) : std::nullopt; }
  // Machines with ranks, and all machines with the spares of leave_out().
  std::int64_t nodes() const { return nodes_ - spares_; }
  std::int64_t machines() const { return nodes_; }
  // `spares` of the machines have no ranks, but wait to replace a lost one.
  void leave_out(std::int64_t spares) { spares_ = spares; }
  std::int64_t node() const { return node_; }
  const std::string& master_address() const { return master_address_; }
  std::uint16_t master_port() const { return static_cast<std::uint16_t>(master_port_); }
  bool several() const { return nproc_.value_or(1) > 1 || nodes_ > 1; }
  // Starts this command again, once per rank, for `ranks` ranks on this machine.
  launch::LocalLaunch start(int ranks) const;

 private:
  std::optional<std::int64_t> nproc_;
  std::int64_t nodes_ = 1, node_ = 0, master_port_ = 0, spares_ = 0;
  std::string master_address_;
  bool numa_ = false;
};

}  // namespace primus::cli
