#include "lm/train/step/step_graphs.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace primus {
namespace {

// Returns the calls counted after `before`.
std::vector<KernelChoice> since(const std::vector<KernelChoice>& before, std::vector<KernelChoice> now) {
  // Existing entries keep their positions; new entries are appended.
  for (std::size_t i = 0; i < before.size(); ++i) now[i].calls -= before[i].calls;
  std::erase_if(now, [](const KernelChoice& choice) { return choice.calls == 0; });
  return now;
}

}  // namespace

bool StepGraphs::recorded() const {
  for (std::size_t i = 0; i < kParts; ++i) {
    const bool needed = further_ || static_cast<Part>(i) != Part::kFurtherMicrobatch;
    if (needed && !parts_[i].graph) return false;
  }
  return true;
}

void StepGraphs::begin_step(bool plain) {
  const bool wanted = after_ > 0 && completed_steps_ >= after_ && !rank_.measuring();
  if (plain || !wanted) {
    mode_ = Mode::kPlain;
  } else {
    mode_ = recorded() ? Mode::kReplay : Mode::kRecord;
  }
}

void StepGraphs::record(Recorded& part, const std::function<void()>& work) {
  const std::vector<KernelChoice> before = rank_.device().choices();
  recording_ = true;
  try {
    part.graph = rank_.device().capture(rank_.compute(), work);
  } catch (const Error& error) {
    recording_ = false;
    throw Error(error.kind(), std::string("recording a training step failed: ") + error.what(),
                "train without graphs: enable_cuda_graph=false");
  } catch (...) {
    recording_ = false;
    throw;
  }
  recording_ = false;
  PRIMUS_CHECK("StepGraphs::record", part.graph);
  part.choices = since(before, rank_.device().choices());
}

void StepGraphs::run(Part part, const std::function<void()>& work, const std::function<void()>& inputs) {
  Recorded& recorded = of(part);
  // Replays write to the addresses of the recording, which began with an empty stash.
  PRIMUS_CHECK("StepGraphs::run", mode_ == Mode::kPlain || rank_.stash().empty());
  if (mode_ == Mode::kReplay) {
    inputs();
    recorded.graph->launch(rank_.compute());
    ++recorded.replays;
  } else if (mode_ == Mode::kRecord && !recorded.graph) {
    record(recorded, work);
    inputs();
    recorded.graph->launch(rank_.compute());
  } else {
    // This is a plain step, or the step being recorded repeats a part that is already recorded. A repeated
    // part runs as in a plain step, because only `work` updates the state of the host code.
    work();
  }
  if (part != Part::kUpdate) return;
  ++completed_steps_;
  replayed_steps_ += mode_ == Mode::kReplay ? 1 : 0;
}

std::vector<KernelChoice> StepGraphs::choices() const {
  std::vector<KernelChoice> all = rank_.device().choices();
  for (const Recorded& part : parts_) {
    for (const KernelChoice& choice : part.choices) {
      const auto same = std::ranges::find(all, choice.what, &KernelChoice::what);
      if (same != all.end()) same->calls += choice.calls * part.replays;
    }
  }
  return all;
}

}  // namespace primus
