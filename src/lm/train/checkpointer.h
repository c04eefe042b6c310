// Loads what a training run begins with, its own newest checkpoint or other weights, and saves its
// checkpoints. Internal to lm/train. One thread; writing runs on one of its own (AsyncWriter).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lm/checkpoint/checkpoint.h"
#include "lm/model/weights.h"
#include "lm/train/run_plan.h"
#include "lm/train/run_trace.h"
#include "lm/train/session.h"

namespace primus {

class Checkpointer {
 public:
  // All must outlive this. `trace` may be null.
  Checkpointer(RunPlan& plan, RunProgress& progress, TrainingSession& session, RunTrace* trace);

  // Loads the run's newest checkpoint, or what `load` names, or initialises the weights. Says what has
  // changed since.
  void load_or_initialize();
  // Takes the folder of checkpoints for this run, and makes the files that lie beside the weights.
  void open();
  // With auto_continue_train off: puts the checkpoints of an earlier run aside.
  void set_aside();

  // Saves the weights and states of this iteration, unless it is saved. The last step must have been asked
  // for. Returns once the device may go on; wait() waits for the files.
  void save();
  void wait() { writer_->wait(); }
  // Weights and moments may change only after this.
  void wait_copied() { writer_->wait_copied(); }
  // Throws what went wrong while writing; says once of each checkpoint that is durable how it was written.
  void check();
  void log_written();
  std::optional<std::string> newest() const;

 private:
  // The newest good checkpoint in `root`; damaged ones are named in the log.
  ResumePoint resume_point(const Path& root) const;
  void continue_run(const CheckpointReader& checkpoint);
  void resume_from(const CheckpointReader& checkpoint);
  void finetune_from(const CheckpointReader& checkpoint);
  // Says which settings have changed since the checkpoint, and what that means for the data.
  void tell_changes(const TrainerState& state, const std::optional<InputIdentity>& data);
  // Says that the run behind `load` has trained on since this one began.
  void tell_newer_base(const TrainerState& state);
  // Says where the changed settings make the rate jump.
  void tell_rate(const TrainerState& state, const std::vector<SettingChange>& changes) const;
  // Says for how many layers the checkpoint has none. With a recipe that has delayed scales, else nothing.
  void load_scales_of_fp8(const CheckpointReader& checkpoint);
  std::vector<Snapshot::Blob> make_model_files() const;
  std::string trainer_state() const;

  RunPlan& plan_;
  RunProgress& progress_;
  TrainingSession& session_;
  engine::Rank& rank_;
  RunTrace* trace_;
  const Path root_;
  std::optional<RunLock> lock_;
  std::vector<Snapshot::Blob> model_files_;  // of every checkpoint, beside the weights
  DeviceReader reader_;
  std::unique_ptr<AsyncWriter> writer_;  // after what its sources read
  std::int64_t last_saved_ = -1, last_logged_ = -1;
};

}  // namespace primus
