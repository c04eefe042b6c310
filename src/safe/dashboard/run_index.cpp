#include "safe/dashboard/run_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/error.h"
#include "base/text/counted.h"
#include "base/text/secrets.h"
#include "lm/events/line_file.h"
#include "lm/events/run_folder.h"
#include "lm/report/written_texts.h"

namespace primus::dashboard {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kChunk = 1 << 20;
constexpr std::uint64_t kTail = 256;
constexpr std::uint64_t kFirstMarkDistance = 64 << 10;
constexpr std::size_t kMaxMarks = 4096;
constexpr std::uint64_t kSampledFrom = 2 << 20;  // shorter files are read at once
constexpr std::uint64_t kSampleBytes = 4 << 10;
constexpr std::int64_t kSamples = 600;

std::string damaged(std::string_view file, std::int64_t lines) {
  return fmt::format("{} of {} {} damaged and skipped", counted(lines, "line"), file,
                     lines == 1 ? "was" : "were");
}

// Calls line(text) for each complete line of `text`. Returns the number of bytes of these lines.
template <class Use>
std::size_t each_line(std::string_view text, const Use& line) {
  std::size_t done = 0;
  for (std::size_t end = text.find('\n'); end != std::string_view::npos; end = text.find('\n', done)) {
    line(text.substr(done, end - done), done);
    done = end + 1;
  }
  return done;
}

RunHistory empty_history(const Path& folder) {
  return {.status = {.folder = folder},
          .name = folder.string(),
          .metrics = Curves(kReportBuckets),
          .evaluations = Curves(kReportBuckets)};
}

}  // namespace

RunIndex::RunIndex(const Path& folder)
    : folder_(folder), metrics_(folder / "metrics.jsonl"), run_(empty_history(folder)) {
  restart();
}

void RunIndex::restart() {
  RunHistory fresh = empty_history(folder_);
  run_.metrics = std::move(fresh.metrics);
  run_.seconds = 0;
  reader_.emplace(run_);
  samples_.reset();
  offset_ = 0;
  tail_.clear();
  marks_.clear();
  mark_distance_ = kFirstMarkDistance;
  ++version_;
}

// Returns whether the file still has the bytes that were read last. A resumed run truncates the file after
// the step from which it continues.
bool RunIndex::same_file() {
  if (state_.size < offset_) return false;
  const auto file = Env::posix().open(metrics_, OpenMode::kRead);
  return read_range(*file, offset_ - tail_.size(), offset_) == tail_;
}

// Reads lines at even distances. Their steps are the points of curves that are shown until the file is read.
void RunIndex::sample() {
  RunHistory run = empty_history(folder_);
  HistoryReader reader(run);
  const auto file = Env::posix().open(metrics_, OpenMode::kRead);
  for (std::int64_t i = 0; i < kSamples; ++i) {
    const std::uint64_t begin = state_.size / kSamples * static_cast<std::uint64_t>(i);
    const std::string text = read_range(*file, begin, begin + kSampleBytes);
    // The first line is probably incomplete.
    const std::size_t first = i == 0 ? 0 : text.find('\n') + 1;
    const std::size_t end = text.find('\n', first);
    if ((i > 0 && first == 0) || end == std::string::npos) continue;
    reader.step(std::string_view(text).substr(first, end - first));
  }
  samples_ = std::move(run.metrics);
  ++version_;
}

void RunIndex::take(std::string_view text) {
  const std::size_t done = each_line(text, [&](std::string_view line, std::size_t at) {
    const std::uint64_t begin = offset_ + at;
    reader_->step(line);
    if (reader_->last_step() < 0 || (!marks_.empty() && begin < marks_.back().offset + mark_distance_))
      return;
    marks_.push_back({.step = reader_->last_step(), .offset = begin});
    if (marks_.size() < kMaxMarks) return;
    for (std::size_t i = 0; i < kMaxMarks / 2; ++i) marks_[i] = marks_[2 * i];
    marks_.resize(kMaxMarks / 2);
    mark_distance_ *= 2;
  });
  if (done == 0) return;
  offset_ += done;
  tail_ = text.substr(done - std::min<std::size_t>(done, kTail), std::min<std::size_t>(done, kTail));
  ++version_;
}

bool RunIndex::advance(std::chrono::milliseconds budget) {
  const auto end = Clock::now() + budget;
  try {
    read_others();
    const FileState now = file_state(metrics_);
    if (now != state_) {
      const bool first = !state_.exists;
      state_ = now;
      if (!now.exists || !same_file()) restart();
      if (now.exists && offset_ == 0 && now.size > kSampledFrom) sample();
      if (first) ++version_;
    }
    if (!now.exists || offset_ >= now.size) return false;
    const auto file = Env::posix().open(metrics_, OpenMode::kRead);
    while (true) {
      buffer_ = read_range(*file, offset_, std::min(now.size, offset_ + kChunk));
      const std::uint64_t before = offset_;
      take(buffer_);
      if (offset_ == before) {
        // The rest of the file is the begin of a line, or a line that is longer than any line of a run.
        if (buffer_.size() < kChunk) break;
        offset_ += buffer_.size();
        tail_ = buffer_.substr(buffer_.size() - kTail);
      }
      if (offset_ >= now.size) break;
      if (Clock::now() >= end) return true;
    }
    if (samples_) ++version_;
    samples_.reset();
  } catch (const Error& error) {
    notes_ = {error.what()};
    ++version_;
  }
  return false;
}

// Reads the small files again if they have changed.
void RunIndex::read_others() {
  const auto changed = [](const Path& file, FileState& known) {
    const FileState now = file_state(file);
    return std::exchange(known, now) != now;
  };
  const Path evaluations = folder_ / "evaluations.jsonl", texts = folder_ / RunFolder::kSamplesFile;
  const bool others = changed(evaluations, evaluations_state_) | changed(texts, texts_state_) |
                      changed(folder_ / RunFolder::kExperimentFile, settings_state_);
  if (!others && version_ > 1) return;
  run_.notes.clear();
  run_.evaluations = Curves(kReportBuckets);
  run_.best_validation.reset();
  if (evaluations_state_.exists) {
    HistoryReader reader(run_);
    read_lines(evaluations, [&](std::string_view line) { reader.evaluation(line); });
    if (reader.bad_evaluations() > 0)
      run_.notes.push_back(damaged("evaluations.jsonl", reader.bad_evaluations()));
  }
  std::int64_t bad = 0;
  run_.texts = newest_texts(texts, bad);
  if (bad > 0) run_.notes.push_back(damaged(RunFolder::kSamplesFile, bad));
  read_settings(run_);
  for (auto& [key, value] : run_.settings) value = shown_value(key, value);
  notes_ = run_.notes;
  ++version_;
}

RunHistory RunIndex::history() const {
  RunHistory shown = run_;
  if (samples_) shown.metrics = *samples_;
  shown.notes = notes_;
  if (reader_->bad_steps() > 0) shown.notes.push_back(damaged("metrics.jsonl", reader_->bad_steps()));
  return shown;
}

double RunIndex::progress() const {
  if (!state_.exists || state_.size == 0) return 1;
  return samples_ ? static_cast<double>(offset_) / static_cast<double>(state_.size) : 1;
}

RunIndex::Range RunIndex::range(std::int64_t from, std::int64_t to) const {
  Range range{.run = empty_history(folder_)};
  if (marks_.empty()) return range;
  const auto after = std::ranges::upper_bound(marks_, from, {}, &Mark::step);
  const std::uint64_t begin = after == marks_.begin() ? marks_.front().offset : std::prev(after)->offset;
  const auto behind = std::ranges::upper_bound(marks_, to, {}, &Mark::step);
  const std::uint64_t end = behind == marks_.end() ? offset_ : behind->offset;
  if (end <= begin) return range;
  if (end - begin > kMaxRange) {
    return {.problem = fmt::format("the records of these steps take {} MiB, and at most {} MiB are read",
                                   (end - begin) >> 20, kMaxRange >> 20)};
  }
  HistoryReader reader(*range.run);
  reader.only(from, to);
  try {
    const auto file = Env::posix().open(metrics_, OpenMode::kRead);
    each_line(read_range(*file, begin, end), [&](std::string_view line, std::size_t) { reader.step(line); });
  } catch (const Error& error) {
    return {.problem = error.what()};
  }
  return range;
}

}  // namespace primus::dashboard
