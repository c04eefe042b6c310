#include "safe/supervise/agreement/leadership_wire.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace primus::supervise {
namespace {

using WireJson = nlohmann::json;
using WireKind = LeadershipMessage::Kind;

constexpr std::pair<WireKind, NodeMessage::Kind> kKinds[] = {
    {WireKind::kHello, NodeMessage::Kind::kHello},
    {WireKind::kElsewhere, NodeMessage::Kind::kElsewhere},
    {WireKind::kPrepare, NodeMessage::Kind::kPrepare},
    {WireKind::kPromise, NodeMessage::Kind::kPromise},
    {WireKind::kState, NodeMessage::Kind::kState},
    {WireKind::kAcknowledge, NodeMessage::Kind::kAcknowledge},
    {WireKind::kRefuse, NodeMessage::Kind::kRefuse},
};

}  // namespace

NodeMessage to_node_message(const LeadershipMessage& message) {
  NodeMessage made;
  for (const auto& [kind, of_node] : kKinds)
    if (kind == message.kind) made.kind = of_node;
  made.attempt = message.view;
  made.signs = message.version;
  const Delegate& who = message.who;
  const WireJson record{{"who", {who.node, who.life, who.address, who.port}},
                        {"state", to_text(message.state)}};
  made.record = record.dump(-1, ' ', false, WireJson::error_handler_t::replace);
  return made;
}

std::optional<LeadershipMessage> leadership_in(const NodeMessage& message, int nodes) {
  LeadershipMessage found{.kind = WireKind::kHello, .view = message.attempt, .version = message.signs};
  bool known = false;
  for (const auto& [kind, of_node] : kKinds) {
    if (of_node != message.kind) continue;
    known = true;
    found.kind = kind;
  }
  if (!known) return std::nullopt;
  try {
    const WireJson record = WireJson::parse(message.record);
    const WireJson& who = record.at("who");
    found.who = {.node = who.at(0).get<int>(),
                 .life = who.at(1).get<std::uint64_t>(),
                 .address = who.at(2).get<std::string>(),
                 .port = who.at(3).get<std::uint16_t>()};
    auto state = read_state(record.at("state").get_ref<const std::string&>(), nodes);
    if (!state || found.who.node < 0 || found.who.node >= nodes) return std::nullopt;
    found.state = std::move(*state);
    return found;
  } catch (const WireJson::exception&) {
    return std::nullopt;
  }
}

}  // namespace primus::supervise
