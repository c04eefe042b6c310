// An MPI library behind a plug-in, libprimus_comm-mpi.so: ranks that an MPI launcher started find each other
// and exchange through it, over whatever network it knows (InfiniBand, Omni-Path, ...). The program itself
// is linked to no MPI.
//
// The plug-in is compiled with the same headers as the program and exports one function,
//   extern "C" const primus::comm::mpi::Plugin* primus_mpi_plugin();
// whose `abi` is compared before anything else is looked at.
//
// MPI 3.1 with MPI_THREAD_MULTIPLE: links are used by the threads of several groups at once.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "comm/links.h"

namespace primus::comm::mpi {

class Library {
 public:
  virtual ~Library() = default;

  virtual std::string version() const = 0;  // "Open MPI v4.1.4"
  // This process's place among all, among those of its host, and which host.
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int local_rank() const = 0;
  virtual int local_size() const = 0;
  virtual int host() const = 0;

  // Rank 0's text. All ranks call it together.
  virtual std::string broadcast(const std::string& text) = 0;
  // Links among `members`. `tag` is the group's alone, equal for its members, from 0 to most_tag(). Waits for
  // nobody.
  virtual std::unique_ptr<Links> make_links(std::span<const int> members, int tag) = 0;
  virtual int most_tag() const = 0;
  // The good end: all ranks call it together, once, when no links are left.
  virtual void finish() noexcept = 0;
};

struct Plugin {
  std::uint64_t abi;
  // Starts MPI. Throws Error(kDependency) where it cannot be used. Called once in a process.
  Library& (*start)();
};

constexpr const char* kPluginEntry = "primus_mpi_plugin";
using PluginEntry = const Plugin* (*)();

}  // namespace primus::comm::mpi
