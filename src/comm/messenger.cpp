#include "comm/messenger.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

namespace primus::comm {
namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t kMagic = 0x434D5250;  // "PRMC"
// Bytes received at a time. Between two such pieces, the rank continues to send and reports its free space to
// peers.
constexpr std::size_t kPiece = 64 << 10;
constexpr auto kTick = 20ms;  // how often a sleeping rank checks whether the job was aborted
// How long to wait, after a connection is lost, for the rendezvous to report the cause.
constexpr auto kCauseDelay = 1000ms;

const std::byte kZeros[Links::kGranule] = {};

std::size_t padding(std::size_t bytes) {
  return (Links::kGranule - bytes % Links::kGranule) % Links::kGranule;
}

}  // namespace

struct Messenger::Header {
  std::uint32_t magic;
  std::uint8_t kind, dtype, reduction, unused;
  std::int32_t root, reserved;
  std::uint64_t sequence;
  std::int64_t count, call_count;  // `count`: elements of this message; `call_count`: elements of the call
  std::uint8_t fill[Links::kGranule - 40];
};

Messenger::Messenger(Links& links, RankState& state, std::vector<int> members, int rank)
    : links_(links), state_(state), members_(std::move(members)), rank_(rank), peers_(members_.size()) {
  static_assert(sizeof(Header) == Links::kGranule);
}

void Messenger::begin(const Signature& signature, std::uint64_t sequence, std::uint64_t record) {
  state_.abort->check();
  signature_ = signature;
  sequence_ = sequence;
  record_ = record;
  noted_ = -1;
  waiting_since_.reset();
}

// ---- Queues -------------------------------------------------------------------------------------

void Messenger::pad_outgoing(int peer) {
  Peer& p = peers_[static_cast<std::size_t>(peer)];
  if (const std::size_t pad = padding(p.sent)) p.outgoing.push_back({kZeros, pad});
  p.sent = 0;
}

void Messenger::pad_incoming(int peer) {
  Peer& p = peers_[static_cast<std::size_t>(peer)];
  if (const std::size_t pad = padding(p.received)) p.incoming.push_back({nullptr, pad, false});
  p.received = 0;
}

void Messenger::open(int peer, DType dtype, std::int64_t count) {
  pad_outgoing(peer);
  Peer& p = peers_[static_cast<std::size_t>(peer)];
  Header header{};
  header.magic = kMagic;
  header.kind = static_cast<std::uint8_t>(signature_.kind);
  header.dtype = static_cast<std::uint8_t>(dtype);
  header.reduction = static_cast<std::uint8_t>(signature_.reduction);
  header.root = signature_.root;
  header.sequence = sequence_;
  header.count = count;
  header.call_count = signature_.count;
  std::vector<std::byte> bytes(sizeof(header));
  std::memcpy(bytes.data(), &header, sizeof(header));
  p.headers.push_back(std::move(bytes));
  p.outgoing.push_back({p.headers.back().data(), sizeof(header)});
}

void Messenger::expect(int peer, DType dtype, std::int64_t count) {
  pad_incoming(peer);
  Peer& p = peers_[static_cast<std::size_t>(peer)];
  p.expected.push_back({dtype, count});
  p.incoming.push_back({nullptr, sizeof(Header), true});
}

void Messenger::send(int peer, const void* data, std::int64_t bytes) {
  if (bytes == 0) return;
  Peer& p = peers_[static_cast<std::size_t>(peer)];
  p.outgoing.push_back({static_cast<const std::byte*>(data), static_cast<std::size_t>(bytes)});
  p.sent += static_cast<std::size_t>(bytes);
}

void Messenger::receive(int peer, void* into, std::int64_t bytes) {
  if (bytes == 0) return;
  Peer& p = peers_[static_cast<std::size_t>(peer)];
  p.incoming.push_back({static_cast<std::byte*>(into), static_cast<std::size_t>(bytes), false});
  p.received += static_cast<std::size_t>(bytes);
}

// ---- Progress -----------------------------------------------------------------------------------

bool Messenger::push_some(int peer) {
  Peer& p = peers_[static_cast<std::size_t>(peer)];
  bool any = false;
  while (!p.outgoing.empty()) {
    Outgoing& next = p.outgoing.front();
    const std::size_t taken = links_.push(peer, {next.data, next.bytes});
    any = any || taken != 0;
    next.data += taken;
    next.bytes -= taken;
    if (next.bytes != 0) break;
    p.outgoing.pop_front();
  }
  return any;
}

bool Messenger::push_all() {
  bool any = false;
  // Each rank starts with its successor. Otherwise all ranks would first send to the same rank.
  const int size = static_cast<int>(peers_.size());
  for (int i = 1; i < size; ++i) any = push_some((rank_ + i) % size) || any;
  return any;
}

void Messenger::progress() {
  push_all();
  links_.publish();
}

bool Messenger::read_some(int peer) {
  Peer& p = peers_[static_cast<std::size_t>(peer)];
  bool any = false;
  for (std::size_t taken = 0; !p.incoming.empty() && taken < kPiece;) {
    const std::span<const std::byte> bytes = links_.peek(peer);
    if (bytes.empty()) break;
    Incoming& next = p.incoming.front();
    const std::size_t n = std::min({bytes.size(), next.bytes, kPiece});
    taken += n;
    if (next.header) {
      p.arriving.insert(p.arriving.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n));
    } else if (next.into) {
      std::memcpy(next.into, bytes.data(), n);
      next.into += n;
    }
    links_.pop(peer, n);
    any = true;
    next.bytes -= n;
    if (next.bytes != 0) continue;
    const bool header = next.header;
    p.incoming.pop_front();
    if (header) check_header(peer);
  }
  return any;
}

void Messenger::check_header(int peer) {
  Peer& p = peers_[static_cast<std::size_t>(peer)];
  Header header;
  std::memcpy(&header, p.arriving.data(), sizeof(header));
  p.arriving.clear();
  const Expected expected = p.expected.front();
  p.expected.pop_front();
  const int other = members_[static_cast<std::size_t>(peer)];
  const int self = members_[static_cast<std::size_t>(rank_)];
  if (header.magic != kMagic) {
    fail(fmt::format("rank {} sent rank {} an invalid message", other, self));
  }
  const Signature theirs = {static_cast<Kind>(header.kind), static_cast<DType>(header.dtype),
                            static_cast<Reduction>(header.reduction), header.root, header.call_count};
  // Calls of these two kinds may have different sizes on each rank, so only the sizes of the message are
  // compared.
  const bool own_counts = signature_.kind == Kind::kAllToAll || signature_.kind == Kind::kExchange;
  Signature mine = signature_;
  if (own_counts) {
    mine.count = theirs.count;
    mine.dtype = theirs.dtype;
  }
  const bool same_call = mine == theirs && sequence_ == header.sequence;
  if (same_call && expected.count == header.count && expected.dtype == theirs.dtype) return;
  if (same_call && own_counts) {
    fail(fmt::format("rank {} sends {} {} to rank {}, which expects {} {}, in {} of a group of {}", other,
                     header.count, primus::name_of(theirs.dtype), self, expected.count,
                     primus::name_of(expected.dtype), name_of(signature_.kind), members_.size()));
  }
  fail(fmt::format("ranks {} and {} differ in what they call: rank {} calls {}, rank {} calls {}", self,
                   other, self, signature_.to_string(), other, theirs.to_string()));
}

void Messenger::complete_receives() {
  std::vector<int> missing;
  for (;;) {
    const std::uint32_t ticket = links_.ticket();
    bool any = push_all();
    missing.clear();
    for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer) {
      if (peers_[static_cast<std::size_t>(peer)].incoming.empty()) continue;
      any = read_some(peer) || any;
      if (!peers_[static_cast<std::size_t>(peer)].incoming.empty()) missing.push_back(peer);
    }
    if (missing.empty()) break;
    if (any) {
      moved();
      links_.publish();
    } else {
      block(ticket, missing);
    }
  }
  links_.publish();
}

void Messenger::consume(int peer, std::int64_t bytes, std::int64_t granule,
                        FunctionRef<void(std::span<const std::byte>)> use) {
  Peer& p = peers_[static_cast<std::size_t>(peer)];
  auto left = static_cast<std::size_t>(bytes);
  p.received += left;
  while (left != 0) {
    const std::uint32_t ticket = links_.ticket();
    bool any = read_some(peer);
    if (p.incoming.empty()) {
      const std::span<const std::byte> there = links_.peek(peer);
      if (!there.empty()) {
        std::size_t n = std::min(there.size(), left);
        n -= n % static_cast<std::size_t>(granule);
        if (n != 0) use(there.first(n));
        links_.pop(peer, n);
        left -= n;
        any = any || n != 0;
      }
    }
    if (any) {
      moved();
    } else if (push_all()) {
      moved();
    } else {
      block(ticket, {peer});
    }
  }
}

void Messenger::settle() {
  for (;;) {
    const std::uint32_t ticket = links_.ticket();
    const bool any = push_all();
    bool done = true;
    for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer) {
      if (peer == rank_) continue;
      done = done && peers_[static_cast<std::size_t>(peer)].outgoing.empty() && links_.drained(peer);
    }
    if (done) break;
    if (any) {
      moved();
    } else {
      block(ticket, {});
    }
  }
  links_.publish();
  for (Peer& peer : peers_) peer.headers.clear();
}

void Messenger::finish() {
  for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer) {
    if (peer == rank_) continue;
    pad_outgoing(peer);
    pad_incoming(peer);
  }
  complete_receives();
  settle();
  if (noted_ >= 0) note_waiting(-1);
}

// ---- Waiting and failing ------------------------------------------------------------------------

void Messenger::note_waiting(int peer) {
  if (peer == noted_) return;
  noted_ = peer;
  state_.recorder.waiting_for(record_, peer < 0 ? -1 : members_[static_cast<std::size_t>(peer)]);
}

void Messenger::block(std::uint32_t ticket, std::vector<int> from) {
  links_.publish();
  state_.abort->check();
  Links::Interest interest{std::move(from), {}};
  for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer) {
    if (peer == rank_) continue;
    if (!peers_[static_cast<std::size_t>(peer)].outgoing.empty() || !links_.drained(peer)) {
      interest.to.push_back(peer);
    }
  }
  const auto now = std::chrono::steady_clock::now();
  if (!waiting_since_) waiting_since_ = now;
  note_waiting(interest.from.empty() ? (interest.to.empty() ? -1 : interest.to[0]) : interest.from[0]);
  try {
    links_.wait(ticket, interest, kTick);
  } catch (const PeerLost& lost) {
    // Waits for the rendezvous, which also detects lost ranks and states the cause more precisely.
    for (auto waited = 0ms; waited < kCauseDelay; waited += 5ms) {
      state_.abort->check();
      std::this_thread::sleep_for(5ms);
    }
    fail(fmt::format("rank {} was lost during {}: {}", members_[static_cast<std::size_t>(lost.peer)],
                     signature_.to_string(), lost.reason));
  }
  state_.abort->check();
  const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(now - *waiting_since_);
  if (waited > state_.timeout.load() && now >= state_.excused_until.load()) {
    late(interest.from.empty() ? interest.to : interest.from, waited);
  }
}

void Messenger::late(const std::vector<int>& peers, std::chrono::milliseconds waited) {
  FlightRecorder::Record mine;
  for (FlightRecorder::Record& record : state_.recorder.records()) {
    if (record.id == record_) mine = std::move(record);
  }
  std::vector<int> suspects;
  for (const int peer : peers) suspects.push_back(members_[static_cast<std::size_t>(peer)]);
  std::vector<std::optional<RankStatus>> statuses;
  if (state_.ask_all) statuses = state_.ask_all(mine.group);
  state_.abort->check();  // another rank may have aborted first
  if (excused(state_, suspects, statuses)) return;
  fail(fmt::format("rank {}: {}", members_[static_cast<std::size_t>(rank_)],
                   diagnose(mine, waited, suspects, statuses)));
}

void Messenger::fail(const std::string& reason) {
  state_.abort->abort(reason);
  state_.abort->check();
  throw Error(ErrorKind::kIo, reason);  // not reached, because the job is aborted now
}

}  // namespace primus::comm
