// TCP sockets with deadlines: what the rendezvous and the TCP transport need of the operating system.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace primus::comm {

using Deadline = std::chrono::steady_clock::time_point;
inline Deadline in(std::chrono::milliseconds time) { return std::chrono::steady_clock::now() + time; }
// For poll(2): 0 when it has passed.
int milliseconds_until(Deadline deadline);

// Owns a descriptor. Non-blocking, not inherited by programs that are started.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();

  int fd() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void close() { *this = Socket(); }

 private:
  int fd_ = -1;
};

// Listens on `port` (0: any free one) of the addresses that `host` has here; of all, where it has none of
// this machine's (a service address, NAT). Throws Error(kInvalid) when the port is taken or the name unknown.
Socket listen_on(const std::string& host, std::uint16_t port);
std::uint16_t port_of(const Socket& socket);
// True when every address that `host` stands for is of the loopback.
bool is_loopback(const std::string& host);
// The numeric address of this end of a connection.
std::string own_address(const Socket& socket);

// A connection whose other host does not answer ends after this time: it lost its power, or its network.
inline constexpr std::chrono::seconds kSilence{25};
// Ends the connection, too, when what was sent is not acknowledged for so long. Only where the other side
// always reads: the kernel cannot tell a program that reads late from a host that is gone.
void expect_acknowledgements(const Socket& socket);

// Connects, trying again while nobody listens there, until the deadline. `check` is called between tries and
// may throw. Throws Error(kIo) with the last reason.
Socket connect_to(const std::string& host, std::uint16_t port, Deadline deadline,
                  const std::function<void()>& check = {});
// An accepted connection, or an invalid socket when there is none now.
Socket accept_from(const Socket& listener);

enum class IoResult { kDone, kClosed, kTimeout };
IoResult send_all(const Socket& socket, std::string_view data, Deadline deadline);
// Fills `data`.
IoResult receive_all(const Socket& socket, std::span<char> data, Deadline deadline);

}  // namespace primus::comm
