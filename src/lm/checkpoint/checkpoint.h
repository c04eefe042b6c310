// Training checkpoints. A checkpoint on disk is either complete or absent.
//
//   <root>/latest              a text file with one line: the name of the newest complete checkpoint
//   <root>/iter_0000100/       a Hugging Face model folder (config.json, model*.safetensors, ...), which also
//                              contains:
//     optimizer*.safetensors   master weights and optimizer states, named "<state>.<parameter>"
//     trainer_state.json       text of the caller: iteration, consumed samples, seed, ...
//     manifest.json            every file and tensor with its size, its location and its CRC32C
//                              (docs/formats/checkpoint.md)
//
// A save writes `.tmp-iter_0000100`, syncs every file and the folder, renames it, and only then replaces
// `latest`; old checkpoints are removed last. A crash at any moment therefore leaves the old or the new
// checkpoint. The next save or recover() removes leftover temporary files.
//
// Errors: kInvalid for a corrupt checkpoint (the message names the file or tensor and the defect); FileError,
// for example for a full disk (the message gives the needed and the free bytes). Only one job may write to a
// root at a time. The job is a single process, or the ranks of a CheckpointGroup. Each rank of the group
// writes its own part of the data. Thread-safety: see each class.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/files/file.h"
#include "lm/checkpoint/checkpoint_group.h"
#include "lm/checkpoint/manifest.h"
#include "lm/checkpoint/safetensors.h"
#include "lm/checkpoint/snapshot_buffer.h"

namespace primus {

// The contents of one checkpoint.
struct Snapshot {
  struct Blob {
    std::string name;  // file name without a folder: "config.json", "tokenizer.json", ...
    std::string content;
  };
  std::int64_t iteration = 0;
  std::vector<Blob> files;
  std::string trainer_state = "{}";  // content of trainer_state.json, a JSON object
  std::vector<TensorSource> model;   // the model's tensors, named by their Hugging Face names
  std::vector<TensorSource> optimizer;
};

// Returns the name of an optimizer tensor: "exp_avg" and "lm_head.weight" give "exp_avg.lm_head.weight". The
// optimizer chooses the names of its states. If the model's weights are narrower than fp32, the state
// "fp32_param" holds the master weights.
std::string optimizer_tensor_name(std::string_view state, std::string_view parameter);

struct SaveOptions {
  int keep_last = 0;  // number of checkpoints to keep, including the new one; 0: all
  std::uint64_t max_shard_bytes = 5'000'000'000;
  // The ranks that save together; each rank writes the elements that its sources hold. If null, this process
  // saves alone.
  std::shared_ptr<CheckpointGroup> group = {};
  // If set, the newest checkpoint of an iteration that does not exceed this number is kept, too. The number
  // may change at any time.
  std::shared_ptr<const std::atomic<std::int64_t>> keep_behind = {};
};

// The folder of one run's checkpoints. In a job, every rank may call save(); the other functions that change
// the folder are only for rank 0. Thread-safety: none; AsyncWriter has its own instance in its thread.
class CheckpointRoot {
 public:
  explicit CheckpointRoot(Path root, SaveOptions options = {}, Env& env = Env::posix());

  // Removes leftovers of an interrupted save. Only the writing process may call it, at its start.
  void recover();
  // Returns the iterations that have a checkpoint folder, oldest first. The folders contain complete
  // checkpoints, but the checkpoints are not validated.
  std::vector<std::int64_t> iterations() const;
  // Returns the iteration of the checkpoint named by `latest`, if this checkpoint exists. Otherwise sets
  // `problem` to a description of the problem with `latest`.
  std::optional<std::int64_t> latest(std::string* problem = nullptr) const;
  // Returns the folder of the checkpoint of `iteration`, whether the folder exists or not.
  Path folder(std::int64_t iteration) const;

  // For a run that starts from scratch: moves all checkpoints and `latest` to a new subfolder of the root:
  // `previous-1`, `previous-2` and so on. The new run never reads this subfolder. Returns the subfolder;
  // nullopt if there was nothing to move.
  std::optional<Path> set_aside();
  // Moves the checkpoints of iterations after `good` to a new subfolder, `suspect-1`, `suspect-2` and so on,
  // so that the run resumes from an older checkpoint. Returns the subfolder; nullopt if there was nothing to
  // move. No save may be in progress.
  std::optional<Path> set_aside_after(std::int64_t good);

  // Returns the iteration of the last checkpoint that this object saved durably.
  std::optional<std::int64_t> last_saved() const { return last_saved_; }
  // Returns the number of tensor bytes that this rank wrote for the checkpoint last_saved().
  const WrittenBytes& last_written() const { return last_written_; }

  // Writes one checkpoint. Returns when the checkpoint is durable and the oldest checkpoints are removed. If
  // an error occurs before the checkpoint is durable, the older checkpoints and `latest` are unchanged. A
  // folder named `latest` cannot be replaced by a file, so the folder is renamed to `latest-1`, `latest-2`,
  // ... With a group, all its ranks must call it; `files` and `trainer_state` come from rank 0.
  void save(const Snapshot& snapshot);

 private:
  Path replaced_folder(std::int64_t iteration) const;
  // Returns the first of prefix1, prefix2, ... that does not exist in the root.
  Path free_path(std::string_view prefix) const;
  void publish(const Path& temporary, std::int64_t iteration);
  void retire_old(std::int64_t newest);

  Path root_;
  SaveOptions options_;
  Env& env_;
  std::optional<std::int64_t> last_saved_;
  WrittenBytes last_written_;
};

enum class Validation {
  kFull,       // checks the CRC32C of every byte on opening
  kStructure,  // checks manifest, sizes and headers on opening, and a tensor's CRC32C when the tensor is read
};

// One validated checkpoint. Thread-safety: immutable after opening.
class CheckpointReader {
 public:
  // Opens a checkpoint. With a group, all its ranks must call open(). For kFull each rank reads and checks a
  // part of the bytes; if one rank finds an error, all ranks throw that error.
  static CheckpointReader open(const Path& folder, Validation validation = Validation::kFull,
                               Env& env = Env::posix(), CheckpointGroup* group = nullptr);

  std::int64_t iteration() const { return manifest_.iteration; }
  const Path& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }
  const std::string& trainer_state() const { return trainer_state_; }
  // Returns the content of a file that is not a shard, such as "config.json"; throws kInvalid if the manifest
  // does not list the file.
  std::string file(std::string_view name) const;

  // Finds a tensor. Tensors of the model have Hugging Face names; tensors of the optimizer are named
  // "<state>.<parameter>".
  std::optional<TensorView> find(TensorPart part, std::string_view name) const;
  // Copies a complete tensor to `out`. Throws kInvalid if the stored dtype or shape differs from the
  // arguments; the message names the difference.
  void read(TensorPart part, std::string_view name, DType dtype, std::span<const std::int64_t> shape,
            std::span<std::byte> out) const;
  // Copies only the elements of `runs`, which are index ranges that a rank holds. Elements are counted in
  // memory order. The threads of `pool`, if given, each copy a part.
  void read_runs(TensorPart part, std::string_view name, DType dtype, std::span<const std::int64_t> shape,
                 const AxisOrder& order, std::span<const StridedRun> runs, std::span<std::byte> out,
                 ThreadPool* pool = nullptr) const;

 private:
  void read_structure(const Path& folder, Validation validation, Env& env);
  void check_tensors() const;
  std::string check_share(int rank, int ranks) const;
  void check_shares(const std::vector<std::string>& shares) const;
  [[noreturn]] void refuse_tensor(const TensorRecord& record) const;
  void check_slice(const TensorRecord& record, const TensorView& tensor, const SliceRecord& slice) const;
  const TensorRecord* find_record(TensorPart part, std::string_view name) const;
  // Returns the manifest's record of a tensor; throws kInvalid if there is no such tensor.
  const TensorRecord& record(TensorPart part, std::string_view name) const;

  Path folder_;
  Manifest manifest_;
  std::string trainer_state_;
  Validation validation_ = Validation::kFull;
  Env* env_ = nullptr;
  // shards_[i] is the open file manifest_.files[i]; it is empty if that file is not a shard.
  std::vector<SafetensorsFile> shards_;
};

// The checkpoint to resume from. First choice: the checkpoint that `latest` names. Second choice: the newest
// valid checkpoint of an earlier iteration. Third choice: the newest valid checkpoint.
struct ResumePoint {
  std::optional<CheckpointReader> reader;  // empty if no checkpoint exists
  std::vector<std::string> rejected;       // reasons for rejecting checkpoints, newest checkpoint first:
                                           // "iter_0000200: model.safetensors: ..."
  std::vector<std::string> notes;  // further problems for the log: "latest names ..., which does not exist"
};
// Throws kInvalid if checkpoints exist but none is valid. With a group, all ranks get the same result.
ResumePoint find_resume_point(const Path& root, Validation validation = Validation::kFull,
                              Env& env = Env::posix(), CheckpointGroup* group = nullptr);

// Saves checkpoints in a background thread; at most one save is in progress. Thread-safety: all calls must
// come from one thread.
//
// save() returns at once; the writer reads the tensors during the next forward and backward passes, because
// weights and moments change only in the next optimizer update. Call wait_copied() right before that update:
// the caller and the writer then copy the unread data (SnapshotBuffer).
class AsyncWriter {
 public:
  enum class Sources {
    kLive,      // the tensors will change: the writer reads the tensors in place until wait_copied(), and the
                // rest from a copy
    kOnDevice,  // like kLive, but for tensors in device memory: the writer copies the tensors at once, while
                // the device computes
    kStable,    // the tensors do not change until wait() returns or the next save() begins: no copy is needed
  };

  explicit AsyncWriter(Path root, SaveOptions options = {}, Env& env = Env::posix());
  ~AsyncWriter();  // waits until the save in progress ends
  AsyncWriter(const AsyncWriter&) = delete;
  AsyncWriter& operator=(const AsyncWriter&) = delete;

  // Starts a save. If an earlier save is still in progress, waits for it first; if that save failed, throws
  // its error and starts nothing.
  void save(Snapshot snapshot, Sources sources = Sources::kLive);
  // Returns when the tensors passed to save() may change.
  void wait_copied();
  // Returns when no save is in progress. Throws the error of a failed save; each error is thrown only once.
  void wait();
  // Throws the error of a failed save; each error is thrown only once. Never blocks.
  void check();
  // Return the iteration of the last checkpoint that this writer saved durably, and the tensor bytes of this
  // rank in that checkpoint.
  std::optional<std::int64_t> last_saved() const;
  WrittenBytes last_written() const;

 private:
  void run();
  void throw_pending();  // the caller must hold mutex_

  CheckpointRoot root_;
  SnapshotBuffer buffer_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Snapshot> pending_;  // snapshot passed to save() that the thread has not picked up yet
  Sources sources_ = Sources::kLive;
  bool copy_first_ = false;
  bool busy_ = false, stop_ = false;
  std::exception_ptr error_;
  std::optional<std::int64_t> last_saved_;
  WrittenBytes last_written_;
  std::thread thread_;
};

}  // namespace primus
