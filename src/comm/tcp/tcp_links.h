// Links over TCP: ranks on different hosts, a connection for each pair of ranks of a group.
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
  // A connection to each other rank; that at `rank` is not used.
  TcpLinks(std::vector<Socket> peers, int rank);

  std::size_t push(int peer, std::span<const std::byte> data) override;
  bool drained(int) override { return true; }
  std::span<const std::byte> peek(int peer) override;
  void pop(int peer, std::size_t bytes) override;
  void publish() override {}
  std::uint32_t ticket() override { return 0; }  // poll(2) sees what has come before, too
  void wait(std::uint32_t ticket, const Interest& interest, std::chrono::milliseconds limit) override;
  void revoke() noexcept override {}

 private:
  struct Peer {
    Socket socket;
    std::unique_ptr<std::byte[]> buffer;  // what has come; made when something does
    std::size_t begin = 0, end = 0;
    std::string lost;  // why the connection ended; empty: it did not
  };
  std::vector<Peer> peers_;
};

// How the members of a group find each other: values under keys, for all of them.
struct Directory {
  std::function<void(const std::string& key, const std::string& value)> publish;
  std::function<std::string(const std::string& key)> look_up;  // waits; throws after the deadline
  std::function<void()> check;                                 // throws when the job was aborted
  std::string own_address;                                     // that the others can reach
  std::string token;
};

// Connects this rank with all others: to those before it, and from those behind it. Connections that do not
// prove knowledge of the token are dropped.
std::vector<Socket> connect_group(const std::string& id, int size, int rank, const Directory& directory,
                                  Deadline deadline);

}  // namespace primus::comm::tcp
