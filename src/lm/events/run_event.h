// What happens in a run, as one stream of events: each rank publishes its own (training_monitor.h), and every
// output of a run is a listener to them (run_listener.h). A rank's stream is kept in event_log.h's file
// (docs/formats/events.md).
//
// Plain data without thread-safety of its own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "lm/events/iteration.h"
#include "lm/events/run_ending.h"

namespace primus {

// The run that a process is about to train.
struct RunFacts {
  std::string folder;       // of the run
  std::string description;  // of model and device, one line
  std::int64_t first_iteration = 0, train_iters = 0;
  bool trains = true;           // false: no step is left, but perhaps evaluations
  std::string version = {};     // of the program
  std::string model = {};       // its family: "llama"
  std::int64_t parameters = 0;  // of the whole model
  std::string device = {};      // this rank's: "CPU, 16 threads"
  std::string compute = {};     // type of activations: "bf16"
  int world = 1;                // ranks
  std::string mesh = {};        // "tensor 2, context 1, pipeline 1, data 4, expert 1"
  std::string host = {};        // where this rank runs
  std::string experiment = {};  // all settings, as experiment.yaml has them; on rank 0
};

// What a rank does besides steps: "tokenizing corpus.txt". `share`: how much of it is done, 0..1, where that
// is known. Empty: steps go on.
struct PhaseFacts {
  std::string what;
  std::optional<double> share = {};
};

// An evaluation on these data begins.
struct EvaluationStart {
  std::string data_set;
};

// A checkpoint of the event's step.
struct CheckpointFacts {
  enum class State : std::uint8_t {
    kSaving,   // it is being written
    kDurable,  // it survives a power failure, and the next start may load it
  } state = State::kSaving;
};

// The run cannot go on. The event's cause has its kind.
struct FaultFacts {
  std::string text;                 // one sentence
  std::string first_operator = {};  // of a NaN: where the first one appeared, "layers.3.attention"
};

// The run is asked to end before its last step. The event's cause says by whom.
struct StopFacts {};

// In the order of RunEvent::Facts.
enum class EventKind : std::uint8_t {
  kBegin,
  kPhase,
  kStep,
  kEvaluationStart,
  kEvaluation,
  kSample,
  kCheckpoint,
  kWarning,
  kFault,
  kStop,
  kEnd,
};
std::string_view name_of(EventKind kind);  // "step"

double unix_seconds();    // since 1970
std::string host_name();  // of this machine; "localhost" where it has none

struct RunEvent {
  using Facts = std::variant<RunFacts, PhaseFacts, IterationRecord, EvaluationStart, EvaluationRecord,
                             SampleRecord, CheckpointFacts, RunWarning, FaultFacts, StopFacts, RunEnding>;

  std::int64_t step = 0;   // completed steps of the run; of kStep, the one that ended
  int rank = 0;            // that it happened on
  double time = 0;         // seconds since 1970
  std::string cause = {};  // of a stop, a fault or an end, in a word or two: "SIGTERM", "NaN"
  Facts facts = {};

  EventKind kind() const { return static_cast<EventKind>(facts.index()); }
  // Null where the event is of another kind.
  template <class T>
  const T* as() const {
    return std::get_if<T>(&facts);
  }
};

// The facts as one JSON object. A step of rank 0 has a line of metrics.jsonl, other ranks' steps have the
// keys that are of the rank: time, wait for data, memory. Evaluations, samples and warnings have the lines of
// their files.
std::string facts_json(const RunEvent& event);

}  // namespace primus
