// One rank's work in one save, divided into steps. CheckpointRoot calls the steps in order; a rank begins a
// step only after every rank has finished the preceding step. Internal to lm/checkpoint.
//
// Errors: the same as CheckpointRoot::save. Thread-safety: none.
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
  // Plans the files to be written to `folder`. All arguments must outlive this object.
  CheckpointSave(const Snapshot& snapshot, std::uint64_t max_shard_bytes, int rank, Path folder, Env& env);

  std::uint64_t bytes() const { return bytes_; }            // bytes of all files, including the manifest
  const WrittenBytes& written() const { return written_; }  // tensor bytes that this rank's write() wrote
  // Returns a fingerprint of the plan, which must be equal on all ranks.
  std::string fingerprint() const;

  // Rank 0: creates the folder, and every shard in its full size.
  void create();
  // Every rank: writes the data that it holds. Returns a text that describes the written data, for collect()
  // on rank 0.
  std::string write();
  // Rank 0: checks that the data of all ranks covers every tensor, and merges the checksums. Returns the
  // argument of assemble(), which is equal for every rank; empty if there is nothing to assemble.
  std::string collect(const std::vector<std::string>& written);
  // Every rank: writes each slab (AxisOrder) of which this rank holds the first element. Other ranks hand
  // over the slab's remaining elements in files.
  void assemble(const std::string& collected);
  // Rank 0: removes handover files, writes the manifest, and syncs the folder.
  void finish();

 private:
  // The location of a tensor in the files.
  struct Placed {
    const TensorSource* source;
    std::string file;
    std::uint64_t file_offset;
    std::size_t record;  // index into manifest_.tensors
  };
  // A range of a slab's elements that this rank holds but another rank writes. The elements are passed to
  // that rank in a file.
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
  std::vector<Placed> tensors_;  // tensors in file order
  std::uint64_t bytes_ = 0;
  WrittenBytes written_;

  struct Owned {
    std::size_t tensor;
    HeldRun part;
  };
  std::vector<Owned> owned_;  // slabs of which this rank holds the first element, but not all elements
  std::vector<Handed> handed_;
  std::unique_ptr<File> handover_;
  std::uint64_t handover_bytes_ = 0;
  std::vector<int> handing_ranks_;  // on rank 0: the ranks that wrote handover files
};

}  // namespace primus
