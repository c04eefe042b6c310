// A client of the dashboard's server that can also send what no browser sends.
#pragma once

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "safe/dashboard/http_server.h"

namespace primus::test {

class Client {
 public:
  explicit Client(int port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  }
  ~Client() { ::close(socket_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  bool connected() const { return connected_; }
  bool send(std::string_view text) const {
    return ::send(socket_, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
  }
  // Reads until `text` has appeared, the connection has ended, or the time is over. Returns all that was
  // read.
  std::string read_until(std::string_view text, std::chrono::milliseconds time = std::chrono::seconds(10)) {
    const auto end = std::chrono::steady_clock::now() + time;
    while (seen_.find(text) == std::string::npos || text.empty()) {
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now())
              .count();
      pollfd ready{socket_, POLLIN, 0};
      if (left <= 0 || ::poll(&ready, 1, static_cast<int>(left)) <= 0) break;
      std::array<char, 65536> buffer;
      const ssize_t got = ::recv(socket_, buffer.data(), buffer.size(), 0);
      if (got <= 0) {
        ended_ = true;
        break;
      }
      seen_.append(buffer.data(), static_cast<std::size_t>(got));
    }
    return seen_;
  }
  // Reads until the server closes the connection.
  std::string read_all(std::chrono::milliseconds time = std::chrono::seconds(10)) {
    return read_until("", time);
  }
  bool ended() const { return ended_; }

 private:
  int socket_;
  bool connected_ = false, ended_ = false;
  std::string seen_;
};

// Sends a complete request, and returns the complete answer.
inline std::string ask(int port, const std::string& target, const std::string& headers = "",
                       const std::string& method = "GET") {
  Client client(port);
  client.send(fmt::format("{} {} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{}\r\n", method, target,
                          headers));
  return client.read_all();
}
inline std::string body_of(const std::string& answer) {
  const std::size_t end = answer.find("\r\n\r\n");
  return end == std::string::npos ? "" : answer.substr(end + 4);
}

// Serves in a thread.
class Serving {
 public:
  explicit Serving(dashboard::HttpServer& server, std::function<std::chrono::milliseconds()> work = {})
      : previous_(::signal(SIGPIPE, SIG_IGN)), thread_([this, &server, work = std::move(work)] {
          server.serve([&] { return work ? work() : std::chrono::milliseconds(10); }, stop_);
        }) {}
  ~Serving() {
    stop_ = true;
    thread_.join();
    ::signal(SIGPIPE, previous_);
  }

 private:
  sighandler_t previous_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace primus::test
