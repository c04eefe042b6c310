// The machine's network: interfaces, RDMA ports, and the route to rank 0. These facts are read from
// /sys/class/net, /sys/class/infiniband and /proc/net. Free functions; thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "safe/preflight/finding.h"
#include "safe/preflight/machine.h"

namespace primus::preflight {

struct Interface {
  std::string name, state, driver;  // state: "up", "down", "unknown"
  bool loopback = false, hardware = false;
  bool carrier = false;
  std::int64_t megabits = 0;  // speed in Mbit/s; 0: unknown
  std::int64_t mtu = 0;
  std::int64_t packets = 0, errors = 0;  // received and sent since the interface came up
  bool works() const { return loopback || state == "up" || (state == "unknown" && carrier); }
};

struct RdmaPort {
  std::string device, firmware, link_layer;  // "mlx5_0", "28.39.1002", "InfiniBand" or "Ethernet"
  int port = 1;
  std::string state, physical;    // "ACTIVE", "LinkUp"
  double gigabits = 0;            // per second
  bool has_routable_gid = false;  // has a RoCE v2 address (Ethernet); always true for InfiniBand
  std::int64_t link_downed = 0, symbol_errors = 0;
  bool used = true;  // selected for training
  std::string name() const { return device + ":" + std::to_string(port); }
};

inline constexpr const char* kPortOption = "--rdma-nic-allowlist";

struct NetworkFacts {
  std::vector<Interface> interfaces;
  std::vector<RdmaPort> ports;
  std::vector<std::string> device_nodes;  // names of the files in /dev/infiniband
  bool has_peer_memory = false;           // a kernel module that lets RDMA access GPU memory is loaded

  std::string master;                           // MASTER_ADDR; empty: unset
  std::optional<std::uint32_t> master_address;  // IPv4; nullopt: unknown name or IPv6
  bool master_is_ipv6 = false;
  std::string master_interface;        // interface of the route to rank 0; empty: no route
  std::string selector;                // source of the port selection: kPortOption, "NCCL_IB_HCA", ""
  std::vector<std::string> unmatched;  // entries of the selection that match no port here

  const Interface* interface(const std::string& name) const;
};

// `ports`: in NCCL_IB_HCA's syntax ("mlx5_0,mlx5_1:1", "^mlx5_2", "=mlx5_1"). Empty: the value of NCCL_IB_HCA
// or, if it is unset, all enabled ports.
NetworkFacts collect_network(const Machine& machine, const std::string& ports = {});
void add_facts(const NetworkFacts& network, std::vector<Fact>& facts);

// Returns whether an NCCL list of interfaces or devices selects `name`. Entries are prefixes; a leading '='
// selects exact names, a leading '^' excludes.
bool chosen_by(const std::string& list, const std::string& name, int port = 1);

}  // namespace primus::preflight
