#include "lm/reward/environment.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/system/threads.h"
#include "base/terminal/terminal.h"
#include "base/text/excerpt.h"
#include "base/text/json_text.h"
#include "lm/reward/parallel_answers.h"
#include "lm/reward/program_command.h"
#include "lm/reward/reward_json.h"
#include "lm/reward/worker_program.h"

namespace primus {
namespace {

EnvironmentReply failed_reply(std::string problem) {
  return {.messages = {}, .reward = {.value = {}, .problem = std::move(problem)}, .failed = true};
}

// Returns why a value is not a message of an environment; empty if it is one.
std::string problem_of_message(const nlohmann::json& message) {
  if (!message.is_object()) return "a message is no object";
  const auto role = message.find("role"), content = message.find("content");
  if (role == message.end() || (*role != "tool" && *role != "user"))
    return "a message has no role 'tool' or 'user'";
  if (content == message.end() || !content->is_string()) return "a message has no text as 'content'";
  return "";
}

}  // namespace

EnvironmentReply environment_reply(std::string_view line) {
  bool is_json = false;
  const nlohmann::json value = bounded_json(line, is_json);
  if (!is_json)
    return failed_reply(fmt::format("the reply is no JSON: {}", printable(excerpt(std::string(line)))));
  const auto wrong = [&](std::string_view what) {
    return failed_reply(fmt::format("{}: {}", what, printable(excerpt(json_text(value, -1)))));
  };
  if (!value.is_object()) return wrong("the reply is no object");
  const bool done = value.contains("done") && value["done"] == true;
  const auto messages = value.find("messages");
  const bool speaks = messages != value.end() && messages->is_array() && !messages->empty();
  if (done == speaks) {
    return wrong(done ? "the reply has both messages and done: true"
                      : "the reply has neither messages nor done: true");
  }
  if (done) {
    if (!value.contains("reward")) return wrong("the last reply of an episode has no reward");
    bool is_reward = false;
    Reward reward = reward_of_json(value, is_reward);
    if (!is_reward) return failed_reply(std::move(reward.problem));
    return {.messages = {}, .reward = std::move(reward)};
  }
  if (messages->size() > EnvironmentReply::kMaxMessages) {
    return failed_reply(fmt::format("the reply has {} messages, but at most {} are allowed", messages->size(),
                                    EnvironmentReply::kMaxMessages));
  }
  EnvironmentReply reply;
  for (const nlohmann::json& message : *messages) {
    if (const std::string problem = problem_of_message(message); !problem.empty()) return wrong(problem);
    reply.messages.emplace_back(message);
  }
  return reply;
}

// The programs, each with a thread and a queue of requests.
class Environment::Workers {
 public:
  explicit Workers(const EnvironmentSettings& settings)
      : command_(program_command(settings.command,
                                 fmt::format("environment '{}'", printable(settings.command)),
                                 "PATH [ARG ...]", settings.folder)),
        folder_(settings.folder),
        timeout_(static_cast<std::int64_t>(settings.timeout_seconds * 1000) + 1),
        count_(worker_count({.workers = settings.workers})) {}
  ~Workers() {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
      cancelled_ = true;
    }
    requested_.notify_all();
    threads_.join();
  }

  const std::string& name() const { return command_.name; }

  void send(std::int64_t episode, std::string line) {
    const auto worker = static_cast<std::size_t>(episode) % count_;
    const std::lock_guard lock(mutex_);
    const auto [queue, is_new] = queues_.try_emplace(worker);
    queue->second.push_back({episode, std::move(line)});
    ++pending_;
    if (is_new) {
      threads_.start([this, worker] { work(worker); }, "sends requests to an environment");
    } else {
      requested_.notify_all();
    }
  }

  std::vector<Received> receive(std::chrono::milliseconds wait) {
    std::unique_lock lock(mutex_);
    replied_.wait_for(lock, wait, [&] { return !replies_.empty() || error_ || pending_ == 0; });
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
    return std::exchange(replies_, {});
  }

  void cancel() {
    std::unique_lock lock(mutex_);
    for (auto& [worker, queue] : queues_) {
      pending_ -= queue.size();
      queue.clear();
    }
    cancelled_ = true;
    replied_.wait(lock, [&] { return pending_ == 0; });
    cancelled_ = false;
    replies_.clear();
    error_ = nullptr;
  }

 private:
  // A program that ends this number of times in a row, without a reply between them, is broken.
  static constexpr int kMaxEnds = 5;

  struct Request {
    std::int64_t episode = 0;
    std::string line;
  };

  void work(std::size_t worker) {
    std::unique_ptr<WorkerProgram> program;
    std::unique_lock lock(mutex_);
    std::deque<Request>& queue = queues_.at(worker);
    while (true) {
      requested_.wait(lock, [&] { return closing_ || !queue.empty(); });
      if (closing_) return;
      const Request request = std::move(queue.front());
      queue.pop_front();
      lock.unlock();
      Received received{.episode = request.episode};
      std::exception_ptr error;
      try {
        received.reply = exchange(program, request.line);
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      --pending_;
      replies_.push_back(std::move(received));
      if (error && !error_) error_ = error;
      replied_.notify_all();
    }
  }

  EnvironmentReply exchange(std::unique_ptr<WorkerProgram>& program, const std::string& line) {
    if (!program) program = std::make_unique<WorkerProgram>(command_.words, folder_);
    const WorkerProgram::Reply reply = program->exchange(line, timeout_, &cancelled_);
    switch (reply.outcome) {
      case WorkerProgram::Outcome::kLine: {
        ends_in_a_row_ = 0;
        EnvironmentReply value = environment_reply(reply.line);
        // Ends the program, because its next line may belong to this request.
        if (value.failed) program.reset();
        return value;
      }
      case WorkerProgram::Outcome::kEnded:
        if (++ends_in_a_row_ >= kMaxEnds) {
          throw broken_program("environment", command_.name, kMaxEnds, reply.problem, program->error_text(),
                               "write a request of docs/formats/environments.md to the program's standard "
                               "input, and read its reply");
        }
        break;
      case WorkerProgram::Outcome::kTimeout:
      case WorkerProgram::Outcome::kWrong:
        break;
    }
    return failed_reply(reply.problem);
  }

  const ProgramCommand command_;
  const std::string folder_;
  const std::chrono::milliseconds timeout_;
  const std::size_t count_;
  std::mutex mutex_;  // protects the members up to error_
  std::condition_variable requested_, replied_;
  std::map<std::size_t, std::deque<Request>> queues_;
  std::vector<Received> replies_;
  std::size_t pending_ = 0;  // number of requests without a reply
  bool closing_ = false;
  std::exception_ptr error_;
  std::atomic<bool> cancelled_{false};
  std::atomic<int> ends_in_a_row_{0};
  ThreadGroup threads_;
};

Environment::Environment(const EnvironmentSettings& settings)
    : workers_(std::make_unique<Workers>(settings)) {}
Environment::~Environment() = default;

const std::string& Environment::name() const { return workers_->name(); }
void Environment::send(std::int64_t episode, std::string line) { workers_->send(episode, std::move(line)); }
std::vector<Environment::Received> Environment::receive(std::chrono::milliseconds wait) {
  return workers_->receive(wait);
}
void Environment::cancel() { workers_->cancel(); }

namespace {

class EpisodeReward final : public RewardFunction {
 public:
  explicit EpisodeReward(std::string name) : name_(std::move(name)) {}
  std::string_view name() const override { return name_; }
  std::vector<Reward> score(std::span<const ScoredAnswer> answers) override {
    std::vector<Reward> rewards;
    for (const ScoredAnswer& answer : answers) {
      PRIMUS_CHECK("EpisodeReward::score", answer.episode != nullptr);
      rewards.push_back(*answer.episode);
    }
    return rewards;
  }

 private:
  const std::string name_;
};

}  // namespace

std::unique_ptr<RewardFunction> make_episode_reward(std::string name) {
  return std::make_unique<EpisodeReward>(std::move(name));
}

}  // namespace primus
