// Records the work that a training step enqueues, and replays it (Device::capture). A replay starts a part of
// a step with one host call instead of one per kernel, and does not run the tape and the schedule.
//
// The first steps run normally, so that libraries choose algorithms and load kernels. The next step is
// recorded part by part while it runs; all later steps are replayed. A replay repeats the recorded launches
// on the recorded addresses. So each part must begin and end with an empty stash, because evaluations and
// samples may use the stash in between. No launch may contain a value that changes from step to step
// (turbo/step_scalars.h). Copies from the host are enqueued before a part and are never recorded.
//
// A step is recorded or replayed completely, because a replay does not update the host's bookkeeping. Only
// one stream is recorded, so the rank must train without other ranks. Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "engine/rank.h"

namespace primus {

class StepGraphs {
 public:
  // Parts in the order of a step. The first microbatch assigns gradients; further microbatches add to them.
  enum class Part : std::uint8_t { kFirstMicrobatch, kFurtherMicrobatch, kGradients, kUpdate };
  static constexpr std::size_t kParts = 4;

  // `after`: number of steps that run before one is recorded, if the device supports recording
  // (DeviceProperties::graphs); 0: never record. `further`: whether steps have more than one microbatch.
  StepGraphs(engine::Rank& rank, std::int64_t after, bool further)
      : rank_(rank), after_(after), further_(further) {}

  // Decides how the next step runs. `plain`: the step runs kernel by kernel, even if a recording exists.
  void begin_step(bool plain);
  // Whether the step is replayed; the `work` of its parts is then not called.
  bool replaying() const { return mode_ == Mode::kReplay; }
  // Whether enqueued work is being recorded.
  bool recording() const { return recording_; }

  // Runs a part of the step. `work` enqueues its kernels on the compute stream. `inputs` enqueues the copies
  // from the host that `work` skips while recording(). Throws the errors of `work`, and Error if the device
  // refuses to record it.
  void run(
      Part part, const std::function<void()>& work, const std::function<void()>& inputs = [] {});

  // Number of replayed steps so far.
  std::int64_t replayed_steps() const { return replayed_steps_; }
  bool recorded() const;
  // Device::choices(), including replayed calls.
  std::vector<KernelChoice> choices() const;

 private:
  enum class Mode : std::uint8_t { kPlain, kRecord, kReplay };
  struct Recorded {
    std::unique_ptr<Graph> graph;
    std::vector<KernelChoice> choices;  // kernel choices of the part
    std::int64_t replays = 0;           // number of replays, without the launch in the recorded step
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
