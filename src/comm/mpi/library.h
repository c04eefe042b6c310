// An MPI library, loaded through a plug-in, libprimus_comm-mpi.so. Ranks started by an MPI launcher find each
// other and communicate through MPI, over any network that MPI supports (InfiniBand, Omni-Path, ...). The
// program itself does not link to MPI.
//
// The plug-in is compiled with the same headers as the program and exports one function,
//   extern "C" const primus::comm::mpi::Plugin* primus_mpi_plugin();
// The caller compares the result's `abi` before it uses any other field.
//
// Needs MPI 3.1 with MPI_THREAD_MULTIPLE, because threads of several groups use links at the same time.
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

  virtual std::string version() const = 0;  // such as "Open MPI v4.1.4"
  // This process's rank and the number of processes, in the job and on this host, and the host's number.
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int local_rank() const = 0;
  virtual int local_size() const = 0;
  virtual int host() const = 0;

  // Returns rank 0's text. Collective: all ranks call it.
  virtual std::string broadcast(const std::string& text) = 0;
  // Makes links among `members`. `tag` is unique to the group, equal on its members, and from 0 to
  // max_tag(). Does not wait for other ranks.
  virtual std::unique_ptr<Links> make_links(std::span<const int> members, int tag) = 0;
  virtual int max_tag() const = 0;
  // Ends MPI normally. Collective: all ranks call it once, after all links are destroyed.
  virtual void finish() noexcept = 0;
};

struct Plugin {
  std::uint64_t abi;
  // Starts MPI. Called once per process. Throws Error(kDependency) if MPI cannot be used.
  Library& (*start)();
};

constexpr const char* kPluginEntry = "primus_mpi_plugin";
using PluginEntry = const Plugin* (*)();

}  // namespace primus::comm::mpi
