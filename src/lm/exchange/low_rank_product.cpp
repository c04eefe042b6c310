#include "lm/exchange/low_rank_product.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "lm/model/published_layout.h"

namespace primus {

std::vector<float> transposed(const std::vector<float>& matrix, std::int64_t rows) {
  const auto n = static_cast<std::size_t>(rows), cols = matrix.size() / n;
  std::vector<float> result;
  for (std::size_t j = 0; j < cols; ++j) {
    for (std::size_t i = 0; i < n; ++i) result.push_back(matrix[i * cols + j]);
  }
  return result;
}

PublishedTensor to_magnitudes(PublishedTensor matrix, std::vector<float> magnitudes, std::int64_t cols) {
  matrix.read = [magnitudes = std::move(magnitudes), cols, read = std::move(matrix.read)](
                    std::int64_t first, std::span<float> out) {
    std::vector<float> row(static_cast<std::size_t>(cols));
    for (std::size_t i = 0; i < out.size();) {
      const std::int64_t at = first + static_cast<std::int64_t>(i), index = at / cols, begin = at % cols;
      read(index * cols, row);
      double squares = 0;
      for (const float v : row) squares += static_cast<double>(v) * static_cast<double>(v);
      const double factor =
          static_cast<double>(magnitudes[static_cast<std::size_t>(index)]) / std::sqrt(squares);
      for (std::int64_t j = begin; j < cols && i < out.size(); ++j, ++i)
        out[i] = static_cast<float>(factor * static_cast<double>(row[static_cast<std::size_t>(j)]));
    }
  };
  return matrix;
}

PublishedTensor with_product(PublishedTensor base, LowRankProduct product) {
  const auto shared = std::make_shared<const LowRankProduct>(std::move(product));
  base.plain = {};
  base.read = [shared, read = std::move(base.read)](std::int64_t first, std::span<float> out) {
    const auto& [a, b, part, out_rows, rank, cols, scale] = *shared;
    read(first, out);
    std::vector<double> added, column(static_cast<std::size_t>(rank));
    for (std::size_t i = 0; i < out.size();) {
      // Addresses of successive elements of a row in memory, or of a column if the published tensor is
      // transposed.
      const PlacesInMemory places = places_in_memory(part, first + static_cast<std::int64_t>(i), cols);
      const std::int64_t row = places.first / cols, col = places.first % cols;
      const float* const of_a = a.data() + row / out_rows * rank * cols + col;
      const float* const of_b = b.data() + row * rank;
      added.assign(std::min(static_cast<std::size_t>(places.count), out.size() - i), 0);
      if (places.step == 1) {
        for (std::int64_t r = 0; r < rank; ++r) {
          const auto factor = static_cast<double>(of_b[r]);
          for (std::size_t j = 0; j < added.size(); ++j)
            added[j] += factor * static_cast<double>(of_a[r * cols + static_cast<std::int64_t>(j)]);
        }
      } else {
        for (std::size_t r = 0; r < column.size(); ++r)
          column[r] = static_cast<double>(of_a[static_cast<std::int64_t>(r) * cols]);
        for (std::size_t j = 0; j < added.size(); ++j) {
          const float* const line = of_b + static_cast<std::int64_t>(j) * (places.step / cols) * rank;
          for (std::size_t r = 0; r < column.size(); ++r)
            added[j] += static_cast<double>(line[r]) * column[r];
        }
      }
      for (const double sum : added) {
        out[i] = static_cast<float>(static_cast<double>(out[i]) + scale * sum);
        ++i;
      }
    }
  };
  return base;
}

}  // namespace primus
