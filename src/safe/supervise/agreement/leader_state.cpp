#include "safe/supervise/agreement/leader_state.h"

#include <algorithm>

namespace primus::supervise {

using Json = nlohmann::ordered_json;

namespace {

constexpr int kMaxSignal = 64;

}  // namespace

std::string to_text(const LeaderState& state) {
  const Json json{
      {"leader", state.leader},       {"books", state.books},     {"offset", state.offset},
      {"attempt", state.attempt},     {"runs", state.runs},       {"over", state.over},
      {"exit_code", state.exit_code}, {"places", state.places},   {"hosts", state.hosts},
      {"salt", state.salt},           {"next_at", state.next_at}, {"free_bytes", state.free_bytes},
      {"stop", state.stop},           {"lines", state.lines}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

LeaderState read_leader_state(std::string_view text, int nodes) {
  try {
    const Json json = Json::parse(text);
    LeaderState state;
    json.at("leader").get_to(state.leader);
    state.books = json.at("books");
    json.at("offset").get_to(state.offset);
    json.at("attempt").get_to(state.attempt);
    json.at("runs").get_to(state.runs);
    json.at("over").get_to(state.over);
    json.at("exit_code").get_to(state.exit_code);
    json.at("places").get_to(state.places);
    json.at("hosts").get_to(state.hosts);
    json.at("salt").get_to(state.salt);
    json.at("next_at").get_to(state.next_at);
    json.at("free_bytes").get_to(state.free_bytes);
    // An older version wrote states without it.
    state.stop = json.value("stop", 0);
    json.at("lines").get_to(state.lines);
    const auto known = [nodes](int node) { return node >= -1 && node < nodes; };
    const bool valid = known(state.leader) && std::ranges::all_of(state.places, known) && state.offset >= 0 &&
                       state.stop >= 0 && state.stop <= kMaxSignal &&
                       static_cast<std::int64_t>(state.hosts.size()) <= nodes;
    return valid ? state : LeaderState{};
  } catch (const Json::exception&) {
    return {};
  }
}

}  // namespace primus::supervise
