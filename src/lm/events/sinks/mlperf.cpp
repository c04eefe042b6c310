// Writes the log of stage: mlperf_pretrain (mlperf_log.h).
#include "lm/events/mlperf_log.h"
#include "lm/events/run_listener.h"

namespace primus {
namespace {

class MlperfSink final : public RunListener {
 public:
  explicit MlperfSink(const ListenerContext& c)
      : log_(*c.options.mlperf, c.env), target_(c.options.target_eval_loss) {}

  bool wants(EventKind kind) const override {
    return kind == EventKind::kStep || kind == EventKind::kEvaluationStart ||
           kind == EventKind::kEvaluation || kind == EventKind::kEnd;
  }
  void start(std::int64_t done) override { log_.begin(done); }
  void on(const RunEvent& event) override {
    bool written = true;
    if (const auto* step = event.as<IterationRecord>()) {
      written = log_.iteration(*step);
    } else if (const auto* start = event.as<EvaluationStart>(); start && start->data_set == "validation") {
      written = log_.begin_evaluation(event.step);
    } else if (const auto* record = event.as<EvaluationRecord>();
               record && record->data_set == "validation") {
      written = log_.evaluation(*record, target_ && record->lm_loss <= *target_);
    } else if (event.kind() == EventKind::kEnd) {
      written = log_.end();
    }
    if (!written) throw Error(ErrorKind::kIo, log_.last_error());
  }
  std::uint64_t dropped() const override { return log_.dropped(); }

 private:
  MlperfLog log_;
  std::optional<double> target_;
};

}  // namespace

extern const ListenerEntry kMlperf{"the MLPerf log", false,
                                   [](const ListenerContext& c) -> std::unique_ptr<RunListener> {
                                     return c.options.mlperf ? std::make_unique<MlperfSink>(c) : nullptr;
                                   }};

}  // namespace primus
