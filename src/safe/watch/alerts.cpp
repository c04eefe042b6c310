#include "safe/watch/alerts.h"

#include <fmt/format.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/system/subprocess.h"
#include "base/system/threads.h"
#include "base/terminal/terminal.h"
#include "lm/events/lost_rank.h"
#include "lm/reward/http_post.h"

namespace primus::watch {
namespace {

using Json = nlohmann::ordered_json;

std::string shortened(const std::string& text, std::size_t longest) {
  return text.size() <= longest ? text : text.substr(0, longest) + "...";
}

std::string key_of(const AlertCondition& condition) {
  return condition.comparison == 0
             ? condition.name
             : fmt::format("{} {} {}", condition.name, condition.comparison, condition.limit);
}

std::string search_path() {
  const char* const path = std::getenv("PATH");
  return std::string(path ? path : "/usr/bin:/bin") + ":/usr/sbin:/usr/lib";
}

std::string run_program(const std::vector<std::string>& words, const std::string& input,
                        std::chrono::milliseconds timeout) {
  const SubprocessResult result =
      run_subprocess(words, {.timeout = timeout, .path = search_path(), .input = input});
  if (result.ok()) return "";
  if (!result.found) return fmt::format("'{}' is not installed", words[0]);
  if (result.timed_out) return "it did not end in time";
  constexpr int kNotFound = 127;  // of a shell
  return fmt::format("it ended with code {}{}", result.exit_code,
                     result.exit_code == kNotFound ? ": the shell did not find a program" : "");
}

std::string send_mail(const std::string& address, const std::string& json,
                      std::chrono::milliseconds timeout) {
  const Json fields = Json::parse(json);
  const std::string subject = printable(fmt::format("Primus: {} in {}", fields.value("condition", ""),
                                                    Path(fields.value("run", "")).filename().string()));
  const std::string text =
      fmt::format("To: {}\nSubject: {}\nContent-Type: text/plain; charset=utf-8\n\n{}\n{}\n", address,
                  subject, fields.value("text", ""), fields.dump(2));
  return run_program({"sendmail", "-i", "-t"}, text, timeout);
}

}  // namespace

std::string alert_json(const AlertOptions& options, const RunEvent& event, const AlertCondition& condition,
                       int left_out) {
  std::string text, advice;
  if (const auto* warning = event.as<RunWarning>()) {
    text = warning->text;
    advice = warning->advice;
  } else if (const auto* fault = event.as<FaultFacts>()) {
    text = fault->text;
  } else if (const auto* ending = event.as<RunEnding>()) {
    text = ending->text.empty()
               ? fmt::format("the run has ended: {}",
                             ending->state == RunEnding::State::kFinished ? "finished" : ending->reason)
               : ending->text;
  } else if (const auto* step = event.as<IterationRecord>()) {
    text = fmt::format("{} is {:g}, {} the limit {:g}", condition.name,
                       metric_of(*step, condition.name).value_or(0),
                       condition.comparison == '>' ? "above" : "below", condition.limit);
  } else if (event.as<StopFacts>()) {
    text = "the run stops: " + event.cause;
  }
  constexpr std::size_t kLongest = 600, kMost = 4096;
  std::string message;
  for (std::size_t longest = kLongest; message.empty() || message.size() > kMost; longest /= 2) {
    const Json json{{"run", shortened(options.run, longest)},
                    {"host", host_name()},
                    {"rank", event.rank},
                    {"event", name_of(event.kind())},
                    {"cause", shortened(event.cause, longest)},
                    {"step", event.step},
                    {"time", event.time},
                    {"text", shortened(text, longest)},
                    {"advice", shortened(advice, longest)},
                    {"condition", key_of(condition)},
                    {"left_out", left_out}};
    message = json.dump(-1, ' ', true, Json::error_handler_t::replace);
  }
  return message;
}

std::string send_alert(const AlertRule& rule, const std::string& json, std::chrono::milliseconds timeout) {
  try {
    switch (rule.action) {
      case AlertRule::Action::kWebhook: {
        const HttpReply reply = http_post(parse_http_url(rule.target), json, timeout);
        if (reply.outcome != HttpReply::Outcome::kReply) return reply.problem;
        const bool good = reply.status >= 200 && reply.status < 300;
        return good ? "" : fmt::format("it answered with status {}", reply.status);
      }
      case AlertRule::Action::kMail:
        return send_mail(rule.target, json, timeout);
      default:
        return run_program({"/bin/sh", "-c", rule.target}, json + "\n", timeout);
    }
  } catch (const std::exception& error) {
    return error.what();
  }
}

struct Alerts::State {
  struct Message {
    AlertRule rule;
    std::string json;
  };
  static constexpr std::size_t kMost = 100;  // messages that wait; further ones are dropped
  static constexpr int kTries = 3;

  AlertOptions options;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Message> waiting;
  bool stop = false, busy = false, running = true;
  std::atomic<int> sent{0}, failed{0};

  void run();
  void send(const Message& message);
};

void Alerts::State::run() {
  std::unique_lock lock(mutex);
  for (;;) {
    changed.wait(lock, [&] { return stop || !waiting.empty(); });
    if (waiting.empty()) return;
    const Message message = std::move(waiting.front());
    waiting.pop_front();
    busy = true;
    lock.unlock();
    send(message);
    lock.lock();
    busy = false;
    changed.notify_all();
  }
}

void Alerts::State::send(const Message& message) {
  std::string problem;
  auto pause = options.retry;
  for (int i = 0; i < kTries; ++i) {
    if (i > 0) {
      std::unique_lock lock(mutex);
      changed.wait_for(lock, pause, [&] { return stop; });
      if (stop) break;  // the end of the program must not take long
      pause *= 5;
    }
    problem = send_alert(message.rule, message.json, options.timeout);
    if (problem.empty()) {
      ++sent;
      return;
    }
  }
  ++failed;
  const std::lock_guard lock(mutex);
  if (options.log) options.log->warning("an alert was not sent by {}: {}", message.rule.shown(), problem);
}

Alerts::Alerts(std::vector<AlertRule> rules, AlertOptions options)
    : rules_(std::move(rules)), options_(std::move(options)), state_(std::make_shared<State>()) {
  state_->options = options_;
  for (const AlertRule& rule : rules_) {
    for (const AlertCondition& condition : rule.when) compares_ = compares_ || condition.comparison != 0;
  }
  if (rules_.empty()) {
    state_->running = false;
    return;
  }
  const auto body = [state = state_] {
    try {
      state->run();
    } catch (const std::exception&) {
      ++state->failed;
    }
    const std::lock_guard lock(state->mutex);
    state->running = false;
    state->changed.notify_all();
  };
  try {
    start_thread(body, "sends alerts").detach();
  } catch (const Error& error) {
    if (options_.log) options_.log->warning("the run sends no alerts: {} ({})", error.what(), error.hint());
    rules_.clear();
    state_->running = false;
  }
}

Alerts::~Alerts() {
  std::unique_lock lock(state_->mutex);
  state_->stop = true;
  state_->changed.notify_all();
  state_->changed.wait_for(lock, options_.at_end, [&] { return !state_->running; });
  if (state_->running && options_.log && !rules_.empty())
    options_.log->warning("the program ends before all alerts are sent");
  state_->options.log = nullptr;  // a thread that still runs must not use it any more
}

bool Alerts::wants(EventKind kind) const {
  if (rules_.empty()) return false;
  // Other ranks report only the findings on their machines; rank 0 reports the rest.
  if (kind == EventKind::kBegin || kind == EventKind::kWarning) return true;
  return options_.rank == 0 && (kind == EventKind::kFault || kind == EventKind::kStop ||
                                kind == EventKind::kEnd || (kind == EventKind::kStep && compares_));
}

void Alerts::on(const RunEvent& event) {
  if (const auto* facts = event.as<RunFacts>()) {
    if (options_.run.empty()) options_.run = facts->folder;
    return;
  }
  const auto* const ending = event.as<RunEnding>();
  if (options_.supervised && ending && ending->state == RunEnding::State::kFailed) return;
  // The supervisor reports the lost rank, also if rank 0 is lost.
  if (options_.supervised && event.as<FaultFacts>() && event.cause == kLostRank) return;
  for (std::size_t rule = 0; rule < rules_.size(); ++rule) {
    if (event.kind() == EventKind::kStep) {
      check_metrics(rule, event);
    } else if (const AlertCondition* const condition = matching(rules_[rule], event)) {
      enqueue(rule, event, *condition);
    }
  }
}

void Alerts::check_metrics(std::size_t rule, const RunEvent& event) {
  for (const AlertCondition& condition : rules_[rule].when) {
    if (condition.comparison == 0) continue;
    const auto value = metric_of(*event.as<IterationRecord>(), condition.name);
    if (!value) continue;
    const bool holds = condition.comparison == '>' ? *value > condition.limit : *value < condition.limit;
    bool& held = sent_[{rule, key_of(condition)}].holds;
    if (holds && !held) enqueue(rule, event, condition);
    held = holds;
  }
}

void Alerts::enqueue(std::size_t rule, const RunEvent& event, const AlertCondition& condition) {
  Sent& known = sent_[{rule, key_of(condition)}];
  const auto now = std::chrono::steady_clock::now();
  // The end of a run is reported in any case, because no further message can report it.
  if (known.ever && now - known.last < options_.pause && event.kind() != EventKind::kEnd) {
    ++known.left_out;
    return;
  }
  known.ever = true;
  known.last = now;
  std::string json = alert_json(options_, event, condition, std::exchange(known.left_out, 0));
  const std::lock_guard lock(state_->mutex);
  if (state_->waiting.size() >= State::kMost) {
    ++state_->failed;
    return;
  }
  state_->waiting.push_back({rules_[rule], std::move(json)});
  state_->changed.notify_all();
}

int Alerts::sent() const { return state_->sent; }

int Alerts::failed() const { return state_->failed; }

}  // namespace primus::watch
