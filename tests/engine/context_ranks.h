// Runs context ranks as threads, and returns the tokens that a rank holds.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "engine/parallel/context_attention.h"
#include "engine/runtime/tape.h"
#include "engine/thread_ranks.h"
#include "turbo/elementwise/elementwise.h"

namespace primus::test {

// Returns the tokens of a rank, numbered across all sequences.
inline std::vector<std::int64_t> tokens_of(std::int64_t sequences, std::int64_t sequence, int ranks,
                                           int rank) {
  std::vector<std::int64_t> tokens;
  for (std::int64_t s = 0; s < sequences; ++s) {
    for (const std::int64_t position : engine::context_positions(sequence, ranks, rank))
      tokens.push_back(s * sequence + position);
  }
  return tokens;
}

// Returns the rows `tokens` of a matrix.
inline std::vector<float> rows_of(const std::vector<float>& matrix, std::int64_t width,
                                  const std::vector<std::int64_t>& tokens) {
  std::vector<float> rows;
  for (const std::int64_t t : tokens)
    rows.insert(rows.end(), matrix.begin() + t * width, matrix.begin() + (t + 1) * width);
  return rows;
}

// Returns |a - b| / |b|.
inline double distance(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    size += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / std::max(size, 1e-30));
}

// Runs body(mesh, rank) on `ranks` context ranks. Returns the results, or throws the error of a rank.
template <class Result, class Body>
std::vector<Result> on_context_ranks(int ranks, Body body) {
  return on_thread_ranks<Result>(ranks, {.context = ranks}, body);
}

// Creates a tape's input with a gradient, in `dtype`. While measuring, it only reserves the memory.
inline engine::Value tape_input(engine::Tape& tape, engine::Rank& rank, DType dtype,
                                const std::vector<float>& values, std::int64_t rows, std::int64_t columns) {
  const engine::Value wide = tape.input(DType::kF32, {rows, columns}, false);
  if (!rank.measuring())
    rank.compute().copy_to_device(wide.tensor().data, values.data(), wide.tensor().bytes());
  const engine::Value value = tape.input(dtype, {rows, columns}, true);
  if (dtype == DType::kF32) {
    if (!rank.measuring())
      rank.compute().copy_on_device(value.tensor().data, wide.tensor().data, wide.tensor().bytes());
  } else {
    turbo::launch(rank.context(), turbo::Cast{.x = wide.tensor(), .out = value.tensor()});
  }
  rank.synchronize();
  return value;
}

// Returns a tensor's values in fp32; while measuring, zeros.
inline std::vector<float> read_wide(engine::Rank& rank, const Tensor& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
  const engine::Buffer buffer = rank.stash().allocate(tensor.elements() * size_of(DType::kF32));
  Tensor wide = buffer.view(DType::kF32, tensor.shape);
  if (tensor.dtype == DType::kF32) {
    wide = tensor;
  } else {
    turbo::launch(rank.context(), turbo::Cast{.x = tensor, .out = wide});
  }
  if (!rank.measuring()) rank.compute().copy_to_host(values.data(), wide.data, wide.bytes());
  rank.synchronize();
  return values;
}

}  // namespace primus::test
