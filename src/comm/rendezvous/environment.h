// Which rank of which job this process is: the environment that torchrun, and Primus's own launcher, set.
//
//   RANK, WORLD_SIZE               this process's place in the job
//   LOCAL_RANK, LOCAL_WORLD_SIZE   its place on this host (default: RANK, WORLD_SIZE)
//   GROUP_RANK                     which host (default 0)
//   MASTER_ADDR, MASTER_PORT       where rank 0 listens: a name, an IPv4 or IPv6 address
//   PRIMUS_MASTER_PORT             instead of MASTER_PORT, where another program has that one. Under
//   torchrun,
//                                  which keeps MASTER_PORT for itself (TORCHELASTIC_USE_AGENT_STORE=True),
//                                  the default is the port behind it.
//   PRIMUS_JOB_TOKEN, PRIMUS_JOB_TOKEN_FILE   the job's secret, or a file that holds it: who does not know it
//                                  is refused. Needed unless rank 0 listens on the loopback only.
//   PRIMUS_RENDEZVOUS_FD           a listening socket that rank 0 inherits from the launcher
//   PRIMUS_TRANSPORT               how ranks on CPUs exchange: auto (default), shared-memory, tcp or mpi
//   PRIMUS_COPY_ENGINES            who exchanges by copy engines on GPUs of one host, where these can
//   (CopyEngines):
//                                  auto (default), off, on or all
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace primus::comm {

namespace mpi {
class Library;
}

// How the ranks of a group exchange. kAuto: shared memory within one host, else MPI where that started them,
// else TCP.
enum class Transport { kAuto, kSharedMemory, kTcp, kMpi };
// "auto", "shared-memory", "tcp", "mpi"; Error(kInvalid) for anything else, which `where` has.
Transport parse_transport(const std::string& name, const std::string& where);
std::string name_of(Transport transport);

// What PRIMUS_TRANSPORT says; kAuto where it is not set. Throws Error(kInvalid).
Transport wanted_transport();
// Throws Error(kInvalid) where ranks cannot exchange so: `one_host`: they share one; `by_mpi`: mpirun started
// them.
void check_transport(Transport transport, bool one_host, bool by_mpi);

// Groups of ranks on GPUs of one host that exchange by copy engines instead of the vendor's library, which
// takes multiprocessors: tensor ranks (kOn); also context ranks, and data-parallel ranks that gather
// parameters (kAll); kAuto: all on devices that were seen to do it, none on others.
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
  mpi::Library* mpi = nullptr;  // what started the ranks (comm/mpi/current_job.h); null: not MPI

  // Nullopt when neither RANK nor WORLD_SIZE is set: a process of its own. Throws Error(kInvalid) naming the
  // variable that is missing or wrong. `get`: getenv, or a test's.
  using Getter = std::function<const char*(const char* name)>;
  static std::optional<JobEnvironment> read();
  static std::optional<JobEnvironment> read(const Getter& get);
};

}  // namespace primus::comm
