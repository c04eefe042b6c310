// Sends the alerts of a supervisor from a separate process. The supervisor ends every process below it
// between two starts of the job, and adopts and reaps processes; a program that an alert starts must not be
// among them.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "comm/rendezvous/socket.h"
#include "lm/events/run_event.h"
#include "safe/watch/alert_rule.h"

namespace primus::cli {

// Not thread-safe.
class AlertSender {
 public:
  // Starts the process; without rules, none. Call it before the program has threads, and before
  // JobProcesses exists, which then counts the process as its own. `run`: folder of the run. Throws Error.
  AlertSender(const std::vector<watch::AlertRule>& rules, const std::string& run);
  // Waits for alerts that are on their way, up to 15 seconds.
  ~AlertSender();
  AlertSender(const AlertSender&) = delete;
  AlertSender& operator=(const AlertSender&) = delete;

  // Hands over an event of supervision_news.h. Never throws. Without waiting: if the process has ended, or
  // has more to read than a socket holds (about 200 KiB), the event is dropped.
  void send(const RunEvent& event) const noexcept;

 private:
  comm::Socket to_;
  pid_t pid_ = -1;
};

// The form in which an event is handed over: one line of JSON. Texts that make it longer than kMaxAlertLine
// are shortened, and end with " ... (shortened)". Returns nullopt for other lines.
inline constexpr std::size_t kMaxAlertLine = std::size_t{64} << 10;
std::string alert_line(const RunEvent& event);
std::optional<RunEvent> event_of_alert_line(const std::string& line);

}  // namespace primus::cli
