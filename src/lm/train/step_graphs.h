// Records what a training step enqueues, and replays it (Device::capture): the host then starts a part of a
// step with one call, in place of one for each kernel, and runs neither the tape nor the schedule.
//
// The first steps run as they are, so that libraries choose algorithms and load kernels. Then one step is
// recorded, part by part, while it runs; every later one is replayed. A replay does the recorded launches on
// the recorded addresses. So a part must begin and end with an empty stash, which lets evaluations and
// samples use it in between, and its launches must hold no number of the step (turbo/step_scalars.h). What
// comes from the host is enqueued in front of a part and is never recorded.
//
// A step is recorded or replayed as a whole, because the host's books of a replayed step are not kept. One
// stream is recorded: a rank that is alone. Not thread-safe.
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
  // In the order of a step. The first microbatch assigns gradients, further ones add to them.
  enum class Part : std::uint8_t { kFirstMicrobatch, kFurtherMicrobatch, kGradients, kUpdate };
  static constexpr std::size_t kParts = 4;

  // `after`: steps that run before one is recorded, on a device that can (DeviceProperties::graphs); 0: none
  // ever is. `further`: steps have further microbatches.
  StepGraphs(engine::Rank& rank, std::int64_t after, bool further)
      : rank_(rank), after_(after), further_(further) {}

  // Decides how the next step runs. `plain`: kernel by kernel, whatever was recorded.
  void begin_step(bool plain);
  // The step is replayed: `work` of its parts does not run.
  bool replaying() const { return mode_ == Mode::kReplay; }
  // What is enqueued now is recorded.
  bool recording() const { return recording_; }

  // Runs a part of the step. `work` enqueues its kernels on the compute stream. `inputs` enqueues copies from
  // the host, where `work` did not because recording() was true. Throws what `work` throws, and Error when
  // the device refuses to record it.
  void run(
      Part part, const std::function<void()>& work, const std::function<void()>& inputs = [] {});

  // Steps that were replayed so far.
  std::int64_t replayed_steps() const { return replayed_steps_; }
  bool recorded() const;
  // Device::choices(), with what replays repeated.
  std::vector<KernelChoice> choices() const;

 private:
  enum class Mode : std::uint8_t { kPlain, kRecord, kReplay };
  struct Recorded {
    std::unique_ptr<Graph> graph;
    std::vector<KernelChoice> choices;  // of its kernels
    std::int64_t replays = 0;           // beyond the launch in the recorded step
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
