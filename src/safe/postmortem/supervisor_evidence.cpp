#include "safe/postmortem/supervisor_evidence.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "lm/events/line_file.h"
#include "lm/events/supervision.h"
#include "safe/postmortem/json_fields.h"

namespace primus::postmortem {
namespace {

constexpr std::size_t kMaxRestarts = 1000;  // the newest ones are kept
constexpr std::int64_t kSignalled = 128;    // exit code 128 + N: signal N ended the process
constexpr std::int64_t kMaxSignal = 64;

class SupervisorReader {
 public:
  SupervisorReader(std::string file, CaseFile& into) : file_(std::move(file)), into_(into) {}

  void take(const nlohmann::json& event) {
    static const nlohmann::json kNone = nlohmann::json::object();
    const auto found = event.find("facts");
    const nlohmann::json& facts = found != event.end() && found->is_object() ? *found : kNone;
    const std::string kind = text_field(event, "event"), cause = text_field(event, "cause");
    newest_ = std::max(newest_, number_field(event, "time"));
    if (kind == "supervise_start") {
      started_ = true;
      host_ = text_field(facts, "host");
    }
    if (kind == "supervise_end") started_ = false;
    if (kind == "supervise_detection") detect(event, facts, cause);
    if (kind == "supervise_action") act(event, facts, cause);
    if (kind == "supervise_recovered" && !into_.restarts.empty()) {
      Restart& restart = into_.restarts.back();
      restart.state_from = text_field(facts, "state_from");
      restart.checkpoint = whole_field(facts, "first_step", restart.checkpoint + 1) - 1;
    }
    if (kind == "supervise_node" && cause == "lost")
      add(event, "supervise lost node: " + text_field(facts, "text"), text_field(facts, "host"));
  }

  // Adds evidence if the supervisor recorded no end. `lives`: whether it still runs.
  void finish(bool lives) {
    const bool orderly = into_.state == "stopped" || into_.state == "finished";
    if (!started_ || lives || orderly) return;
    for (const RankRecord& rank : into_.ranks) newest_ = std::max(newest_, rank.last_time);
    const std::string text =
        "supervise ended without a record: the supervisor was killed (SIGKILL), or its machine stopped";
    into_.evidence.push_back({.source = Source::kEvent,
                              .file = file_,
                              .time = newest_,
                              .node = host_,
                              .text = text,
                              .cause = match(Source::kEvent, text)});
  }

 private:
  void detect(const nlohmann::json& event, const nlohmann::json& facts, const std::string& cause) {
    const std::int64_t code = whole_field(facts, "exit_code", 0);
    std::string text = text_field(facts, "text");
    if (code > kSignalled && code <= kSignalled + kMaxSignal && text.find("signal ") == std::string::npos)
      text += fmt::format("; signal {} ended the job", code - kSignalled);
    last_ = {.time = number_field(event, "time"),
             .step = whole_field(event, "step", 0),
             .rank = rank_field(event),
             .cause = cause,
             .text = text,
             .checkpoint = whole_field(facts, "checkpoint", 0)};
    add(event, fmt::format("supervise {}: {}", cause, text), text_field(facts, "node_host"));
  }

  void act(const nlohmann::json& event, const nlohmann::json& facts, const std::string& cause) {
    const std::string action = text_field(facts, "action");
    if (action == "restart" && last_.time > 0) {
      if (into_.restarts.size() == kMaxRestarts) into_.restarts.erase(into_.restarts.begin());
      last_.of_rank = text_field(facts, "rung") == kRankRestart;
      into_.restarts.push_back(std::exchange(last_, {}));
    }
    if (action == "give up")
      add(event, fmt::format("supervise gave up ({}): {}", cause, text_field(facts, "text")), {});
  }

  void add(const nlohmann::json& event, const std::string& text, std::string node) {
    into_.evidence.push_back({.source = Source::kEvent,
                              .file = file_,
                              .time = number_field(event, "time"),
                              .rank = rank_field(event),
                              .node = std::move(node),
                              .text = text,
                              .cause = match(Source::kEvent, text)});
  }

  std::string file_;
  CaseFile& into_;
  Restart last_;
  bool started_ = false;   // a supervisor has begun, and recorded no end
  double newest_ = 0;      // time of the newest record
  std::string host_ = {};  // of the supervisor
};

}  // namespace

void read_supervisor(const Path& run, bool lives, CaseFile& into) {
  const Path file = supervision_file(run);
  if (!Env::posix().status(file)) return;
  SupervisorReader reader(file.string(), into);
  try {
    read_lines(file, [&](std::string_view line) {
      const nlohmann::json event = nlohmann::json::parse(line, nullptr, false);
      if (event.is_object()) reader.take(event);
    });
    reader.finish(lives);
  } catch (const Error& error) {
    into.notes.push_back(error.what());
  }
}

}  // namespace primus::postmortem
