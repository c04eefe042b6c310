#include "safe/dashboard/rank_times.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "lm/events/event_log.h"
#include "lm/events/line_file.h"
#include "lm/report/metrics_line.h"

namespace primus::dashboard {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

constexpr std::uint64_t kChunk = 256 << 10;
constexpr auto kSearchPause = std::chrono::seconds(5);

// Returns the rank whose events the file has: rank-00012.jsonl; -1 for other files.
int rank_of(std::string_view name) {
  constexpr std::string_view kBegin = "rank-", kEnd = ".jsonl";
  if (!name.starts_with(kBegin) || !name.ends_with(kEnd) || name.size() <= kBegin.size() + kEnd.size())
    return -1;
  name = name.substr(kBegin.size(), name.size() - kBegin.size() - kEnd.size());
  int rank = -1;
  const auto result = std::from_chars(name.data(), name.data() + name.size(), rank);
  return result.ec == std::errc() && result.ptr == name.data() + name.size() ? rank : -1;
}

Json rounded(float value) {
  if (!std::isfinite(value)) return nullptr;
  constexpr double kDigits = 1e4;
  return std::abs(value) < kDigits ? std::round(value * kDigits) / kDigits : std::round(value);
}

}  // namespace

void RankTimes::Cell::add(const Cell& other) {
  seconds = std::max(seconds, other.seconds);
  wait = std::max(wait, other.wait);
  memory = std::max(memory, other.memory);
  any = any || other.any;
}

void RankTimes::find_ranks() {
  const auto now = Clock::now();
  if (searched_ != Clock::time_point() && now - searched_ < kSearchPause) return;
  searched_ = now;
  left_out_ = 0;
  for (const std::string& name : Env::posix().list(folder_ / kEventsFolder)) {
    const int rank = rank_of(name);
    if (rank < 0 || ranks_.contains(rank)) continue;
    if (ranks_.size() < kMaxRanks) {
      ranks_.try_emplace(rank);
    } else {
      ++left_out_;
    }
  }
}

RankTimes::Cell& RankTimes::column_of(std::int64_t step, Rank& rank) {
  auto column = static_cast<std::size_t>((step - 1) / rank.width);
  while (column >= kColumns) {
    for (std::size_t i = 0; i < rank.cells.size(); i += 2) {
      Cell both = rank.cells[i];
      if (i + 1 < rank.cells.size()) both.add(rank.cells[i + 1]);
      rank.cells[i / 2] = both;
    }
    rank.cells.resize((rank.cells.size() + 1) / 2);
    rank.width *= 2;
    column /= 2;
  }
  if (rank.cells.size() <= column) rank.cells.resize(column + 1);
  return rank.cells[column];
}

void RankTimes::take(std::string_view line, Rank& rank) {
  EventLine event;
  constexpr std::int64_t kMaxSteps = std::int64_t{1} << 53;
  if (!read_event(line, event) || event.step < 0 || event.step > kMaxSteps) return;
  if (event.event == "begin") {
    // The steps after this one are done again.
    const auto keep = static_cast<std::size_t>((event.step + rank.width - 1) / rank.width);
    if (keep < rank.cells.size()) rank.cells.resize(keep);
    return;
  }
  if (event.event != "step" || event.step == 0) return;
  Cell cell{.any = true};
  constexpr double kMilli = 1e-3;
  const bool good = read_metrics_line(event.facts, [&](std::string_view key, double value) {
    if (!std::isfinite(value)) return;
    if (key == "elapsed_time_per_iteration_ms") cell.seconds = static_cast<float>(kMilli * value);
    if (key == "data_wait_share") cell.wait = static_cast<float>(value);
    if (key == "memory_used_bytes") cell.memory = static_cast<float>(value);
  });
  if (good) column_of(event.step, rank).add(cell);
}

bool RankTimes::advance(std::chrono::milliseconds budget) {
  const auto end = Clock::now() + budget;
  bool more = false;
  try {
    if (Env::posix().status(folder_ / kEventsFolder)) find_ranks();
    for (auto& [number, rank] : ranks_) {
      const Path path = event_file(folder_, number);
      const FileState now = file_state(path);
      const bool replaced = now.file != rank.state.file || now.size < rank.offset;
      if (replaced) rank = Rank{};
      rank.state = now;
      if (!now.exists || rank.offset >= now.size) continue;
      if (Clock::now() >= end) return true;
      const auto file = Env::posix().open(path, OpenMode::kRead);
      const std::string text =
          read_range(*file, rank.offset, std::min(now.size, rank.offset + std::max(kChunk, kMaxLine)));
      std::size_t done = 0;
      for (std::size_t line = text.find('\n'); line != std::string::npos; line = text.find('\n', done)) {
        take(std::string_view(text).substr(done, line - done), rank);
        done = line + 1;
      }
      // A line that is longer than the longest line of a run is skipped.
      if (done == 0 && text.size() >= kMaxLine) done = text.size();
      if (done == 0) continue;
      rank.offset += done;
      more = more || rank.offset < now.size;
      ++version_;
    }
  } catch (const Error&) {
    return false;  // the next call tries again
  }
  return more;
}

Json RankTimes::json() const {
  std::int64_t width = 1;
  for (const auto& [number, rank] : ranks_) width = std::max(width, rank.width);
  Json ranks = Json::array();
  for (const auto& [number, rank] : ranks_) {
    // The ranks have equal columns in the table, although they may have read different numbers of steps.
    const auto factor = static_cast<std::size_t>(width / rank.width);
    std::vector<Cell> cells((rank.cells.size() + factor - 1) / factor);
    for (std::size_t i = 0; i < rank.cells.size(); ++i) cells[i / factor].add(rank.cells[i]);
    Json seconds = Json::array(), wait = Json::array(), memory = Json::array();
    for (const Cell& cell : cells) {
      seconds.push_back(cell.any ? rounded(cell.seconds) : Json());
      wait.push_back(cell.any ? rounded(cell.wait) : Json());
      memory.push_back(cell.any && cell.memory > 0 ? rounded(cell.memory) : Json());
    }
    ranks.push_back({{"rank", number}, {"seconds", seconds}, {"wait", wait}, {"memory", memory}});
  }
  return {{"steps_per_column", width}, {"ranks", std::move(ranks)}, {"left_out", left_out_}};
}

}  // namespace primus::dashboard
