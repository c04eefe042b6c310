// Records the work that a training step enqueues, and replays the recording in later steps (Device::capture).
// A replay starts a part of a step with one host call instead of one call per kernel. A replay does not run
// the host code of tape and schedule.
//
// The first steps run normally, so that libraries choose algorithms and load kernels. The next step is
// recorded part by part while it runs; all later steps are replayed. A replay repeats the recorded launches
// with the recorded addresses. Evaluations and samples may use the stash between parts, so each part must
// begin and end with an empty stash. No launch may contain a value that changes from step to step
// (turbo/step_scalars.h). Copies from the host are enqueued before a part and are never recorded.
//
// Recording and replay always cover all parts of a step, because a replay does not update the state of the
// host code. Only one stream is recorded, so the rank must train without other ranks. Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "engine/runtime/rank.h"

namespace primus {

class StepGraphs {
 public:
  // The parts of a step, in order. The first microbatch overwrites the gradients; further microbatches add to
  // them.
  enum class Part : std::uint8_t { kFirstMicrobatch, kFurtherMicrobatch, kGradients, kUpdate };
  static constexpr std::size_t kParts = 4;

  // `after`: number of steps that run normally before a step is recorded, if the device supports recording
  // (DeviceProperties::graphs); 0: no step is recorded. `further`: whether steps have more than one
  // microbatch.
  StepGraphs(engine::Rank& rank, std::int64_t after, bool further)
      : rank_(rank), after_(after), further_(further) {}

  // Chooses how the next step runs. `plain`: the step runs kernel by kernel, even if there is a recording.
  void begin_step(bool plain);
  // Returns whether the step is replayed; if so, run() does not call `work`.
  bool replaying() const { return mode_ == Mode::kReplay; }
  // Returns whether the work that is being enqueued is also recorded.
  bool recording() const { return recording_; }

  // Runs a part of the step. `work` enqueues its kernels on the compute stream. `inputs` enqueues the copies
  // from the host that `work` skips while recording(). Throws the errors of `work`, and Error if the device
  // refuses the recording.
  void run(
      Part part, const std::function<void()>& work, const std::function<void()>& inputs = [] {});

  // Returns the number of replayed steps so far.
  std::int64_t replayed_steps() const { return replayed_steps_; }
  bool recorded() const;
  // Returns Device::choices(), with replayed calls counted.
  std::vector<KernelChoice> choices() const;

 private:
  enum class Mode : std::uint8_t { kPlain, kRecord, kReplay };
  struct Recorded {
    std::unique_ptr<Graph> graph;
    std::vector<KernelChoice> choices;  // kernel choices that were made in this part
    std::int64_t replays = 0;           // number of replays, not counting the launch in the step that was
                                        // recorded
  };
  Recorded& of(Part part) { return parts_[static_cast<std::size_t>(part)]; }
  void record(Recorded& part, const std::function<void()>& work);

  engine::Rank& rank_;
  std::int64_t after_;
  bool further_, recording_ = false;
  Mode mode_ = Mode::kPlain;
  std::int64_t completed_steps_ = 0, replayed_steps_ = 0;
  std::array<Recorded, kParts> parts_;
};

}  // namespace primus
