#include "comm/rendezvous/environment.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/files/file.h"

namespace primus::comm {
namespace {

constexpr int kMaxRanks = 1 << 20;
constexpr std::uint64_t kMaxTokenBytes = 4096;
constexpr const char* kHint =
    "start the ranks with a launcher that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or set them";

std::optional<std::string> text(const JobEnvironment::Getter& get, const char* name) {
  const char* const value = get(name);
  if (!value || *value == '\0') return std::nullopt;
  return value;
}

std::optional<int> number(const JobEnvironment::Getter& get, const char* name, int low, int high) {
  const auto value = text(get, name);
  if (!value) return std::nullopt;
  int result = 0;
  const auto [end, error] = std::from_chars(value->data(), value->data() + value->size(), result);
  if (error != std::errc() || end != value->data() + value->size() || result < low || result > high) {
    throw invalid(fmt::format("{}='{}' is not a number from {} to {}", name, *value, low, high), kHint);
  }
  return result;
}

std::string read_token(const JobEnvironment::Getter& get) {
  if (const auto token = text(get, "PRIMUS_JOB_TOKEN")) return *token;
  const auto path = text(get, "PRIMUS_JOB_TOKEN_FILE");
  if (!path) return {};
  std::string token = read_file(*path, kMaxTokenBytes);
  while (!token.empty() && std::strchr(" \t\r\n", token.back())) token.pop_back();
  if (token.empty())
    throw invalid("the token file '" + *path + "' is empty", "write the job's token into it");
  return token;
}

CopyEngines parse_copy_engines(const std::string& name) {
  if (name == "auto") return CopyEngines::kAuto;
  if (name == "off") return CopyEngines::kOff;
  if (name == "on") return CopyEngines::kOn;
  if (name == "all") return CopyEngines::kAll;
  throw invalid(fmt::format("PRIMUS_COPY_ENGINES='{}' is not a valid setting", name),
                "choose auto, off, on or all");
}

CountedRows parse_counted_rows(const std::string& name) {
  if (name == "auto") return CountedRows::kAuto;
  if (name == "direct") return CountedRows::kDirect;
  if (name == "on") return CountedRows::kOn;
  if (name == "off") return CountedRows::kOff;
  throw invalid(fmt::format("PRIMUS_COUNTED_ROWS='{}' is not a valid setting", name),
                "choose auto, direct, on or off");
}

}  // namespace

Transport parse_transport(const std::string& name, const std::string& where) {
  if (name == "auto") return Transport::kAuto;
  if (name == "shared-memory") return Transport::kSharedMemory;
  if (name == "tcp") return Transport::kTcp;
  if (name == "mpi") return Transport::kMpi;
  throw invalid(fmt::format("{} '{}' is not a known transport", where, name),
                "choose auto, shared-memory, tcp or mpi");
}

std::string name_of(Transport transport) {
  switch (transport) {
    case Transport::kSharedMemory:
      return "shared-memory";
    case Transport::kTcp:
      return "tcp";
    case Transport::kMpi:
      return "mpi";
    default:
      return "auto";
  }
}

Transport wanted_transport() {
  const char* const name = std::getenv("PRIMUS_TRANSPORT");
  return name && *name ? parse_transport(name, "PRIMUS_TRANSPORT") : Transport::kAuto;
}

CountedRows wanted_counted_rows() {
  const char* const name = std::getenv("PRIMUS_COUNTED_ROWS");
  return name && *name ? parse_counted_rows(name) : CountedRows::kAuto;
}

void check_transport(Transport transport, bool one_host, bool by_mpi) {
  if (transport == Transport::kSharedMemory && !one_host) {
    throw invalid("the ranks of a group are on different hosts, so they cannot share memory",
                  "choose the transport auto or tcp");
  }
  if (transport == Transport::kMpi && !by_mpi) {
    throw invalid("the ranks were not started by an MPI launcher, so they cannot use MPI",
                  "start them with mpirun, without setting RANK and WORLD_SIZE");
  }
}

std::optional<JobEnvironment> JobEnvironment::read() {
  return read([](const char* name) { return std::getenv(name); });
}

std::optional<JobEnvironment> JobEnvironment::read(const Getter& get) {
  const auto rank = number(get, "RANK", 0, kMaxRanks - 1);
  const auto world = number(get, "WORLD_SIZE", 1, kMaxRanks);
  if (!rank && !world) return std::nullopt;
  if (!rank) throw invalid("WORLD_SIZE is set, but RANK is not", kHint);
  if (!world) throw invalid("RANK is set, but WORLD_SIZE is not", kHint);
  if (*rank >= *world) {
    throw invalid(fmt::format("RANK={} is not below WORLD_SIZE={}", *rank, *world), kHint);
  }
  JobEnvironment result;
  result.rank = *rank;
  result.world = *world;
  result.local_rank = number(get, "LOCAL_RANK", 0, kMaxRanks - 1).value_or(*rank);
  result.local_world = number(get, "LOCAL_WORLD_SIZE", 1, kMaxRanks).value_or(*world);
  if (result.local_rank >= result.local_world) {
    throw invalid(
        fmt::format("LOCAL_RANK={} is not below LOCAL_WORLD_SIZE={}", result.local_rank, result.local_world),
        kHint);
  }
  result.host = number(get, "GROUP_RANK", 0, kMaxRanks - 1).value_or(0);
  result.listening_socket =
      number(get, "PRIMUS_RENDEZVOUS_FD", 0, std::numeric_limits<int>::max()).value_or(-1);
  result.token = read_token(get);
  result.transport = parse_transport(text(get, "PRIMUS_TRANSPORT").value_or("auto"), "PRIMUS_TRANSPORT");
  result.copy_engines = parse_copy_engines(text(get, "PRIMUS_COPY_ENGINES").value_or("auto"));
  result.counted_rows = parse_counted_rows(text(get, "PRIMUS_COUNTED_ROWS").value_or("auto"));
  const auto address = text(get, "MASTER_ADDR");
  auto port = number(get, "PRIMUS_MASTER_PORT", 1, 65535);
  if (!port) {
    port = number(get, "MASTER_PORT", 1, 65535);
    const auto agent = text(get, "TORCHELASTIC_USE_AGENT_STORE");
    if (port && agent && (*agent == "True" || *agent == "1")) port = *port == 65535 ? 65534 : *port + 1;
  }
  if (*world > 1) {
    if (!address) throw invalid("MASTER_ADDR is not set", kHint);
    if (!port) throw invalid("MASTER_PORT is not set", kHint);
  }
  result.master_address = address.value_or("127.0.0.1");
  // Accept "[::1]", the notation of URLs.
  if (result.master_address.starts_with('[') && result.master_address.ends_with(']')) {
    result.master_address = result.master_address.substr(1, result.master_address.size() - 2);
  }
  result.master_port = static_cast<std::uint16_t>(port.value_or(0));
  return result;
}

}  // namespace primus::comm
