#include "comm/local/thread_links.h"

#include <cstring>
#include <thread>
#include <utility>

namespace primus::comm::local {

ThreadGroup::ThreadGroup(int ranks)
    : size(ranks),
      bells(static_cast<std::size_t>(ranks)),
      channels(static_cast<std::size_t>(ranks) * static_cast<std::size_t>(ranks)) {}

ThreadLinks::ThreadLinks(std::shared_ptr<ThreadGroup> group, int rank, int spins)
    : BellLinks(group->bells.data(), group->size, rank, spins),
      group_(std::move(group)),
      rank_(rank),
      shown_(static_cast<std::size_t>(group_->size)),
      offset_(static_cast<std::size_t>(group_->size)) {}

std::size_t ThreadLinks::push(int peer, std::span<const std::byte> data) {
  ThreadGroup::Channel& channel = group_->channel(rank_, peer);
  const std::uint64_t tail = channel.tail.load(std::memory_order_relaxed);
  if (tail - channel.head.load(std::memory_order_acquire) == ThreadGroup::kEntries) return 0;
  ThreadGroup::Entry& entry = channel.entries[tail % ThreadGroup::kEntries];
  entry.bytes = data.size();
  if (data.size() <= ThreadGroup::kInline) {
    entry.data = nullptr;
    std::memcpy(entry.copy.data(), data.data(), data.size());
  } else {
    entry.data = data.data();
    shown_[static_cast<std::size_t>(peer)] = tail + 1;
  }
  channel.tail.store(tail + 1, std::memory_order_release);
  bells_.touch(peer);
  return data.size();
}

bool ThreadLinks::drained(int peer) {
  return group_->channel(rank_, peer).head.load(std::memory_order_acquire) >=
         shown_[static_cast<std::size_t>(peer)];
}

std::span<const std::byte> ThreadLinks::peek(int peer) {
  ThreadGroup::Channel& channel = group_->channel(peer, rank_);
  const std::uint64_t head = channel.head.load(std::memory_order_relaxed);
  if (head == channel.tail.load(std::memory_order_acquire)) return {};
  // Announces the read, and then checks for revocation. revoke() first marks the revocation, and then checks
  // for reads. So at least one of the two sides detects the conflict.
  channel.reading.store(true);
  if (channel.revoked.load()) {
    channel.reading.store(false);
    return {};
  }
  const ThreadGroup::Entry& entry = channel.entries[head % ThreadGroup::kEntries];
  const std::byte* const data = entry.data ? entry.data : entry.copy.data();
  return std::span(data, entry.bytes).subspan(offset_[static_cast<std::size_t>(peer)]);
}

void ThreadLinks::pop(int peer, std::size_t bytes) {
  ThreadGroup::Channel& channel = group_->channel(peer, rank_);
  const std::uint64_t head = channel.head.load(std::memory_order_relaxed);
  std::size_t& offset = offset_[static_cast<std::size_t>(peer)];
  offset += bytes;
  if (offset == channel.entries[head % ThreadGroup::kEntries].bytes) {
    offset = 0;
    channel.head.store(head + 1, std::memory_order_release);
    bells_.touch(peer);
  }
  channel.reading.store(false, std::memory_order_release);
}

void ThreadLinks::revoke() noexcept {
  for (int peer = 0; peer < group_->size; ++peer) {
    ThreadGroup::Channel& channel = group_->channel(rank_, peer);
    channel.revoked.store(true);
    while (channel.reading.load()) std::this_thread::yield();
  }
}

}  // namespace primus::comm::local
