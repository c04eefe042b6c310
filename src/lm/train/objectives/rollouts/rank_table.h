// A table of numbers whose rows the ranks of a mesh write, and which all ranks then read. Not thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/runtime/rank.h"
#include "lm/train/step/session.h"
#include "tensor/tensor.h"

namespace primus {

class RankTable {
 public:
  // Allocates persistent memory, so construct it in LossRule::prepare(). `writes`: whether exchange() adds
  // this rank's elements to the table.
  RankTable(engine::Rank& rank, std::int64_t rows, std::int64_t columns, bool writes);

  double& at(std::int64_t row, std::int64_t column) {
    return values_[static_cast<std::size_t>(row * columns_ + column)];
  }
  void clear() { values_.assign(values_.size(), 0); }
  // All elements, [rows, columns].
  std::vector<double>& values() { return values_; }

  // Adds up the tables of all ranks. Exactly one rank writes each row. All ranks call it.
  void exchange(TrainingSession& session);

 private:
  std::int64_t columns_;
  bool writes_;
  Tensor on_device_;  // [rows, columns] fp64
  std::vector<double> values_;
};

}  // namespace primus
