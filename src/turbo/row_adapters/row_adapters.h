// Low-rank adapters (LoRA) that differ between the rows of a matrix product, as in decoding with texts of
// several models in one batch. All rows need two kernels, whatever their adapters are. The sums of a row have
// an order that depends only on the sizes of its own adapters, so the row's bits do not depend on other rows.
// Intermediate values are in fp32, and y is rounded once. Products with the separate matrices round more
// often, so batch-invariant devices do not support the operator: there, a text has the same bits as without
// texts of other models. If is_taken() returns false, multiply the rows of one model after another.
#pragma once

#include <cstdint>

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

// An adapter of some columns of a matrix product. Addresses are bytes relative to the beginning of the table
// (AddRowAdapters::table); 0: there is no such matrix. Matrices have the type of x.
struct RowAdapter {
  std::int64_t down = 0;                // A [rank, in]
  std::int64_t up = 0;                  // B [columns, rank]
  std::int64_t bias = 0;                // [columns], added to B's product before the scale
  std::int64_t first = 0, columns = 0;  // the columns of y to which the adapter is added
  std::int64_t low = 0;   // the first column of A's product in the workspace, a multiple of kLowMultiple
  std::int64_t rank = 0;  // 0: no adapter
  float scale = 1;
  std::int32_t unused = 0;

  static constexpr std::int64_t kWords = 8;  // of 8 bytes
  static constexpr std::int64_t kLowMultiple = 8;
};
static_assert(sizeof(RowAdapter) == 8 * RowAdapter::kWords);

// y[row, first + c] += scale * (sum over k of (x[row] · down[k]) * up[c, k] + bias[c]), for each adapter of
// the row's model.
struct AddRowAdapters {
  static constexpr KernelId kId = KernelId::kAddRowAdapters;
  // The kernels use no matrix units, so larger passes should multiply the rows of one model after another.
  static constexpr std::int64_t kMaxRows = 128;
  Tensor x;       // [rows, in] fp32 or bf16
  Tensor y;       // input and output: [rows, out], x's type; must not share memory with x
  Tensor models;  // [rows] int32, written by copies from the host: a model of the table; below 0: no adapters
  // [models, adapters, RowAdapter::kWords] int64, written by copies from the host. The columns of a model's
  // adapters, and their columns of A's products, do not overlap.
  Tensor table;
  // Number of columns of A's products: at least RowAdapter::low + rank of each adapter, and a multiple of
  // RowAdapter::kLowMultiple.
  std::int64_t low_columns = 0;
  // The workspace size that a device reports if it does not support the operator.
  static constexpr std::int64_t kNotTaken = -1;
  Tensor workspace;
  void check() const;
  // The kernels count the adapters of no row, because only the device knows them.
  double flops() const { return 0; }
  std::int64_t workspace_bytes() const { return models.elements() * low_columns * size_of(DType::kF32); }
};

// Returns whether the device supports the operator.
bool is_taken(Device& device, const AddRowAdapters& call);

}  // namespace primus::turbo
