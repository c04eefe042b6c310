#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <list>

#include "base/error.h"
#include "base/files/sha256.h"
#include "comm/rendezvous/wire.h"
#include "comm/tcp/tcp_links.h"

namespace primus::comm::tcp {
namespace {

using namespace std::chrono_literals;

constexpr auto kIntroductionTime = 5s;
constexpr std::size_t kMaxStrangers = 128;
// The listener sends a nonce; the connector replies with its rank, a nonce and a code; the listener sends a
// code.
constexpr std::size_t kCode = 32, kIntroduction = 4 + wire::kNonce + kCode;

std::string code(const std::string& token, std::string_view side, const std::string& id, std::uint32_t rank,
                 std::string_view nonce, std::string_view other_nonce) {
  std::string text(side);
  text.append(nonce).append(other_nonce).append(wire::u32(rank)).append(id);
  return std::string(as_text(hmac_sha256(token, text)));
}

Error incomplete(int missing) {
  return {ErrorKind::kIo, fmt::format("{} ranks of a group did not connect in time", missing),
          "see the logs of the other ranks; a firewall must let all ranks' hosts connect to each other"};
}

// `address`: "10.0.0.7 40123", as published by the peer.
Socket connect_one(const std::string& id, int rank, const std::string& address, const Directory& directory,
                   Deadline deadline) {
  const auto space = std::min(address.find(' '), address.size());
  std::uint16_t port = 0;
  std::from_chars(address.data() + std::min(space + 1, address.size()), address.data() + address.size(),
                  port);
  const auto self = static_cast<std::uint32_t>(rank);
  for (;;) {
    const std::string own = random_bytes(wire::kNonce);
    Socket socket = connect_to(address.substr(0, space), port, deadline, directory.check);
    char nonce[wire::kNonce], proof[kCode];
    // Waits until the deadline: the peer first connects to all lower ranks, and only then sends its nonce.
    IoResult result = IoResult::kTimeout;
    while (result == IoResult::kTimeout && milliseconds_until(deadline) != 0) {
      pollfd entry{socket.fd(), POLLIN, 0};
      poll(&entry, 1, 20);
      directory.check();
      if (entry.revents != 0) result = receive_all(socket, nonce, std::min(deadline, in(kIntroductionTime)));
    }
    if (result == IoResult::kDone) {
      const std::string_view theirs(nonce, wire::kNonce);
      const std::string text =
          wire::u32(self) + own + code(directory.token, "connect ", id, self, theirs, own);
      if (send_all(socket, text, deadline) == IoResult::kDone &&
          receive_all(socket, proof, deadline) == IoResult::kDone) {
        if (!equal_in_constant_time({proof, kCode},
                                    code(directory.token, "accept ", id, self, own, theirs))) {
          throw invalid(fmt::format("the program that listens on {} is not a rank of this job", address),
                        "give all ranks the same PRIMUS_JOB_TOKEN");
        }
        return socket;
      }
    }
    directory.check();
    if (milliseconds_until(deadline) == 0) throw incomplete(1);
    // The listener had too many unauthenticated connections and closed this one: retry.
  }
}

// Accepts connections until every higher rank has connected.
void accept_rest(const Socket& listener, const std::string& id, int size, int rank,
                 const Directory& directory, Deadline deadline, std::vector<Socket>& peers) {
  struct Stranger {
    Socket socket;
    std::string nonce, in;
    Deadline deadline;
    bool done = false;
  };
  std::list<Stranger> strangers;
  int missing = size - 1 - rank;
  const auto read = [&](Stranger& s) {
    char buffer[kIntroduction];
    const ssize_t got = recv(s.socket.fd(), buffer, kIntroduction - s.in.size(), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    s.done = true;
    if (got <= 0) return;
    s.in.append(buffer, static_cast<std::size_t>(got));
    s.done = s.in.size() == kIntroduction;
    if (!s.done) return;
    const std::uint32_t peer = wire::u32_at(s.in, 0);
    const std::string theirs = s.in.substr(4, wire::kNonce);
    const bool known = equal_in_constant_time(s.in.substr(4 + wire::kNonce),
                                              code(directory.token, "connect ", id, peer, s.nonce, theirs));
    if (!known || peer >= static_cast<std::uint32_t>(size) || static_cast<int>(peer) <= rank ||
        peers[peer].valid()) {
      return;
    }
    const std::string proof = code(directory.token, "accept ", id, peer, theirs, s.nonce);
    if (send_all(s.socket, proof, in(kIntroductionTime)) != IoResult::kDone) return;
    peers[peer] = std::move(s.socket);
    --missing;
  };
  while (missing > 0) {
    std::vector<pollfd> polled{{listener.fd(), POLLIN, 0}};
    for (const Stranger& s : strangers) polled.push_back({s.socket.fd(), POLLIN, 0});
    poll(polled.data(), polled.size(), std::min(milliseconds_until(deadline), 20));
    directory.check();
    if (milliseconds_until(deadline) == 0) throw incomplete(missing);
    for (Stranger& s : strangers) {
      read(s);
      s.done = s.done || milliseconds_until(s.deadline) == 0;
    }
    strangers.remove_if([](const Stranger& s) { return s.done; });
    for (;;) {
      Socket socket = accept_from(listener);
      if (!socket.valid()) break;
      if (strangers.size() >= kMaxStrangers) continue;
      std::string nonce = random_bytes(wire::kNonce);
      if (send_all(socket, nonce, in(0ms)) != IoResult::kDone) continue;
      strangers.push_back({std::move(socket), std::move(nonce), {}, in(kIntroductionTime)});
    }
  }
}

}  // namespace

std::vector<Socket> connect_group(const std::string& id, int size, int rank, const Directory& directory,
                                  Deadline deadline) {
  std::vector<Socket> peers(static_cast<std::size_t>(size));
  const auto key = [&](int member) { return fmt::format("{}/{}", id, member); };
  const Socket listener = listen_on(directory.own_address, 0);
  directory.publish(key(rank), fmt::format("{} {}", directory.own_address, port_of(listener)));
  for (int peer = 0; peer < rank; ++peer) {
    peers[static_cast<std::size_t>(peer)] =
        connect_one(id, rank, directory.look_up(key(peer)), directory, deadline);
  }
  accept_rest(listener, id, size, rank, directory, deadline, peers);
  return peers;
}

}  // namespace primus::comm::tcp
