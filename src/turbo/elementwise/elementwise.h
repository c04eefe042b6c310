// Small general-purpose kernels: copies, casts, sums, fills, random initialisation, counts of NaN.
#pragma once

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

// out = a + b, rounded once. out may be a or b.
//
// With ranks > 2, adds the partial tensors of all ranks of a group in fp32, in the order of
// comm::Communicator's reductions, and rounds once. a is the tensor of rank `rank`. b holds the other
// tensors, concatenated: the tensors of rank - 1, rank - 2 and so on, modulo `ranks`. out may be a.
//
// With `by_rank`, b holds the tensor of every rank, in rank order, as after an all-to-all. a may then be this
// rank's part of b.
struct Add {
  static constexpr KernelId kId = KernelId::kAdd;
  static constexpr int kLevels = 7, kMaxRanks = 1 << kLevels;
  Tensor a, b, out;  // equal types (fp32 or bf16) and shapes; b has (ranks - 1) * (elements of a) elements,
                     // or ranks * (elements of a) if by_rank
  int ranks = 2, rank = 0;
  bool by_rank = false;
  // Returns whether b has the shape of a.
  constexpr bool is_pair() const { return ranks == 2 && !by_rank; }
  // Returns the position of the tensor of rank r != rank among the tensors of b.
  static constexpr int place(int ranks, int rank, int r, bool by_rank) {
    return by_rank ? r : (rank - r + ranks) % ranks - 1;
  }
  void check() const;
  double flops() const { return 0; }
};

// out = x in out's type: fp32, bf16 or fp16.
struct Cast {
  static constexpr KernelId kId = KernelId::kCast;
  Tensor x, out;
  void check() const;
  double flops() const { return 0; }
};

// Computes the working values of fp32 masters, and their remainders (turbo/master_weights.h).
struct RoundMasters {
  static constexpr KernelId kId = KernelId::kRoundMasters;
  Tensor masters;         // [n] fp32
  Tensor working;         // output: [n] bf16
  Tensor remainder = {};  // output: [n] int16, or absent
  void check() const;
  double flops() const { return 0; }
};

// out[0] (+)= the sum of x, in a fixed order with double partial sums.
struct Sum {
  static constexpr KernelId kId = KernelId::kSum;
  Tensor x;    // [n] fp32
  Tensor out;  // [1] fp32
  bool accumulate;
  void check() const;
  double flops() const { return 0; }
};

// out[0] (+)= the number of elements of x that are NaN or infinite.
struct CountNonFinite {
  static constexpr KernelId kId = KernelId::kCountNonFinite;
  Tensor x;    // fp32 or bf16
  Tensor out;  // [1] int32
  bool accumulate;
  void check() const;
  double flops() const { return 0; }
};

// out[i] = mean + std * normal(seed, stream, offset + i). The numbers are counter-based and do not depend on
// the layout of the mesh (base/random/random.h, purpose kInit). The low half of `stream` is the layer of the
// random numbers, and the high half is the sample. `offset` is the index of out[0] in the complete tensor: a
// shard draws its own elements. For a column shard, `out` consists of runs of `length` elements. The starts
// of consecutive runs are `stride` elements apart in the complete tensor. If length is 0, all elements are
// consecutive.
struct RandomNormal {
  static constexpr KernelId kId = KernelId::kRandomNormal;
  Tensor out;  // fp32
  std::uint64_t seed, stream;
  std::int64_t offset;
  float mean, std;
  std::int64_t length = 0, stride = 0;
  void check() const;
  double flops() const { return 0; }
};

// out[i] = value.
struct Fill {
  static constexpr KernelId kId = KernelId::kFill;
  Tensor out;  // fp32 or bf16
  float value;
  void check() const;
  double flops() const { return 0; }
};

// out = factor * x, rounded once. out may be x.
struct Scale {
  static constexpr KernelId kId = KernelId::kScale;
  Tensor x, out;  // equal types (fp32 or bf16) and shapes
  float factor;
  void check() const;
  double flops() const { return 0; }
};

// x = log(low + (high - low) * u) with u uniform in (0, 1). On input, x holds normal samples, and u is
// computed as the normal distribution function of x.
struct LogUniform {
  static constexpr KernelId kId = KernelId::kLogUniform;
  Tensor x;         // fp32, updated in place
  float low, high;  // 0 < low < high
  void check() const;
  double flops() const { return 0; }
};

// Copies rows between row-strided buffers:
//   to[(row / group_rows) * to_group_stride + (row % group_rows) * to_stride + c]
//       = from[row * from_stride + c] for c < cols. With `add`, adds to the destination and rounds once.
struct CopyRows {
  static constexpr KernelId kId = KernelId::kCopyRows;
  Tensor from, to;  // first elements; equal types, fp32 or bf16 if `add`
  // rows and group_rows are numbers of rows; strides and cols are numbers of elements.
  std::int64_t rows, cols, from_stride, to_stride, group_rows, to_group_stride;
  bool add = false;
  // Describes a copy with all rows in one group.
  static CopyRows strided(const Tensor& from, const Tensor& to, std::int64_t rows, std::int64_t cols,
                          std::int64_t from_stride, std::int64_t to_stride);
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
