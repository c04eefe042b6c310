// A fake cuDNN that computes nothing. It stores descriptors, offers the engines that a test sets, and records
// what was executed. The state of the fake is global: run one test at a time, and call reset() before each
// test.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "turbo/cudnn/library.h"

namespace primus::turbo::cudnn::fake {

struct Engine {
  std::int64_t number = 0;
  bool varies = false;   // true: results differ between runs
  bool compiles = true;  // false: finalizing the plan fails
  std::int64_t workspace = 0;
};

struct Settings {
  std::vector<Engine> engines{{}};
  std::size_t version = 91900;
};
Settings& settings();

// The graph that was compiled last.
struct Compiled {
  // Maps the ids of tensors in memory to their sizes and strides.
  std::map<std::int64_t, std::vector<std::int64_t>> dims, strides;
  std::map<std::int64_t, DataType> types;        // maps the id of a tensor to its type
  std::map<std::int64_t, std::int64_t> offsets;  // maps the id of a tensor to the id of its offsets
  std::multiset<PointwiseMode> pointwise;
  int matmuls = 0, reductions = 0;
};
const Compiled& compiled();
int plans_made();

// Return the tensor addresses (by id) and the workspace that were passed to the last execution.
const std::map<std::int64_t, void*>& executed();
void* executed_workspace();
// Returns the number of descriptors that were created and not destroyed.
int alive();

Library library();
void reset();

}  // namespace primus::turbo::cudnn::fake
