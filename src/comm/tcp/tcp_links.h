// Links over TCP for ranks on different hosts: one connection per pair of ranks of a group.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/links.h"
#include "comm/rendezvous/socket.h"

namespace primus::comm::tcp {

class TcpLinks final : public Links {
 public:
  // `peers`: a connection to each rank; the one at index `rank` is not used.
  TcpLinks(std::vector<Socket> peers, int rank);

  std::size_t push(int peer, std::span<const std::byte> data) override;
  bool drained(int) override { return true; }
  std::span<const std::byte> peek(int peer) override;
  void pop(int peer, std::size_t bytes) override;
  void publish() override {}
  std::uint32_t ticket() override { return 0; }  // no ticket needed: poll(2) also reports earlier events
  void wait(std::uint32_t ticket, const Interest& interest, std::chrono::milliseconds limit) override;
  void revoke() noexcept override {}

 private:
  struct Peer {
    Socket socket;
    std::unique_ptr<std::byte[]> buffer;  // received bytes; allocated at first use
    std::size_t begin = 0, end = 0;
    std::string lost;  // why the connection ended; empty: it is open
  };
  std::vector<Peer> peers_;
};

// The job's key-value directory, through which the members of a group find each other.
struct Directory {
  std::function<void(const std::string& key, const std::string& value)> publish;
  std::function<std::string(const std::string& key)> look_up;  // waits for the key; throws after the deadline
  std::function<void()> check;                                 // throws if the job was aborted
  std::string own_address;  // an address at which other members reach this rank
  std::string token;
};

// Connects this rank with all other ranks: connects to lower ranks, and accepts connections from higher
// ranks. Drops connections that fail to authenticate with the token.
std::vector<Socket> connect_group(const std::string& id, int size, int rank, const Directory& directory,
                                  Deadline deadline);

}  // namespace primus::comm::tcp
