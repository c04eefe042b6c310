// primus data score: tries reward functions on answers in a file.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/files/file.h"
#include "base/terminal/terminal.h"
#include "base/text/counted.h"
#include "base/text/excerpt.h"
#include "base/text/json_text.h"
#include "cli/command.h"
#include "lm/generate/model_folder.h"
#include "lm/reward/reward.h"
#include "lm/tokenizer/tokenizer.h"

namespace primus::cli {
namespace {

constexpr std::uint64_t kMaxFileBytes = std::uint64_t{1} << 30;
constexpr std::size_t kAnswersPerCall = 256;

struct AnswerFile {
  std::vector<nlohmann::json> records;
  std::vector<std::string> places;    // "file:line" of each record
  std::vector<ScoredAnswer> answers;  // refers to the records
};

// Returns the content of the last message of the role assistant; nullopt if the record has none.
std::optional<std::string> last_assistant_turn(const nlohmann::json& record) {
  const auto messages = record.find("messages");
  if (messages == record.end() || !messages->is_array() || messages->empty()) return std::nullopt;
  const nlohmann::json& last = messages->back();
  if (!last.is_object() || last.value("role", nlohmann::json()) != "assistant") return std::nullopt;
  const auto content = last.find("content");
  if (content == last.end() || !content->is_string()) return std::nullopt;
  return content->get<std::string>();
}

ScoredAnswer answer_of(const nlohmann::json& record, const std::string& place) {
  ScoredAnswer answer;
  auto completion = record.find("completion");
  // 'primus generate --prompts' writes answers as "text".
  if (completion == record.end()) completion = record.find("text");
  if (completion != record.end() && completion->is_string()) {
    answer.completion = completion->get<std::string>();
  } else if (completion != record.end()) {
    throw invalid(fmt::format("the value of '{}' is no text", completion.key())).at(place);
  } else if (auto turn = last_assistant_turn(record)) {
    answer.completion = std::move(*turn);
  } else {
    std::vector<std::string> keys;
    for (const auto& [key, value] : record.items()) keys.push_back(fmt::format("'{}'", excerpt(key)));
    throw invalid(
        fmt::format("the record has no answer; it has {}",
                    keys.empty() ? "no keys" : fmt::format("{}", fmt::join(keys, ", "))),
        "give it the key 'completion' or 'text', or 'messages' whose last message has the role assistant")
        .at(place);
  }
  const auto prompt = record.find("prompt");
  if (prompt != record.end() && prompt->is_string()) answer.prompt = prompt->get<std::string>();
  const auto finished = record.find("finished");
  if (finished != record.end()) {
    if (!finished->is_boolean()) throw invalid("the value of 'finished' is neither true nor false").at(place);
    answer.finished = finished->get<bool>();
  } else if (const auto reason = record.find("stop_reason"); reason != record.end()) {
    answer.finished = *reason == "end_of_text";
  }
  return answer;
}

AnswerFile read_answers(const std::string& file) {
  const std::string text = read_file(file, kMaxFileBytes);
  AnswerFile read;
  std::vector<std::string>& places = read.places;
  std::int64_t number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    places.push_back(fmt::format("{}:{}", file, number));
    try {
      read.records.push_back(parse_json_object(line, file));
    } catch (Error& error) {
      throw error.at(places.back());
    }
  }
  if (read.records.empty()) throw invalid("the file has no records", "give JSON lines").at(file);
  for (std::size_t i = 0; i < read.records.size(); ++i) {
    read.answers.push_back(answer_of(read.records[i], places[i]));
    read.answers.back().record = &read.records[i];
  }
  return read;
}

// The rewards of one function.
struct FunctionRewards {
  std::string name;
  std::vector<Reward> rewards;
  std::int64_t without = 0;        // number of answers without a reward
  double mean = 0, deviation = 0;  // of the other answers
};

FunctionRewards summarized(std::string name, std::vector<Reward> rewards) {
  FunctionRewards result{.name = std::move(name), .rewards = std::move(rewards)};
  double sum = 0, squares = 0;
  std::int64_t count = 0;
  for (const Reward& reward : result.rewards) {
    if (!reward.value) continue;
    sum += *reward.value;
    ++count;
  }
  result.without = static_cast<std::int64_t>(result.rewards.size()) - count;
  if (count == 0) return result;
  result.mean = sum / static_cast<double>(count);
  for (const Reward& reward : result.rewards) {
    if (reward.value) squares += (*reward.value - result.mean) * (*reward.value - result.mean);
  }
  result.deviation = count > 1 ? std::sqrt(squares / static_cast<double>(count - 1)) : 0;
  return result;
}

// Returns the functions of --reward. A list as in the key 'reward', '[exact:answer, "length:4,2"]', arrives
// divided at its commas: removes white space and quotes, and joins quoted parts again.
std::vector<std::string> listed(const std::vector<std::string>& given) {
  std::vector<std::string> all;
  bool open = false;  // whether the last text is the beginning of a quoted text
  for (const std::string& part : given) {
    const std::size_t begin = open ? 0 : std::min(part.find_first_not_of(' '), part.size());
    std::string text = part.substr(begin, part.find_last_not_of(' ') + 1 - begin);
    const bool begins = !open && (text.starts_with('"') || text.starts_with('\''));
    const bool ends = (open || (begins && text.size() > 1)) && (text.ends_with('"') || text.ends_with('\''));
    if (begins) text.erase(0, 1);
    if (ends) text.pop_back();
    open ? void(all.back() += "," + text) : all.push_back(std::move(text));
    open = (open || begins) && !ends;
  }
  return all;
}

class DataScore final : public Command {
 public:
  void declare(Arguments& args) override {
    args.positional("FILE", &file_, "JSON lines with the answers").required = true;
    Argument& rewards =
        args.option("--reward", "FUNCTION", &settings_.functions, "reward functions, as in the key 'reward'");
    rewards.required = true;
    rewards.several = true;
    args.option("--tokenizer,-t", "FILE", &tokenizer_,
                "counts the tokens of answers, for the reward 'length'");
    args.option("--workers", "N", &settings_.workers, "number of concurrent processes; 0: one per core")
        .between(0, static_cast<double>(kMaxRewardWorkers));
    args.option("--timeout", "SECONDS", &settings_.timeout_seconds, "max time for one answer")
        .between(0.001, kMaxRewardSeconds);
    args.option("--show", "N", &show_, "number of answers to show").between(0, 1e9);
    args.flag("--json", json_, "print one JSON object per answer");
  }

  int run(Console& console) override {
    AnswerFile file = read_answers(file_);
    if (!tokenizer_.empty()) {
      const auto tokenizer = load_named_tokenizer({{}, tokenizer_, {}, {}});
      for (ScoredAnswer& answer : file.answers) {
        answer.tokens = static_cast<std::int64_t>(tokenizer->encode(answer.completion, false).size());
      }
    }
    std::vector<FunctionRewards> all;
    settings_.functions = listed(settings_.functions);
    require_tokenizer();
    const auto functions = make_rewards(settings_);
    check_columns(file);
    const std::vector<std::string> names = distinct_names(functions);
    for (std::size_t f = 0; f < functions.size(); ++f) {
      std::vector<Reward> rewards;
      for (std::size_t begin = 0; begin < file.answers.size(); begin += kAnswersPerCall) {
        const auto part = std::span(file.answers).subspan(begin);
        for (Reward& reward : functions[f]->score(part.first(std::min(part.size(), kAnswersPerCall)))) {
          rewards.push_back(std::move(reward));
        }
      }
      all.push_back(summarized(names[f], std::move(rewards)));
      const std::optional<RewardRetries> retries = functions[f]->take_retries();
      if (retries && retries->count > 0) {
        console.note(fmt::format("{}: repeated {}, because {}", names[f],
                                 counted(retries->count, "failed request"),
                                 fmt::join(retries->problems, "; ")));
      }
    }
    json_ ? print_json(console, file, all) : print_text(console, file, all);
    const bool complete = std::ranges::all_of(all, [](const FunctionRewards& f) { return f.without == 0; });
    return complete ? 0 : 1;
  }

 private:
  // Refuses the function 'length' without a tokenizer, which counts the tokens of answers.
  void require_tokenizer() const {
    for (const std::string& text : settings_.functions) {
      if (!tokenizer_.empty() || !text.starts_with("length:")) continue;
      throw invalid(
          fmt::format("reward '{}' counts the tokens of answers, but no tokenizer is given", printable(text)),
          "add --tokenizer FILE or --tokenizer MODEL");
    }
  }

  // Refuses functions whose column no record has, or whose column is the answer itself.
  void check_columns(const AnswerFile& file) const {
    std::set<std::string> names;
    for (const nlohmann::json& record : file.records)
      for (const auto& [name, value] : record.items()) names.insert(name);
    const std::vector<std::string_view> columns(names.begin(), names.end());
    for (const std::string& text : settings_.functions) {
      if (reward_model_of(text)) {
        throw unsupported(
            fmt::format("reward '{}': 'data score' does not run reward models", printable(text)),
            "'primus train grpo reward=model:FOLDER' does; metrics.jsonl has the scores as "
            "rewards/model/mean (docs/rewards.md)");
      }
      if (column_of(text) == "completion" && names.contains("completion")) {
        throw invalid(fmt::format("reward '{}' compares each answer with itself", printable(text)),
                      "name the column with the right answer");
      }
      require_column(text, columns);
    }
  }

  static void print_json(Console& console, const AnswerFile& file, const std::vector<FunctionRewards>& all) {
    std::string text;
    for (std::size_t i = 0; i < all.front().rewards.size(); ++i) {
      nlohmann::ordered_json line{{"record", file.places[i]}, {"rewards", nlohmann::ordered_json::array()}};
      for (const FunctionRewards& function : all) {
        const Reward& reward = function.rewards[i];
        nlohmann::ordered_json item{{"function", function.name}};
        item["reward"] = reward.value ? nlohmann::ordered_json(*reward.value) : nlohmann::ordered_json();
        if (!reward.value) item["problem"] = reward.problem;
        line["rewards"].push_back(std::move(item));
      }
      text += json_text(line, -1) + "\n";
    }
    console.write(text);
  }

  void print_text(Console& console, const AnswerFile& file, const std::vector<FunctionRewards>& all) const {
    const std::size_t shown = std::min(file.answers.size(), static_cast<std::size_t>(show_));
    for (std::size_t i = 0; i < shown; ++i) {
      std::string line = fmt::format("{}:", i + 1);
      for (const FunctionRewards& function : all) {
        const Reward& reward = function.rewards[i];
        line +=
            fmt::format("  {} {}", function.name, reward.value ? fmt::format("{:g}", *reward.value) : "-");
      }
      console.print(
          fmt::format("{}  {}\n", line, json_text(nlohmann::json(excerpt(file.answers[i].completion)), -1)));
    }
    if (shown < file.answers.size())
      console.print(fmt::format("... {}\n", counted(std::ssize(file.answers) - show_, "more answer")));
    for (const FunctionRewards& function : all) {
      if (function.without == std::ssize(function.rewards)) {
        console.print(
            fmt::format("{}: no rewards for {}\n", function.name, counted(function.without, "answer")));
      } else {
        console.print(fmt::format("{}: mean {:.4g}, standard deviation {:.4g}, {}, {} without a reward\n",
                                  function.name, function.mean, function.deviation,
                                  counted(std::ssize(function.rewards), "answer"), function.without));
      }
      print_problems(console, file, function);
    }
  }

  // Prints each problem once, with the number of answers and the first answer that have it, in the order of
  // these first answers.
  static void print_problems(Console& console, const AnswerFile& file, const FunctionRewards& function) {
    using Where = std::pair<std::int64_t, std::size_t>;
    std::map<std::string, Where> problems;
    std::vector<std::pair<const std::string*, const Where*>> in_order;
    for (std::size_t i = 0; i < function.rewards.size(); ++i) {
      if (function.rewards[i].value) continue;
      const auto [entry, added] = problems.try_emplace(function.rewards[i].problem, 0, i);
      if (added) in_order.emplace_back(&entry->first, &entry->second);
      ++entry->second.first;
    }
    std::int64_t shown = 0;
    constexpr std::int64_t kShown = 10;
    for (const auto& [problem, where] : in_order) {
      if (++shown > kShown) {
        console.note(fmt::format("... {}", counted(std::ssize(in_order) - kShown, "more problem")));
        return;
      }
      console.note(fmt::format("{}: no reward for {}, first for answer {} ({}): {}", function.name,
                               counted(where->first, "answer"), where->second + 1, file.places[where->second],
                               *problem));
    }
  }

  std::string file_, tokenizer_;
  RewardSettings settings_;
  std::int64_t show_ = 20;
  bool json_ = false;
};

}  // namespace

extern const CommandEntry kDataScore{
    "data score",
    "Tries reward functions on answers in a file",
    "Each record of FILE has an answer: 'completion', 'text' (the results of 'primus generate --prompts'), "
    "or "
    "'messages' whose last message has the role assistant. The other keys are columns, which reward "
    "functions read. 'prompt' and 'finished' are optional.\n\n"
    "The exit code is 0 if every answer has a reward from every function, 1 if an answer has none, and 2 for "
    "invalid input. docs/rewards.md describes the functions.",
    "primus data score answers.jsonl --reward number:answer format:think\n"
    "primus data score answers.jsonl --reward 'program:python3 reward.py' --json\n"
    "primus data score answers.jsonl --reward code:tests --timeout 5",
    make_command<DataScore>,
    {Section::kData, 10}};

}  // namespace primus::cli
