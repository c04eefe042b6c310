// Joins data sets, and cuts one into several. Documents stay whole and in order; nothing is decoded.
//
// The results appear complete or not at all: until then they lie in the folder <output>.bin.partial (for a
// split, that of the first part), which must be of the same file system as all parts. What a killed process
// leaves there, the next one with this output removes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/files/file.h"

namespace primus::data {

// Called with tokens done and their total, now and then.
using RearrangeProgressFn = std::function<void(std::int64_t, std::int64_t)>;

// The data set prefixes that `paths` name: prefixes, and folders, which stand for all data sets in them by
// name (as Megatron's merge_datasets.py takes one). Error(kInvalid) for a folder with half of a pair, or
// without any.
std::vector<Path> find_datasets(const std::vector<std::string>& paths);

// Writes all documents of `inputs` to `output`, as Megatron's IndexedDatasetBuilder.add_index does.
// Error(kInvalid) where their token types differ, where `output` is an input or (kRefuse) is there already,
// or where another process writes it.
void merge_datasets(const std::vector<Path>& inputs, const Path& output,
                    const RearrangeProgressFn& progress = {}, Existing existing = Existing::kRefuse,
                    Env& env = Env::posix());

struct DatasetPart {
  Path prefix;
  std::int64_t first = 0, last = 0;  // documents
};
// Writes each part of `input`. Error(kInvalid) where one is `input` itself, is named twice, or (kRefuse) is
// there already.
void split_dataset(const Path& input, const std::vector<DatasetPart>& parts,
                   const RearrangeProgressFn& progress = {}, Existing existing = Existing::kRefuse,
                   Env& env = Env::posix());

}  // namespace primus::data
