#include "safe/postmortem/run_evidence.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "base/error.h"
#include "base/text/counted.h"
#include "lm/events/event_log.h"
#include "lm/events/line_file.h"
#include "lm/events/run_folder.h"
#include "lm/events/supervision.h"
#include "lm/report/run_list.h"
#include "safe/postmortem/clocks.h"
#include "safe/postmortem/flight_evidence.h"
#include "safe/postmortem/folder_evidence.h"
#include "safe/postmortem/incident_folder.h"
#include "safe/postmortem/json_fields.h"
#include "safe/postmortem/supervisor_evidence.h"
#include "safe/postmortem/text_evidence.h"

namespace primus::postmortem {
namespace {

constexpr std::size_t kMaxRanks = 1 << 20;
constexpr std::size_t kKeptSteps = 2000;  // newest steps whose times are compared

std::vector<Path> entries_of(const Path& folder) {
  std::vector<Path> entries;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    entries.push_back(at->path());
  std::ranges::sort(entries);
  return entries;
}

// Returns N of "rank-N.jsonl" or "rank-N".
std::optional<int> rank_in(const Path& path) {
  const std::string name = path.stem().string();
  constexpr std::string_view kPrefix = "rank-";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  int rank = 0;
  const char* const end = name.data() + name.size();
  const auto result = std::from_chars(name.data() + kPrefix.size(), end, rank);
  return result.ec == std::errc() && result.ptr == end && rank >= 0 ? std::optional(rank) : std::nullopt;
}

std::string text_of(std::string_view facts, const char* key) {
  const nlohmann::json json = nlohmann::json::parse(facts, nullptr, false);
  return json.is_object() ? text_field(json, key) : std::string();
}

std::int64_t number_of(std::string_view facts, const char* key) {
  const nlohmann::json json = nlohmann::json::parse(facts, nullptr, false);
  return json.is_object() ? whole_field(json, key, 0) : 0;
}

// The time that a rank spends between the begin of a save and its next event. If the save runs in the
// background, the next event is a step soon after. The save after a request to stop delays no step.
class SaveTimes {
 public:
  void take(const EventLine& event) {
    if (saving_ > 0) {
      paused_ += std::max(0.0, event.time - saving_);
      ++saves_;
    }
    stops_ = stops_ || event.event == "stop";
    const bool begins = !stops_ && event.event == "checkpoint" && text_of(event.facts, "state") == "saving";
    saving_ = begins ? event.time : 0;
  }
  // Adds evidence if saving took a large share of the run's time.
  void report(const RankRecord& record, const std::string& file, CaseFile& into) const {
    constexpr double kLeastShare = 0.2, kLeastPause = 1;
    const double time = record.last_time - record.began;
    if (saves_ == 0 || paused_ < kLeastShare * time || paused_ < kLeastPause * saves_) return;
    const std::string text =
        fmt::format("slow_saves: {} stopped training for {:.1f} s on average, {:.0f} % of the time",
                    counted(saves_, "save"), paused_ / saves_, 100 * paused_ / time);
    into.evidence.push_back({.source = Source::kEvent,
                             .file = file,
                             .time = record.last_time,
                             .writer = record.rank,
                             .text = text,
                             .cause = match(Source::kEvent, text)});
  }

 private:
  double saving_ = 0, paused_ = 0;  // seconds
  int saves_ = 0;
  bool stops_ = false;
};

// Reads the events of one rank, and keeps the evidence of its last process.
class RankReader {
 public:
  RankReader(const Path& file, int rank) : file_(file.string()) { record_.rank = rank; }
  int world() const { return world_; }
  StepTimes steps() && { return std::move(steps_); }

  void take(const EventLine& event) {
    if (event.event == "begin") {
      evidence_.clear();
      steps_.clear();
      saves_ = {};
      world_ = static_cast<int>(std::clamp<std::int64_t>(number_of(event.facts, "ranks"), 0, kMaxRanks));
      record_ = {.rank = record_.rank, .node = text_of(event.facts, "host"), .began = event.time};
      record_.last_step = event.step;
      const std::string from = text_of(event.facts, "state_from");
      if (event.step > 0 && from != "memory" && from != "partner") saved_ = event.step;
    }
    record_.last_time = std::max(record_.last_time, event.time);
    if (event.event == "step") record_.last_step = event.step;
    if (event.event == "step") steps_[event.step] = event.time;
    if (steps_.size() > kKeptSteps) steps_.erase(steps_.begin());
    saves_.take(event);
    if (event.event == "phase") record_.phase = text_of(event.facts, "what");
    if (event.event == "checkpoint" && text_of(event.facts, "state") == "durable") saved_ = event.step;
    if (event.event == "warning") add(event, "warning " + event.cause + ": " + text_of(event.facts, "text"));
    if (event.event == "fault") {
      const std::string where = text_of(event.facts, "operator"), text = text_of(event.facts, "text");
      const bool named = where.empty() || text.find(where) != text.npos;
      add(event, "fault " + event.cause + ": " + text + (named ? "" : " (first operator: " + where + ")"));
    }
    if (event.event == "stop") add(event, "stop " + event.cause);
    if (event.event == "end") {
      record_.ended = true;
      state_ = text_of(event.facts, "state");
      reason_ = event.cause;
    }
  }

  void finish(CaseFile& into) {
    if (record_.rank == 0) {
      into.state = state_;
      into.reason = reason_;
      into.saved_step = saved_;
    }
    into.step = std::max(into.step, record_.last_step);
    if (record_.rank == 0) saves_.report(record_, file_, into);
    for (Evidence& evidence : evidence_) {
      if (evidence.rank == record_.rank) evidence.node = record_.node;
      into.evidence.push_back(std::move(evidence));
    }
    into.ranks.push_back(std::move(record_));
  }

 private:
  void add(const EventLine& event, std::string text) {
    // The launcher records the loss of another rank in rank 0's file.
    const int named = facts_of(text, event.time).rank;
    // Two ranks with different bits: the recording rank is no more suspect than the other one.
    const bool unknown = text.find("no majority tells which are right") != std::string::npos;
    // Findings in the kernel's log have the kernel's texts.
    const bool of_kernel = event.event == "warning" && event.cause.starts_with("kernel_");
    // A damaged checkpoint that was skipped did not end the run.
    const bool skipped = event.event == "warning" && event.cause == "damaged_checkpoint";
    const Cause* const cause = skipped ? nullptr : match(of_kernel ? Source::kKernel : Source::kEvent, text);
    evidence_.push_back({.source = Source::kEvent,
                         .file = file_,
                         .time = event.time,
                         .rank = unknown      ? -1
                                 : named >= 0 ? named
                                              : record_.rank,
                         .writer = record_.rank,
                         .text = std::move(text),
                         .cause = cause});
  }

  std::string file_, state_, reason_;
  std::int64_t saved_ = -1;
  int world_ = 0;
  StepTimes steps_;
  SaveTimes saves_;
  RankRecord record_;
  std::vector<Evidence> evidence_;
};

// Returns the times of the rank's steps.
StepTimes read_rank_events(const Path& file, int rank, CaseFile& into) {
  RankReader reader(file, rank);
  try {
    const std::int64_t damaged = read_events(file, [&](const EventLine& event) { reader.take(event); });
    if (damaged > 0)
      into.notes.push_back(fmt::format("{}: {} damaged lines were skipped", file.string(), damaged));
  } catch (const Error& error) {
    into.notes.push_back(error.what());
  }
  reader.finish(into);
  into.world = std::max(into.world, rank == 0 ? reader.world() : 0);
  return std::move(reader).steps();
}

// Reads the warnings of a run whose events of rank 0 are lost. They have no times.
void read_warnings(const Path& file, CaseFile& into) {
  if (!Env::posix().status(file)) return;
  read_lines(file, [&](std::string_view line) {
    const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object()) return;
    std::string text = "warning " + text_field(json, "detector") + ": " + text_field(json, "text");
    const Cause* const cause = match(Source::kEvent, text);
    into.evidence.push_back({.source = Source::kEvent,
                             .file = file.string(),
                             .rank = rank_field(json),
                             .text = std::move(text),
                             .cause = cause});
  });
}

// Reads the errors that ranks logged: logs/<module>/rank-N/error.log.
void read_logs(const Path& logs, double near, CaseFile& into) {
  for (const Path& module : entries_of(logs)) {
    for (const Path& folder : entries_of(module)) {
      const std::optional<int> rank = rank_in(folder);
      const Path file = folder / "error.log";
      if (rank && *rank < static_cast<int>(kMaxRanks)) into.world = std::max(into.world, *rank + 1);
      if (!rank || !Env::posix().status(file)) continue;
      try {
        read_text(file, rank, near, into);
      } catch (const Error& error) {
        into.notes.push_back(error.what());
      }
    }
  }
}

}  // namespace

CaseFile read_run(const Path& folder) {
  if (!is_run_folder(folder) && !is_started_folder(folder) && logs_beside(folder).empty() &&
      !Env::posix().status(folder / "logs") && !Env::posix().status(supervision_file(folder)))
    throw invalid(fmt::format("'{}' is not the folder of a run", folder.string()),
                  "name a folder that 'primus runs' lists, or a folder of logs");
  const RunStatus status = run_status(folder);
  CaseFile file{.run = folder.string(),
                .running = status.state == RunState::kRunning,
                .shown = {.state = std::string(name_of(status.state)),
                          .reason = printable(status.reason),
                          .next = printable(status.next)}};
  if (status.state == RunState::kDamaged) file.notes.push_back(printable(status.problem));
  std::vector<std::pair<int, Path>> ranks;
  for (const Path& path : entries_of(folder / kEventsFolder)) {
    if (const std::optional<int> rank = rank_in(path); rank && ranks.size() < kMaxRanks)
      ranks.emplace_back(*rank, path);
  }
  std::ranges::sort(ranks);
  std::map<int, StepTimes> steps;
  for (const auto& [rank, path] : ranks) steps[rank] = read_rank_events(path, rank, file);
  if (ranks.empty() && !is_run_folder(folder)) {
    file.notes.push_back("the folder has no records of a run: the run may have failed before it began");
  } else if (ranks.empty()) {
    file.step = status.step;
    file.reason = status.reason;
    file.state = std::string(name_of(status.state));
    file.notes.push_back("the run has no events: they were removed, or an older version wrote the run");
  }
  align_clocks(steps, file);
  if (ranks.empty() || ranks.front().first != 0) read_warnings(folder / "warnings.jsonl", file);
  // Ranks of an earlier, larger job leave files that the last process did not touch.
  double began = 0;
  for (const RankRecord& rank : file.ranks) began = std::max(began, rank.rank == 0 ? rank.began : 0);
  std::erase_if(file.ranks, [&](const RankRecord& rank) {
    return rank.last_time < began || (file.world > 0 && rank.rank >= file.world);
  });
  // Times of logs are whole seconds.
  const auto is_old = [&](const Evidence& one) {
    return one.time > 0 && one.time < (one.source == Source::kLog ? std::floor(began) : began);
  };
  read_supervisor(folder, is_open(status.state), file);
  std::erase_if(file.evidence, is_old);
  read_flights(folder / "logs", began, file);
  const std::size_t first = file.evidence.size();
  read_logs(folder / "logs", began, file);
  align_evidence(first, file);
  std::erase_if(file.evidence, is_old);
  // An error before the run's first event is only in the log.
  if (ranks.empty() && file.evidence.empty() && !status.failure.empty()) {
    const std::string text = "fault error: " + printable(status.failure);
    file.evidence.push_back({.source = Source::kEvent,
                             .file = (folder / "logs").string(),
                             .text = text,
                             .cause = match(Source::kEvent, text)});
  }
  read_recorded_ending(folder, file);
  find_checkpoint(folder, file);
  read_stop_request(folder, began, file);
  return file;
}

}  // namespace primus::postmortem
