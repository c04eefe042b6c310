#include "engine/head_exchange.h"

#include "turbo/elementwise/elementwise.h"

namespace primus::engine {
namespace {

using turbo::launch;

void copy(turbo::Context& context, const Tensor& from, const Tensor& to, std::int64_t rows, std::int64_t cols,
          std::int64_t from_stride, std::int64_t to_stride) {
  launch(context, turbo::CopyRows::strided(from, to, rows, cols, from_stride, to_stride));
}

// visit(rank, first column of a row of all heads, first column of one of the rank's heads, how many).
template <class Visit>
void for_each_column(int ranks, HeadExchange::AllColumns columns, Visit visit) {
  for (int rank = 0; rank < ranks; ++rank) {
    std::int64_t of_row = 0;
    for (const HeadExchange::Columns& c : columns) {
      visit(rank, c.first + rank * c.count, of_row, c.count);
      of_row += c.count;
    }
  }
}

}  // namespace

void HeadExchange::to_heads(const Tensor& own, const Tensor& all, AllColumns columns) const {
  const ScratchTensor sent(context_.scratch, own.dtype, {all_tokens(), all.cols()});
  const ScratchTensor received(context_.scratch, own.dtype, {all_tokens(), all.cols()});
  for_each_column(
      group_.ranks(), columns, [&](int rank, std::int64_t of_own, std::int64_t of_row, std::int64_t count) {
        copy(context_, own.from(of_own), sent.get().from(rank * own_tokens() * all.cols() + of_row),
             own_tokens(), count, own.cols(), all.cols());
      });
  group_.all_to_all(sent.get(), received.get());
  reorder(received.get(), all, false);
}

void HeadExchange::to_tokens(const Tensor& all, const Tensor& own, AllColumns columns) const {
  const ScratchTensor sent(context_.scratch, own.dtype, {all_tokens(), all.cols()});
  const ScratchTensor received(context_.scratch, own.dtype, {all_tokens(), all.cols()});
  reorder(all, sent.get(), true);
  group_.all_to_all(sent.get(), received.get());
  for_each_column(group_.ranks(), columns,
                  [&](int rank, std::int64_t of_own, std::int64_t of_row, std::int64_t count) {
                    copy(context_, received.get().from(rank * own_tokens() * all.cols() + of_row),
                         own.from(of_own), own_tokens(), count, all.cols(), own.cols());
                  });
}

void HeadExchange::gather_first_keys(const Tensor& own, const Tensor& all) const {
  const ScratchTensor gathered(context_.scratch, DType::kI32, {all_tokens(), 1});
  group_.all_gather(own, gathered.get().reshaped({all_tokens()}));
  reorder(gathered.get(), all.reshaped({all_tokens(), 1}), false);
}

void HeadExchange::reorder(const Tensor& from, const Tensor& to, bool to_ranks) const {
  const int ranks = group_.ranks();
  const std::int64_t cols = from.cols(), half = sequence_ / (2 * ranks) * cols;
  for (int rank = 0; rank < ranks; ++rank) {
    for (int part = 0; part < 2; ++part) {
      // Of each sequence one slice.
      const std::int64_t by_rank = rank * own_tokens() * cols + part * half;
      const std::int64_t by_sequence = group_.slice(rank, part) * half;
      const Tensor a = from.from(to_ranks ? by_sequence : by_rank);
      const Tensor b = to.from(to_ranks ? by_rank : by_sequence);
      const std::int64_t of_rank = 2 * half, of_sequence = sequence_ * cols;
      launch(context_, turbo::CopyRows{.from = a,
                                       .to = b,
                                       .rows = batch_,
                                       .cols = half,
                                       .from_stride = to_ranks ? of_sequence : of_rank,
                                       .to_stride = to_ranks ? of_rank : of_sequence,
                                       .group_rows = batch_,
                                       .to_group_stride = 0});
    }
  }
}

}  // namespace primus::engine
