// Writes RUN/events/supervisor.jsonl (docs/formats/events.md). Lines wait in memory until the run has made
// its folder, because a job that is refused makes none. A failure to write never throws.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/files/append_file.h"
#include "lm/events/run_event.h"
#include "lm/events/supervision.h"

namespace primus::supervise {

class SupervisionLog {
 public:
  explicit SupervisionLog(Path run);

  struct Line {
    std::string_view kind;  // "supervise_start"
    std::int64_t step = 0;
    std::optional<int> rank = {};
    double time = 0;
    std::string cause = {};
    // Whether the supervisors of several machines must agree on the line. Others are lost while lines wait.
    bool is_decision = true;
  };
  // `facts` is a JSON object; `times` is added to it.
  void write(const Line& line, nlohmann::ordered_json facts, const std::optional<RunTimes>& times);

  // From now on, lines wait until release(): the supervisors of several machines agree first.
  void hold() { holds_ = true; }
  const std::vector<std::string>& held() const { return held_; }
  // Writes the first `lines` held lines, and returns true; false: the run has not made its folder yet.
  // `again`: without those that the file already has, because another supervisor may have written them.
  bool release(std::size_t lines, bool again = false);
  void take(std::vector<std::string> lines);
  // Calls to(event) when the newest line has been released, at once if lines are not held. Only the
  // supervisor that wrote a line knows its news, so take() drops the news that wait.
  void tell(const RunEvent& event, const std::function<void(const RunEvent&)>& to);

 private:
  void append(const std::string& line);

  Path run_;
  AppendFile file_;
  std::string waiting_;
  bool holds_ = false;
  std::vector<std::string> held_ = {};
  // News, with the number of held lines before which they are told.
  struct News {
    std::size_t after = 0;
    RunEvent event = {};
    std::function<void(const RunEvent&)> to = {};
  };
  std::vector<News> news_ = {};
};

}  // namespace primus::supervise
