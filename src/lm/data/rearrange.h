// Merges several data sets into one, and splits one into several. Documents stay complete and in order;
// tokens are copied without decoding.
//
// The results appear complete or not at all. Unfinished results are in the folder <output>.bin.partial. When
// a data set is split, <output> is the first output, and all outputs must be on one file system. The next
// process that writes this output removes files that a killed process left in the folder.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/files/file.h"

namespace primus::data {

// Called from time to time with the number of tokens copied so far and the total number of tokens.
using RearrangeProgressFn = std::function<void(std::int64_t, std::int64_t)>;

// Returns the data set prefixes that `paths` name. A path is a prefix or a folder. A folder selects all data
// sets in the folder, sorted by name (as for Megatron's merge_datasets.py). Throws Error(kInvalid) for a
// folder that contains no data sets, or that contains only one of a data set's two files (.bin and .idx).
std::vector<Path> find_datasets(const std::vector<std::string>& paths);

// Writes all documents of `inputs` to `output`, as Megatron's IndexedDatasetBuilder.add_index does. Throws
// Error(kInvalid) if the token types of the inputs differ, if `output` is an input, if `output` exists and
// kRefuse is set, or while another process writes `output`.
void merge_datasets(const std::vector<Path>& inputs, const Path& output,
                    const RearrangeProgressFn& progress = {}, Existing existing = Existing::kRefuse,
                    Env& env = Env::posix());

struct DatasetPart {
  Path prefix;
  std::int64_t first = 0, last = 0;  // range of documents [first, last)
};
// Writes each of `parts` as a data set with documents of `input`. Throws Error(kInvalid) if a part is `input`
// itself, is named twice, or exists and kRefuse is set.
void split_dataset(const Path& input, const std::vector<DatasetPart>& parts,
                   const RearrangeProgressFn& progress = {}, Existing existing = Existing::kRefuse,
                   Env& env = Env::posix());

}  // namespace primus::data
