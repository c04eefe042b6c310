// Logs lines for steps, evaluations, samples and warnings (docs/formats/run-folder.md).
#include "lm/events/run_listener.h"

namespace primus {
namespace {

class TrainingLog final : public RunListener {
 public:
  explicit TrainingLog(const ListenerContext& c) : log_(c.log), interval_(c.options.log_interval) {}

  bool wants(EventKind kind) const override {
    return kind == EventKind::kStep || kind == EventKind::kEvaluation || kind == EventKind::kSample ||
           kind == EventKind::kWarning;
  }
  void on(const RunEvent& event) override {
    if (const auto* step = event.as<IterationRecord>()) {
      if (interval_ > 0 && event.step % interval_ == 0) log_.info("{}", format_iteration(*step));
    } else if (const auto* evaluation = event.as<EvaluationRecord>()) {
      log_.info("{}", format_evaluation(*evaluation));
    } else if (const auto* sample = event.as<SampleRecord>(); sample && sample->rewards.empty()) {
      // Answers of reinforcement learning are too many for the log.
      log_.info("sample at iteration {}: {}{}", sample->iteration, sample->prompt, sample->text);
    } else if (const auto* warning = event.as<RunWarning>()) {
      log_.warning("iteration {}: {} ({})", warning->iteration, warning->text, warning->advice);
    }
  }
  std::uint64_t dropped() const override { return log_.dropped(); }

 private:
  Logger& log_;
  int interval_;
};

}  // namespace

extern const ListenerEntry kTrainingLog{"the log", false,
                                        [](const ListenerContext& c) -> std::unique_ptr<RunListener> {
                                          return std::make_unique<TrainingLog>(c);
                                        }};

}  // namespace primus
