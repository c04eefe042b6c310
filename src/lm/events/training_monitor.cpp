#include "lm/events/training_monitor.h"

#include <utility>

#include "lm/events/detectors/detector.h"
#include "lm/events/metrics_file.h"

namespace primus {
namespace {

// Publishes a detector's findings.
class DetectorListener final : public RunListener {
 public:
  DetectorListener(std::string_view name, std::unique_ptr<Detector> detector, std::deque<RunEvent>& found)
      : name_(name), detector_(std::move(detector)), found_(found) {}

  bool wants(EventKind kind) const override {
    return kind == EventKind::kStep || kind == EventKind::kEvaluation;
  }
  void on(const RunEvent& event) override {
    std::optional<RunWarning> warning;
    if (const auto* step = event.as<IterationRecord>()) warning = detector_->iteration(*step);
    if (const auto* evaluation = event.as<EvaluationRecord>()) warning = detector_->evaluation(*evaluation);
    if (!warning) return;
    warning->detector = name_;
    RunEvent reported{
        .step = event.step, .rank = event.rank, .time = event.time, .cause = std::string(name_)};
    reported.facts = std::move(*warning);
    found_.push_back(std::move(reported));
  }

 private:
  std::string_view name_;
  std::unique_ptr<Detector> detector_;
  std::deque<RunEvent>& found_;
};

}  // namespace

TrainingMonitor::TrainingMonitor(const RunFolder& run, MonitorOptions options, Logger& log, Env& env)
    : options_(std::move(options)), log_(log), step_(options_.resume_iteration) {
  const ListenerContext context{.run = run, .options = options_, .log = log, .env = env};
  for (const ListenerEntry* entry : listeners()) {
    if (!entry->every_rank && options_.rank != 0) continue;
    std::unique_ptr<RunListener> listener = entry->make(context);
    if (!listener) continue;
    RunListener* const at = listener.get();
    seats_.push_back({.name = std::string(entry->name),
                      .fails = "cannot be written",
                      .works = "is written again",
                      .listener = at,
                      .owned = std::move(listener)});
  }
  if (options_.view) {
    seats_.push_back(
        {.name = "the live view", .fails = "fails", .works = "works again", .listener = options_.view});
  }
  if (options_.alerts) {
    seats_.push_back({.name = "alerts", .fails = "fail", .works = "work again", .listener = options_.alerts});
  }
  if (options_.rank != 0) return;
  const std::int64_t done = options_.resume_iteration;
  if (options_.samples && has_iteration(run.samples_file(), done, env)) last_sample_ = done;
  for (const auto& [set, loss] : evaluated_losses(run.evaluations_file(), done, env)) {
    evaluated_.emplace(std::pair(done, set), loss);
  }
  add_detectors(run, env);
}

void TrainingMonitor::add_detectors(const RunFolder& run, Env& env) {
  const std::vector<EvaluationRecord> evaluations =
      recorded_evaluations(run.evaluations_file(), options_.resume_iteration, env);
  for (const DetectorEntry* entry : detectors()) {
    std::unique_ptr<Detector> detector = entry->make();
    // Passes the recorded evaluations to the detector, so that warnings about these evaluations are not
    // repeated.
    for (const EvaluationRecord& record : evaluations) detector->evaluation(record);
    auto listener = std::make_unique<DetectorListener>(entry->name, std::move(detector), found_);
    RunListener* const at = listener.get();
    seats_.push_back({.name = "the detector " + std::string(entry->name),
                      .fails = "fails",
                      .works = "works again",
                      .listener = at,
                      .owned = std::move(listener)});
  }
}

template <class Work>
bool TrainingMonitor::guard(Seat& seat, Work work) {
  try {
    work();
    if (std::exchange(seat.failing, false)) log_.info("{} {}", seat.name, seat.works);
    return true;
  } catch (const std::exception& error) {
    if (!std::exchange(seat.failing, true))
      log_.warning("{} {}, training continues: {}", seat.name, seat.fails, error.what());
    return false;
  }
}

void TrainingMonitor::deliver(const RunEvent& event) {
  for (Seat& seat : seats_) {
    if (seat.listener->wants(event.kind())) guard(seat, [&] { seat.listener->on(event); });
  }
}

void TrainingMonitor::publish(std::int64_t step, RunEvent::Facts facts, std::string cause) {
  step_ = step;
  deliver({.step = step,
           .rank = options_.rank,
           .time = unix_seconds(),
           .cause = std::move(cause),
           .facts = std::move(facts)});
  for (; !found_.empty(); found_.pop_front()) deliver(RunEvent(found_.front()));
}

void TrainingMonitor::begin(RunFacts facts) {
  if (facts.trains) {
    for (Seat& seat : seats_) seat.listener->start(options_.resume_iteration);
  }
  publish(options_.resume_iteration, std::move(facts));
}

void TrainingMonitor::phase(std::string_view what, std::optional<double> share) {
  publish(step_, PhaseFacts{.what = std::string(what), .share = share});
}

void TrainingMonitor::iteration(const IterationRecord& record) { publish(record.iteration, record); }

void TrainingMonitor::begin_evaluation(std::int64_t iteration, const std::string& data_set) {
  publish(iteration, EvaluationStart{.data_set = data_set});
}

void TrainingMonitor::evaluation(const EvaluationRecord& record) {
  evaluated_.emplace(std::pair(record.iteration, record.data_set), record.lm_loss);
  publish(record.iteration, record);
}

bool TrainingMonitor::evaluated(std::int64_t iteration, const std::string& data_set) const {
  return evaluated_.contains({iteration, data_set});
}

bool TrainingMonitor::reached_target(std::int64_t iteration) const {
  const auto found = evaluated_.find({iteration, "validation"});
  return options_.target_eval_loss && found != evaluated_.end() &&
         found->second <= *options_.target_eval_loss;
}

void TrainingMonitor::sample(const SampleRecord& record) {
  if (record.rewards.empty()) last_sample_ = record.iteration;
  publish(record.iteration, record);
}

void TrainingMonitor::checkpoint(std::int64_t iteration, CheckpointFacts::State state) {
  const std::int64_t now = step_;
  publish(iteration, CheckpointFacts{.state = state});
  step_ = now;
}

void TrainingMonitor::stop(std::int64_t iteration, const std::string& cause) {
  publish(iteration, StopFacts{}, cause);
}

void TrainingMonitor::warn(const RunWarning& warning) {
  publish(warning.iteration, warning, warning.detector);
}

void TrainingMonitor::fault(const NumericsFault& fault) {
  fault_reported_ = true;
  publish(fault.iteration,
          FaultFacts{.text = fault.to_error().what(), .first_operator = fault.first_operator}, "NaN");
}

void TrainingMonitor::end(const RunEnding& ending) {
  if (ending.state == RunEnding::State::kFailed && !fault_reported_)
    publish(ending.iteration, FaultFacts{.text = ending.text}, ending.reason);
  publish(ending.iteration, ending, ending.reason);
  sync();
}

bool TrainingMonitor::sync() {
  bool all = true;
  for (Seat& seat : seats_) all = guard(seat, [&] { seat.listener->sync(); }) && all;
  return all;
}

std::uint64_t TrainingMonitor::dropped() const {
  std::uint64_t sum = 0;
  for (const Seat& seat : seats_) sum += seat.listener->dropped();
  return sum;
}

}  // namespace primus
