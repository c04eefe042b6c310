#include "engine/parallel/head_exchange.h"

#include <vector>

#include "turbo/elementwise/elementwise.h"

namespace primus::engine {
namespace {

using comm::Transfer;
using turbo::launch;

void copy(turbo::Context& context, const Tensor& from, const Tensor& to, std::int64_t rows, std::int64_t cols,
          std::int64_t from_stride, std::int64_t to_stride) {
  launch(context, turbo::CopyRows::strided(from, to, rows, cols, from_stride, to_stride));
}

// Calls visit(first column in a row of all heads, first column in a row of the rank's heads, number of
// columns).
template <class Visit>
void for_each_column(int rank, HeadExchange::AllColumns columns, Visit visit) {
  std::int64_t of_row = 0;
  for (const HeadExchange::Columns& c : columns) {
    visit(c.first + rank * c.count, of_row, c.count);
    of_row += c.count;
  }
}

}  // namespace

template <class Visit>
void HeadExchange::for_each_peer(Visit visit) const {
  const int ranks = group_.ranks();
  for (int i = 1; i < ranks; ++i) visit((group_.rank() + i) % ranks, (i - 1) * own_tokens());
}

template <class Visit>
void HeadExchange::for_each_piece(Visit visit) const {
  for (std::int64_t sequence = 0; sequence < batch_; ++sequence) {
    for (const int half : {0, 1}) visit(sequence, half);
  }
}

Tensor HeadExchange::piece(const Tensor& of_rank, std::int64_t sequence, int half) const {
  const std::int64_t begin = (2 * sequence + half) * slice_tokens();
  return of_rank.slice(begin, begin + slice_tokens());
}

Tensor HeadExchange::place(const Tensor& all, int rank, std::int64_t sequence, int half) const {
  const std::int64_t begin = sequence * sequence_ + group_.slice(rank, half) * slice_tokens();
  return all.slice(begin, begin + slice_tokens());
}

void HeadExchange::to_heads(const Tensor& own, const Tensor& all, AllColumns columns) const {
  const ScratchTensor sent(context_.scratch, own.dtype, {all_tokens() - own_tokens(), all.cols()});
  std::vector<Transfer> transfers;
  for_each_peer([&](int peer, std::int64_t begin) {
    const Tensor part = sent.get().slice(begin, begin + own_tokens());
    for_each_column(peer, columns, [&](std::int64_t of_own, std::int64_t of_row, std::int64_t count) {
      copy(context_, own.from(of_own), part.from(of_row), own_tokens(), count, own.cols(), all.cols());
    });
    for_each_piece([&](std::int64_t sequence, int half) {
      transfers.push_back(Transfer::send(piece(part, sequence, half), peer));
      transfers.push_back(Transfer::receive(place(all, peer, sequence, half), peer));
    });
  });
  group_.exchange(transfers);
  // Copies this rank's own part during the transfers.
  for_each_piece([&](std::int64_t sequence, int half) {
    const Tensor from = piece(own, sequence, half), to = place(all, group_.rank(), sequence, half);
    for_each_column(
        group_.rank(), columns, [&](std::int64_t of_own, std::int64_t of_row, std::int64_t count) {
          copy(context_, from.from(of_own), to.from(of_row), slice_tokens(), count, own.cols(), all.cols());
        });
  });
  group_.wait(group_.values_arrived());
}

void HeadExchange::to_tokens(const Tensor& all, const Tensor& own, AllColumns columns) const {
  const ScratchTensor received(context_.scratch, own.dtype, {all_tokens() - own_tokens(), all.cols()});
  const auto part = [&](std::int64_t begin) { return received.get().slice(begin, begin + own_tokens()); };
  std::vector<Transfer> transfers;
  for_each_peer([&](int peer, std::int64_t begin) {
    for_each_piece([&](std::int64_t sequence, int half) {
      transfers.push_back(Transfer::send(place(all, peer, sequence, half), peer));
      transfers.push_back(Transfer::receive(piece(part(begin), sequence, half), peer));
    });
  });
  group_.exchange(transfers);
  for_each_piece([&](std::int64_t sequence, int half) {
    const Tensor from = place(all, group_.rank(), sequence, half), to = piece(own, sequence, half);
    for_each_column(
        group_.rank(), columns, [&](std::int64_t of_own, std::int64_t of_row, std::int64_t count) {
          copy(context_, from.from(of_row), to.from(of_own), slice_tokens(), count, all.cols(), own.cols());
        });
  });
  group_.wait(group_.values_arrived());
  for_each_peer([&](int peer, std::int64_t begin) {
    for_each_column(peer, columns, [&](std::int64_t of_own, std::int64_t of_row, std::int64_t count) {
      copy(context_, part(begin).from(of_row), own.from(of_own), own_tokens(), count, all.cols(), own.cols());
    });
  });
}

void HeadExchange::gather_first_keys(const Tensor& own, const Tensor& all) const {
  const Tensor rows = own.reshaped({own_tokens(), 1}), all_rows = all.reshaped({all_tokens(), 1});
  std::vector<Transfer> transfers;
  for_each_piece([&](std::int64_t sequence, int half) {
    const Tensor sent = piece(rows, sequence, half);
    for_each_peer([&](int peer, std::int64_t) {
      transfers.push_back(Transfer::send(sent, peer));
      transfers.push_back(Transfer::receive(place(all_rows, peer, sequence, half), peer));
    });
    copy(context_, sent, place(all_rows, group_.rank(), sequence, half), 1, slice_tokens(), slice_tokens(),
         slice_tokens());
  });
  group_.exchange(transfers);
  group_.wait(group_.values_arrived());
}

}  // namespace primus::engine
