// Sends alerts of a run in a separate thread. Training never waits for an alert and never fails because of
// one; only the end of the program waits a few seconds for alerts that are on their way.
//
// Each rule sends at most one message a minute for each condition; the next message has the number of
// messages that were left out. A message that cannot be sent is tried three times, and at the end of the
// program once.
//
// on() belongs to the training thread; all other functions are thread-safe.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "lm/events/run_listener.h"
#include "safe/watch/alert_rule.h"

namespace primus::watch {

struct AlertOptions {
  std::string run = {};  // folder of the run; empty: from the event `begin`
  int rank = 0;
  bool supervised = false;  // a supervisor reports a failed end, because it may restart the run
  Logger* log = nullptr;    // for failures; null: they are not logged
  std::chrono::milliseconds pause = std::chrono::minutes(1);  // between messages of a rule and condition
  std::chrono::milliseconds retry =
      std::chrono::seconds(2);  // before the second try; then five times as long
  std::chrono::milliseconds timeout = std::chrono::seconds(5);  // of one try
  std::chrono::milliseconds at_end = std::chrono::seconds(10);  // that the destructor waits
};

// The message, one JSON object of at most 4096 bytes: run, host, rank, event, cause, step, time, text,
// advice, condition, left_out.
std::string alert_json(const AlertOptions& options, const RunEvent& event, const AlertCondition& condition,
                       int left_out);

// Sends a message now. Returns "" or why it could not be sent, without secrets.
std::string send_alert(const AlertRule& rule, const std::string& json, std::chrono::milliseconds timeout);

class Alerts final : public RunListener {
 public:
  // If the system refuses a thread, logs a warning and sends no alerts.
  Alerts(std::vector<AlertRule> rules, AlertOptions options);
  ~Alerts() override;
  Alerts(const Alerts&) = delete;
  Alerts& operator=(const Alerts&) = delete;

  bool wants(EventKind kind) const override;
  void on(const RunEvent& event) override;
  int sent() const;
  int failed() const;

 private:
  struct State;
  void check_metrics(std::size_t rule, const RunEvent& event);
  void enqueue(std::size_t rule, const RunEvent& event, const AlertCondition& condition);

  // The state of a rule and one of its conditions.
  struct Sent {
    std::chrono::steady_clock::time_point last = {};
    bool ever = false, holds = false;  // whether a message was sent, and whether a metric's condition holds
    int left_out = 0;
  };

  std::vector<AlertRule> rules_;
  AlertOptions options_;
  std::map<std::pair<std::size_t, std::string>, Sent> sent_;
  bool compares_ = false;  // whether a rule compares metrics
  std::shared_ptr<State> state_;
};

}  // namespace primus::watch
