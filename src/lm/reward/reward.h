// Rewards of generated answers. A reward function scores answers with numbers; a run may use several.
//
// Built-in functions compare an answer with a column of its record: the same text, the same number, a
// pattern, a JSON schema, or unit tests of code. Other functions are programs that read JSON lines, HTTP
// servers, and reward models, which training runs. docs/rewards.md describes the functions and their
// settings.
//
// Thread-safety: one thread calls score() of a function at a time. The implementation may use more threads or
// processes.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace primus {

// The result for one answer. A function that cannot score an answer (its program failed, a sandbox could not
// start, a column is null) returns no value and the reason. Such an answer must not count as a reward of 0.
struct Reward {
  std::optional<double> value;
  std::string problem = {};
};

// A generated answer and its record in the data.
struct ScoredAnswer {
  std::string prompt;        // the prompt as text, after the chat template
  std::string completion;    // the answer as text, without the tokens that end it
  bool finished = true;      // false: the answer was cut off at the max number of tokens
  std::int64_t tokens = -1;  // number of tokens of the answer, for "length"; -1: unknown
  // The whole record, with all its columns. Must outlive the call.
  const nlohmann::json* record = nullptr;
  // The reward that an environment (environment.h) gave to the conversation that ends with the answer; null
  // without an environment. Must outlive the call.
  const Reward* episode = nullptr;
};

// Attempts of a function that failed and were repeated.
struct RewardRetries {
  std::int64_t count = 0;             // since the last call of take_retries()
  std::vector<std::string> problems;  // reasons that no earlier call has returned
};

class RewardFunction {
 public:
  virtual ~RewardFunction() = default;
  // Returns the name for metrics, such as "exact" or the name of a program's file.
  virtual std::string_view name() const = 0;
  // Returns one result for each answer, in order. Throws Error only if no answer can be scored at all: a
  // program that does not exist, a server that cannot be reached.
  virtual std::vector<Reward> score(std::span<const ScoredAnswer> answers) = 0;
  // Returns the attempts that score() has repeated since the last call; nullopt if the function never repeats
  // an attempt. Not during a call of score().
  virtual std::optional<RewardRetries> take_retries() { return {}; }
  // Throws Error(kInvalid) if the function cannot score answers on this machine, for example because a
  // program is not installed. Not during a call of score().
  virtual void check() {}
  // Makes a running call of score(), and all later ones, return soon. Their results have no meaning. Any
  // thread may call it.
  virtual void interrupt() {}
};

inline constexpr std::int64_t kMaxRewardWorkers = 1024;
inline constexpr double kMaxRewardSeconds = 86400;

struct RewardSettings {
  // Each entry describes a function: "exact:answer", "number:answer", "regex:^yes", "program:./reward.py",
  // "http://host:port/path", "model:FOLDER".
  std::vector<std::string> functions;
  std::vector<double> weights;  // one for each function; empty: 1 for each
  std::int64_t workers = 0;     // number of concurrent processes of a program or sandbox; 0: one per core
  double timeout_seconds = 30;  // max time for one answer
  std::string folder = ".";     // folder in which programs run, and to which their paths are relative
};

// Creates the functions. Throws Error(kInvalid) for a text that describes no function, and for a number of
// weights other than the number of functions.
std::vector<std::unique_ptr<RewardFunction>> make_rewards(const RewardSettings& settings);

// Returns the column that a reward function compares with answers: "answer" for "exact:answer"; empty if the
// function reads no column.
std::optional<std::string> column_of(const std::string& text);
// Returns the folder of a reward model: "FOLDER" for "model:FOLDER"; empty for other functions.
std::optional<std::string> reward_model_of(const std::string& text);
// Throws Error(kInvalid) if the function reads a column that is not in `columns`, the columns of all records.
void require_column(const std::string& text, std::span<const std::string_view> columns);

// Returns a distinct name for each function. Functions with equal names get numbers: "regex-1", "regex-2".
std::vector<std::string> distinct_names(std::span<const std::unique_ptr<RewardFunction>> functions);

}  // namespace primus
