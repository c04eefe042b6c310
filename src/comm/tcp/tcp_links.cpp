#include "comm/tcp/tcp_links.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace primus::comm::tcp {
namespace {

constexpr std::size_t kBuffer = 256 << 10;

}  // namespace

TcpLinks::TcpLinks(std::vector<Socket> peers, int rank) : peers_(peers.size()) {
  for (std::size_t peer = 0; peer < peers.size(); ++peer) {
    if (static_cast<int>(peer) != rank) peers_[peer].socket = std::move(peers[peer]);
  }
}

std::size_t TcpLinks::push(int peer, std::span<const std::byte> data) {
  Peer& p = peers_[static_cast<std::size_t>(peer)];
  if (!p.lost.empty()) return 0;
  const ssize_t sent = send(p.socket.fd(), data.data(), data.size(), MSG_NOSIGNAL);
  if (sent >= 0) return static_cast<std::size_t>(sent);
  if (errno != EAGAIN && errno != EINTR) p.lost = std::strerror(errno);
  return 0;
}

std::span<const std::byte> TcpLinks::peek(int peer) {
  Peer& p = peers_[static_cast<std::size_t>(peer)];
  // Fewer bytes than a granule may be an incomplete element. These bytes move to the front of the buffer, to
  // make room for the next bytes. Their offset modulo the granule equals their stream position modulo the
  // granule, so that elements stay aligned.
  if (p.end - p.begin < kGranule && p.lost.empty()) {
    if (!p.buffer) p.buffer = std::make_unique_for_overwrite<std::byte[]>(kBuffer);
    const std::size_t front = p.begin % kGranule;
    std::memmove(p.buffer.get() + front, p.buffer.get() + p.begin, p.end - p.begin);
    p.end -= p.begin - front;
    p.begin = front;
    const ssize_t got = recv(p.socket.fd(), p.buffer.get() + p.end, kBuffer - p.end, 0);
    if (got > 0) {
      p.end += static_cast<std::size_t>(got);
    } else if (got == 0) {
      p.lost = "it closed the connection";
    } else if (errno != EAGAIN && errno != EINTR) {
      p.lost = std::strerror(errno);
    }
  }
  return {p.buffer.get() + p.begin, p.end - p.begin};
}

void TcpLinks::pop(int peer, std::size_t bytes) { peers_[static_cast<std::size_t>(peer)].begin += bytes; }

void TcpLinks::wait(std::uint32_t, const Interest& interest, std::chrono::milliseconds limit) {
  std::vector<pollfd> polled;
  const auto add = [&](int peer, short events) {
    const Peer& p = peers_[static_cast<std::size_t>(peer)];
    if (!p.lost.empty()) throw PeerLost{peer, p.lost};
    polled.push_back({p.socket.fd(), events, 0});
  };
  for (const int peer : interest.from) add(peer, POLLIN);
  for (const int peer : interest.to) add(peer, POLLOUT);
  poll(polled.data(), polled.size(), static_cast<int>(limit.count()));
}

}  // namespace primus::comm::tcp
