// TCP sockets with deadlines, for the rendezvous and the TCP transport.
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
// Returns the timeout for poll(2); 0 if the deadline has passed.
int milliseconds_until(Deadline deadline);

// Owns a non-blocking descriptor that child processes do not inherit.
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

// Listens on `port` (0: any free port) at the addresses of `host` that belong to this machine, or at all
// addresses of this machine if no address of `host` belongs to this machine (a service address, NAT). Throws
// Error(kInvalid) if the port is in use or the name unknown.
Socket listen_on(const std::string& host, std::uint16_t port);
std::uint16_t port_of(const Socket& socket);
// Returns true if `host` resolves only to loopback addresses.
bool is_loopback(const std::string& host);
// Returns the numeric local address of a connection.
std::string own_address(const Socket& socket);

// A connection ends when the other host has been silent for this time, as after a power or network failure.
inline constexpr std::chrono::seconds kSilence{25};
// Also ends the connection if sent data stays unacknowledged for kSilence. Use it only if the other side
// always reads immediately, because the kernel cannot distinguish a late reader from a dead host.
void expect_acknowledgements(const Socket& socket);

// Tries each address of the host once, until the deadline. If none accepts, returns an invalid socket, and
// writes the last reason to `error` (errno).
Socket try_connect(const std::string& host, std::uint16_t port, Deadline deadline, int& error);
// Connects, retrying until the deadline while the port does not accept connections. Calls `check` between
// attempts; `check` may throw. Throws Error(kIo) with the last reason.
Socket connect_to(const std::string& host, std::uint16_t port, Deadline deadline,
                  const std::function<void()>& check = {});
// Waits until the deadline at most. Returns whether the socket has input (POLLIN) or room for output
// (POLLOUT), or whether the connection has ended. `events`: as in poll(2).
bool wait_for(const Socket& socket, short events, Deadline deadline);
// Returns an accepted connection, or an invalid socket if none is pending.
Socket accept_from(const Socket& listener);

enum class IoResult { kDone, kClosed, kTimeout };
IoResult send_all(const Socket& socket, std::string_view data, Deadline deadline);
// Receives exactly data.size() bytes.
IoResult receive_all(const Socket& socket, std::span<char> data, Deadline deadline);

}  // namespace primus::comm
