#include "lm/checkpoint/snapshot_link.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <utility>

#include "base/error.h"
#include "base/files/crc32c.h"
#include "base/files/sha256.h"
#include "base/system/threads.h"
#include "comm/rendezvous/wire.h"

namespace primus {
namespace {

using namespace std::chrono_literals;
using comm::IoResult;
using comm::Socket;
using Kind = SnapshotFolder::Kind;
namespace wire = comm::wire;

constexpr std::string_view kServerMagic = "PRIMUSS1", kClientMagic = "PRIMUSS2", kEnd = "end", kOk = "ok";
constexpr std::size_t kMaxText = 4096, kMagic = 8, kCode = 32, kPiece = std::size_t{4} << 20;
constexpr std::size_t kMaxConnections = 64, kMaxFiles = 4096;
constexpr auto kReach = 2s, kProof = 5s, kPatience = 20s;
constexpr const char* kArriving = ".arriving";  // folder of a snapshot that is being received

Error broken(const char* what) {
  return {ErrorKind::kIo, fmt::format("the connection to another host's snapshots {}", what),
          "check the network between the hosts"};
}

void send(const Socket& socket, std::string_view bytes) {
  const IoResult result = comm::send_all(socket, bytes, comm::in(kPatience));
  if (result != IoResult::kDone)
    throw broken(result == IoResult::kClosed ? "has ended" : "does not accept data");
}

void receive(const Socket& socket, std::span<char> bytes, std::chrono::milliseconds patience = kPatience) {
  const IoResult result = comm::receive_all(socket, bytes, comm::in(patience));
  if (result != IoResult::kDone) throw broken(result == IoResult::kClosed ? "has ended" : "is silent");
}

void send_text(const Socket& socket, std::string_view text) {
  send(socket, wire::u32(static_cast<std::uint32_t>(text.size())) + std::string(text));
}

std::string receive_text(const Socket& socket) {
  std::string length(4, '\0');
  receive(socket, length);
  const std::size_t size = wire::u32_at(length, 0);
  if (size > kMaxText) throw broken("sends what is no message");
  std::string text(size, '\0');
  receive(socket, text);
  return text;
}

std::string proof(const std::string& key, std::string_view who, std::string_view first,
                  std::string_view second) {
  return std::string(as_text(hmac_sha256(key, fmt::format("{} {}{}", who, first, second))));
}

// Compares in constant time.
bool equal(std::string_view a, std::string_view b) {
  unsigned char difference = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

bool prove_to_server(const Socket& socket, const std::string& key) {
  std::string hello(kMagic + wire::kNonce, '\0');
  receive(socket, hello, kReach);
  if (!hello.starts_with(kServerMagic)) return false;
  const std::string theirs = hello.substr(kMagic), own = random_bytes(wire::kNonce);
  send(socket, std::string(kClientMagic) + own + proof(key, "client", theirs, own));
  std::string code(kCode, '\0');
  receive(socket, code, kReach);
  return equal(code, proof(key, "server", own, theirs));
}

bool prove_to_client(const Socket& socket, const std::string& key) {
  const std::string own = random_bytes(wire::kNonce);
  send(socket, std::string(kServerMagic) + own);
  std::string answer(kMagic + wire::kNonce + kCode, '\0');
  receive(socket, answer, kProof);
  const std::string theirs = answer.substr(kMagic, wire::kNonce);
  if (!answer.starts_with(kClientMagic) ||
      !equal(answer.substr(kMagic + wire::kNonce), proof(key, "client", own, theirs)))
    return false;
  send(socket, proof(key, "server", theirs, own));
  return true;
}

template <class Number>
bool read_number(std::string_view text, Number& number) {
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  return read.ec == std::errc() && read.ptr == text.data() + text.size();
}

// Takes the first word from the front of the text.
std::string_view word(std::string_view& text) {
  const std::string_view first = text.substr(0, text.find(' '));
  text.remove_prefix(std::min(text.size(), first.size() + 1));
  return first;
}

std::uint64_t bytes_in(const Path& folder) {
  std::uint64_t sum = 0;
  for (const std::string& name : Env::posix().list(folder)) {
    const auto status = Env::posix().status(folder / name);
    if (status) sum += status->size;
  }
  return sum;
}

void send_file(const Socket& socket, const Path& path, SendRate& rate) {
  const std::unique_ptr<File> file = Env::posix().open(path, OpenMode::kRead);
  const std::uint64_t size = file->size();
  send_text(socket, fmt::format("{} {}", path.filename().string(), size));
  std::string piece(static_cast<std::size_t>(std::min<std::uint64_t>(size, kPiece)), '\0');
  std::uint32_t crc = 0;
  for (std::uint64_t at = 0; at < size;) {
    const auto part =
        std::span(piece).first(static_cast<std::size_t>(std::min<std::uint64_t>(size - at, kPiece)));
    if (file->read_at(std::as_writable_bytes(part), at) != part.size())
      throw broken("ends: a file was removed");
    crc = crc32c(crc, std::as_bytes(part));
    rate.wait(part.size());
    send(socket, std::string_view(part.data(), part.size()));
    at += part.size();
  }
  send(socket, wire::u32(crc));
}

void send_files(const Socket& socket, const Path& folder, SendRate& rate) {
  for (const std::string& name : Env::posix().list(folder)) send_file(socket, folder / name, rate);
  send_text(socket, kEnd);
}

// Receives the files of a snapshot, of `limit` bytes at most, which then appears as `snapshot`.
void receive_files(const Socket& socket, const Path& snapshot, std::uint64_t limit) {
  Env& env = Env::posix();
  const Path folder = snapshot.parent_path() / (kArriving + snapshot.filename().string());
  remove_tree(folder);
  make_folders(folder);
  try {
    for (std::size_t files = 0;; ++files) {
      const std::string header = receive_text(socket);
      if (header == kEnd) break;
      std::string_view rest = header;
      const std::string name(word(rest));
      std::uint64_t size = 0;
      if (!is_plain_name(name) || !read_number(rest, size) || size > limit || files >= kMaxFiles)
        throw broken("sends what is no file of a snapshot");
      limit -= size;
      const std::unique_ptr<File> file = env.open(folder / name, OpenMode::kWrite);
      std::string piece(static_cast<std::size_t>(std::min<std::uint64_t>(size, kPiece)), '\0');
      std::uint32_t crc = 0;
      for (std::uint64_t at = 0; at < size;) {
        const auto part =
            std::span(piece).first(static_cast<std::size_t>(std::min<std::uint64_t>(size - at, kPiece)));
        receive(socket, part);
        crc = crc32c(crc, std::as_bytes(part));
        file->write_at(std::as_bytes(part), at);
        at += part.size();
      }
      std::string sum(4, '\0');
      receive(socket, sum);
      if (wire::u32_at(sum, 0) != crc) throw broken("has changed the data on its way");
      file->close();
    }
    remove_tree(snapshot);
    env.rename(folder, snapshot);
  } catch (...) {
    try_remove_tree(folder);
    throw;
  }
}

std::vector<SnapshotId> all_of(const SnapshotFolder& folder, int rank) {
  std::vector<SnapshotId> all = folder.list(Kind::kOwn, rank);
  for (SnapshotId& copy : folder.list(Kind::kCopies, rank)) all.push_back(std::move(copy));
  return all;
}

}  // namespace

// ---- How to reach the others ----------------------------------------------------------------------------

std::string snapshot_key(const std::string& token, const std::string& shape) {
  return hex(as_text(hmac_sha256(token, "primus snapshots " + shape)));
}

std::string SnapshotLink::text() const {
  return fmt::format("{} {} {} {} {} {}", node, nodes, ranks, world, key, peers.string());
}

std::optional<SnapshotLink> SnapshotLink::parse(std::string_view text) {
  SnapshotLink link;
  for (int* const number : {&link.node, &link.nodes, &link.ranks, &link.world})
    if (!read_number(word(text), *number)) return std::nullopt;
  link.key = word(text);
  link.peers = Path(std::string(text));
  const bool valid = link.node >= 0 && link.node < link.nodes && link.ranks > 0 && link.world > 0;
  return valid && !link.key.empty() && !link.peers.empty() ? std::optional(link) : std::nullopt;
}

std::optional<SnapshotLink> SnapshotLink::read(const SnapshotFolder& folder) {
  if (!Env::posix().status(folder.link_file())) return std::nullopt;
  return parse(read_file(folder.link_file(), 2 * kMaxText));
}

namespace {

Path address_file(const SnapshotLink& link, int node) { return link.peers / fmt::format("node-{:05}", node); }

}  // namespace

void SnapshotLink::publish(const std::string& address, std::uint16_t port) const {
  make_folders(peers);
  write_file_atomic(address_file(*this, node), fmt::format("{} {}", address, port));
}

void SnapshotLink::withdraw(std::uint16_t port) const {
  try {
    const Path file = address_file(*this, node);
    if (read_file(file, kMaxText).ends_with(fmt::format(" {}", port))) Env::posix().remove_file(file);
  } catch (const Error&) {
    // The next supervisor of this node replaces the file.
  }
}

void SendRate::wait(std::uint64_t bytes) {
  if (stop_ && *stop_) throw broken("is not needed any more");
  if (rate_ <= 0) return;
  using Clock = std::chrono::steady_clock;
  const double now = std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
  if (free_at_ > now) std::this_thread::sleep_for(std::chrono::duration<double>(free_at_ - now));
  free_at_ = std::max(free_at_, now) + static_cast<double>(bytes) / rate_;
}

// ---- The client -----------------------------------------------------------------------------------------

std::optional<SnapshotPeer> SnapshotPeer::connect(const SnapshotLink& link, int node) {
  try {
    const std::string address = read_file(address_file(link, node), kMaxText);
    const std::size_t space = address.find(' ');
    std::uint16_t port = 0;
    if (space == address.npos || !read_number(std::string_view(address).substr(space + 1), port))
      return std::nullopt;
    // A supervisor that is alive listens already.
    int attempts = 0;
    Socket socket = comm::connect_to(address.substr(0, space), port, comm::in(kReach), [&] {
      if (++attempts > 1) throw broken("is refused");
    });
    if (!prove_to_server(socket, link.key)) return std::nullopt;
    return SnapshotPeer(std::move(socket));
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::vector<SnapshotId> SnapshotPeer::list(int rank) {
  send_text(socket_, fmt::format("list {}", rank));
  return snapshot_ids_of(receive_text(socket_));
}

void SnapshotPeer::get(int rank, const SnapshotId& id, const SnapshotFolder& folder) {
  send_text(socket_, fmt::format("get {} {}", rank, to_text(id)));
  if (const std::string answer = receive_text(socket_); answer != kOk)
    throw Error(ErrorKind::kIo, "another host does not send a snapshot: " + answer, "");
  const Path own = folder.snapshot(Kind::kOwn, rank, id);
  receive_files(socket_, own, Env::posix().free_space(folder.root()));
}

std::string SnapshotPeer::put(int rank, const SnapshotId& id, const SnapshotFolder& folder, SendRate& rate) {
  const Path own = folder.snapshot(Kind::kOwn, rank, id);
  send_text(socket_, fmt::format("put {} {} {}", rank, to_text(id), bytes_in(own)));
  if (std::string answer = receive_text(socket_); answer != kOk) return answer;
  send_files(socket_, own, rate);
  const std::string answer = receive_text(socket_);
  return answer == kOk ? "" : answer;
}

bool fetch_snapshot(const SnapshotLink& link, const SnapshotFolder& folder, int rank, const SnapshotId& id,
                    const std::function<void(const std::string&)>& problem) {
  // The usual holder is the node after the one whose rank this is.
  const int first = rank / link.ranks + 1;
  int reached = 0;
  for (int i = 0; i < link.nodes; ++i) {
    const int node = (first + i) % link.nodes;
    if (node == link.node) continue;
    std::optional<SnapshotPeer> peer = SnapshotPeer::connect(link, node);
    if (!peer) continue;
    ++reached;
    try {
      const std::vector<SnapshotId> there = peer->list(rank);
      if (std::ranges::find(there, id) == there.end()) continue;
      peer->get(rank, id, folder);
      return true;
    } catch (const Error& error) {
      problem(fmt::format("node {}: {}", node, error.what()));
    }
  }
  problem(fmt::format("no other host has it ({} of {} answered)", reached, link.nodes - 1));
  return false;
}

// ---- The server -----------------------------------------------------------------------------------------

SnapshotServer::SnapshotServer(Socket listener, SnapshotFolder folder, SnapshotLink link)
    : listener_(std::move(listener)), folder_(std::move(folder)), link_(std::move(link)) {
  thread_ = start_thread([this] { accept(); }, "serves snapshots");
}

SnapshotServer::~SnapshotServer() {
  stop_ = true;
  thread_.join();
}

void SnapshotServer::accept() {
  while (!stop_) {
    connections_.remove_if([](Connection& one) {
      if (!one.done) return false;
      one.thread.join();
      return true;
    });
    if (!comm::wait_for(listener_, POLLIN, comm::in(100ms))) continue;
    Socket socket = comm::accept_from(listener_);
    if (!socket.valid()) {
      std::this_thread::sleep_for(10ms);  // without free descriptors, the connection stays in the queue
      continue;
    }
    if (connections_.size() >= kMaxConnections) continue;  // a legitimate peer tries again
    Connection& one = connections_.emplace_back();
    one.socket = std::move(socket);
    try {
      one.thread = start_thread(
          [this, &one] {
            try {
              serve(one.socket);
            } catch (const std::exception&) {
              // The peer sees the end of the connection.
            }
            one.done = true;
          },
          "serves snapshots");
    } catch (const Error&) {
      connections_.pop_back();
    }
  }
  for (Connection& one : connections_) ::shutdown(one.socket.fd(), SHUT_RDWR);
  for (Connection& one : connections_) one.thread.join();
}

void SnapshotServer::serve(const Socket& socket) {
  if (!prove_to_client(socket, link_.key)) return;
  for (;;) {
    const comm::Deadline end = comm::in(kPatience);
    while (!comm::wait_for(socket, POLLIN, comm::in(100ms)))
      if (stop_ || std::chrono::steady_clock::now() >= end) return;
    const std::string request = receive_text(socket);
    std::string_view rest = request;
    const std::string_view what = word(rest);
    int rank = -1;
    if (!read_number(word(rest), rank) || rank < 0 || rank >= link_.world) return;
    if (what == "list") {
      send_text(socket, to_text(all_of(folder_, rank)));
      continue;
    }
    const std::optional<SnapshotId> id = snapshot_id_of(word(rest));
    if (!id) return;
    if (what == "get") {
      Path place = folder_.snapshot(Kind::kOwn, rank, *id);
      if (!Env::posix().status(place)) place = folder_.snapshot(Kind::kCopies, rank, *id);
      if (!Env::posix().status(place)) {
        send_text(socket, "it is not here any more");
        continue;
      }
      send_text(socket, kOk);
      SendRate unlimited(0);  // the job waits for it
      send_files(socket, place, unlimited);
      continue;
    }
    std::uint64_t bytes = 0;
    if (what != "put" || !read_number(rest, bytes)) return;
    take(socket, rank, *id, bytes);
  }
}

void SnapshotServer::take(const Socket& socket, int rank, const SnapshotId& id, std::uint64_t bytes) {
  // One copy at a time: its space was compared with the free space. A sender that waited might give up.
  const std::unique_lock lock(taking_, std::try_to_lock);
  if (!lock) return send_text(socket, SnapshotPeer::kBusy);
  // At most two copies of a rank exist: this one, and the newest before it.
  std::vector<SnapshotId> kept = folder_.list(Kind::kCopies, rank);
  std::erase(kept, id);
  if (kept.size() > 1) {
    const auto changed = [&](const SnapshotId& one) {
      return std::filesystem::last_write_time(folder_.snapshot(Kind::kCopies, rank, one));
    };
    const SnapshotId newest = *std::ranges::max_element(kept, {}, changed);
    kept = {newest};
  }
  folder_.keep_only(Kind::kCopies, rank, kept);
  if (bytes > Env::posix().free_space(folder_.root())) return send_text(socket, "its memory is full");
  send_text(socket, kOk);
  receive_files(socket, folder_.snapshot(Kind::kCopies, rank, id), bytes);
  send_text(socket, kOk);
}

}  // namespace primus
