#include "comm/rendezvous/socket.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>

#include "base/error.h"

namespace primus::comm {
namespace {

using namespace std::chrono_literals;

constexpr auto kRetry = 50ms;

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Addresses resolve(const std::string& host, std::uint16_t port, bool passive) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = passive ? AI_PASSIVE : 0;
  addrinfo* list = nullptr;
  const int error =
      getaddrinfo(host.empty() ? nullptr : host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (error != 0) {
    throw invalid(fmt::format("cannot find the address of '{}': {}", host, gai_strerror(error)),
                  "check MASTER_ADDR: it must be a name or an address that this host can reach");
  }
  return {list, &freeaddrinfo};
}

Socket new_socket(int family) {
  return Socket(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

void set_option(const Socket& socket, int level, int option, int value) {
  setsockopt(socket.fd(), level, option, &value, sizeof(value));  // ignored, because the option is optional
}

// Probes an idle peer; without an answer the connection ends after kSilence.
void keep_alive(const Socket& socket) {
  constexpr int kProbes = 3, kInterval = 5;
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, static_cast<int>(kSilence.count()) - kProbes * kInterval);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, kInterval);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, kProbes);
}

// Returns 0 or the errno of the failed call.
int try_listen(const addrinfo& address, Socket& result) {
  Socket socket = new_socket(address.ai_family);
  if (!socket.valid()) return errno;
  set_option(socket, SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.ai_family == AF_INET6) set_option(socket, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (bind(socket.fd(), address.ai_addr, address.ai_addrlen) != 0) return errno;
  if (::listen(socket.fd(), 1024) != 0) return errno;
  result = std::move(socket);
  return 0;
}

}  // namespace

bool wait_for(const Socket& socket, short events, Deadline deadline) {
  pollfd entry{socket.fd(), events, 0};
  return poll(&entry, 1, milliseconds_until(deadline)) > 0;
}

int milliseconds_until(Deadline deadline) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 3'600'000));
}

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

Socket::~Socket() {
  if (fd_ >= 0) ::close(fd_);
}

Socket listen_on(const std::string& host, std::uint16_t port) {
  Socket socket;
  int error = EADDRNOTAVAIL;
  const Addresses own = resolve(host, port, true);
  for (const addrinfo* a = own.get(); a && error == EADDRNOTAVAIL; a = a->ai_next)
    error = try_listen(*a, socket);
  if (error == EADDRNOTAVAIL) {
    // If no address belongs to this machine (NAT, for example), listens on all addresses. IPv6's wildcard
    // includes IPv4.
    const Addresses any = resolve("", port, true);
    for (const int family : {AF_INET6, AF_INET}) {
      for (const addrinfo* a = any.get(); a && error != 0; a = a->ai_next) {
        if (a->ai_family == family) error = try_listen(*a, socket);
      }
    }
  }
  if (error == EADDRINUSE) {
    throw invalid(
        fmt::format("port {} of {} is in use by another program", port, host),
        fmt::format("set MASTER_PORT to a free port on all ranks; 'ss -ltnp' shows which program uses {}",
                    port));
  }
  if (error != 0) {
    throw io_error(
        fmt::format("cannot listen on port {} of {}", port, host), error,
        "set MASTER_ADDR to an address of the host of rank 0, and MASTER_PORT to a free port there");
  }
  return socket;
}

std::uint16_t port_of(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw io_error("cannot read the port of a socket", errno);
  }
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

bool is_loopback(const std::string& host) {
  const Addresses list = resolve(host, 0, false);
  for (const addrinfo* a = list.get(); a; a = a->ai_next) {
    if (a->ai_family == AF_INET) {
      if (ntohl(reinterpret_cast<sockaddr_in*>(a->ai_addr)->sin_addr.s_addr) >> 24 != 127) return false;
    } else if (a->ai_family == AF_INET6) {
      if (!IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<sockaddr_in6*>(a->ai_addr)->sin6_addr)) return false;
    }
  }
  return true;
}

std::string own_address(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  char text[NI_MAXHOST];
  if (getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw io_error("cannot read the address of a socket", errno);
  }
  // Handles IPv4 connections that were accepted on an IPv6 socket.
  if (address.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<sockaddr_in6&>(address);
    if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
      return inet_ntop(AF_INET, &v6.sin6_addr.s6_addr[12], text, sizeof(text));
    }
  }
  if (getnameinfo(reinterpret_cast<sockaddr*>(&address), size, text, sizeof(text), nullptr, 0,
                  NI_NUMERICHOST) != 0) {
    throw io_error("cannot read the address of a socket", EINVAL);
  }
  return text;
}

Socket try_connect(const std::string& host, std::uint16_t port, Deadline deadline, int& error) {
  const Addresses list = resolve(host, port, false);
  for (const addrinfo* a = list.get(); a; a = a->ai_next) {
    Socket socket = new_socket(a->ai_family);
    if (!socket.valid()) {
      error = errno;
      continue;
    }
    set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
    keep_alive(socket);
    error = 0;
    if (connect(socket.fd(), a->ai_addr, a->ai_addrlen) != 0) {
      error = errno;
      if (error == EINPROGRESS) {
        // Limits the wait, so that time is left for the other addresses if this host drops packets.
        wait_for(socket, POLLOUT, std::min(deadline, in(5s)));
        socklen_t size = sizeof(error);
        pollfd entry{socket.fd(), POLLOUT, 0};
        if (poll(&entry, 1, 0) <= 0) {
          error = ETIMEDOUT;
        } else {
          getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &size);
        }
      }
    }
    if (error == 0) return socket;
  }
  return {};
}

Socket connect_to(const std::string& host, std::uint16_t port, Deadline deadline,
                  const std::function<void()>& check) {
  int error = ETIMEDOUT;
  for (bool first = true; first || std::chrono::steady_clock::now() < deadline; first = false) {
    if (!first) std::this_thread::sleep_for(kRetry);
    if (check) check();
    if (Socket socket = try_connect(host, port, deadline, error); socket.valid()) return socket;
  }
  throw Error(ErrorKind::kIo, fmt::format("cannot connect to port {} of {}: {}", port, host, strerror(error)),
              "check that rank 0 runs, that MASTER_ADDR and MASTER_PORT are equal on all ranks, and that no "
              "firewall blocks the connection");
}

Socket accept_from(const Socket& listener) {
  Socket socket(accept4(listener.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (socket.valid()) {
    set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
    keep_alive(socket);
  }
  return socket;
}

void expect_acknowledgements(const Socket& socket) {
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT,
             static_cast<int>(std::chrono::milliseconds(kSilence).count()));
}

IoResult send_all(const Socket& socket, std::string_view data, Deadline deadline) {
  while (!data.empty()) {
    const ssize_t sent = ::send(socket.fd(), data.data(), data.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      data.remove_prefix(static_cast<std::size_t>(sent));
    } else if (sent < 0 && errno == EAGAIN) {
      if (milliseconds_until(deadline) == 0) return IoResult::kTimeout;
      wait_for(socket, POLLOUT, deadline);
    } else if (sent < 0 && errno != EINTR) {
      return IoResult::kClosed;
    }
  }
  return IoResult::kDone;
}

IoResult receive_all(const Socket& socket, std::span<char> data, Deadline deadline) {
  while (!data.empty()) {
    const ssize_t got = ::recv(socket.fd(), data.data(), data.size(), 0);
    if (got > 0) {
      data = data.subspan(static_cast<std::size_t>(got));
    } else if (got < 0 && errno == EAGAIN) {
      if (milliseconds_until(deadline) == 0) return IoResult::kTimeout;
      wait_for(socket, POLLIN, deadline);
    } else if (got == 0 || errno != EINTR) {
      return IoResult::kClosed;
    }
  }
  return IoResult::kDone;
}

}  // namespace primus::comm
