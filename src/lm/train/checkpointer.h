// Loads the initial state of a training run (its own newest checkpoint, or other weights) and saves its
// checkpoints. Internal to lm/train. Call from one thread; an AsyncWriter writes the files on its own thread.
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
  // All arguments must outlive this object. `trace` may be null.
  Checkpointer(RunPlan& plan, RunProgress& progress, TrainingSession& session, RunTrace* trace);

  // Loads the run's newest checkpoint, or the weights that `load` names, or initialises the weights. Logs
  // which settings changed since the checkpoint.
  void load_or_initialize();
  // Locks the checkpoint folder for this run, and builds the files that accompany the weights.
  void open();
  // If auto_continue_train is off, moves the checkpoints of an earlier run aside.
  void set_aside();

  // Saves weights and optimizer state of this iteration, unless they are saved already. Call it after the
  // result of the last step was read. Returns when the device may continue; wait() waits for the files.
  void save();
  void wait() { writer_->wait(); }
  // Waits until weights and moments may change again.
  void wait_copied() { writer_->wait_copied(); }
  // Rethrows an error of the writer. Logs once per durable checkpoint how it was written.
  void check();
  void log_written();
  std::optional<std::string> newest() const;

 private:
  // Returns the newest valid checkpoint in `root`; logs damaged ones.
  ResumePoint resume_point(const Path& root) const;
  void continue_run(const CheckpointReader& checkpoint);
  void resume_from(const CheckpointReader& checkpoint);
  void finetune_from(const CheckpointReader& checkpoint);
  // Whether a run of `train_iters` steps reads the same samples in the same order as this run, up to the end
  // of the shorter run. Compares samples at places spread over the shorter run.
  bool keeps_samples(std::int64_t train_iters) const;
  // Logs which settings changed since the checkpoint, and how that affects the data.
  void log_changes(const TrainerState& state, const std::optional<InputIdentity>& data);
  // Logs that the run named by `load` has trained further since the present run started.
  void log_newer_base(const TrainerState& state);
  // Logs if changed settings make the learning rate jump.
  void log_rate(const TrainerState& state, const std::vector<SettingChange>& changes) const;
  // Loads delayed FP8 scales, if the precision recipe has them, and logs how many layers have no scales in
  // the checkpoint.
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
  std::vector<Snapshot::Blob> model_files_;  // files saved with the weights in every checkpoint
  DeviceReader reader_;
  std::unique_ptr<AsyncWriter> writer_;  // declared after all members that its sources read
  std::int64_t last_saved_ = -1, last_logged_ = -1;
};

}  // namespace primus
