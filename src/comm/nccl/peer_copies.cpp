#include "comm/nccl/peer_copies.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <functional>
#include <thread>

#include "comm/local/shared_memory.h"
#include "comm/nccl/nccl_communicator.h"
#include "comm/overlap.h"
#include "device/watched.h"

namespace primus::comm::nccl {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// Maximum transfers that a sender's host may post ahead of a receiver.
constexpr std::uint32_t kPosts = 256;
constexpr std::size_t kLine = 64, kPage = 4096;
// Time limit of the trial: much longer than mapping memory or a first copy takes.
constexpr auto kTrialTime = 20s;
constexpr auto kPeersFarewell = 2s;
constexpr std::int64_t kTrialWords = 1024, kTrialBytes = kTrialWords * 4, kTrialRows = 64;
// release() sets the flags to the last number plus this value, which ends all waits for the next 2^30
// transfers.
constexpr std::uint32_t kBeyond = 1u << 30;

std::uint32_t trial_word(int rank, std::int64_t i) {
  return static_cast<std::uint32_t>(rank + 1) * 2654435761u + static_cast<std::uint32_t>(i);
}

// Blocks until `there()` returns true. Usually the first call does so, because hosts run ahead of their
// devices, and there is no wait.
template <class There>
void wait_until(There there, PeerCopies::Waiting waiting) {
  const auto begin = Clock::now();
  for (int round = 0; !there(); ++round) {
    if (round < 1000) {
      std::this_thread::yield();
      continue;
    }
    waiting(std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin));
    std::this_thread::sleep_for(20us);
  }
}

}  // namespace

// The channel from one rank to another. The initial state is all zero.
struct PeerCopies::Lane {
  struct Post {
    PeerHandle handle;
    std::int64_t offset, bytes;
  };
  // Written by devices and by release().
  alignas(kLine) std::atomic<std::uint32_t> ready;
  alignas(kLine) std::atomic<std::uint32_t> done;
  // Written by hosts: number of transfers that the sender posted, and number that the receiver found.
  alignas(kLine) std::atomic<std::uint32_t> posted;
  alignas(kLine) std::atomic<std::uint32_t> found;
  // Bytes that move_rows() sent to other ranks; only in a rank's lane to itself.
  alignas(kLine) std::atomic<std::uint64_t> row_bytes;
  alignas(kLine) Post posts[kPosts];
};

struct PeerCopies::Region {
  alignas(kLine) std::atomic<std::uint32_t> closed;  // number of ranks that have unmapped other ranks'
                                                     // memory
  std::atomic<bool> failed;                          // whether any rank's trial failed

  static std::size_t bytes(int ranks) {
    const std::size_t all = sizeof(Region) + static_cast<std::size_t>(ranks * ranks) * sizeof(Lane);
    return (all + kPage - 1) / kPage * kPage;
  }
};

PeerCopies::PeerCopies(Context& context, int size, int rank)
    : context_(context),
      device_(*context.collectives.peers),
      ordinal_(context.ordinal),
      size_(size),
      rank_(rank),
      peers_(static_cast<std::size_t>(size)),
      failures_(std::uncaught_exceptions()) {}

PeerCopies::~PeerCopies() {
  close();
  if (flags_) device_.unmap_flags(ordinal_, shared_.get());
  if (!shared_) return;
  auto& region = *reinterpret_cast<Region*>(shared_.get());
  ++region.closed;
  // Wait until no rank maps this rank's memory before it is freed.
  const auto end = Clock::now() + kPeersFarewell;
  while (region.closed < static_cast<std::uint32_t>(size_) && Clock::now() < end &&
         !context_.state->abort->aborted() && std::uncaught_exceptions() == failures_) {
    std::this_thread::sleep_for(1ms);
  }
}

std::unique_ptr<PeerCopies> PeerCopies::open(Context& context, const std::string& key, int size, int rank,
                                             std::string& why, Use use) {
  const auto name = [&](const char* round, int member) {
    return fmt::format("{}/{}/{}", key, round, member);
  };
  // Exchanges a text per rank under the name `round`, and returns the first non-empty text.
  const auto agree = [&](const char* round, const std::string& mine) {
    context.publish(name(round, rank), mine);
    std::string first;
    for (int member = 0; member < size; ++member) {
      const std::string text = context.wait_for(name(round, member));
      if (first.empty()) first = text;
    }
    return first;
  };
  const auto attempt = [&](const char* round, FunctionRef<void()> work) {
    std::string mine;
    try {
      work();
    } catch (const Error& error) {
      context.state->abort->check();
      mine = fmt::format("rank {}: {}", context.state->rank, error.what());
    }
    why = agree(round, mine);
    return why.empty();
  };
  const std::string host = local::host_identity();
  context.publish(name("host", rank), host);
  const std::string first = context.wait_for(name("host", 0));
  for (int member = 1; member < size; ++member) {
    if (context.wait_for(name("host", member)) == first) continue;
    why = "the ranks are on several hosts";
    return nullptr;
  }
  // This memory is freed only after all ranks have unmapped it, because another rank may still read it after
  // a failed trial.
  const std::unique_ptr<void, std::function<void(void*)>> memory(
      context.device.allocate(kTrialBytes * (2 * size + 1)),
      [&](void* address) { context.device.release(address); });
  std::unique_ptr<PeerCopies> copies(new PeerCopies(context, size, rank));
  if (!attempt("meet", [&] { copies->meet(key); }) || !attempt("map", [&] { copies->map(); })) return nullptr;
  const bool works = attempt("try", [&] { copies->try_out(memory.get(), use); });
  copies->close();
  agree("closed", {});
  if (!works) copies.reset();
  return copies;
}

void PeerCopies::close() noexcept {
  for (const auto& [owner, address] : opened_) device_.close(ordinal_, address);
  opened_.clear();
}

void PeerCopies::meet(const std::string& key) {
  const auto check = [this] { context_.state->abort->check(); };
  const Deadline deadline = in(context_.start_timeout);
  const std::size_t bytes = Region::bytes(size_);
  const std::string name = key + "/memory";
  if (rank_ != 0) {
    shared_ = local::map_from_giver(context_.wait_for(name), bytes, deadline, check);
    return;
  }
  local::SharedMemory memory = local::create_shared_memory(bytes);
  local::DescriptorGiver giver;
  context_.publish(name, giver.name());
  giver.give(memory.descriptor, size_ - 1, deadline, check);
  shared_ = std::move(memory.memory);
}

void PeerCopies::map() {
  const auto bytes = static_cast<std::int64_t>(Region::bytes(size_));
  flags_ = static_cast<std::byte*>(device_.map_flags(ordinal_, shared_.get(), bytes));
}

// Tests the copies: every rank sends some words to every other rank. `memory`: one part for the words of each
// rank; for rows, then one part for the words to each rank, and the row counts.
void PeerCopies::try_out(void* memory, Use use) {
  Device& device = context_.device;
  const std::unique_ptr<Stream> stream = device.create_stream(StreamKind::kCommunication);
  const std::unique_ptr<Event> event = device.create_event();
  PinnedBuffer host(device, kTrialBytes * (2 * size_ + 1));
  auto* const words = reinterpret_cast<std::uint32_t*>(host.data());
  const auto part = [&](int of) {
    return Tensor(static_cast<std::byte*>(memory) + of * kTrialBytes, DType::kI32, {kTrialWords});
  };
  for (std::int64_t i = 0; i < kTrialWords * 2 * size_; ++i) words[i] = trial_word(rank_, i % kTrialWords);
  for (int peer = 0; peer < size_; ++peer) words[kTrialWords * 2 * size_ + peer] = kTrialRows;
  const auto end = Clock::now() + kTrialTime;
  auto& region = *reinterpret_cast<Region*>(shared_.get());
  struct OtherFailed {};  // another rank has failed and reports why
  std::vector<Transfer> transfers;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    transfers.push_back(Transfer::send(part(rank_), peer));
    transfers.push_back(Transfer::receive(part(peer), peer));
  }
  const auto patience = [&](std::chrono::milliseconds) {
    context_.state->abort->check();
    if (region.failed) throw OtherFailed();
    if (Clock::now() > end) throw Error(ErrorKind::kIo, "a test of the copy engines did not finish in time");
  };
  try {
    if (use == Use::kExchange) {
      stream->copy_to_device(part(rank_).data, words, kTrialBytes);
      exchange(*stream, transfers, patience);
    } else {
      const Shape shape{size_ * kTrialRows, kTrialWords / kTrialRows};
      const Tensor counts(part(2 * size_).data, DType::kI32, {size_});
      stream->copy_to_device(part(size_).data, words, kTrialBytes * size_);
      stream->copy_to_device(counts.data, words + kTrialWords * 2 * size_, counts.bytes());
      Call call;
      call.in = Tensor(part(size_).data, DType::kI32, shape);
      call.out = Tensor(memory, DType::kI32, shape);
      call.send_rows = counts;
      move_rows(*stream, call, patience);
    }
    stream->copy_to_host(words, memory, kTrialBytes * size_);
    stream->record(*event);
    while (!context_.collectives.reached(*event)) {
      patience({});
      std::this_thread::sleep_for(100us);
    }
  } catch (const OtherFailed&) {
    return pass(*stream, *event);
  } catch (...) {
    region.failed = true;
    pass(*stream, *event);
    throw;
  }
  for (int peer = 0; peer < size_; ++peer) {
    for (std::int64_t i = 0; i < kTrialWords; ++i) {
      if (words[peer * kTrialWords + i] == trial_word(peer, i)) continue;
      throw Error(ErrorKind::kIo,
                  fmt::format("the copy engines deliver wrong data from rank {} of the group", peer));
    }
  }
}

// Blocks the host until the stream's work has ended. Meanwhile it repeatedly releases the flags for which
// this work may wait.
void PeerCopies::pass(Stream& stream, Event& event) {
  stream.record(event);
  while (!context_.collectives.reached(event)) {
    release();
    std::this_thread::sleep_for(1ms);
  }
}

PeerCopies::Lane& PeerCopies::lane(int from, int to) const {
  return reinterpret_cast<Lane*>(shared_.get() + sizeof(Region))[from * size_ + to];
}

void* PeerCopies::on_device(const void* flag) const {
  return flags_ + (static_cast<const std::byte*>(flag) - shared_.get());
}

void PeerCopies::post(Lane& lane, std::uint32_t number, const Tensor& data, Waiting waiting) {
  wait_until([&] { return number - lane.found.load(std::memory_order_acquire) <= kPosts; }, waiting);
  Lane::Post& post = lane.posts[number % kPosts];
  post.handle = device_.share(ordinal_, data.data, post.offset);
  post.bytes = data.bytes();
  lane.posted.store(number, std::memory_order_release);
}

void* PeerCopies::find(Lane& lane, int from, std::uint32_t number, std::int64_t bytes, Waiting waiting) {
  wait_until(
      [&] { return static_cast<std::int32_t>(lane.posted.load(std::memory_order_acquire) - number) >= 0; },
      waiting);
  const Lane::Post post = lane.posts[number % kPosts];
  lane.found.store(number, std::memory_order_release);
  if (post.bytes != bytes) {
    throw Error(ErrorKind::kIo, fmt::format("rank {} of the group sends {} bytes, but {} are expected", from,
                                            post.bytes, bytes));
  }
  const auto key = std::pair(from, post.handle);
  auto at = opened_.find(key);
  if (at == opened_.end()) at = opened_.emplace(key, device_.open(ordinal_, post.handle)).first;
  return static_cast<std::byte*>(at->second) + post.offset;
}

void PeerCopies::exchange(Stream& stream, std::span<const Transfer> transfers, Waiting waiting) {
  const auto concerns = [&](const Transfer& t, bool sends) {
    return t.sends == sends && t.peer != rank_ && t.data.bytes() != 0;
  };
  Stream& flags = innermost(stream);
  const auto number_of = [](std::atomic<std::uint32_t>& last) {
    return last.load(std::memory_order_relaxed) + 1;
  };
  std::vector<int> sent_to;
  for (const Transfer& transfer : transfers) {
    if (!concerns(transfer, true)) continue;
    std::atomic<std::uint32_t>& sent = peers_[static_cast<std::size_t>(transfer.peer)].sent;
    const std::uint32_t number = number_of(sent);
    Lane& to = lane(rank_, transfer.peer);
    post(to, number, transfer.data, waiting);
    device_.set_flag(flags, on_device(&to.ready), number);
    sent = number;
    if (std::find(sent_to.begin(), sent_to.end(), transfer.peer) == sent_to.end())
      sent_to.push_back(transfer.peer);
  }
  for (const Transfer& transfer : transfers) {
    if (!concerns(transfer, false)) continue;
    std::atomic<std::uint32_t>& received = peers_[static_cast<std::size_t>(transfer.peer)].received;
    const std::uint32_t number = number_of(received);
    Lane& from = lane(transfer.peer, rank_);
    const void* const source = find(from, transfer.peer, number, transfer.data.bytes(), waiting);
    // This number must be set before the stream waits, so that release() also ends the wait of this transfer.
    received = number;
    device_.wait_flag(flags, on_device(&from.ready), number);
    stream.copy_on_device(transfer.data.data, source, transfer.data.bytes());
    device_.set_flag(flags, on_device(&from.done), number);
  }
  for (const int peer : sent_to) {
    device_.wait_flag(flags, on_device(&lane(rank_, peer).done), peers_[static_cast<std::size_t>(peer)].sent);
  }
}

void PeerCopies::all_gather(Stream& stream, const Tensor& in, const Tensor& out, Waiting waiting) {
  const std::int64_t bytes = in.bytes();
  const auto part = [&](int of) {
    return Tensor(static_cast<std::byte*>(out.data) + of * bytes, DType::kU8, {bytes});
  };
  const Tensor own(in.data, DType::kU8, {bytes});
  std::vector<Transfer> transfers;
  for (int distance = 1; distance < size_; ++distance) {
    const int from = (rank_ + distance) % size_, to = (rank_ + size_ - distance) % size_;
    transfers.push_back(Transfer::send(own, to));
    transfers.push_back(Transfer::receive(part(from), from));
  }
  exchange(stream, transfers, waiting);
  if (part(rank_).data != in.data) stream.copy_on_device(part(rank_).data, in.data, bytes);
}

void PeerCopies::move_rows(Stream& stream, const Call& call, Waiting waiting) {
  const std::int64_t part = call.in.bytes() / size_;
  if (part == 0) return;
  const auto part_of = [&](const Tensor& all, int peer) {
    return Tensor(static_cast<std::byte*>(all.data) + peer * part, DType::kU8, {part});
  };
  const auto peer_at = [&](int distance) { return (rank_ + distance) % size_; };
  const auto counts_of = [&](int peer) -> Peer& { return peers_[static_cast<std::size_t>(peer)]; };
  Stream& flags = innermost(stream);
  for (int distance = 1; distance < size_; ++distance) {
    const int peer = peer_at(distance);
    Peer& last = counts_of(peer);
    const std::uint32_t number = last.sent.load(std::memory_order_relaxed) + 1;
    Lane& to = lane(rank_, peer);
    post(to, number, part_of(call.out, peer), waiting);
    device_.set_flag(flags, on_device(&to.ready), number);
    last.sent = number;
  }
  std::vector<RowCopies::Part> parts;
  const auto add = [&](void* to, int peer) {
    parts.push_back({.from = part_of(call.in, peer).data,
                     .to = to,
                     .rows = static_cast<const std::int32_t*>(call.send_rows.data) + peer,
                     .to_peer = peer != rank_});
  };
  for (int distance = 1; distance < size_; ++distance) {
    const int peer = peer_at(distance);
    Peer& last = counts_of(peer);
    const std::uint32_t number = last.received.load(std::memory_order_relaxed) + 1;
    Lane& from = lane(peer, rank_);
    add(find(from, peer, number, part, waiting), peer);
    last.received = number;  // before the stream waits, as in exchange()
    device_.wait_flag(flags, on_device(&from.ready), number);
  }
  add(part_of(call.out, rank_).data, rank_);
  complete_ += part * (size_ - 1);
  const std::int64_t row_bytes = call.in.cols() * size_of(call.in.dtype);
  device_.copy_rows(flags, {.parts = parts,
                            .row_bytes = row_bytes,
                            .maximum = part / row_bytes,
                            .sent = static_cast<std::uint64_t*>(on_device(&lane(rank_, rank_).row_bytes)),
                            .processors = kExpertOverlapProcessors});
  for (int distance = 1; distance < size_; ++distance) {
    const int peer = peer_at(distance);
    device_.set_flag(flags, on_device(&lane(peer, rank_).done), counts_of(peer).received);
  }
  for (int distance = 1; distance < size_; ++distance) {
    const int peer = peer_at(distance);
    device_.wait_flag(flags, on_device(&lane(rank_, peer).done), counts_of(peer).sent);
  }
}

std::int64_t PeerCopies::unsent() const {
  return complete_ - static_cast<std::int64_t>(lane(rank_, rank_).row_bytes);
}

void PeerCopies::release() noexcept {
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const Peer& asked = peers_[static_cast<std::size_t>(peer)];
    lane(peer, rank_).ready = asked.received + kBeyond;
    lane(rank_, peer).done = asked.sent + kBeyond;
  }
}

}  // namespace primus::comm::nccl
