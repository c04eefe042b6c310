// The events of a run, as one stream. Each rank publishes its own events (training_monitor.h), and every
// output of a run is a listener (run_listener.h). event_log.h stores a rank's stream in a file
// (docs/formats/events.md).
//
// Plain data; not synchronized.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "lm/events/iteration.h"
#include "lm/events/run_ending.h"

namespace primus {

// Facts about the run that a process is about to train.
struct RunFacts {
  std::string folder;       // folder of the run
  std::string description;  // the model and the device, in one line
  std::int64_t first_iteration = 0, train_iters = 0;
  bool trains = true;           // whether steps are left to train; if not, evaluations may still be due
  std::string version = {};     // version of this program
  std::string model = {};       // name of the model's family: "llama"
  std::int64_t parameters = 0;  // number of parameters of the complete model
  std::string device = {};      // this rank's device: "CPU, 16 threads"
  std::string compute = {};     // data type of activations: "bf16"
  int world = 1;                // number of ranks
  std::string mesh = {};        // sizes of the mesh: "tensor 2, context 1, pipeline 1, data 4, expert 1"
  std::string host = {};        // name of this rank's host
  int pid = 0;                  // number of this rank's process; 0: not told
  std::string experiment = {};  // all settings as YAML, as in experiment.yaml; only on rank 0
  std::string job = {};         // the job that trains, as to_json(RunJob) of run_job.h; only on rank 0
  // Where the state of `first_iteration` was loaded from: "disk", or a snapshot in this host's memory
  // ("memory") or, of at least one rank, in another host's memory ("partner"). Empty: a new start.
  std::string state_from = {};
};

// The work of a rank outside of steps: "tokenizing corpus.txt". `share`: completed fraction, 0..1, if known.
// An empty `what` means that steps continue.
struct PhaseFacts {
  std::string what;
  std::optional<double> share = {};
};

// An evaluation begins; the facts name its data set.
struct EvaluationStart {
  std::string data_set;
};

// The checkpoint of the step that the event names.
struct CheckpointFacts {
  enum class State : std::uint8_t {
    kSaving,   // the checkpoint is being written
    kDurable,  // the checkpoint is synced to disk; the next start may load it
    // It is no checkpoint, but a snapshot in memory (snapshot_interval): the rank begins to copy its state,
    // or all ranks have completed the snapshot.
    kCopying,
    kInMemory,
  } state = State::kSaving;
};

// A fault that ends the run. The event's `cause` is the kind of fault.
struct FaultFacts {
  std::string text;                 // the fault in one sentence
  std::string first_operator = {};  // if the fault is a NaN: the first operator that produced it,
                                    // "layers.3.attention"
};

// A request to end the run before its last step. The event's `cause` says where the request came from.
struct StopFacts {};

// The values have the same order as the alternatives of RunEvent::Facts.
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
std::string_view name_of(EventKind kind);  // Returns the kind's name, such as "step".

double unix_seconds();    // Returns the seconds since 1970.
std::string host_name();  // Returns this machine's name, or "localhost" if it has none.

struct RunEvent {
  using Facts = std::variant<RunFacts, PhaseFacts, IterationRecord, EvaluationStart, EvaluationRecord,
                             SampleRecord, CheckpointFacts, RunWarning, FaultFacts, StopFacts, RunEnding>;

  std::int64_t step = 0;   // number of completed steps of the run; in a kStep event, the step that just ended
  int rank = 0;            // rank that published the event
  double time = 0;         // time in seconds since 1970
  std::string cause = {};  // cause of a stop, a fault or an end, in a word or two: "SIGTERM", "NaN"
  Facts facts = {};

  EventKind kind() const { return static_cast<EventKind>(facts.index()); }
  // Returns the facts if they have type T, else null.
  template <class T>
  const T* as() const {
    return std::get_if<T>(&facts);
  }
};

// Returns the facts as one JSON object. Evaluations, samples, warnings and rank 0's steps have the format of
// the lines in metrics.jsonl, evaluations.jsonl and so on. Steps of other ranks have only the keys that
// differ between ranks: time, wait for data, memory.
std::string facts_json(const RunEvent& event);

}  // namespace primus
