// Loads the initial state of a training run (its own newest checkpoint, or other weights) and saves its
// checkpoints. Internal to lm/train. Not thread-safe; an AsyncWriter writes the files on its own thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lm/checkpoint/checkpoint.h"
#include "lm/model/weights.h"
#include "lm/train/memory_snapshots.h"
#include "lm/train/run_plan.h"
#include "lm/train/run_trace.h"
#include "lm/train/step/session.h"

namespace primus {

class Checkpointer {
 public:
  // All arguments must outlive this object. `trace` may be null.
  Checkpointer(RunPlan& plan, RunProgress& progress, TrainingSession& session, RunTrace* trace);

  // Loads the run's newest checkpoint. If there is no checkpoint, loads the weights that `load` names, or
  // initializes the weights.
  void load_or_initialize();
  // If the run was resumed, logs which settings changed since the checkpoint, and how the changes affect the
  // data. `over`: whether the run has no steps left. In this case, the changes are added to
  // RunProgress::rule_changes.
  void log_changes(bool over);
  // Locks the checkpoint folder for this run, and builds the files that accompany the weights.
  void open();
  // If auto_continue_train is off, moves the checkpoints of an earlier run to another folder.
  void set_aside();

  // Saves weights and optimizer state of this iteration, if these are not saved yet. Call this function after
  // reading the result of the last step. Returns when the next step may start; wait() waits until the files
  // are written.
  void save();
  void wait() { writer_->wait(); }
  // Waits until weights and moments may change again.
  void wait_copied();
  // Takes a snapshot in memory, if the run takes any (MemorySnapshots). The conditions are as for save().
  void take_snapshot();
  // Whether the run continues from a snapshot in memory, and has no checkpoint of this step yet.
  bool is_only_in_memory() const;
  // Returns where the state was loaded from, as RunFacts::state_from.
  const std::string& state_from() const { return state_from_; }
  // Rethrows an error of the writer. For each checkpoint that has become durable, logs once how it was
  // written.
  void check();
  void log_written();
  std::optional<std::string> newest() const;

  // The run's checks for silent corruption found nothing up to `iteration`: keeps the newest checkpoint up to
  // there, in addition to keep_latest, because later ones may turn out to be damaged.
  void keep_behind(std::int64_t iteration) { keep_behind_->store(iteration); }
  // States after iteration `good` may be damaged. Prevents that a later start uses them: no snapshot in
  // memory is used, and rank 0 moves the checkpoints to another folder (CheckpointRoot::set_aside_after) when
  // the save in progress has ended. If this process is killed before that, the next one moves them. Moves
  // nothing if this process has continued from a later checkpoint, and none up to `good` is left. All ranks
  // must call it, and get the same result. Errors of files become a result that does not recover.
  struct SetAside {
    bool recovers = false;  // whether the same command continues, or begins, before the damage
    std::string text;       // what was done, or why it does not recover, for an error's hint
  };
  SetAside set_aside_after(std::int64_t good);

 private:
  // The steps of set_aside_after() on rank 0. `may_begin`: whether the run may start from the beginning.
  void note_suspects(std::int64_t good, bool may_begin) const;
  SetAside move_suspects(std::int64_t good, bool may_begin) const;
  // Completes set_aside_after() of a process that was killed meanwhile. All ranks must call it.
  void finish_set_aside() const;
  // Returns the newest valid checkpoint in `root`. Damaged ones become RunProgress::findings.
  ResumePoint resume_point(const Path& root) const;
  // Warns if the run has records of steps, but no checkpoint to continue from.
  void warn_of_lost_steps() const;
  // Warns if the run to which the loaded `checkpoint` belongs is still being trained.
  void warn_of_training_base(const Path& checkpoint) const;
  void continue_run(const CheckpointReader& checkpoint);
  // Continues from a snapshot in memory if there is one that is newer than the newest checkpoint. Returns
  // whether it does.
  bool continue_from_memory();
  // Restores the progress of the run from a checkpoint's or snapshot's state.
  void restore_progress(const TrainerState& state, const CheckpointReader& checkpoint);
  void resume_from(const CheckpointReader& checkpoint);
  void finetune_from(const CheckpointReader& checkpoint);
  // Returns whether a run of `train_iters` steps would read the same samples in the same order as this run,
  // up to the end of the shorter run. Compares at most 64 samples, spread evenly over the shorter run.
  bool keeps_samples(std::int64_t train_iters) const;
  // Logs a note if the run named by `load` has newer checkpoints than the start of this run.
  void log_newer_base(const TrainerState& state);
  // Logs if changed settings cause a jump of the learning rate.
  void log_rate(const TrainerState& state, const std::vector<SettingChange>& changes) const;
  // Loads delayed FP8 scales, if the precision recipe has them, and logs how many layers have no scales in
  // the checkpoint.
  void load_scales_of_fp8(const CheckpointReader& checkpoint);
  // Restores the state of the loss rule. Without optimizer states, the checkpoint has none.
  void restore_rule(const CheckpointReader& checkpoint, bool has_states);
  std::vector<Snapshot::Blob> make_model_files() const;
  std::string trainer_state() const;
  // All ranks take the time of the training clock from rank 0.
  void agree_on_clock();

  RunPlan& plan_;
  RunProgress& progress_;
  TrainingSession& session_;
  engine::Rank& rank_;
  RunTrace* trace_;
  const Path root_;
  std::optional<TrainerState> resumed_;  // the state from which the run was resumed
  bool resumes_own_ = false;  // whether the state came from a checkpoint of this run, not from `load`
  std::optional<RunLock> lock_;
  std::vector<Snapshot::Blob> model_files_;  // files that every checkpoint contains in addition to the
                                             // weights
  DeviceReader reader_;
  MemorySnapshots snapshots_;
  std::string state_from_;
  std::shared_ptr<std::atomic<std::int64_t>> keep_behind_ = std::make_shared<std::atomic<std::int64_t>>(-1);
  std::unique_ptr<AsyncWriter> writer_;  // declared after all members that its thread reads, so that it is
                                         // destroyed first
  std::int64_t last_saved_ = -1, last_logged_ = -1;
};

}  // namespace primus
