// This process's rank and job, from the environment variables set by torchrun or the primus launcher.
//
//   RANK, WORLD_SIZE               this process's rank and the number of ranks in the job
//   LOCAL_RANK, LOCAL_WORLD_SIZE   the same on this host (default: RANK, WORLD_SIZE)
//   GROUP_RANK                     the host's number (default 0)
//   MASTER_ADDR, MASTER_PORT       where rank 0 listens: a name, an IPv4 or IPv6 address
//   PRIMUS_MASTER_PORT             replaces MASTER_PORT if another program uses that port. torchrun keeps
//                                  MASTER_PORT for itself (TORCHELASTIC_USE_AGENT_STORE=True), so the default
//                                  under torchrun is MASTER_PORT + 1.
//   PRIMUS_JOB_TOKEN, PRIMUS_JOB_TOKEN_FILE   the job's secret, or a file that holds it. It is optional only
//                                  if rank 0 listens on the loopback interface. Rank 0 refuses connections
//                                  without it.
//   PRIMUS_RENDEZVOUS_FD           a listening socket that rank 0 inherits from the launcher
//   PRIMUS_TRANSPORT               transport of ranks on CPUs: auto (default), shared-memory, tcp or mpi
//   PRIMUS_COPY_ENGINES            which groups of GPUs on one host use copy engines, if supported:
//                                  auto (default), off, on or all (see CopyEngines)
//   PRIMUS_COUNTED_ROWS            how GPUs send the rows of all_to_all_rows(): auto (default), direct, on or
//                                  off (see CountedRows). Equal on all ranks
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace primus::comm {

namespace mpi {
class Library;
}

// The transport of a group. kAuto: shared memory within one host, else MPI if mpirun started the ranks, else
// TCP.
enum class Transport { kAuto, kSharedMemory, kTcp, kMpi };
// Parses "auto", "shared-memory", "tcp" or "mpi". Throws Error(kInvalid) for any other text; `where` names
// the source of the text.
Transport parse_transport(const std::string& name, const std::string& where);
std::string name_of(Transport transport);

// Selects how GPUs send the rows of all_to_all_rows(). kDirect: kernels write the counted rows into the
// memory of the host's other GPUs, and no host waits; an error if that is not possible. kOn: the library
// sends the counted rows, and the host waits for the counts. kOff: the library sends complete parts. kAuto:
// like kDirect in each group where it is possible, on device kinds where it has been tested; else like kOn.
enum class CountedRows { kAuto, kDirect, kOn, kOff };

// Returns the transport that PRIMUS_TRANSPORT sets; kAuto if unset. Throws Error(kInvalid).
Transport wanted_transport();
// Returns the setting PRIMUS_COUNTED_ROWS; kAuto if unset. Throws Error(kInvalid).
CountedRows wanted_counted_rows();
// Throws Error(kInvalid) if ranks cannot use this transport. `one_host`: the ranks share a host; `by_mpi`:
// mpirun started the ranks.
void check_transport(Transport transport, bool one_host, bool by_mpi);

// Selects the groups of GPUs on one host that use copy engines instead of the vendor's library, which
// occupies multiprocessors. kOn: tensor ranks. kAll: also context ranks, and data-parallel ranks that gather
// parameters. kAuto: kAll on device kinds where copy engines have been tested, kOff on others.
enum class CopyEngines { kAuto, kOff, kOn, kAll };

struct JobEnvironment {
  int rank = 0, world = 1;
  int local_rank = 0, local_world = 1;
  int host = 0;
  std::string master_address = "127.0.0.1";
  std::uint16_t master_port = 0;
  std::string token;
  int listening_socket = -1;
  Transport transport = Transport::kAuto;
  CopyEngines copy_engines = CopyEngines::kAuto;
  CountedRows counted_rows = CountedRows::kAuto;
  mpi::Library* mpi = nullptr;  // MPI, if mpirun started the ranks (comm/mpi/current_job.h), or null

  // Reads the environment. Returns nullopt if neither RANK nor WORLD_SIZE is set: a single process. Throws
  // Error(kInvalid) naming a missing or wrong variable. `get`: getenv, or a replacement in tests.
  using Getter = std::function<const char*(const char* name)>;
  static std::optional<JobEnvironment> read();
  static std::optional<JobEnvironment> read(const Getter& get);
};

}  // namespace primus::comm
