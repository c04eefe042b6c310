#include "safe/preflight/network_facts.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace primus::preflight {
namespace {

constexpr std::int64_t kLoopbackType = 772;  // ARPHRD_LOOPBACK

Interface read_interface(const Machine& machine, const std::string& name) {
  const std::string folder = "/sys/class/net/" + name + "/";
  const auto count = [&](const char* what) {
    return machine.number(folder + "statistics/" + what).value_or(0);
  };
  return {.name = name,
          .state = machine.text(folder + "operstate").value_or("unknown"),
          .driver = machine.link_name(folder + "device/driver"),
          .loopback = machine.number(folder + "type") == kLoopbackType,
          .hardware = machine.exists(folder + "device"),
          .carrier = machine.number(folder + "carrier") == 1,
          .megabits = std::max<std::int64_t>(0, machine.number(folder + "speed").value_or(0)),
          .mtu = machine.number(folder + "mtu").value_or(0),
          .packets = count("rx_packets") + count("tx_packets"),
          .errors = count("rx_errors") + count("tx_errors")};
}

// Returns the text after the colon: "4: ACTIVE" -> "ACTIVE".
std::string behind_colon(const std::string& text) {
  const std::size_t colon = text.find(':');
  return colon == std::string::npos ? text : trimmed(text.substr(colon + 1));
}

RdmaPort read_port(const Machine& machine, const std::string& device, int port) {
  const std::string device_folder = "/sys/class/infiniband/" + device + "/";
  const std::string folder = fmt::format("{}ports/{}/", device_folder, port);
  RdmaPort result{.device = device,
                  .firmware = machine.text(device_folder + "fw_ver").value_or(""),
                  .link_layer = machine.text(folder + "link_layer").value_or("InfiniBand"),
                  .port = port,
                  .state = behind_colon(machine.text(folder + "state").value_or("")),
                  .physical = behind_colon(machine.text(folder + "phys_state").value_or("")),
                  .gigabits = leading_real(machine.text(folder + "rate").value_or("")).value_or(0),
                  .link_downed = machine.number(folder + "counters/link_downed").value_or(0),
                  .symbol_errors = machine.number(folder + "counters/symbol_error").value_or(0)};
  result.has_routable_gid = result.link_layer != "Ethernet";
  for (const std::string& gid : machine.list(folder + "gid_attrs/types"))
    result.has_routable_gid |= machine.text(folder + "gid_attrs/types/" + gid) == "RoCE v2";
  return result;
}

std::uint32_t hexadecimal(const std::string& text) {
  std::uint32_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value, 16);
  return value;
}

// Returns the interface of the most specific route to `address` in /proc/net/route. The file has addresses as
// hexadecimal numbers that need ntohl().
std::string interface_to(const Machine& machine, std::uint32_t address) {
  if ((address >> 24) == 127) return "lo";
  std::string best;
  int longest = -1;
  for (const std::string& line : lines_of(machine.text("/proc/net/route").value_or(""))) {
    const std::vector<std::string> words = words_of(line);
    if (words.size() < 8 || words[0] == "Iface") continue;
    if ((hexadecimal(words[3]) & 1) == 0) continue;  // route is not up
    const std::uint32_t destination = ntohl(hexadecimal(words[1])), mask = ntohl(hexadecimal(words[7]));
    const int length = __builtin_popcount(mask);
    if ((address & mask) != destination || length <= longest) continue;
    longest = length;
    best = words[0];
  }
  return best;
}

}  // namespace

const Interface* NetworkFacts::interface(const std::string& name) const {
  const auto found =
      std::find_if(interfaces.begin(), interfaces.end(), [&](const Interface& i) { return i.name == name; });
  return found == interfaces.end() ? nullptr : &*found;
}

bool chosen_by(const std::string& list, const std::string& name, int port) {
  std::string_view rest = list;
  const bool all_others = rest.starts_with('^');
  if (all_others) rest.remove_prefix(1);
  const bool whole = rest.starts_with('=');
  if (whole) rest.remove_prefix(1);
  bool named = false;
  for (const std::string& entry : split_text(rest, ',')) {
    const std::size_t colon = entry.find(':');
    const std::string device = entry.substr(0, colon);
    if (device.empty()) continue;
    if (colon != std::string::npos && leading_number(entry.substr(colon + 1)) != port) continue;
    named |= whole ? name == device : name.starts_with(device);
  }
  return named != all_others;
}

NetworkFacts collect_network(const Machine& machine, const std::string& ports) {
  NetworkFacts network;
  for (const std::string& name : machine.list("/sys/class/net")) {
    if (machine.exists("/sys/class/net/" + name + "/mtu"))  // skips bonding_masters, which is a file
      network.interfaces.push_back(read_interface(machine, name));
  }
  std::string list = ports;
  network.selector = ports.empty() ? "" : kPortOption;
  if (const auto variable = machine.variable("NCCL_IB_HCA"); variable && list.empty()) {
    list = *variable;
    network.selector = "NCCL_IB_HCA";
  }
  for (const std::string& device : machine.list("/sys/class/infiniband")) {
    for (const std::string& port : machine.list("/sys/class/infiniband/" + device + "/ports")) {
      const auto number = leading_number(port);
      if (!number) continue;
      RdmaPort found = read_port(machine, device, static_cast<int>(*number));
      found.used = list.empty() ? found.physical != "Disabled" && found.physical != "Sleep"
                                : chosen_by(list, device, found.port);
      network.ports.push_back(std::move(found));
    }
  }
  for (const std::string& entry :
       list.starts_with('^') ? std::vector<std::string>() : split_text(list, ',')) {
    if (entry.empty() || entry == "=") continue;
    const std::string one = (list.starts_with('=') && !entry.starts_with('=') ? "=" : "") + entry;
    if (std::none_of(network.ports.begin(), network.ports.end(),
                     [&](const RdmaPort& port) { return chosen_by(one, port.device, port.port); }))
      network.unmatched.push_back(entry);
  }
  network.device_nodes = machine.list("/dev/infiniband");
  for (const std::string& line : lines_of(machine.text("/proc/modules").value_or(""))) {
    for (const char* module : {"nvidia_peermem ", "nv_peer_mem ", "ib_peer_mem ", "amdgpu_peermem "})
      network.has_peer_memory |= line.starts_with(module);
  }
  network.master = machine.variable("MASTER_ADDR").value_or("");
  if (!network.master.empty()) {
    network.master_is_ipv6 = network.master.find(':') != std::string::npos;
    if (!network.master_is_ipv6) network.master_address = machine.resolve(network.master);
    if (network.master_address) network.master_interface = interface_to(machine, *network.master_address);
  }
  return network;
}

void add_facts(const NetworkFacts& network, std::vector<Fact>& facts) {
  const auto add = [&](const std::string& name, const std::string& value, Verdict drift) {
    facts.push_back({"network", name, value, drift});
  };
  for (const Interface& i : network.interfaces) {
    if (i.loopback) continue;
    add(i.name,
        fmt::format("{}, {}, MTU {}{}", i.state,
                    i.megabits > 0 ? fmt::format("{:g} Gbit/s", static_cast<double>(i.megabits) / 1e3)
                                   : "speed not known",
                    i.mtu, i.driver.empty() ? "" : ", " + i.driver),
        Verdict::kPass);
  }
  std::size_t used = 0;
  for (const RdmaPort& port : network.ports) {
    used += port.used;
    add(port.name(),
        fmt::format("{}, {} ({}), {:g} Gbit/s{}", port.link_layer, port.state, port.physical, port.gigabits,
                    port.used ? "" : ", not used"),
        Verdict::kPass);
    add(port.name() + " firmware", port.firmware.empty() ? "-" : port.firmware, Verdict::kWarn);
  }
  add("RDMA ports for training", fmt::format("{}", used), Verdict::kFail);
  if (!network.master.empty()) {
    add("route to rank 0",
        network.master + " by " + (network.master_interface.empty() ? "no route" : network.master_interface),
        Verdict::kPass);
    const Interface* const way = network.interface(network.master_interface);
    if (way && !way->loopback) add("MTU to rank 0", fmt::format("{}", way->mtu), Verdict::kWarn);
  }
}

}  // namespace primus::preflight
