// A cuDNN that computes nothing: it keeps what it is told, offers the engines that a test asks for, and
// remembers what was executed. One test at a time; reset() forgets all.
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
  bool varies = false;   // its results change from run to run
  bool compiles = true;  // else the plan is refused when it is finalized
  std::int64_t workspace = 0;
};

struct Settings {
  std::vector<Engine> engines{{}};
  std::size_t version = 91900;
};
Settings& settings();

// Of the graph that was compiled last.
struct Compiled {
  std::map<std::int64_t, std::vector<std::int64_t>> dims, strides;  // of tensors in memory, by id
  std::map<std::int64_t, DataType> types;                           // likewise
  std::map<std::int64_t, std::int64_t> offsets;                     // id of a tensor's ragged offsets
  std::multiset<PointwiseMode> pointwise;
  int matmuls = 0, reductions = 0;
};
const Compiled& compiled();
int plans_made();

// The addresses of the last execution by id, and its workspace.
const std::map<std::int64_t, void*>& executed();
void* executed_workspace();
// Descriptors that were made and not destroyed.
int alive();

Library library();
void reset();

}  // namespace primus::turbo::cudnn::fake
