// Shows a training run on one screen: progress, curves of training and validation loss, speed, memory, and
// the last generated sample.
//
//   pretrain  42%  [########------------]  step 420/1000  ETA 3m 12s
//   loss         3.214  ▇▆▅▄▃▃▂▂▁▁  from 9.013
//   validation   3.310  ▇▅▃▂  at step 400
//   speed        10.8k tokens/s   1.21 s/step   MFU 41.3%   data wait 0.4%
//   ...
#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/terminal/live_block.h"
#include "base/terminal/terminal.h"
#include "lm/events/run_listener.h"

namespace primus {

// A series of any length in bounded memory. If the series has more than kMax points, neighbouring points are
// averaged.
class Curve {
 public:
  static constexpr std::size_t kMax = 1024;
  void add(double value);
  const std::vector<double>& points() const { return points_; }
  bool empty() const { return points_.empty() && in_sum_ == 0; }
  double first() const { return first_; }
  double last() const { return last_; }

 private:
  std::vector<double> points_;
  std::size_t stride_ = 1, in_sum_ = 0;
  double sum_ = 0, first_ = 0, last_ = 0;
};

// Everything that the view displays.
struct LiveState {
  std::string name;
  RunFacts facts;
  std::string phase;
  std::optional<double> phase_share;
  std::optional<IterationRecord> last;
  double last_seen = 0;  // time at which `last` was received, in seconds of the steady clock
  double began = 0;      // time at which the program started, in seconds of the same clock
  Curve losses, validation;
  std::optional<EvaluationRecord> evaluation;
  std::optional<SampleRecord> sample;
  std::optional<std::int64_t> saved;
};

// Returns the picture at time `now`: at most `height` lines of at most `width` columns. If space is short,
// the least important lines are dropped first.
std::vector<std::string> render(const LiveState& state, const Terminal& colors, std::size_t width,
                                std::size_t height, double now);

// Draws on its own thread, so that the displayed times advance during a long step and the picture adapts to
// the window size. The block must outlive this object. Thread-safe.
class LiveView final : public RunListener {
 public:
  LiveView(const Terminal& terminal, LiveBlock& block, std::string name);
  // Draws the final state and leaves the picture on the screen.
  ~LiveView() override;
  LiveView(const LiveView&) = delete;
  LiveView& operator=(const LiveView&) = delete;

  bool wants(EventKind) const override { return true; }
  void on(const RunEvent& event) override;

 private:
  void draw();
  void work();

  Terminal terminal_;
  LiveBlock& block_;
  std::mutex mutex_;
  std::condition_variable wake_;
  LiveState state_;
  bool over_ = false;
  std::thread thread_;
};

// A view with a single line, for `--quiet` on a terminal: progress, loss, speed, ETA.
class ProgressView final : public RunListener {
 public:
  explicit ProgressView(const Terminal& terminal) : terminal_(terminal) {}
  ~ProgressView() override;
  ProgressView(const ProgressView&) = delete;
  ProgressView& operator=(const ProgressView&) = delete;

  bool wants(EventKind) const override { return true; }
  void on(const RunEvent& event) override;

 private:
  std::string note() const;

  Terminal terminal_;
  std::optional<ProgressLine> line_;
  std::optional<IterationRecord> last_;
  std::optional<double> validation_;
};

}  // namespace primus
