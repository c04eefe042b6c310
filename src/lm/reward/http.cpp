// http://HOST:PORT/PATH: an HTTP server that scores answers.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/terminal/terminal.h"
#include "base/text/excerpt.h"
#include "base/text/json_text.h"
#include "lm/reward/http_post.h"
#include "lm/reward/parallel_answers.h"
#include "lm/reward/reward_entry.h"
#include "lm/reward/reward_json.h"

namespace primus {
namespace {

constexpr std::size_t kAnswersPerRequest = 16;
constexpr int kAttempts = 4;
constexpr std::size_t kMaxProblems = 8;  // number of different reasons for retries that are reported

class HttpReward final : public RewardFunction {
 public:
  HttpReward(std::string url, const RewardSettings& settings)
      : url_text_(std::move(url)),
        url_(parse_http_url(url_text_)),
        timeout_(static_cast<std::int64_t>(settings.timeout_seconds * 1000) + 1),
        workers_(worker_count(settings)) {}

  std::string_view name() const override { return "http"; }
  void interrupt() override { interrupted_ = true; }

  std::vector<Reward> score(std::span<const ScoredAnswer> answers) override {
    std::vector<Reward> rewards(answers.size());
    const std::size_t requests = (answers.size() + kAnswersPerRequest - 1) / kAnswersPerRequest;
    // Distributes requests over threads: each element of `firsts` represents one request and is empty.
    std::vector<ScoredAnswer> firsts(requests);
    score_in_parallel(firsts, workers_, [&](const ScoredAnswer& first, std::size_t) {
      const std::size_t begin = static_cast<std::size_t>(&first - firsts.data()) * kAnswersPerRequest;
      const std::size_t count = std::min(kAnswersPerRequest, answers.size() - begin);
      score_request(answers.subspan(begin, count), std::span(rewards).subspan(begin, count));
      return Reward();
    });
    return rewards;
  }

  std::optional<RewardRetries> take_retries() override {
    const std::scoped_lock lock(mutex_);
    return std::exchange(retries_, {});
  }

 private:
  void score_request(std::span<const ScoredAnswer> answers, std::span<Reward> rewards) {
    nlohmann::ordered_json request{{"answers", nlohmann::ordered_json::array()}};
    for (const ScoredAnswer& answer : answers) request["answers"].push_back(answer_json(answer));
    const HttpReply reply = post(json_text(request, -1));
    if (interrupted_) {
      for (Reward& reward : rewards) reward.problem = "the run ended";
      return;
    }
    if (reply.outcome == HttpReply::Outcome::kTimeout) {
      for (Reward& reward : rewards) reward.problem = reply.problem;
      return;
    }
    if (reply.outcome == HttpReply::Outcome::kBroken) {
      throw Error(ErrorKind::kIo,
                  fmt::format("the reward server {} failed: {}", printable(url_text_), reply.problem),
                  "start the server, and check its address");
    }
    if (reply.status != 200) {
      throw invalid(fmt::format("the reward server {} replied with status {}: {}", printable(url_text_),
                                reply.status, printable(excerpt(reply.body))),
                    "the server must reply with status 200 and {\"rewards\": [...]}");
    }
    read_rewards(reply.body, rewards);
  }

  // Repeats the request if the connection breaks or the server is overloaded.
  HttpReply post(const std::string& body) {
    std::chrono::milliseconds pause{500};
    for (int attempt = 1;; ++attempt) {
      HttpReply reply = http_post(url_, body, timeout_, &interrupted_);
      const bool busy =
          reply.outcome == HttpReply::Outcome::kReply &&
          (reply.status == 429 || reply.status == 502 || reply.status == 503 || reply.status == 504);
      if (interrupted_ || attempt == kAttempts || (reply.outcome != HttpReply::Outcome::kBroken && !busy))
        return reply;
      count_retry(busy ? fmt::format("the server replied with status {}", reply.status) : reply.problem);
      constexpr std::chrono::milliseconds kPart{50};
      for (auto slept = kPart * 0; slept < pause && !interrupted_; slept += kPart)
        std::this_thread::sleep_for(kPart);
      pause *= 2;
    }
  }

  void count_retry(const std::string& problem) {
    const std::scoped_lock lock(mutex_);
    ++retries_.count;
    if (problems_.size() < kMaxProblems && problems_.insert(problem).second)
      retries_.problems.push_back(problem);
  }

  void read_rewards(const std::string& body, std::span<Reward> rewards) const {
    bool is_json = false;
    nlohmann::json reply = bounded_json(body, is_json);
    const auto list = is_json && reply.is_object() ? reply.find("rewards") : reply.end();
    const bool fits = list != reply.end() && list->is_array() && list->size() == rewards.size();
    if (!fits) {
      throw invalid(fmt::format("the reward server {} replied without a list of {} rewards: {}",
                                printable(url_text_), rewards.size(), printable(excerpt(body))),
                    "the server must reply with {\"rewards\": [...]}, one reward for each answer");
    }
    for (std::size_t i = 0; i < rewards.size(); ++i) {
      bool is_reward = false;
      rewards[i] = reward_of_json((*list)[i], is_reward);
    }
  }

  std::string url_text_;
  HttpUrl url_;
  std::chrono::milliseconds timeout_;
  std::size_t workers_;
  std::mutex mutex_;  // guards the members below
  RewardRetries retries_;
  std::set<std::string> problems_;  // all reasons for retries
  std::atomic<bool> interrupted_{false};
};

std::unique_ptr<RewardFunction> make_http(const RewardText& text, const RewardSettings& settings) {
  return std::make_unique<HttpReward>(text.text, settings);
}

}  // namespace

extern const RewardEntry kHttpReward{"http", "http://HOST:PORT/PATH",
                                     "rewards of an HTTP server, which gets {\"answers\": [...]}", make_http};

}  // namespace primus
