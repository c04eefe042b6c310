// The part of Checkpointer for snapshots in memory.
#include <utility>

#include "lm/train/checkpointer.h"
#include "lm/train/training_clock.h"

namespace primus {

bool Checkpointer::continue_from_memory() {
  if (!snapshots_.on()) return false;
  // Only rank 0 reads the folder of the checkpoints, which may be slow.
  const std::int64_t on_disk =
      plan_.ranks.from_first(plan_.ranks.first() ? CheckpointRoot(root_).latest().value_or(0) : 0);
  const std::optional<MemorySnapshots::Restored> restored = snapshots_.restore(on_disk);
  if (!restored) return false;
  const TrainerState state = read_trainer_state(restored->reader);
  progress_.base_weights = state.base_weights;
  resumes_own_ = true;
  state_from_ = restored->from_partner ? "partner" : "memory";
  restore_progress(state, restored->reader);
  return true;
}

void Checkpointer::restore_progress(const TrainerState& state, const CheckpointReader& checkpoint) {
  progress_.iteration = checkpoint.iteration();
  if (progress_.clock && state.clock) progress_.clock->restore(*state.clock);
  progress_.nan_iterations = state.nan_iterations;
  progress_.good_checks = state.good_checks;
  progress_.result.loss = state.lm_loss;
  plan_.log.info("continuing from {} (iteration {})", checkpoint.folder().string(), progress_.iteration);
  log_newer_base(state);
  progress_.last_rate = state.learning_rate;
  resumed_ = state;
}

bool Checkpointer::is_only_in_memory() const {
  return (state_from_ == "memory" || state_from_ == "partner") && last_saved_ != progress_.iteration;
}

void Checkpointer::take_snapshot() {
  if (!snapshots_.on()) return;
  const comm::Activity busy = plan_.ranks.busy("taking a snapshot");
  const RunTrace::HostWork taken(trace_, "begin a snapshot");
  const double began = monotonic_seconds();
  const MemorySnapshots::Settled before = snapshots_.settle();
  if (before.completed) plan_.monitor->checkpoint(*before.completed, CheckpointFacts::State::kInMemory);
  if (!before.free)
    return plan_.log.debug("no snapshot of iteration {}: one is still being written or copied",
                           progress_.iteration);
  agree_on_clock();
  rank_.synchronize();
  // The event also writes the records of the steps before it, which a restart does not repeat.
  plan_.monitor->checkpoint(progress_.iteration, CheckpointFacts::State::kCopying);
  snapshots_.take(progress_.iteration, trainer_state());
  plan_.log.debug("snapshot of iteration {}: training paused {:.1f} ms", progress_.iteration,
                  1e3 * (monotonic_seconds() - began));
}

void Checkpointer::wait_copied() {
  writer_->wait_copied();
  snapshots_.wait_copied();
}

}  // namespace primus
