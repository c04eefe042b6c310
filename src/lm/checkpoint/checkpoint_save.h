// One rank's part of one save, step by step; CheckpointRoot calls the steps in order, and every rank has
// finished one before any begins the next. Internal to lm/checkpoint.
//
// Errors: as CheckpointRoot::save. Thread-safety: none.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/files/file.h"
#include "lm/checkpoint/checkpoint.h"
#include "lm/checkpoint/manifest.h"
#include "lm/checkpoint/safetensors.h"

namespace primus {

inline constexpr std::string_view kTrainerStateFile = "trainer_state.json";

class CheckpointSave {
 public:
  // Plans the files, which will be written to `folder`. All arguments outlive this.
  CheckpointSave(const Snapshot& snapshot, std::uint64_t max_shard_bytes, int rank, Path folder, Env& env);

  std::uint64_t bytes() const { return bytes_; }            // of all files, the manifest included
  const WrittenBytes& written() const { return written_; }  // of tensors, by this rank's write()
  // What every rank must plan alike.
  std::string fingerprint() const;

  // Rank 0: the folder, and every shard in its full size.
  void create();
  // Every rank: writes what it holds, and says so in words for rank 0.
  std::string write();
  // Rank 0: checks that what all wrote covers every tensor, and puts the checksums together. Returns what
  // assemble() needs on every rank; empty: nothing is left to be assembled.
  std::string collect(const std::vector<std::string>& written);
  // Every rank: writes the slabs (AxisOrder) whose first element it holds, and others the rest.
  void assemble(const std::string& collected);
  // Rank 0: the manifest, and the folder's names.
  void finish();

 private:
  // A tensor's place in the files.
  struct Placed {
    const TensorSource* source;
    std::string file;
    std::uint64_t file_offset;
    std::size_t record;  // index into manifest_.tensors
  };
  // A part of a slab that its rank does not write: it is in that rank's handover file.
  struct Handed {
    std::size_t tensor;
    ElementRun run;
    int rank;
    std::uint64_t offset;
  };

  void add_text(std::string_view name, std::string_view content);
  void add_tensors(TensorPart part, const std::vector<TensorSource>& sources,
                   const SafetensorsLayout& layout);
  std::size_t index_of(std::string_view file) const;
  void write_text(std::string_view name, std::string_view content);
  Path handover_file(int rank) const;
  void hand_over(std::size_t tensor, const HeldRun& part);
  std::vector<std::byte> slab_of(const Placed& tensor, const HeldRun& own,
                                 const std::vector<Handed>& handed) const;

  const Snapshot& snapshot_;
  const int rank_;
  const Path folder_;
  Env& env_;
  SafetensorsLayout model_, optimizer_;
  Manifest manifest_;
  std::vector<Placed> tensors_;  // in the order of the files
  std::uint64_t bytes_ = 0;
  WrittenBytes written_;

  struct Owned {
    std::size_t tensor;
    HeldRun part;
  };
  std::vector<Owned> owned_;  // slabs whose first element this rank holds, and not their last
  std::vector<Handed> handed_;
  std::unique_ptr<File> handover_;
  std::uint64_t handover_bytes_ = 0;
  std::vector<int> handing_ranks_;  // rank 0: whose handover files there are
};

}  // namespace primus
