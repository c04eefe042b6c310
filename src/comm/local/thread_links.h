// Links between ranks that are threads of one process. The receiver reads large pieces directly from the
// sender's memory, without an intermediate copy.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/links.h"
#include "comm/local/doorbell.h"

namespace primus::comm::local {

// State shared by the threads of a group.
struct ThreadGroup {
  static constexpr std::size_t kEntries = 16;
  static constexpr std::size_t kInline = 256;  // bytes; data of at most this size is copied, so the sender
                                               // can continue

  struct Entry {
    const std::byte* data = nullptr;  // null: the bytes are in `copy`
    std::size_t bytes = 0;
    std::array<std::byte, kInline> copy;
  };
  // A ring of entries from one rank to another.
  struct Channel {
    alignas(64) std::atomic<std::uint64_t> tail{0};  // entries written, by the sender
    std::atomic<bool> revoked{false};
    alignas(64) std::atomic<std::uint64_t> head{0};  // entries read, by the receiver
    std::atomic<bool> reading{false};                // the receiver is reading an entry's memory
    std::array<Entry, kEntries> entries;
  };

  explicit ThreadGroup(int ranks);
  Channel& channel(int from, int to) { return channels[static_cast<std::size_t>(from * size + to)]; }

  int size;
  std::vector<Doorbell> bells;
  std::vector<Channel> channels;
};

class ThreadLinks final : public BellLinks {
 public:
  ThreadLinks(std::shared_ptr<ThreadGroup> group, int rank, int spins);

  std::size_t push(int peer, std::span<const std::byte> data) override;
  bool drained(int peer) override;
  std::span<const std::byte> peek(int peer) override;
  void pop(int peer, std::size_t bytes) override;
  void revoke() noexcept override;

 private:
  std::shared_ptr<ThreadGroup> group_;
  int rank_;
  // by peer: the value of the channel's tail after the latest entry that refers to this rank's memory
  std::vector<std::uint64_t> shown_;
  std::vector<std::size_t> offset_;  // by peer: bytes of the peer's oldest entry that are already used
};

}  // namespace primus::comm::local
