// Merges adapters into the published tensor of their matrix (lm/exchange/exchange.h).
#pragma once

#include <cstdint>
#include <vector>

#include "engine/runtime/parameter.h"
#include "lm/exchange/published_tensor.h"

namespace primus {

// The product scale B A that is added to a part of a matrix.
struct LowRankProduct {
  std::vector<float> a = {}, b = {};  // A [rank, cols], for each expert; B [rows, rank]
  engine::CheckpointPart part;
  std::int64_t out_rows = 0, rank = 0, cols = 0;  // out_rows: rows of an expert, or of the part
  double scale = 1;
};

// Returns base + scale B A, summed in fp64 and rounded once.
PublishedTensor with_product(PublishedTensor base, LowRankProduct product);

// Returns the matrix with its rows scaled to magnitudes (DoRA). `cols`: the elements of a row.
PublishedTensor to_magnitudes(PublishedTensor matrix, std::vector<float> magnitudes, std::int64_t cols);

// Returns the transposed matrix; the argument has `rows` rows.
std::vector<float> transposed(const std::vector<float>& matrix, std::int64_t rows);

}  // namespace primus
