// Watches the error counters and the states of RDMA ports.
#include <fmt/format.h>

#include <map>

#include "safe/preflight/network_facts.h"
#include "safe/watch/probe.h"

namespace primus::watch {
namespace {

// Symbol errors occur on healthy links, too: the InfiniBand specification allows a bit error in 10^12 bits.
constexpr std::int64_t kManySymbolErrors = 100;

class Network final : public Probe {
 public:
  explicit Network(std::shared_ptr<const preflight::Machine> machine) : machine_(std::move(machine)) {}

  void look(double /*now*/, Findings& found) override {
    for (const preflight::RdmaPort& port : preflight::collect_network(*machine_).ports) {
      if (!port.used) continue;
      const auto [entry, fresh] = ports_.try_emplace(port.name(), port);
      Port& known = entry->second;
      if (fresh) continue;
      if (port.link_downed > known.last.link_downed) {
        found.set(Symptom::kPortErrors);
        report(found, port, static_cast<double>(port.link_downed),
               static_cast<double>(known.last.link_downed),
               fmt::format("{} went down {} times", port.name(), port.link_downed - known.last.link_downed));
      } else if (port.state != known.last.state && port.state != "ACTIVE") {
        found.set(Symptom::kPortErrors);
        report(found, port, 0, 1, fmt::format("{} is {}", port.name(), port.state));
      }
      const std::int64_t errors = port.symbol_errors - known.first.symbol_errors;
      if (port.symbol_errors > known.last.symbol_errors) found.set(Symptom::kPortErrors);
      if (errors >= kManySymbolErrors && !std::exchange(known.many, true))
        report(found, port, static_cast<double>(errors), 0,
               fmt::format("{} has {} new symbol errors", port.name(), errors));
      known.last = port;
    }
  }

 private:
  struct Port {
    explicit Port(const preflight::RdmaPort& port) : first(port), last(port) {}
    preflight::RdmaPort first, last;
    bool many = false;
  };
  static void report(Findings& found, const preflight::RdmaPort& port, double value, double usual,
                     std::string text) {
    found.warnings.push_back(
        {.detector = "network_port",
         .value = value,
         .usual = usual,
         .text = "RDMA port " + std::move(text),
         .advice = fmt::format(
             "check the cable and the switch port of {}; 'primus preflight' tests all ports", port.name())});
  }

  std::shared_ptr<const preflight::Machine> machine_;
  std::map<std::string, Port> ports_;
};

}  // namespace

extern const ProbeEntry kNetwork{"network", false, [](const ProbeContext& context) -> std::unique_ptr<Probe> {
                                   if (context.machine->list("/sys/class/infiniband").empty()) return nullptr;
                                   return std::make_unique<Network>(context.machine);
                                 }};

}  // namespace primus::watch
