// Keeps the newest states of a rank in this host's memory (snapshot_interval), and restores them after a
// fault. A supervisor (--supervise) owns the folder in memory, starts the ranks again, and copies the
// snapshots to another host.
//
// A snapshot has all tensors that the rank stores, as plain bytes: weights, master weights, optimizer states,
// delayed FP8 scales. It fits only the same rank of the same mesh. It has the form of a checkpoint of one
// rank, so it appears atomically and has checksums. At most two snapshots of a rank exist: the newest
// snapshot that all ranks have completed, and the snapshot that is being written or copied. If writing takes
// longer than snapshot_interval, the next snapshot is left out.
//
// All ranks must make the same calls in the same order. Errors: a snapshot that cannot be written is
// reported, and the run continues. Thread-safety: none; an AsyncWriter writes on its own thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lm/checkpoint/checkpoint.h"
#include "lm/checkpoint/snapshot_folder.h"
#include "lm/model/weights.h"
#include "lm/train/run_plan.h"
#include "lm/train/step/session.h"

namespace primus {

// Returns the trainer state of this rank's newest snapshot on this host, for settings that must be known
// before a snapshot can be loaded. Empty if there is none that can be read, or if snapshots are not wanted.
std::optional<TrainerState> newest_snapshot_state(const RunPlan& plan, bool wanted);

class MemorySnapshots {
 public:
  // `wanted`: whether snapshot_interval is set. All other arguments must outlive this object.
  MemorySnapshots(RunPlan& plan, TrainingSession& session, DeviceReader& reader, bool wanted);
  // Whether snapshots are taken: they are wanted, and a supervisor has made a folder.
  bool on() const { return folder_.has_value(); }

  // Finds the newest snapshot after the step `checkpoint` that all ranks have, or can fetch from another
  // host, and that is valid on all ranks. Loads it. Returns its reader, for the facts that are no tensors.
  // `from_partner`: whether a rank has fetched it from another host or used a copy.
  struct Restored {
    CheckpointReader reader;
    bool from_partner = false;
  };
  std::optional<Restored> restore(std::int64_t checkpoint);
  // Begins the snapshots of this process. Removes all that cannot be used any more. Throws kInvalid if two
  // snapshots of each rank of this host do not fit into the folder.
  void open();

  // Records that the snapshots after this step may be damaged (also of earlier processes), so that
  // no later start uses them. Removes this rank's snapshots if they cannot be recorded. Returns whether a
  // record exists on any rank, which suffices.
  bool distrust_after(std::int64_t good);
  // Returns the step of the newest complete snapshot.
  std::optional<std::int64_t> newest() const {
    return complete_ ? std::optional(complete_->iteration) : std::nullopt;
  }

  // Looks whether the last snapshot is complete on all ranks: written, and copied to another host if there is
  // one that takes it. Never waits for this.
  struct Settled {
    std::optional<std::int64_t> completed = {};  // its step, if it has become complete
    bool free = false;                           // whether another snapshot may be taken
  };
  Settled settle();
  // Takes a snapshot of the current state, after settle() has returned `free`: `trainer_state` is the text of
  // a checkpoint's trainer_state.json. Returns when the next step may start.
  void take(std::int64_t iteration, std::string trainer_state);
  // Waits until weights and moments may change again.
  void wait_copied();

  // Returns the number of bytes of one snapshot of this rank.
  std::int64_t bytes() const;

 private:
  std::vector<TensorSource> sources();
  std::string place() const;
  bool is_valid(const Path& snapshot, std::optional<CheckpointReader>& reader, std::string& problem);
  bool obtain(const SnapshotId& id, bool& from_partner, std::string& problem);
  void load(const CheckpointReader& reader);
  bool is_done();
  bool record_distrust(std::int64_t good);
  bool has_copy(const SnapshotId& id);

  RunPlan& plan_;
  TrainingSession& session_;
  DeviceReader& reader_;
  std::optional<SnapshotFolder> folder_ = {};
  std::optional<SnapshotId> complete_ = {}, pending_ = {};
  std::string history_ = {};
  std::optional<std::string> failure_ = {};  // why the pending snapshot could not be written
  bool has_partners_ = false, warned_ = false, warned_of_copies_ = false, warned_of_time_ = false;
  int unfinished_ = 0;  // calls of settle() that found the pending snapshot incomplete
  std::unique_ptr<AsyncWriter> writer_ = {};
};

}  // namespace primus
