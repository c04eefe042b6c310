#include "cli/train/alert_sender.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "base/system/without_signals.h"
#include "safe/watch/alerts.h"

namespace primus::cli {
namespace {

using Json = nlohmann::json;
using State = RunEnding::State;

constexpr std::string_view kShortened = " ... (shortened)";

// Reads events until the supervisor closes the pipe or ends.
void send_all(int from, const std::vector<watch::AlertRule>& rules, const std::string& run) {
  Logger log(LogOptions{.console_level = LogLevel::kWarning});
  watch::Alerts alerts(rules, {.run = run, .log = &log});
  std::string buffer(kMaxAlertLine, '\0');
  for (;;) {
    const ssize_t got = ::recv(from, buffer.data(), buffer.size(), 0);  // one line
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return;
    const auto size = static_cast<std::size_t>(got);
    if (const auto event = event_of_alert_line(buffer.substr(0, size))) alerts.on(*event);
  }
}

}  // namespace

std::string alert_line(const RunEvent& event) {
  Json json{{"kind", name_of(event.kind())},
            {"step", event.step},
            {"rank", event.rank},
            {"time", event.time},
            {"cause", event.cause}};
  if (const auto* fault = event.as<FaultFacts>()) json["text"] = fault->text;
  if (const auto* warning = event.as<RunWarning>()) {
    json["text"] = warning->text;
    json["advice"] = warning->advice;
  }
  if (const auto* ending = event.as<RunEnding>()) {
    json["text"] = ending->text;
    json["reason"] = ending->reason;
    json["failed"] = ending->state == State::kFailed;
  }
  const auto dump = [&json] { return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"; };
  std::string line = dump();
  for (const char* const field : {"text", "advice", "cause", "reason"}) {
    const std::string whole = json.value(field, "");
    for (std::size_t kept = whole.size() / 2; line.size() > kMaxAlertLine && kept > 0; kept /= 2) {
      json[field] = whole.substr(0, kept) + std::string(kShortened);
      line = dump();
    }
  }
  return line;
}

std::optional<RunEvent> event_of_alert_line(const std::string& line) {
  const Json json = Json::parse(line, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  RunEvent event{.step = json.value("step", std::int64_t{0}),
                 .rank = json.value("rank", 0),
                 .time = json.value("time", 0.0),
                 .cause = json.value("cause", "")};
  const std::string kind = json.value("kind", ""), text = json.value("text", "");
  if (kind == name_of(EventKind::kFault)) {
    event.facts = FaultFacts{.text = text};
  } else if (kind == name_of(EventKind::kWarning)) {
    event.facts = RunWarning{
        .iteration = event.step, .detector = event.cause, .text = text, .advice = json.value("advice", "")};
  } else if (kind == name_of(EventKind::kEnd)) {
    event.facts = RunEnding{.state = json.value("failed", false) ? State::kFailed : State::kStopped,
                            .reason = json.value("reason", ""),
                            .text = text,
                            .iteration = event.step};
  } else {
    return std::nullopt;
  }
  return event;
}

AlertSender::AlertSender(const std::vector<watch::AlertRule>& rules, const std::string& run) {
  if (rules.empty()) return;
  int ends[2];
  // Keeps the bounds of the lines, and takes each whole or not at all.
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    throw io_error("cannot make a connection to the process that sends alerts", errno);
  comm::Socket from(ends[0]);
  to_ = comm::Socket(ends[1]);
  ::fcntl(to_.fd(), F_SETFL, O_NONBLOCK);
  pid_ = ::fork();
  if (pid_ < 0) throw io_error("cannot start a process that sends alerts", errno, "check 'ulimit -u'");
  if (pid_ > 0) return;
  // A signal to the job (Ctrl-C, scancel) must not end the process before the last alert.
  ::setsid();
  const WithoutSignals quiet;
  ::prctl(PR_SET_NAME, "primus-alerts");
  to_.close();
  try {
    send_all(from.fd(), rules, run);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "warning: the supervisor sends no alerts: %s\n", error.what());
  }
  std::_Exit(0);
}

AlertSender::~AlertSender() {
  if (pid_ <= 0) return;
  to_.close();
  using namespace std::chrono_literals;
  const auto until = std::chrono::steady_clock::now() + 15s;
  while (::waitpid(pid_, nullptr, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > until) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
      return;
    }
    std::this_thread::sleep_for(2ms);
  }
}

void AlertSender::send(const RunEvent& event) const noexcept {
  if (pid_ <= 0) return;
  try {
    const std::string line = alert_line(event);
    static_cast<void>(::send(to_.fd(), line.data(), line.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
  } catch (const std::exception&) {
    // No memory: the alert is lost, and the job continues.
  }
}

}  // namespace primus::cli
