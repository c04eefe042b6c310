// Pipeline schedules: the work of each stage and its order. A schedule depends only on its kind and on the
// numbers of stages, chunks per stage and microbatches. Building or checking a schedule needs no device.
//
// A model is cut into parts of consecutive blocks. Each stage (rank) holds `chunks` parts. A forward pass
// visits the parts in ascending order, a backward pass in descending order. Activations and gradients that
// cross stages are sent.
//
//   GPipe             Huang et al. 2018, arXiv:1811.06965: all forward passes, then all backward passes
//   1F1B              Narayanan et al. 2021, arXiv:2104.04473, section 2.2.1
//   interleaved 1F1B  the same, section 2.2.2: stage s holds parts s, s + stages, s + 2 stages ...
//   zero bubble H1    Qi et al. 2023, arXiv:2401.10241, section 2.1: weight gradients fill the gaps
//   zero bubble V     the same, appendix; V-Half and V-Min: Qi et al. 2024, arXiv:2405.15362.
//                     Stage s holds the parts s and 2 stages - 1 - s: the first stage also has the
//                     loss.
//
// Order of transfers. All work of all stages is sorted by start time. This assumes that the forward pass, the
// input gradient and the weight gradient of a chunk take equally long, and that transfers take no time. A
// stage's list has the stage's items in that order. Sender and receiver have the same order of transfers. So
// a stage can run the items of its list in order and block in every transfer, without a deadlock.
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
  std::string_view name;   // name in experiments and on the command line, as in AMD Primus (pp_algorithm)
  std::string_view title;  // for display
  bool splits_backward;    // weight gradients are separate work
  bool v_shaped;           // two chunks, the second in the reverse order of stages
};
// All kinds, in enumeration order.
const std::vector<ScheduleTraits>& schedule_kinds();
const ScheduleTraits& traits_of(ScheduleKind kind);
// Returns the kind with this name, or nullopt.
std::optional<ScheduleKind> schedule_named(std::string_view name);

// Maps parts of the model to chunks of stages.
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
    kBackward,  // input gradients; also weight gradients if these are not separate work
    kWeight,    // weight gradients, in schedules that split backward passes
    kSend,
    kReceive,
  };
  Kind kind = Kind::kForward;
  int chunk = 0;  // index on this stage
  std::int64_t microbatch = 0;
  // Only for transfers. If `gradient` is true, a send carries the gradient of the chunk's input, and a
  // receive that of the chunk's output. If it is false, a send carries the chunk's output, and a receive the
  // chunk's input. `peer`: the other stage.
  bool gradient = false;
  int peer = -1;

  bool transfer() const { return kind == Kind::kSend || kind == Kind::kReceive; }
  bool operator==(const Work&) const = default;
};

// Returns a short label. "F3": the forward pass of microbatch 3; the label of chunk n ends with n
// apostrophes. B: backward pass; W: weight gradient. "send F3": the output of that pass; "receive B3": the
// gradient of the chunk's output.
std::string label_of(const Work& work);
// Returns F, B or W.
char letter_of(Work::Kind kind);

struct PipelineSchedule {
  ScheduleKind kind = ScheduleKind::kOneForwardOneBackward;
  PipelineShape shape;
  std::int64_t microbatches = 1;
  std::vector<std::vector<Work>> stages;  // one list per stage
};

// Checks the numbers. The kind determines whether a stage has 1 chunk, 2 chunks, or any number (interleaved,
// GPipe). Throws Error(kInvalid) if the kind does not support these numbers. The message names the number to
// change and a valid value.
void check_schedule(ScheduleKind kind, int stages, int chunks, std::int64_t microbatches);
// Builds a schedule after check_schedule(). A single stage has no transfers.
PipelineSchedule make_schedule(ScheduleKind kind, int stages, int chunks, std::int64_t microbatches);

// Durations of work, in any unit.
struct PipelineCosts {
  double forward = 1, backward = 1, weight = 1;  // per chunk; `backward` covers only input gradients
  double transfer = 0;
};

struct TimedWork {
  Work work;
  double start = 0, end = 0;
};

struct PipelineTimeline {
  std::vector<std::vector<TimedWork>> stages;
  double makespan = 0;
  double bubble = 0;  // idle fraction of the time of all stages, up to the makespan
  // Per stage: the maximum number of (chunk, microbatch) pairs whose activations are held at the same time,
  // from the start of the forward pass to the end of the last backward work.
  std::vector<int> peak_stash;
};

// Computes the other members of a timeline from its `stages`.
void summarize(PipelineTimeline& timeline, bool splits_backward);

// Returns the time at which each item of a schedule runs. Each stage computes one item at a time. Transfers
// overlap computation and run one after another on each stage; a receiver computes after the data has
// arrived. Throws std::logic_error for lists that deadlock.
PipelineTimeline simulate(const PipelineSchedule& schedule, const PipelineCosts& costs = {});

}  // namespace primus::engine
