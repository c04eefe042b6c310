// Training checkpoints: complete or not there.
//
//   <root>/latest              one line, the name of the newest complete checkpoint
//   <root>/iter_0000100/       a Hugging Face model folder (config.json, model*.safetensors, ...), and in it
//     optimizer*.safetensors   master weights and the optimizer's states, named "<state>.<parameter>"
//     trainer_state.json       the caller's: iteration, consumed samples, seed, ...
//     manifest.json            every file and tensor with size, place and CRC32C (docs/formats/checkpoint.md)
//
// A save writes `.tmp-iter_0000100`, syncs every file and the folder, renames it, and only then replaces
// `latest`; old checkpoints go last. A crash at any instant therefore leaves the old or the new one; what it
// left behind under a temporary name is removed by the next save or by recover().
//
// Errors: kInvalid (a corrupt checkpoint: which file or tensor, and how), FileError (full disk: bytes needed
// and free). One job writes to a root at a time: one process, or the ranks of a CheckpointGroup, each its
// part. Thread-safety: see each class.
#pragma once

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

// What one checkpoint holds.
struct Snapshot {
  struct Blob {
    std::string name;  // plain name: "config.json", "tokenizer.json", ...
    std::string content;
  };
  std::int64_t iteration = 0;
  std::vector<Blob> files;
  std::string trainer_state = "{}";  // a JSON object
  std::vector<TensorSource> model;   // Hugging Face names
  std::vector<TensorSource> optimizer;
};

// "exp_avg" of "lm_head.weight" -> "exp_avg.lm_head.weight". Master weights, where the model's are narrower,
// are the state "fp32_param"; the optimizer names the others.
std::string optimizer_tensor_name(std::string_view state, std::string_view parameter);

struct SaveOptions {
  int keep_last = 0;  // checkpoints to keep, counting the new one; 0 keeps all
  std::uint64_t max_shard_bytes = 5'000'000'000;
  // The ranks that save together, each what its sources hold; null: this one alone.
  std::shared_ptr<CheckpointGroup> group = {};
};

// The folder of one run's checkpoints. In a job, only save() is for every rank; what else changes the folder
// is for rank 0. Thread-safety: none; AsyncWriter uses its own from its thread.
class CheckpointRoot {
 public:
  explicit CheckpointRoot(Path root, SaveOptions options = {}, Env& env = Env::posix());

  // Removes what an interrupted save left behind. For the writing process, at its start.
  void recover();
  // Iterations that have a folder, oldest first; complete by construction, not yet validated.
  std::vector<std::int64_t> iterations() const;
  // What `latest` says, if it names a checkpoint that is there. `problem` is set to what is wrong with a
  // `latest` that does not.
  std::optional<std::int64_t> latest(std::string* problem = nullptr) const;
  // Where that checkpoint is, or would be.
  Path folder(std::int64_t iteration) const;

  // For a run that begins anew: moves all checkpoints and `latest` to a new folder beside them, `previous-1`,
  // `previous-2`, ..., so that none of them is taken for one of the new run, and says which. Empty: there was
  // nothing to move.
  std::optional<Path> set_aside();

  // Iteration of the last checkpoint that became durable through this object.
  std::optional<std::int64_t> last_saved() const { return last_saved_; }
  // What this rank wrote of its tensors.
  const WrittenBytes& last_written() const { return last_written_; }

  // Writes one checkpoint and returns when it is durable and the oldest ones are gone. On an error before it
  // is durable, the older ones and `latest` are as before. No file can replace a folder that somebody named
  // `latest`: it is renamed to `latest-1`, `latest-2`, ... With a group, all its ranks call it; `files` and
  // `trainer_state` are taken from rank 0.
  void save(const Snapshot& snapshot);

 private:
  Path replaced_folder(std::int64_t iteration) const;
  // In the root, the first of prefix1, prefix2, ... that is not there.
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
  kFull,       // read every byte and compare its CRC32C now
  kStructure,  // manifest, sizes and headers now; a tensor's CRC32C when it is read
};

// One checkpoint, validated. Thread-safety: immutable after opening.
class CheckpointReader {
 public:
  // With a group, all its ranks open it: each reads a share of the bytes for kFull, and what one finds wrong,
  // all throw.
  static CheckpointReader open(const Path& folder, Validation validation = Validation::kFull,
                               Env& env = Env::posix(), CheckpointGroup* group = nullptr);

  std::int64_t iteration() const { return manifest_.iteration; }
  const Path& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }
  const std::string& trainer_state() const { return trainer_state_; }
  // The content of another file of the manifest, e.g. "config.json"; kInvalid when there is none of that
  // name.
  std::string file(std::string_view name) const;

  // Tensors by part: names of the model are Hugging Face names, those of the optimizer "<state>.<parameter>".
  std::optional<TensorView> find(TensorPart part, std::string_view name) const;
  // Copies a whole tensor of exactly this dtype and shape to `out`; kInvalid names what differs.
  void read(TensorPart part, std::string_view name, DType dtype, std::span<const std::int64_t> shape,
            std::span<std::byte> out) const;
  // The same for the elements of runs, counted in the order of memory: what a rank holds of the tensor.
  void read_runs(TensorPart part, std::string_view name, DType dtype, std::span<const std::int64_t> shape,
                 const AxisOrder& order, std::span<const StridedRun> runs, std::span<std::byte> out) const;
  // Copies the box [offset, offset + extent) of a tensor, row-major: what a rank of any mesh needs.
  void read_slice(TensorPart part, std::string_view name, const Slice& slice, std::span<std::byte> out) const;

 private:
  void read_structure(const Path& folder, Validation validation, Env& env);
  void check_tensors() const;
  std::string check_share(int rank, int ranks) const;
  void check_shares(const std::vector<std::string>& shares) const;
  [[noreturn]] void refuse_tensor(const TensorRecord& record) const;
  void check_slice(const TensorRecord& record, const TensorView& tensor, const SliceRecord& slice) const;
  const TensorRecord* find_record(TensorPart part, std::string_view name) const;
  const TensorRecord& record(TensorPart part, std::string_view name) const;  // throws kInvalid

  Path folder_;
  Manifest manifest_;
  std::string trainer_state_;
  Validation validation_ = Validation::kFull;
  Env* env_ = nullptr;
  std::vector<SafetensorsFile> shards_;  // as manifest_.files; empty where a file is not a shard
};

// The checkpoint to resume from: what `latest` names, else the newest before it that validates, else the
// newest.
struct ResumePoint {
  std::optional<CheckpointReader> reader;  // empty: there is no checkpoint at all
  std::vector<std::string>
      rejected;                    // "iter_0000200: model.safetensors: CRC32C of ... differs", newest first
  std::vector<std::string> notes;  // what else is wrong there: "latest names ..., which is not there"
};
// Throws kInvalid when there are checkpoints and none is good. With a group, all its ranks get the same one.
ResumePoint find_resume_point(const Path& root, Validation validation = Validation::kFull,
                              Env& env = Env::posix(), CheckpointGroup* group = nullptr);

// Saves in a thread of its own; one save in flight. Thread-safety: one calling thread.
//
// The step's cost is what the caller waits for. save() returns at once; the writer reads the tensors while
// the next forward and backward run, since weights and moments do not change before the next optimizer
// update. Call wait_copied() right before that update: what was not read by then is copied (SnapshotBuffer),
// by the caller and the writer.
class AsyncWriter {
 public:
  enum class Sources {
    kLive,      // tensors will change: read where they lie until wait_copied(), the rest from a copy
    kOnDevice,  // the same, of a device with memory of its own: copied at once, while the device computes
    kStable,    // tensors stay as they are until wait() returned (or the next save()): no copy, no memory
  };

  explicit AsyncWriter(Path root, SaveOptions options = {}, Env& env = Env::posix());
  ~AsyncWriter();  // waits for the save in flight
  AsyncWriter(const AsyncWriter&) = delete;
  AsyncWriter& operator=(const AsyncWriter&) = delete;

  // Starts a save. Waits for the one in flight, if any, and throws its error instead of starting.
  void save(Snapshot snapshot, Sources sources = Sources::kLive);
  // Returns when the tensors given to save() may change.
  void wait_copied();
  // Returns when no save is in flight; throws the error of a failed one, once.
  void wait();
  // Never blocks: throws the error of a save that failed meanwhile, once.
  void check();
  // Iteration of the last checkpoint that became durable through this writer, and what this rank wrote of its
  // tensors.
  std::optional<std::int64_t> last_saved() const;
  WrittenBytes last_written() const;

 private:
  void run();
  void throw_pending();  // with mutex_ held

  CheckpointRoot root_;
  SnapshotBuffer buffer_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Snapshot> pending_;  // handed over, not yet taken by the thread
  Sources sources_ = Sources::kLive;
  bool copy_first_ = false;
  bool busy_ = false, stop_ = false;
  std::exception_ptr error_;
  std::optional<std::int64_t> last_saved_;
  WrittenBytes last_written_;
  std::thread thread_;
};

}  // namespace primus
