// Writes metrics.jsonl, evaluations.jsonl, samples.jsonl and warnings.jsonl (docs/formats/metrics.md): one
// line per event of one kind.
#include "lm/events/metrics_file.h"
#include "lm/events/run_listener.h"

namespace primus {
namespace {

template <class Record>
class JsonLines final : public RunListener {
 public:
  JsonLines(EventKind kind, std::string_view name, const Path& file, const ListenerContext& c)
      : kind_(kind), name_(name), file_(file, c.options.resume_iteration, c.env), log_(c.log) {}

  bool wants(EventKind kind) const override { return kind == kind_; }
  void on(const RunEvent& event) override { check(file_.write(*event.as<Record>())); }
  void sync() override { check(file_.sync()); }
  std::uint64_t dropped() const override { return file_.dropped(); }

 private:
  void check(bool written) {
    if (const std::string trouble = file_.take_trouble(); !trouble.empty())
      log_.warning("{} {}", name_, trouble);
    if (!written) throw Error(ErrorKind::kIo, file_.last_error());
  }

  EventKind kind_;
  std::string_view name_;
  MetricsFile file_;
  Logger& log_;
};

constexpr std::string_view kMetricsName = "metrics.jsonl", kEvaluationsName = "evaluations.jsonl",
                           kSamplesName = "samples.jsonl", kWarningsName = "warnings.jsonl";

std::unique_ptr<RunListener> make_metrics(const ListenerContext& c) {
  const Path file = c.run.metrics_file();
  auto lines = std::make_unique<JsonLines<IterationRecord>>(EventKind::kStep, kMetricsName, file, c);
  const std::int64_t done = c.options.resume_iteration;
  const std::string missing = missing_iterations(file, done, c.env);
  if (!missing.empty()) {
    c.log.warning(
        "metrics.jsonl has no line for iteration {}, which the run has trained; the file continues "
        "with iteration {}",
        missing, done + 1);
  }
  return lines;
}

}  // namespace

extern const ListenerEntry kMetrics{kMetricsName, false, make_metrics};

extern const ListenerEntry kEvaluations{
    kEvaluationsName, false, [](const ListenerContext& c) -> std::unique_ptr<RunListener> {
      return std::make_unique<JsonLines<EvaluationRecord>>(EventKind::kEvaluation, kEvaluationsName,
                                                           c.run.evaluations_file(), c);
    }};

extern const ListenerEntry kSamples{kSamplesName, false,
                                    [](const ListenerContext& c) -> std::unique_ptr<RunListener> {
                                      if (!c.options.samples) return nullptr;
                                      return std::make_unique<JsonLines<SampleRecord>>(
                                          EventKind::kSample, kSamplesName, c.run.samples_file(), c);
                                    }};

extern const ListenerEntry kWarnings{kWarningsName, false,
                                     [](const ListenerContext& c) -> std::unique_ptr<RunListener> {
                                       return std::make_unique<JsonLines<RunWarning>>(
                                           EventKind::kWarning, kWarningsName, c.run.warnings_file(), c);
                                     }};

}  // namespace primus
