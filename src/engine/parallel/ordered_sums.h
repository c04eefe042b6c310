// Sums over ranks in the forward passes of batch-invariant GPUs (DeviceSpec::batch_invariant). Each rank gets
// its own rows of the sum:
//
//   partial sums [n * rows, c] of every rank --> [rows, c], the sum of this rank's rows
//
// A GPU's collectives library chooses the order of additions by the size of the tensor and by the position of
// an element in it, so a token's sum would depend on the other tokens. In order, ranks exchange the partial
// sums by an all-to-all, and one kernel adds them by the order of comm::Communicator's reductions, in fp32,
// and rounds once. A rank sends as many bytes as by a reduce-scatter, (n - 1) / n of its partial sums, in one
// step instead of n - 1. An all-gather of the partial sums would also need one step, but n times the bytes.
//
// Thread-safe, as far as the context and the group are.
#pragma once

#include "comm/communicator.h"
#include "tensor/tensor.h"
#include "turbo/context.h"
#include "turbo/elementwise/elementwise.h"

namespace primus::engine {

// Maximum number of ranks of a sum in order.
inline constexpr int kMaxOrderedRanks = turbo::Add::kMaxRanks;

// Returns whether forward passes must sum over the group in order: comm::Communicator::ordered_sums() is set,
// and the group has more than two ranks. A sum over two ranks has only one order.
bool sums_need_order(const comm::Communicator& group);

// own = this rank's rows of the sum over all ranks of `all`, in order. Enqueues all work on the context's
// stream. `parts`: working memory with the shape of `all`. All three tensors have the same type, fp32 or
// bf16.
void sum_in_order(turbo::Context& context, comm::Communicator& group, const Tensor& all, const Tensor& parts,
                  const Tensor& own);

}  // namespace primus::engine
