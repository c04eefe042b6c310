// The folder of a host with the snapshots of a supervised job (snapshot_interval). It is on a file system in
// memory, belongs to the job's supervisor on this host, and ends with it:
//
//   own/rank-00003/HISTORY/iter_0000100/     a snapshot of a rank of this host, as a checkpoint
//   copies/rank-00005/HISTORY/iter_0000100/  a copy of a snapshot of another host's rank
//   copied/rank-00003                        the rank's newest snapshot that the supervisor has handled:
//                                            it has made a copy, or found no host that takes one
//   histories/rank-00003                     the histories of the rank, the last one first
//   distrusted/rank-00003                    the first snapshots of histories that may be damaged
//                                            (silent corruption); later ones of them may be, too
//   link                                     how to reach other hosts (SnapshotLink); absent: one host
//
// HISTORY is a random number that rank 0 chooses at each start of the job. It tells the snapshots of an
// earlier start from those of the same step after a restart, so snapshots of two starts are never combined.
//
// Errors: FileError. Thread-safety: no state; see Env.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/files/file.h"

namespace primus {

// The supervisor names the folder to the ranks in this variable.
inline constexpr const char* kSnapshotVariable = "PRIMUS_SNAPSHOT_FOLDER";

// One snapshot of all ranks: the state after `iteration` steps in the history.
struct SnapshotId {
  std::string history;  // 16 lower-case hexadecimal digits
  std::int64_t iteration = 0;
  bool operator==(const SnapshotId&) const = default;
};
std::string new_history();
std::string to_text(const SnapshotId& id);  // "0123456789abcdef/100"
// Returns nullopt if the text is not of this form.
std::optional<SnapshotId> snapshot_id_of(std::string_view text);
// Texts of ids, separated by spaces. The reader skips what is not of this form, and reads at most 64.
std::string to_text(const std::vector<SnapshotId>& ids);
std::vector<SnapshotId> snapshot_ids_of(std::string_view text);

class SnapshotFolder {
 public:
  enum class Kind : std::uint8_t { kOwn, kCopies };

  explicit SnapshotFolder(Path root, Env& env = Env::posix()) : root_(std::move(root)), env_(env) {}

  const Path& root() const { return root_; }
  Path link_file() const { return root_ / "link"; }
  // Returns the folder in which a history's snapshots of a rank are, which is a checkpoint root
  // (CheckpointRoot).
  Path history(Kind kind, int rank, std::string_view history) const;
  // Returns the folder of one snapshot.
  Path snapshot(Kind kind, int rank, const SnapshotId& id) const;
  // Returns the ranks that have their own folder here.
  std::vector<int> ranks(Kind kind) const;
  // Returns the snapshots that have been written completely; they are not validated.
  std::vector<SnapshotId> list(Kind kind, int rank) const;
  // Records that the supervisor has copied a rank's snapshot, or that it cannot.
  struct Copied {
    SnapshotId id;
    bool exists = false;  // false: no other host takes a copy
  };
  void record_copy(int rank, const Copied& copied) const;
  std::optional<Copied> copied(int rank) const;
  // Records that the rank begins a history, and returns the newest histories that it has recorded, at most
  // 64, the last one first. Their snapshots may still exist on some host.
  void record_history(int rank, std::string_view history) const;
  std::vector<std::string> histories(int rank) const;
  // Records that these snapshots, and later ones of their histories, may be damaged. Adds to what the rank
  // has recorded before, of which it keeps the newest 64 histories.
  void distrust(int rank, const std::vector<SnapshotId>& first) const;
  std::vector<SnapshotId> distrusted(int rank) const;
  // Removes all snapshots of a rank except these, and what interrupted writers have left behind. No snapshot
  // of the rank may be written meanwhile.
  void keep_only(Kind kind, int rank, const std::vector<SnapshotId>& kept) const;

 private:
  Path of_kind(Kind kind) const { return root_ / (kind == Kind::kOwn ? "own" : "copies"); }
  Path of_rank(Kind kind, int rank) const;

  Path root_;
  Env& env_;
};

}  // namespace primus
