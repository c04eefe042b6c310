#include "lm/train/objectives/rollouts/episodes.h"

#include <utility>

#include "base/error.h"
#include "base/text/json_text.h"
#include "lm/reward/tool_calls.h"

namespace primus {
namespace {

nlohmann::ordered_json json_of(const data::Message& message) {
  nlohmann::ordered_json json{{"role", message.role}};
  if (message.no_text) {
    json["content"] = nullptr;
  } else {
    json["content"] = message.context.empty() ? message.text : message.text + "\n\n" + message.context;
  }
  for (const auto& [name, value] : message.members) json[name] = nlohmann::ordered_json::parse(value);
  return json;
}

data::Message message_of(const nlohmann::ordered_json& json) {
  data::Message message{.role = json.at("role"), .text = json.at("content"), .context = {}};
  for (const auto& [name, value] : json.items())
    if (name != "role" && name != "content") message.members.emplace_back(name, json_text(value, -1));
  return message;
}

}  // namespace

std::string text_of(std::span<const EpisodeEvent> events) {
  nlohmann::json all = nlohmann::json::array();
  for (const EpisodeEvent& event : events) {
    const EpisodeOutcome& outcome = event.outcome;
    all.push_back({{"episode", event.episode},
                   {"tokens", event.tokens},
                   {"finished", event.finished},
                   {"problem", outcome.reward.problem},
                   {"failed", outcome.failed},
                   {"counts", {outcome.turns, outcome.calls, outcome.invalid_calls}}});
    if (outcome.reward.value) all.back()["reward"] = *outcome.reward.value;
  }
  return json_text(all, -1);
}

std::vector<EpisodeEvent> events_of(const std::string& text) {
  std::vector<EpisodeEvent> events;
  for (const nlohmann::json& json : nlohmann::json::parse(text)) {
    const nlohmann::json& counts = json.at("counts");
    EpisodeEvent& event = events.emplace_back();
    event.episode = json.at("episode");
    event.tokens = json.at("tokens").get<std::vector<std::int32_t>>();
    event.finished = json.at("finished");
    event.outcome = {.reward = {.value = {}, .problem = json.at("problem")},
                     .failed = json.at("failed"),
                     .turns = counts.at(0),
                     .calls = counts.at(1),
                     .invalid_calls = counts.at(2)};
    if (json.contains("reward")) event.outcome.reward.value = json.at("reward").get<double>();
  }
  return events;
}

Episodes::~Episodes() { source_.environment->cancel(); }

void Episodes::add(const Rollout& rollout, std::uint64_t number) {
  Episode& episode = episodes_.emplace_back();
  episode.rollout = &rollout;
  episode.number = number;
}

void Episodes::begin(Episode& episode) const {
  episode.conversation = source_.conversation(episode.rollout->record);
  episode.record = source_.record(episode.rollout->record);
  episode.messages = nlohmann::ordered_json::array();
  for (const data::Message& message : episode.conversation.messages)
    episode.messages.push_back(json_of(message));
}

void Episodes::end_turn(std::size_t index, std::size_t begin_of_turn, bool cut) {
  Episode& episode = episodes_.at(index);
  if (episode.turns == 0) begin(episode);
  ++episode.turns;
  std::span<const std::int32_t> tokens = std::span(episode.rollout->answer).subspan(begin_of_turn);
  if (!cut) tokens = tokens.first(tokens.size() - 1);  // without the token that ends the turn
  const std::string text = source_.text(tokens);
  ToolCalls calls = find_tool_calls(text, episode.calls, !episode.conversation.tools.empty());
  episode.calls += std::ssize(calls.calls);
  episode.invalid_calls += std::ssize(calls.invalid);
  nlohmann::ordered_json message{{"role", data::kAssistant}, {"content", text}};
  if (!calls.calls.empty()) message["tool_calls"] = std::move(calls.calls);
  for (ToolCalls::Invalid& invalid : calls.invalid)
    message["invalid_tool_calls"].push_back(
        {{"text", std::move(invalid.text)}, {"problem", std::move(invalid.problem)}});
  episode.messages.push_back(std::move(message));
  episode.answer = episode.conversation.messages.size();
  episode.conversation.messages.push_back({std::string(data::kAssistant), text, {}});
  episode.cut = cut;
  // A further turn needs an appended token and a generated one.
  episode.last =
      cut || episode.turns >= limits_.turns || std::ssize(episode.rollout->answer) + 2 > limits_.tokens;
  send(index);
}

void Episodes::send(std::size_t index) {
  const Episode& episode = episodes_[index];
  constexpr int kBitsAboveDouble =
      11;  // JSON programs read numbers as doubles, which hold integers of 53 bits
  const nlohmann::ordered_json request{{"episode", episode.number >> kBitsAboveDouble},
                                       {"turn", episode.turns},
                                       {"messages", episode.messages},
                                       {"finished", !episode.cut},
                                       {"last", episode.last},
                                       {"record", episode.record}};
  source_.environment->send(static_cast<std::int64_t>(index), json_text(request, -1));
}

std::vector<EpisodeEvent> Episodes::receive(std::chrono::milliseconds wait) {
  std::vector<EpisodeEvent> events;
  for (Environment::Received& received : source_.environment->receive(wait)) {
    EpisodeEvent event;
    if (handle(static_cast<std::size_t>(received.episode), std::move(received.reply), event))
      events.push_back(std::move(event));
  }
  return events;
}

bool Episodes::handle(std::size_t index, EnvironmentReply reply, EpisodeEvent& event) {
  Episode& episode = episodes_.at(index);
  event.episode = index;
  event.finished = !episode.cut;
  event.outcome = {.reward = std::move(reply.reward),
                   .failed = reply.failed,
                   .turns = episode.turns,
                   .calls = episode.calls,
                   .invalid_calls = episode.invalid_calls};
  if (reply.messages.empty()) return true;
  if (episode.last) {
    event.finished = false;
    event.outcome.reward.problem =
        "the environment replied with messages to a request with last: true, which needs a reward";
    return true;
  }
  for (const nlohmann::ordered_json& message : reply.messages) {
    episode.conversation.messages.push_back(message_of(message));
    episode.messages.push_back(message);
  }
  try {
    event.tokens = source_.continuation(episode.conversation, episode.answer);
    if (event.tokens.empty()) throw invalid("the messages of the environment have no tokens");
  } catch (const Error& error) {
    event.outcome.reward.problem = error.what();
    event.outcome.failed = true;
    event.tokens.clear();
    return true;
  }
  if (std::ssize(episode.rollout->answer) + std::ssize(event.tokens) < limits_.tokens) return true;
  // The messages leave no room for another turn, so only the reward is missing.
  event = {};
  episode.cut = true;
  episode.last = true;
  send(index);
  return false;
}

}  // namespace primus
