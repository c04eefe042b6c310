#include "comm/nccl/row_counter.h"

#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "comm/nccl/nccl_communicator.h"

namespace primus::comm::nccl {
namespace {

using namespace std::chrono_literals;

// Numbers that are remembered. A step has one number for each microbatch and mixture layer.
constexpr std::size_t kRemembered = 4096;
// Polls that only yield. Later polls sleep, because the device may be far behind the host.
constexpr int kBusyPolls = 2000;

}  // namespace

RowCounter::Copy RowCounter::start(Stream& stream, const Tensor& sends, const Tensor& receives) {
  const std::int64_t bytes = ranks_ * static_cast<std::int64_t>(sizeof(std::int32_t));
  Copy copy;
  if (free_.empty()) {
    copy = {PinnedBuffer(context_.device, 2 * bytes), context_.device.create_event()};
  } else {
    copy = std::move(free_.back());
    free_.pop_back();
  }
  if (static_cast<const std::byte*>(sends.data) + bytes == receives.data) {
    stream.copy_to_host(copy.memory.data(), sends.data, 2 * bytes);
  } else {
    stream.copy_to_host(copy.memory.data(), sends.data, bytes);
    stream.copy_to_host(copy.memory.data() + bytes, receives.data, bytes);
  }
  stream.record(*copy.arrived);
  return copy;
}

RowCounter::Counts RowCounter::finish(Copy copy, FunctionRef<void()> waiting) {
  try {
    for (int poll = 0; !context_.collectives.reached(*copy.arrived); ++poll) {
      waiting();
      if (poll < kBusyPolls) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(20us);
      }
    }
    waiting();  // after an abort, the work that computes the counts may have ended early
  } catch (...) {
    free_.push_back(std::move(copy));  // keeps the memory, because the copy may still be in flight
    throw;
  }
  Counts counts;
  const std::byte* from = copy.memory.data();
  for (std::vector<std::int64_t>* list : {&counts.sends, &counts.receives}) {
    for (int rank = 0; rank < ranks_; ++rank, from += sizeof(std::int32_t)) {
      std::int32_t count = 0;
      std::memcpy(&count, from, sizeof(count));
      list->push_back(count);
    }
  }
  free_.push_back(std::move(copy));
  return counts;
}

void RowCounter::begin(Stream& stream, const Tensor& sends, const Tensor& receives, std::uint64_t number) {
  known_.erase(number);
  if (auto earlier = in_flight_.extract(number)) free_.push_back(std::move(earlier.mapped()));
  forget_old();
  in_flight_.emplace(number, start(stream, sends, receives));
}

RowCounter::Counts RowCounter::counts_of(Stream& stream, const Call& call, FunctionRef<void()> waiting) {
  const RowCounts& of = call.row_counts;
  if (of.number == 0) return finish(start(stream, call.send_rows, call.receive_rows), waiting);
  auto known = known_.find(of.number);
  if (known == known_.end()) {
    const Tensor &sends = of.back ? call.receive_rows : call.send_rows,
                 &receives = of.back ? call.send_rows : call.receive_rows;
    if (!in_flight_.contains(of.number)) begin(stream, sends, receives, of.number);
    known =
        known_.emplace(of.number, finish(std::move(in_flight_.extract(of.number).mapped()), waiting)).first;
  }
  Counts counts = known->second;
  if (of.back) std::swap(counts.sends, counts.receives);
  return counts;
}

void RowCounter::forget_old() {
  while (known_.size() > kRemembered) known_.erase(known_.begin());
  while (in_flight_.size() > kRemembered &&
         context_.collectives.reached(*in_flight_.begin()->second.arrived)) {
    free_.push_back(std::move(in_flight_.extract(in_flight_.begin()).mapped()));
  }
}

}  // namespace primus::comm::nccl
