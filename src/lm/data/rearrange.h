// Joins data sets, and cuts one into several. Documents stay whole and in order; nothing is decoded.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/file.h"

namespace primus::data {

// Called with tokens done and their total, now and then.
using RearrangeProgressFn = std::function<void(int64_t, int64_t)>;

// The data set prefixes that `paths` name: prefixes, and folders, which stand for all data sets in them by
// name (as Megatron's merge_datasets.py takes one). Error(kInvalid) for a folder with half of a pair, or
// without any.
std::vector<Path> find_datasets(const std::vector<std::string>& paths);

// Writes all documents of `inputs` to `output`, as Megatron's IndexedDatasetBuilder.add_index does.
// Error(kInvalid) where their token types differ, or where `output` is an input.
void merge_datasets(const std::vector<Path>& inputs, const Path& output,
                    const RearrangeProgressFn& progress = {});

struct DatasetPart {
  Path prefix;
  int64_t first = 0, last = 0;  // documents
};
// Writes each part of `input`.
void split_dataset(const Path& input, const std::vector<DatasetPart>& parts,
                   const RearrangeProgressFn& progress = {});

}  // namespace primus::data
