#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "safe/preflight/check.h"

namespace primus::preflight {
namespace {

void judge_interfaces(const CheckInput& in, Judge& judge) {
  const NetworkFacts& network = in.found.network;
  std::vector<std::string> working, broken;
  for (const Interface& i : network.interfaces) {
    if (i.loopback) continue;
    if (i.works()) working.push_back(i.name);
  }
  if (!network.interface("lo") || !network.interface("lo")->loopback) {
    judge.warn({.where = "lo",
                .measured = "the loopback interface is missing or down",
                .wanted = "lo",
                .source = "ranks of one machine connect through 127.0.0.1",
                .fix = "run 'ip link set lo up'"});
  }
  if (!working.empty()) {
    judge.pass(fmt::format("up: {}", fmt::join(working, ", ")));
  } else if (in.wanted.nodes > 1) {
    judge.fail(
        {.measured = "no interface to other machines is up",
         .wanted = "one",
         .source = fmt::format("the job has {} nodes", in.wanted.nodes),
         .fix = "run 'ip -brief link'; in a container, use the host's network (docker --network=host)"});
  } else {
    judge.skip("no interface to other machines is up, and none is needed");
  }
}

void judge_way(const CheckInput& in, Judge& judge) {
  const NetworkFacts& network = in.found.network;
  if (network.master.empty()) {
    in.wanted.nodes > 1
        ? judge.fail(
              {.measured = "MASTER_ADDR is not set",
               .wanted = "the address of rank 0's machine",
               .source = fmt::format("the job has {} nodes", in.wanted.nodes),
               .fix = "start with a launcher (torchrun, 'primus slurm'), or set MASTER_ADDR and MASTER_PORT"})
        : judge.skip("MASTER_ADDR is not set");
    return;
  }
  if (network.master_is_ipv6) {
    judge.skip(network.master + " is an IPv6 address: routes are checked for IPv4 only");
    return;
  }
  if (!network.master_address) {
    judge.fail({.where = network.master,
                .measured = fmt::format("the address of MASTER_ADDR '{}' cannot be resolved", network.master),
                .wanted = "a name that resolves",
                .source = "/etc/hosts and the resolver",
                .fix = "set MASTER_ADDR to the address itself, or add the name to /etc/hosts or DNS"});
    return;
  }
  const Interface* const way = network.interface(network.master_interface);
  if (!way) {
    judge.fail({.where = network.master,
                .measured = fmt::format("no route leads to MASTER_ADDR '{}'", network.master),
                .wanted = "a route",
                .source = "/proc/net/route",
                .fix = "run 'ip route get " + network.master +
                       "', and choose an address on a network that both machines share"});
  } else if (way->loopback && in.wanted.nodes > 1) {
    judge.fail({.where = network.master,
                .measured = fmt::format("MASTER_ADDR '{}' is an address of the loopback", network.master),
                .wanted = "an address that other machines reach",
                .source = fmt::format("the job has {} nodes", in.wanted.nodes),
                .fix = "set rank 0's address on the cluster's network; /etc/hosts often maps a machine's own "
                       "name to 127.0.1.1"});
  } else if (!way->works()) {
    judge.fail(
        {.where = way->name,
         .measured = fmt::format("{}, which leads to rank 0, is {}", way->name, way->state),
         .wanted = "up",
         .source = "/sys/class/net",
         .fix = fmt::format("run 'ip link set {} up', and check the cable and the switch port", way->name)});
  } else {
    judge.pass(fmt::format("{} leads to {}", way->name, network.master), {}, way->name);
  }
}

void judge_interface_variables(const CheckInput& in, Judge& judge) {
  const NetworkFacts& network = in.found.network;
  bool any = false;
  for (const char* variable : {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"}) {
    const auto value = in.machine.variable(variable);
    if (!value) continue;
    any = true;
    const Interface* chosen = nullptr;
    for (const Interface& i : network.interfaces) {
      const bool fits = std::string_view(variable) == "NCCL_SOCKET_IFNAME" ? chosen_by(*value, i.name)
                                                                           : chosen_by("=" + *value, i.name);
      if (fits && (!chosen || (i.works() && !chosen->works()))) chosen = &i;
    }
    if (!chosen) {
      judge.fail(
          {.where = variable,
           .measured = fmt::format("{}={} names no interface of this machine", variable, *value),
           .wanted = "an existing one",
           .source = "/sys/class/net",
           .fix =
               "set it to the interface that leads to the other machines ('ip -brief link'), or unset it"});
    } else if (!chosen->works()) {
      judge.fail(
          {.where = variable,
           .measured =
               fmt::format("{}={} names {}, which is {}", variable, *value, chosen->name, chosen->state),
           .wanted = "an interface that is up",
           .source = "/sys/class/net",
           .fix =
               "set it to the interface that leads to the other machines ('ip -brief link'), or unset it"});
    } else if (chosen->loopback && in.wanted.nodes > 1) {
      judge.fail(
          {.where = variable,
           .measured = fmt::format("{}={} names the loopback", variable, *value),
           .wanted = "an interface that reaches other machines",
           .source = fmt::format("the job has {} nodes", in.wanted.nodes),
           .fix =
               "set it to the interface that leads to the other machines ('ip -brief link'), or unset it"});
    } else {
      judge.pass(fmt::format("{}={}", variable, *value), {}, variable);
    }
  }
  if (!any) judge.skip("no variable names an interface");
}

void judge_speed(const CheckInput& in, Judge& judge) {
  const NetworkFacts& network = in.found.network;
  const Interface* const way = network.interface(network.master_interface);
  if (!way || way->loopback || way->megabits == 0) {
    judge.skip(way && !way->loopback ? way->name + " does not report its speed"
                                     : "no interface leads to other machines");
    return;
  }
  std::int64_t fastest = 0;
  for (const Interface& i : network.interfaces)
    if (i.hardware && i.works() && i.driver == way->driver) fastest = std::max(fastest, i.megabits);
  const std::string measured =
      fmt::format("{}: {:g} Gbit/s", way->name, static_cast<double>(way->megabits) / 1e3);
  if (way->megabits < fastest) {
    judge.warn({.where = way->name,
                .measured = measured,
                .wanted = fmt::format("{:g} Gbit/s", static_cast<double>(fastest) / 1e3),
                .source = "another interface of the same kind",
                .fix = "check the cable and the switch port: the link may have degraded ('ethtool " +
                       way->name + "')"});
  } else if (way->megabits < 1000 && in.wanted.nodes > 1) {
    judge.warn({.where = way->name,
                .measured = measured,
                .wanted = "at least 1 Gbit/s",
                .source = "it carries the gradients of every step",
                .fix = "check the cable and the switch port ('ethtool " + way->name +
                       "'), or choose another network"});
  } else {
    judge.pass(measured, {}, way->name);
  }
}

void judge_mtu(const CheckInput& in, Judge& judge) {
  bool any = false;
  for (const Interface& i : in.found.network.interfaces) {
    if (i.loopback || !i.works() || !i.hardware) continue;
    any = true;
    std::int64_t maximum = 0;
    for (const Interface& other : in.found.network.interfaces)
      if (other.hardware && other.works() && other.driver == i.driver && other.megabits == i.megabits)
        maximum = std::max(maximum, other.mtu);
    if (i.mtu < 1280) {
      judge.warn({.where = i.name,
                  .measured = fmt::format("{}: packets have at most {} bytes", i.name, i.mtu),
                  .wanted = "at least 1280",
                  .source = "IPv6 needs that; small packets cost CPU time",
                  .fix = fmt::format(
                      "run 'ip link set {} mtu 9000' if the switches support it, 1500 otherwise", i.name)});
    } else if (i.mtu < maximum) {
      judge.warn({.where = i.name,
                  .measured = fmt::format("{}: packets have at most {} bytes", i.name, i.mtu),
                  .wanted = fmt::format("{}", maximum),
                  .source = "another interface of the same kind",
                  .fix = fmt::format("run 'ip link set {} mtu {}'", i.name, maximum)});
    } else {
      judge.pass(fmt::format("{}: MTU {}", i.name, i.mtu), {}, i.name);
    }
  }
  if (!any) judge.skip("no network card is up");
}

void judge_errors(const CheckInput& in, Judge& judge) {
  bool any = false;
  for (const Interface& i : in.found.network.interfaces) {
    if (i.loopback || !i.works()) continue;
    any = true;
    const double share = static_cast<double>(i.errors) / std::max(1.0, static_cast<double>(i.packets));
    if (i.errors > 100 && share > 1e-6) {
      judge.warn({.where = i.name,
                  .measured = fmt::format("{}: {} of {} packets had errors", i.name, i.errors, i.packets),
                  .wanted = "at most one in a million",
                  .source = "counters of the interface",
                  .fix = "replace the cable or transceiver, and check whether the counters still grow"});
    } else {
      judge.pass(fmt::format("{}: {} errors", i.name, i.errors), {}, i.name);
    }
  }
  if (!any) judge.skip("no interface is up");
}

void judge_ports(const CheckInput& in, Judge& judge) {
  std::vector<double> rates;
  for (const RdmaPort& port : in.found.network.ports)
    if (port.used) rates.push_back(port.gigabits);
  if (rates.empty()) {
    judge.skip("no RDMA device is used");
    return;
  }
  const double fastest = *std::max_element(rates.begin(), rates.end());
  for (const RdmaPort& port : in.found.network.ports) {
    if (!port.used) continue;
    const std::string where = port.name();
    const std::string exclude = in.found.network.selector.empty() ? ", or exclude it with NCCL_IB_HCA" : "";
    if (port.state != "ACTIVE" || (!port.physical.empty() && port.physical != "LinkUp")) {
      judge.fail({.where = where,
                  .measured = fmt::format("{} is {} ({})", where, port.state, port.physical),
                  .wanted = "ACTIVE (LinkUp)",
                  .source = "/sys/class/infiniband",
                  .fix = "check the cable, switch port and subnet manager ('ibstat " + port.device + "')" +
                         exclude});
    } else if (port.gigabits < fastest) {
      judge.fail({.where = where,
                  .measured = fmt::format("{} runs at {:g} Gbit/s", where, port.gigabits),
                  .wanted = fmt::format("{:g} Gbit/s", fastest),
                  .source = "the other ports of this machine",
                  .fix = "reseat or replace the cable and transceiver: the link has degraded" + exclude});
    } else if (!port.has_routable_gid) {
      judge.fail({.where = where,
                  .measured = where + " has no RoCE v2 address",
                  .wanted = "one",
                  .source = "NCCL over Ethernet needs it",
                  .fix = "give the port's network interface an IP address, and run 'show_gids'"});
    } else {
      judge.pass(fmt::format("{}: {}, {:g} Gbit/s", where, port.link_layer, port.gigabits), {}, where);
    }
    if (port.link_downed > 10 || port.symbol_errors > 1000) {
      judge.warn({.where = where,
                  .measured = fmt::format("{} went down {} times, and had {} symbol errors", where,
                                          port.link_downed, port.symbol_errors),
                  .wanted = "at most 10 and 1000",
                  .source = "counters of the port since they were cleared",
                  .fix = "replace cable or transceiver, clear the counters (perfquery -R), and look again"});
    }
  }
}

void judge_port_count(const CheckInput& in, Judge& judge) {
  const auto used = std::count_if(in.found.network.ports.begin(), in.found.network.ports.end(),
                                  [](const RdmaPort& port) { return port.used; });
  const auto& asked = in.wanted.rdma_ports;
  if (!asked) {
    judge.skip(fmt::format("{} RDMA ports; set the expected number with --expected-rdma-nics", used));
  } else if (used != static_cast<std::ptrdiff_t>(asked->value)) {
    judge.fail({.measured = fmt::format("{} RDMA ports for training", used),
                .wanted = fmt::format("{:.0f}", asked->value),
                .source = asked->source,
                .fix = "check 'ls /sys/class/infiniband' and dmesg for a missing card; pass devices "
                       "into the container"});
  } else {
    judge.pass(fmt::format("{} RDMA ports", used));
  }
}

void judge_device_nodes(const CheckInput& in, Judge& judge) {
  const NetworkFacts& network = in.found.network;
  if (network.ports.empty()) {
    judge.skip("no RDMA device");
    return;
  }
  const auto verbs = std::count_if(network.device_nodes.begin(), network.device_nodes.end(),
                                   [](const std::string& name) { return name.starts_with("uverbs"); });
  if (verbs == 0) {
    judge.fail({.measured = "RDMA devices exist, but /dev/infiniband/uverbs* does not",
                .wanted = "a device node for each",
                .source = "programs reach RDMA devices through them",
                .fix = "load ib_uverbs; in a container, pass them in (docker --device=/dev/infiniband)"});
  } else {
    judge.pass(fmt::format("{} device nodes", verbs));
  }
}

void judge_firmware(const CheckInput& in, Judge& judge) {
  std::vector<std::string> versions;
  for (const RdmaPort& port : in.found.network.ports) {
    const bool known = std::find(versions.begin(), versions.end(), port.firmware) != versions.end();
    if (port.used && !port.firmware.empty() && !known) versions.push_back(port.firmware);
  }
  if (versions.empty()) {
    judge.skip("no RDMA device is used");
  } else if (versions.size() > 1) {
    judge.warn({.measured = fmt::format("the RDMA devices have firmware {}", fmt::join(versions, ", ")),
                .wanted = "one version",
                .source = "/sys/class/infiniband/*/fw_ver",
                .fix = "install the same firmware on all cards of one kind"});
  } else {
    judge.pass("firmware " + versions.front());
  }
}

void judge_selection(const CheckInput& in, Judge& judge) {
  const NetworkFacts& network = in.found.network;
  // Every device that the option names must exist on this node. A variable may also name missing devices,
  // because different kinds of nodes may share the variable.
  const std::string option = network.selector == kPortOption ? network.selector : "";
  const std::string fix = "name devices that 'ls /sys/class/infiniband' shows; in a container, pass them in";
  const bool any_used =
      std::any_of(network.ports.begin(), network.ports.end(), [](const RdmaPort& port) { return port.used; });
  if (!option.empty() && !network.unmatched.empty()) {
    judge.fail({.where = option,
                .measured = fmt::format("{}: this machine has no RDMA port {}", option,
                                        fmt::join(network.unmatched, ", ")),
                .wanted = "every port that it names",
                .source = "/sys/class/infiniband",
                .fix = fix});
  } else if (!option.empty() && !any_used) {
    judge.fail({.where = option,
                .measured = option + " leaves no RDMA port for training",
                .wanted = "one at least",
                .source = "/sys/class/infiniband",
                .fix = fix});
  } else if (!option.empty()) {
    judge.pass(option + " selects existing ports", {}, option);
  }
  const auto value = in.machine.variable("NCCL_IB_HCA");
  if (!value) {
    if (option.empty()) judge.skip("NCCL_IB_HCA is not set: all RDMA ports are used");
    return;
  }
  const bool any = std::any_of(network.ports.begin(), network.ports.end(), [&](const RdmaPort& port) {
    return chosen_by(*value, port.device, port.port);
  });
  if (!any) {
    judge.fail({.where = "NCCL_IB_HCA",
                .measured = fmt::format("NCCL_IB_HCA={} names no RDMA device of this machine", *value),
                .wanted = "an existing one",
                .source = "/sys/class/infiniband",
                .fix = "set it to devices that 'ls /sys/class/infiniband' shows, or unset it"});
  } else {
    judge.pass("NCCL_IB_HCA=" + *value);
  }
}

void judge_peer_memory(const CheckInput& in, Judge& judge) {
  const bool used = std::any_of(in.found.network.ports.begin(), in.found.network.ports.end(),
                                [](const RdmaPort& port) { return port.used; });
  const bool nvidia = in.found.gpu.nvidia_on_bus > 0;
  if (!used || !nvidia) {
    judge.skip("no RDMA device with NVIDIA GPUs");
  } else if (!in.found.network.has_peer_memory) {
    judge.warn({.measured = "no kernel module lets RDMA read GPU memory (nvidia_peermem)",
                .wanted = "GPUDirect RDMA",
                .source = "/proc/modules; with open drivers and recent NCCL, dma-buf does the same",
                .fix = "run 'modprobe nvidia_peermem'"});
  } else {
    judge.pass("GPUDirect RDMA");
  }
}

void judge_environment(const CheckInput& in, Judge& judge) {
  if (in.wanted.nodes <= 1) {
    judge.skip("one machine");
    return;
  }
  std::vector<std::string> missing;
  for (const char* name :
       {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})
    if (!in.machine.variable(name)) missing.emplace_back(name);
  if (missing.empty()) {
    judge.pass("the rendezvous variables are set");
  } else {
    judge.fail({.measured = fmt::format("not set: {}", fmt::join(missing, ", ")),
                .wanted = "torchrun's environment",
                .source = fmt::format("the job has {} nodes", in.wanted.nodes),
                .fix = "start with a launcher: torchrun, or 'primus slurm'"});
  }
}

}  // namespace

extern const Check kNetworkEnvironment{"network.environment", "network", "Are the rendezvous variables set?",
                                       judge_environment};
extern const Check kNetworkInterfaces{"network.interfaces", "network",
                                      "Is an interface to other machines up?", judge_interfaces};
extern const Check kNetworkWay{"network.way", "network", "Does an active interface lead to MASTER_ADDR?",
                               judge_way};
extern const Check kNetworkInterfaceVariables{
    "network.interface-variables", "network",
    "Do NCCL_SOCKET_IFNAME and similar variables name active interfaces?", judge_interface_variables};
extern const Check kNetworkSpeed{"network.speed", "network", "Does the link to rank 0 run at full speed?",
                                 judge_speed};
extern const Check kNetworkMtu{"network.mtu", "network",
                               "Do the network cards have the same maximum packet size?", judge_mtu};
extern const Check kNetworkErrors{"network.errors", "network", "Do packets arrive without errors?",
                                  judge_errors};
extern const Check kNetworkRdmaPorts{"network.rdma-ports", "network",
                                     "Are the RDMA ports up, at full speed, and with an address?",
                                     judge_ports};
extern const Check kNetworkRdmaCount{
    "network.rdma-count", "network", "Is the number of RDMA ports as expected?", judge_port_count,
    [](const Requirements& wanted) { return wanted.rdma_ports.has_value(); }};
extern const Check kNetworkRdmaNodes{"network.rdma-nodes", "network", "Can programs open the RDMA devices?",
                                     judge_device_nodes};
extern const Check kNetworkRdmaFirmware{"network.rdma-firmware", "network",
                                        "Do the RDMA devices have the same firmware?", judge_firmware};
extern const Check kNetworkRdmaVariable{"network.rdma-variable", "network",
                                        "Do NCCL_IB_HCA and --rdma-nic-allowlist name existing devices?",
                                        judge_selection};
extern const Check kNetworkGpuDirect{"network.gpu-direct", "network", "Can RDMA devices read GPU memory?",
                                     judge_peer_memory};

}  // namespace primus::preflight
