// Conversations of several turns between a model and an environment (episodes), for reinforcement learning.
//
// The prompt of a record begins the episode. After each turn of the model, the environment
// (lm/reward/environment.h) replies with messages, which the chat template writes after the existing tokens,
// or it ends the episode with a reward. Tokens that the model has generated are never encoded again.
//
// The environment runs on the rank that leads: the first of the ranks that generate the same answers. The
// other ranks receive what follows from the replies (EpisodeEvent). Not thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "lm/data/conversation.h"
#include "lm/reward/environment.h"
#include "lm/train/objectives/rollouts/rollouts.h"

namespace primus {

struct EpisodeLimits {
  std::int64_t turns = 1;   // max number of turns of the model
  std::int64_t tokens = 1;  // max number of generated and appended tokens
};

// The parts of a run that episodes use.
struct EpisodeSource {
  std::shared_ptr<Environment> environment;
  // Return the prompt of a record as messages, and the record with all its columns.
  std::function<data::Conversation(std::int64_t record)> conversation;
  std::function<nlohmann::json(std::int64_t record)> record;
  // Returns the tokens that follow the generated answer messages[answer] (data::Prompts::continuation).
  std::function<std::vector<std::int32_t>(const data::Conversation&, std::size_t answer)> continuation;
  // Returns the text of generated tokens, with special tokens.
  std::function<std::string(std::span<const std::int32_t>)> text;
};

// The result of a turn of the model: tokens to append, or the end of the episode.
struct EpisodeEvent {
  std::size_t episode = 0;           // index of the episode
  std::vector<std::int32_t> tokens;  // tokens to append; empty: the episode ends
  bool finished = false;             // at the end: whether neither a turn nor the episode was cut off
  EpisodeOutcome outcome = {};       // at the end
};

// Converts events for transfers between ranks.
std::string text_of(std::span<const EpisodeEvent> events);
std::vector<EpisodeEvent> events_of(const std::string& text);

// The episodes that a rank leads.
class Episodes {
 public:
  // `source` must outlive this object, and so must the rollouts.
  Episodes(const EpisodeSource& source, const EpisodeLimits& limits) : source_(source), limits_(limits) {}
  ~Episodes();  // cancels requests without a reply
  Episodes(const Episodes&) = delete;
  Episodes& operator=(const Episodes&) = delete;

  // Adds an episode, whose rollout has its prompt. `number` is a random number of the answer. Episodes have
  // indices from 0.
  void add(const Rollout& rollout, std::uint64_t number);
  // Sends the turn that has just ended to the environment. `begin`: index in Rollout::answer at which it
  // begins. `cut`: whether it was cut off at the max number of tokens.
  void end_turn(std::size_t episode, std::size_t begin, bool cut);
  // Returns what follows from the replies that have arrived. If there are none, waits up to `wait`.
  std::vector<EpisodeEvent> receive(std::chrono::milliseconds wait);

 private:
  struct Episode {
    const Rollout* rollout = nullptr;
    std::uint64_t number = 0;
    data::Conversation conversation;  // empty before the first turn ends
    nlohmann::ordered_json messages;  // the conversation as the environment reads it
    nlohmann::json record;
    std::int64_t turns = 0, calls = 0, invalid_calls = 0;
    std::size_t answer = 0;  // index of the last answer in the conversation
    bool cut = false;        // whether the episode was cut off at the max number of tokens
    bool last = false;       // whether the reply must end the episode
  };
  void begin(Episode& episode) const;
  void send(std::size_t index);
  // Returns whether an event follows from the reply. Otherwise another request was sent.
  bool handle(std::size_t index, EnvironmentReply reply, EpisodeEvent& event);

  const EpisodeSource& source_;
  const EpisodeLimits limits_;
  std::vector<Episode> episodes_;
};

}  // namespace primus
