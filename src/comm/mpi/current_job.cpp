#include "comm/mpi/current_job.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/random.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/sha256.h"
#include "comm/comm_abi.h"
#include "comm/mpi/library.h"
#include "comm/rendezvous/socket.h"
#include "device/plugin_loader.h"

namespace primus::comm {
namespace {

constexpr const char* kName = "comm-mpi";

int launched_processes() {
  const char* const size = std::getenv("OMPI_COMM_WORLD_SIZE");
  return size ? std::atoi(size) : 0;
}

mpi::Library& start_library() {
  const PluginLibrary library = open_plugin_library(kName, mpi::kPluginEntry, "MPI plug-in",
                                                    "install libopenmpi-dev and build again, or give the "
                                                    "ranks RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT");
  const mpi::Plugin* const plugin = reinterpret_cast<mpi::PluginEntry>(library.entry)();
  if (plugin->abi != kCommAbi) {
    throw Error(ErrorKind::kDependency,
                "the MPI plug-in " + library.file + " and this program were built from different sources",
                "build both together, and install the plug-in next to the program");
  }
  return plugin->start();
}

std::string host_name() {
  std::string name(256, '\0');
  if (gethostname(name.data(), name.size() - 1) != 0) return "localhost";
  return name.c_str();
}

// Returns an address at which other hosts reach this host: its name, or the first address of its network
// interfaces if the name resolves to a loopback address. Debian's /etc/hosts maps the host's name to
// 127.0.1.1.
std::string reachable_address() {
  const std::string name = host_name();
  try {
    if (!is_loopback(name)) return name;
  } catch (const Error&) {  // the name is unknown
  }
  ifaddrs* interfaces = nullptr;
  if (getifaddrs(&interfaces) != 0) return name;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(interfaces, &freeifaddrs);
  for (const ifaddrs* i = interfaces; i; i = i->ifa_next) {
    if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET) continue;
    if (!(i->ifa_flags & IFF_UP) || (i->ifa_flags & IFF_LOOPBACK)) continue;
    char text[INET_ADDRSTRLEN] = {};
    if (inet_ntop(AF_INET, &reinterpret_cast<sockaddr_in*>(i->ifa_addr)->sin_addr, text, sizeof(text)))
      return text;
  }
  return name;
}

std::string random_token() {
  char bytes[32];
  if (getrandom(bytes, sizeof(bytes), 0) != static_cast<ssize_t>(sizeof(bytes)))
    throw Error(ErrorKind::kIo, "cannot get random bytes for the job's token", "");
  return hex(std::string_view(bytes, sizeof(bytes)));
}

}  // namespace

std::optional<JobEnvironment> current_job() {
  if (auto environment = JobEnvironment::read()) return environment;
  if (launched_processes() < 2) return std::nullopt;
  mpi::Library& library = start_library();
  if (library.size() != launched_processes()) {
    throw Error(ErrorKind::kDependency,
                fmt::format("mpirun started {} processes, but {} sees {}", launched_processes(),
                            library.version(), library.size()),
                "start the job with the mpirun of the MPI library that the plug-in is linked to");
  }
  JobEnvironment environment;
  environment.rank = library.rank();
  environment.world = library.size();
  environment.local_rank = library.local_rank();
  environment.local_world = library.local_size();
  environment.host = library.host();
  environment.mpi = &library;
  environment.transport = wanted_transport();
  std::string meeting;
  if (environment.rank == 0) {
    const char* const address = std::getenv("MASTER_ADDR");
    environment.master_address = library.local_size() == library.size() ? "127.0.0.1"
                                 : address && *address                  ? address
                                                                        : reachable_address();
    Socket listener = listen_on(environment.master_address, 0);
    meeting = nlohmann::json{environment.master_address, port_of(listener), random_token()}.dump();
    environment.listening_socket = listener.release();
  }
  // MPI requires all its processes to call MPI_Finalize(). After an error, this process ends without
  // MPI_Finalize(), so that mpirun ends the other processes.
  on_exit(
      [](int status, void* started) {
        if (status == 0) static_cast<mpi::Library*>(started)->finish();
      },
      &library);
  const auto agreed = nlohmann::json::parse(library.broadcast(meeting));
  environment.master_address = agreed.at(0).get<std::string>();
  environment.master_port = agreed.at(1).get<std::uint16_t>();
  environment.token = agreed.at(2).get<std::string>();
  return environment;
}

}  // namespace primus::comm
