#include "lm/events/live_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/system/threads.h"
#include "base/text/counted.h"
#include "base/text/display_width.h"

namespace primus {
namespace {

constexpr std::size_t kLabel = 12;  // width of the name column on the left
constexpr std::size_t kSampleLines = 4;

// A line of the picture. If space is short, lines with the highest `rank` are dropped first.
struct Row {
  int rank;
  std::string text;
};

std::string bar(double share, std::size_t width) {
  const auto filled = static_cast<std::size_t>(std::clamp(share, 0.0, 1.0) * static_cast<double>(width));
  return fmt::format("[{:#<{}}{:-<{}}]", "", filled, "", width - filled);
}

class Picture {
 public:
  Picture(const LiveState& state, const Terminal& colors, std::size_t width, double now)
      : s_(state), colors_(colors), width_(width), now_(now) {}

  std::vector<Row> rows() {
    rows_.push_back(
        {5, paint(colors_, Color::kBold, s_.name) + (s_.facts.folder.empty() ? "" : "  " + s_.facts.folder)});
    if (!s_.facts.description.empty()) rows_.push_back({6, s_.facts.description});
    progress();
    if (s_.last) {
      loss();
      validation();
      speed();
      memory();
      sample();
    }
    return std::move(rows_);
  }

 private:
  void labelled(int rank, std::string_view label, const std::string& text) {
    rows_.push_back({rank, paint(colors_, Color::kCyan, fmt::format("{:<{}}", label, kLabel)) + text});
  }
  // Joins as many values as fit into one row.
  std::string figures(const std::vector<std::string>& all) const {
    std::string text;
    for (const std::string& figure : all) {
      if (!text.empty() && kLabel + display_width(text) + 3 + display_width(figure) > width_) break;
      text += (text.empty() ? "" : "   ") + figure;
    }
    return text;
  }

  void progress() {
    const std::size_t bar_width = std::clamp<std::size_t>(width_ / 4, 5, 30);
    const std::string elapsed = human_duration(std::floor(std::max(0.0, now_ - s_.began)));
    if (!s_.last) {
      std::string text = s_.phase.empty() ? "starting" : s_.phase;
      if (s_.phase_share)
        text = fmt::format("{:.0f}%  {}  {}", std::floor(*s_.phase_share * 100),
                           bar(*s_.phase_share, bar_width), text);
      labelled(0, "prepare", text + "  " + elapsed);
      return;
    }
    const IterationRecord& r = *s_.last;
    const double share =
        r.train_iters > 0 ? static_cast<double>(r.iteration) / static_cast<double>(r.train_iters) : 0;
    std::string text = fmt::format("{:.0f}%  {}  step {}/{}", std::floor(share * 100), bar(share, bar_width),
                                   r.iteration, r.train_iters);
    // The ETA was computed when the last step ended; the time that has passed since then is subtracted.
    if (r.throughput.eta && r.iteration < r.train_iters)
      text += "  ETA " + human_duration(std::max(0.0, *r.throughput.eta - (now_ - s_.last_seen)));
    text += fmt::format("  {} so far", elapsed);
    labelled(0, "training", text);
    if (!s_.phase.empty()) {
      const std::string done =
          s_.phase_share ? fmt::format("  {:.0f}%", std::floor(*s_.phase_share * 100)) : "";
      labelled(1, "now", s_.phase + done);
    }
  }

  // Returns the number of columns that remain for a curve if `used` columns are occupied.
  std::size_t room(std::size_t used) const {
    const std::size_t taken = kLabel + used;
    return width_ > taken + 4 ? std::min<std::size_t>(width_ - taken, 60) : 0;
  }

  void loss() {
    const std::string now = fmt::format("{:<7.4g}", drop_nan_sign(s_.losses.last()));
    const std::string from = fmt::format("  from {:.4g}", drop_nan_sign(s_.losses.first()));
    labelled(1, "loss",
             now + "  " + sparkline(s_.losses.points(), room(now.size() + from.size() + 3)) + from);
  }

  void validation() {
    if (!s_.evaluation) return;
    const std::string now = fmt::format("{:<7.4g}", drop_nan_sign(s_.validation.last()));
    const std::string when = fmt::format("  at step {}", s_.evaluation->iteration);
    labelled(2, s_.evaluation->data_set,
             now + "  " + sparkline(s_.validation.points(), room(now.size() + when.size() + 3)) + when);
  }

  void speed() {
    const Throughput& t = s_.last->throughput;
    const Speed& speed = t.average ? *t.average : t.now;
    std::vector<std::string> all = {human_count(speed.tokens_per_second) + " tokens/s",
                                    human_duration(speed.seconds_per_iteration) + "/step"};
    if (speed.mfu) all.push_back(fmt::format("MFU {:.1f}%", 100 * *speed.mfu));
    all.push_back(fmt::format("data wait {:.1f}%", 100 * speed.data_wait_share));
    labelled(3, "speed", figures(all));
  }

  void memory() {
    const IterationRecord& r = *s_.last;
    std::vector<std::string> all;
    if (r.memory) all.push_back(human_bytes(r.memory->used) + " of " + human_bytes(r.memory->total));
    all.push_back(fmt::format("lr {:.2e}", r.learning_rate));
    if (r.grad_norm) all.push_back(fmt::format("grad norm {:.3g}", drop_nan_sign(*r.grad_norm)));
    labelled(4, "memory", figures(all));
    if (s_.saved) labelled(6, "saved", fmt::format("at step {}", *s_.saved));
    if (r.nan_iterations > 0) {
      labelled(1, "warning",
               paint(colors_, Color::kRed, "NaN or Inf in " + counted(r.nan_iterations, "step")));
    }
  }

  void sample() {
    if (!s_.sample) return;
    std::string text = printable(s_.sample->prompt + s_.sample->text);
    std::replace_if(
        text.begin(), text.end(), [](char c) { return c == '\n' || c == '\t'; }, ' ');
    const std::size_t columns = width_ > kLabel + 8 ? width_ - kLabel : 8;
    std::string label = "sample";
    for (std::size_t line = 0; line < kSampleLines && !text.empty(); ++line) {
      std::string part = fit_width(text, columns);
      if (part.empty()) break;
      // Breaks the text at a space, if there is one.
      if (part.size() < text.size() && text[part.size()] != ' ') {
        const std::size_t blank = part.find_last_of(' ');
        if (blank != std::string::npos && blank > 0) part.resize(blank);
      }
      labelled(line == 0 ? 3 : 6 + static_cast<int>(line), label, part);
      text.erase(0, part.size());
      text.erase(
          0, text.find_first_not_of(' ') == std::string::npos ? text.size() : text.find_first_not_of(' '));
      label.clear();
    }
  }

  const LiveState& s_;
  const Terminal& colors_;
  std::size_t width_;
  double now_;
  std::vector<Row> rows_;
};

}  // namespace

void Curve::add(double value) {
  if (empty()) first_ = value;
  last_ = value;
  sum_ += value;
  if (++in_sum_ < stride_) return;
  points_.push_back(sum_ / static_cast<double>(stride_));
  sum_ = 0;
  in_sum_ = 0;
  if (points_.size() < kMax) return;
  for (std::size_t i = 0; 2 * i + 1 < points_.size(); ++i)
    points_[i] = (points_[2 * i] + points_[2 * i + 1]) / 2;
  points_.resize(points_.size() / 2);
  stride_ *= 2;
}

std::vector<std::string> render(const LiveState& state, const Terminal& colors, std::size_t width,
                                std::size_t height, double now) {
  std::vector<Row> rows = Picture(state, colors, width, now).rows();
  while (rows.size() > std::max<std::size_t>(height, 1)) {
    rows.erase(std::max_element(rows.begin(), rows.end(),
                                [](const Row& a, const Row& b) { return a.rank < b.rank; }));
  }
  std::vector<std::string> lines;
  for (Row& row : rows) lines.push_back(fit_width(row.text, width));
  return lines;
}

LiveView::LiveView(const Terminal& terminal, LiveBlock& block, std::string name)
    : terminal_(terminal), block_(block) {
  state_.name = std::move(name);
  state_.began = steady_seconds();
  draw();
  thread_ = start_thread([this] { work(); }, "draws the live view");
}

LiveView::~LiveView() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  wake_.notify_all();
  thread_.join();
  draw();
  block_.finish();
}

void LiveView::draw() {
  const std::size_t width = std::max<std::size_t>(terminal_.width(), 2) - 1;
  // Keeps one row free for the prompt or for a line of output.
  const std::size_t height = std::max<std::size_t>(terminal_.height(), 2) - 1;
  std::vector<std::string> lines;
  {
    const std::lock_guard lock(mutex_);
    lines = render(state_, terminal_, width, height, steady_seconds());
  }
  block_.show(lines);
}

void LiveView::work() {
  constexpr auto kRedraw = std::chrono::milliseconds(200);
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, kRedraw, [&] { return over_; })) {
    lock.unlock();
    draw();
    lock.lock();
  }
}

void LiveView::on(const RunEvent& event) {
  const std::lock_guard lock(mutex_);
  if (const auto* phase = event.as<PhaseFacts>()) {
    state_.phase = printable(phase->what);
    state_.phase_share = phase->share;
  } else if (const auto* run = event.as<RunFacts>()) {
    state_.facts = *run;
    state_.facts.folder = printable(run->folder);
  } else if (const auto* step = event.as<IterationRecord>()) {
    state_.last = *step;
    state_.last_seen = steady_seconds();
    state_.losses.add(step->lm_loss);
  } else if (const auto* evaluation = event.as<EvaluationRecord>()) {
    state_.evaluation = *evaluation;
    state_.validation.add(evaluation->lm_loss);
  } else if (const auto* sample = event.as<SampleRecord>()) {
    state_.sample = *sample;
  } else if (event.kind() == EventKind::kCheckpoint) {
    state_.saved = event.step;
  }
}

ProgressView::~ProgressView() {
  if (line_ && last_) line_->finish(steady_seconds(), note());
}

void ProgressView::on(const RunEvent& event) {
  if (const auto* run = event.as<RunFacts>()) {
    const auto total = static_cast<std::uint64_t>(run->train_iters);
    line_.emplace(terminal_, ProgressOptions{.label = "training", .total = total});
  } else if (const auto* step = event.as<IterationRecord>()) {
    last_ = *step;
    if (line_) line_->update(static_cast<std::uint64_t>(step->iteration), steady_seconds(), note());
  } else if (const auto* evaluation = event.as<EvaluationRecord>()) {
    validation_ = evaluation->lm_loss;
  }
}

std::string ProgressView::note() const {
  std::string text = fmt::format("loss {:.3f}", drop_nan_sign(last_->lm_loss));
  if (validation_) text += fmt::format("  validation {:.3f}", drop_nan_sign(*validation_));
  return text + fmt::format("  {} tokens/s", human_count(last_->throughput.now.tokens_per_second));
}

}  // namespace primus
