// Pipeline schedules: which stage does what in which order. A schedule is a pure function of its kind, the
// number of stages, of chunks on each stage and of microbatches; no device is needed to make or to check one.
//
// A model is cut into parts of consecutive blocks. Each stage (rank) holds `chunks` of them. A forward pass
// visits the parts upwards, a backward pass downwards; what goes from one stage to another is sent.
//
//   GPipe             Huang et al. 2018, arXiv:1811.06965: all forward passes, then all backward passes
//   1F1B              Narayanan et al. 2021, arXiv:2104.04473, section 2.2.1
//   interleaved 1F1B  the same, section 2.2.2: stage s holds parts s, s + stages, s + 2 stages ...
//   zero bubble H1    Qi et al. 2023, arXiv:2401.10241, section 2.1: weight gradients fill the gaps
//   zero bubble V     the same, appendix; V-Half and V-Min: Qi et al. 2024, arXiv:2405.15362. Stage s holds
//   the
//                     parts s and 2 stages - 1 - s, so that the first stage has the loss, too.
//
// Order of transfers. All work of all stages is put into one order, by the time at which it happens when
// the forward pass and either gradient of a chunk take equally long and transfers take no time. A stage's
// list is its part of that order, and a transfer has one place in it for its sender and its receiver. So
// stages that run their lists one item after the other, and wait in every transfer for the other side, never
// deadlock.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace primus::engine {

enum class ScheduleKind : std::uint8_t {
  kGPipe,
  kOneForwardOneBackward,
  kInterleaved,
  kZeroBubbleH1,
  kZeroBubbleV,
  kVHalf,
  kVMin,
};

struct ScheduleTraits {
  ScheduleKind kind;
  std::string_view name;   // in experiments and on the command line, as Primus calls it (pp_algorithm)
  std::string_view title;  // for people
  bool splits_backward;    // weight gradients are work of their own
  bool v_shaped;           // two chunks, the second in the reverse order of stages
};
// All kinds, in the order of the enumeration.
const std::vector<ScheduleTraits>& schedule_kinds();
const ScheduleTraits& traits_of(ScheduleKind kind);
// By its name; empty: none has it.
std::optional<ScheduleKind> schedule_named(std::string_view name);

// Which part of the model is which chunk of which stage.
struct PipelineShape {
  int stages = 1, chunks = 1;
  bool v_shaped = false;

  int parts() const { return stages * chunks; }
  int part(int stage, int chunk) const {
    return chunk * stages + (v_shaped && chunk % 2 == 1 ? stages - 1 - stage : stage);
  }
  int chunk_of(int part) const { return part / stages; }
  int stage_of(int part) const {
    const int place = part % stages;
    return v_shaped && chunk_of(part) % 2 == 1 ? stages - 1 - place : place;
  }
};

struct Work {
  enum class Kind : std::uint8_t {
    kForward,
    kBackward,  // of inputs; of weights, too, unless the schedule splits them off
    kWeight,    // gradients of weights, in schedules that split backward passes
    kSend,
    kReceive,
  };
  Kind kind = Kind::kForward;
  int chunk = 0;  // of this stage
  std::int64_t microbatch = 0;
  // Transfers only: the gradient of the chunk's input (sent) or output (received) instead of the chunk's
  // output (sent) or input (received); and the other stage.
  bool gradient = false;
  int peer = -1;

  bool transfer() const { return kind == Kind::kSend || kind == Kind::kReceive; }
  bool operator==(const Work&) const = default;
};

// "F3": the forward pass of microbatch 3, with a ' for each further chunk; likewise B and W. "send F3": what
// that pass made; "receive B3": the gradient of what the chunk's output is.
std::string label_of(const Work& work);
// F, B or W.
char letter_of(Work::Kind kind);

struct PipelineSchedule {
  ScheduleKind kind = ScheduleKind::kOneForwardOneBackward;
  PipelineShape shape;
  std::int64_t microbatches = 1;
  std::vector<std::vector<Work>> stages;  // the list of each
};

// Chunks that each stage has under this kind: 1, 2, or what the caller wants (interleaved, GPipe).
// Throws Error(kInvalid), which names the number to change and to what, where the kind cannot have these
// numbers.
void check_schedule(ScheduleKind kind, int stages, int chunks, std::int64_t microbatches);
// Calls check_schedule. A single stage has no transfers.
PipelineSchedule make_schedule(ScheduleKind kind, int stages, int chunks, std::int64_t microbatches);

// How long work takes, in any unit.
struct PipelineCosts {
  double forward = 1, backward = 1, weight = 1;  // of one chunk; `backward` is that of inputs only
  double transfer = 0;
};

struct TimedWork {
  Work work;
  double start = 0, end = 0;
};

struct PipelineTimeline {
  std::vector<std::vector<TimedWork>> stages;
  double makespan = 0;
  double bubble = 0;  // share of all stages' time until the makespan in which they compute nothing
  // Of each stage: the largest number of (chunk, microbatch) whose activations are held at once, from the
  // start of the forward pass to the end of the last backward work.
  std::vector<int> peak_stash;
};

// Fills in the figures of a timeline from its `stages`.
void summarize(PipelineTimeline& timeline, bool splits_backward);

// When each item of a schedule runs. Stages compute one thing after the other. Transfers run beside that, one
// after the other on each stage; a receiver computes once the data is there. Throws std::logic_error for
// lists that deadlock.
PipelineTimeline simulate(const PipelineSchedule& schedule, const PipelineCosts& costs = {});

}  // namespace primus::engine
