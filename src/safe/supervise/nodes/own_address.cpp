#include "safe/supervise/nodes/own_address.h"

#include <netdb.h>
#include <sys/socket.h>

#include <memory>

#include "comm/rendezvous/socket.h"

namespace primus::supervise {

std::string address_towards(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* list = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list) != 0) return "";
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, ::freeaddrinfo);
  for (const addrinfo* a = list; a; a = a->ai_next) {
    const comm::Socket socket(::socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    // Connecting sends nothing.
    if (socket.valid() && ::connect(socket.fd(), a->ai_addr, a->ai_addrlen) == 0)
      return comm::own_address(socket);
  }
  return "";
}

}  // namespace primus::supervise
