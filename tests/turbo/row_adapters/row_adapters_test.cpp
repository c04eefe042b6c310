#include "turbo/row_adapters/row_adapters.h"

#include <deque>
#include <numeric>

#include "turbo/operator_test.h"

namespace primus::turbo::test {
namespace {

// An adapter of the columns [first, first + columns).
struct Adapter {
  std::int64_t rank, first, columns;
  double scale = 1;
  bool bias = false;
};
using Model = std::vector<Adapter>;

std::int64_t low_columns_of(std::int64_t rank) {
  return (rank + RowAdapter::kLowMultiple - 1) / RowAdapter::kLowMultiple * RowAdapter::kLowMultiple;
}

// Models with random adapters on a device, and the result of the operator in double precision.
class Adapters {
 public:
  Adapters(OperatorBench& bench, DType dtype, std::int64_t in, std::int64_t out, std::vector<Model> models)
      : bench_(bench), dtype_(dtype), in_(in), out_(out), models_(std::move(models)) {
    std::int64_t parts = 1;
    for (const Model& model : models_) parts = std::max<std::int64_t>(parts, std::ssize(model));
    std::vector<RowAdapter> entries;
    std::int64_t entries_of_models = 0;
    table_ = bench.zeros(DType::kI64, {std::ssize(models_), parts, RowAdapter::kWords});
    for (const Model& model : models_) {
      std::int64_t low = 0;
      for (const Adapter& a : model) {
        const Matrix &down = add(a.rank * in, {a.rank, in}),
                     &up = add(a.columns * a.rank, {a.columns, a.rank});
        entries.push_back({.down = address(down),
                           .up = address(up),
                           .bias = a.bias ? address(add(a.columns, {a.columns})) : 0,
                           .first = a.first,
                           .columns = a.columns,
                           .low = low,
                           .rank = a.rank,
                           .scale = static_cast<float>(a.scale)});
        low += low_columns_of(a.rank);
      }
      low_columns_ = std::max(low_columns_, low);
      entries_of_models += parts;
      entries.resize(static_cast<std::size_t>(entries_of_models));
    }
    bench.write_bytes(table_, entries.data());
  }

  AddRowAdapters call(const Tensor& x, const Tensor& y, const Values& of_rows) {
    return {.x = x,
            .y = y,
            .models = bench_.upload(of_rows, DType::kI32, {x.rows()}),
            .table = table_,
            .low_columns = low_columns_,
            .workspace = {}};
  }

  void apply(const Values& x, Values& y, const Values& of_rows) const {
    for (std::size_t row = 0; row < of_rows.size(); ++row) {
      std::size_t matrix = 0;
      for (std::size_t m = 0; m < models_.size(); ++m) {
        for (const Adapter& a : models_[m]) {
          const Values &down = matrices_[matrix].values, &up = matrices_[matrix + 1].values;
          matrix += 2;
          const Values* const bias = a.bias ? &matrices_[matrix++].values : nullptr;
          if (of_rows[row] != static_cast<double>(m)) continue;
          for (std::int64_t c = 0; c < a.columns; ++c) {
            double sum = bias ? (*bias)[static_cast<std::size_t>(c)] : 0;
            for (std::int64_t k = 0; k < a.rank; ++k) {
              const auto *own_x = x.data() + static_cast<std::int64_t>(row) * in_,
                         *own_down = down.data() + k * in_;
              sum += std::inner_product(own_x, own_x + in_, own_down, 0.0) *
                     up[static_cast<std::size_t>(c * a.rank + k)];
            }
            y[row * static_cast<std::size_t>(out_) + static_cast<std::size_t>(a.first + c)] += a.scale * sum;
          }
        }
      }
    }
  }

 private:
  struct Matrix {
    Values values;
    Tensor tensor;
  };
  const Matrix& add(std::int64_t n, Shape shape) {
    Values values = rounded(random_values(n, 100 + matrices_.size(), 0.2), dtype_);
    matrices_.push_back({values, bench_.upload(values, dtype_, shape)});
    return matrices_.back();
  }
  std::int64_t address(const Matrix& matrix) const {
    return static_cast<const char*>(matrix.tensor.data) - static_cast<const char*>(table_.data);
  }

  OperatorBench& bench_;
  DType dtype_;
  std::int64_t in_, out_, low_columns_ = 0;
  std::vector<Model> models_;
  std::deque<Matrix> matrices_;
  Tensor table_;
};

// Models with one adapter, with adapters of some columns, with biases, and without an adapter.
std::vector<Model> some_models(std::int64_t out) {
  return {{{.rank = 16, .first = 0, .columns = out, .scale = 2}},
          {{.rank = 3, .first = 0, .columns = 40, .bias = true},
           {.rank = 8, .first = 50, .columns = out - 50, .scale = 0.5, .bias = true}},
          {},
          {{.rank = 33, .first = 7, .columns = 130, .scale = 0.25}},
          {{.rank = 1, .first = out - 1, .columns = 1}}};
}

// Returns the models of rows, in an arbitrary order. A model below 0 has no adapters.
Values models_of_rows(std::int64_t rows) {
  Values models;
  for (std::int64_t row = 0; row < rows; ++row) models.push_back(static_cast<double>(row * 5 % 7 % 6 - 1));
  return models;
}

class RowAdaptersTest : public ::testing::TestWithParam<DeviceUnderTest> {};
INSTANTIATE_TEST_SUITE_P(Devices, RowAdaptersTest, ::testing::ValuesIn(devices_under_test()));

TEST_P(RowAdaptersTest, AddsTheAdaptersOfEachRow) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    // Rows of 520 and 136 elements are read in lines of 16 bytes, rows of 131 elements are not.
    for (const std::int64_t in : {520, 136, 131}) {
      for (const std::int64_t rows : {1, 6, 21}) {
        SCOPED_TRACE(std::to_string(rows) + " rows of " + std::to_string(in));
        OperatorBench bench(GetParam());
        constexpr std::int64_t kOut = 150;
        Adapters adapters(bench, dtype, in, kOut, some_models(kOut));
        const Values x = rounded(random_values(rows * in, 1), dtype);
        const Values y = rounded(random_values(rows * kOut, 2), dtype);
        Values sorted = models_of_rows(rows);
        std::ranges::sort(sorted);
        for (const Values& models : {models_of_rows(rows), sorted}) {
          Values expected = y;
          adapters.apply(x, expected, models);
          const Tensor on_device = bench.upload(y, dtype, {rows, kOut});
          bench.run(adapters.call(bench.upload(x, dtype, {rows, in}), on_device, models));
          EXPECT_LE(normalised_error(bench.download(on_device), expected), rounding_error(dtype) + 2e-6);
        }
      }
    }
  }
}

// The bits of a row do not depend on the number of rows, on its place among them, and on their adapters.
TEST_P(RowAdaptersTest, ARowDoesNotDependOnOtherRows) {
  constexpr std::int64_t kRows = 21, kIn = 520, kOut = 150;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    OperatorBench bench(GetParam());
    Adapters adapters(bench, dtype, kIn, kOut, some_models(kOut));
    const Tensor x = bench.upload(random_values(kRows * kIn, 1), dtype, {kRows, kIn});
    const Values y = random_values(kRows * kOut, 2), models = models_of_rows(kRows);
    const Tensor together = bench.upload(y, dtype, {kRows, kOut}),
                 apart = bench.upload(y, dtype, {kRows, kOut});
    bench.run(adapters.call(x, together, models));
    for (std::int64_t row = 0; row < kRows; ++row)
      bench.run(adapters.call(x.slice(row, row + 1), apart.slice(row, row + 1),
                              {models[static_cast<std::size_t>(row)]}));
    EXPECT_EQ(bench.bytes(together), bench.bytes(apart)) << name_of(dtype);
  }
}

// Other models of the rows need no other call.
TEST_P(RowAdaptersTest, ReadsTheModelsOfRowsFromTheDevice) {
  constexpr std::int64_t kRows = 4, kIn = 64, kOut = 150;
  OperatorBench bench(GetParam());
  Adapters adapters(bench, DType::kF32, kIn, kOut, some_models(kOut));
  const Values x = rounded(random_values(kRows * kIn, 1), DType::kF32),
               y = rounded(random_values(kRows * kOut, 2), DType::kF32);
  const Tensor on_device = bench.upload(y, DType::kF32, {kRows, kOut});
  const AddRowAdapters call =
      adapters.call(bench.upload(x, DType::kF32, {kRows, kIn}), on_device, {0, 1, -1, 3});
  for (const Values& models : {Values{0, 1, -1, 3}, Values{3, -1, 4, 4}}) {
    Values expected = y;
    adapters.apply(x, expected, models);
    bench.write(on_device, y);
    bench.write(call.models, models);
    bench.run(call);
    EXPECT_LE(normalised_error(bench.download(on_device), expected), 2e-6);
  }
}

}  // namespace
}  // namespace primus::turbo::test
