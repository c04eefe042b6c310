// An environment: a program of the user that takes part in conversations with the model. It runs the tools
// that the model calls, plays the user, or gives the reward of the whole conversation (an episode).
//
// The program reads one JSON object per line, and writes one reply per line (docs/formats/environments.md).
// It is started once per worker and stays alive. All requests of an episode go to one worker, so the program
// may keep a state for each episode. If the program ends, it is started again at the next request.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "lm/reward/reward.h"

namespace primus {

// The reply to a turn of the model: the messages that follow, or the end of the episode.
struct EnvironmentReply {
  static constexpr std::size_t kMaxMessages = 64;

  // Each message is an object with the text "content" and the "role" tool or user, and may have further
  // members. Empty: the episode ends.
  std::vector<nlohmann::ordered_json> messages;
  // The reward of the episode; without a value, if there are messages. `problem` is why there is no reward.
  Reward reward;
  // Whether the program failed, or its reply could not be read. The episode must then have no reward at all.
  bool failed = false;
};

// Reads the program's line. A line that is no reply gives a failed reply.
EnvironmentReply environment_reply(std::string_view line);

struct EnvironmentSettings {
  std::string command;          // the program's file and its arguments
  std::int64_t workers = 0;     // number of concurrent processes; 0: one per core
  double timeout_seconds = 30;  // max time for one reply
  std::string folder = ".";     // folder in which the program runs, and to which its path is relative
};

// Thread-safety: one thread at a time. Requests are sent by threads of this class.
class Environment {
 public:
  // Throws Error(kInvalid) for a program that does not exist. Starts no program.
  explicit Environment(const EnvironmentSettings& settings);
  ~Environment();  // ends all programs

  // Returns the name of the program's file.
  const std::string& name() const;

  // Sends a request, and returns at once. An episode has at most one request at a time.
  void send(std::int64_t episode, std::string line);

  struct Received {
    std::int64_t episode = 0;
    EnvironmentReply reply;
  };
  // Returns the replies that have arrived since the last call. If there are none, waits up to `wait` for a
  // reply. Throws Error(kInvalid) if the program ends several times in a row without a reply.
  std::vector<Received> receive(std::chrono::milliseconds wait);

  // Ends the programs that have not replied yet, and drops their requests.
  void cancel();

 private:
  class Workers;
  std::unique_ptr<Workers> workers_;
};

// Returns the function that gives the reward of an answer's episode (ScoredAnswer::episode).
std::unique_ptr<RewardFunction> make_episode_reward(std::string name);

}  // namespace primus
