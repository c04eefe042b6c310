#include "launch/ranks/rank_channel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace primus::launch {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMaxMessage = std::size_t{16} << 10;
constexpr std::size_t kMaxText = std::size_t{8} << 10;  // of an error in a message

Json parsed(const std::string& text, const char* kind) {
  Json json = Json::parse(text, nullptr, false);
  return json.is_object() && json.value("kind", "") == kind ? json : Json();
}

std::string dumped(const Json& json) {
  return json.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

}  // namespace

std::pair<Channel, Channel> Channel::pair() {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0)
    throw io_error("cannot make a socket", errno);
  return {Channel(comm::Socket(ends[0])), Channel(comm::Socket(ends[1]))};
}

Channel Channel::inherited(const char* variable) {
  const char* const number = std::getenv(variable);
  if (!number) return {};
  const int fd = std::atoi(number);
  unsetenv(variable);
  int type = 0;
  socklen_t size = sizeof(type);
  if (fd <= STDERR_FILENO || getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_SEQPACKET)
    return {};
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  return Channel(comm::Socket(fd));
}

void Channel::pass_on() const { fcntl(socket_.fd(), F_SETFD, 0); }

bool Channel::send(const std::string& message) {
  if (!valid()) return false;
  for (;;) {
    const ssize_t sent = ::send(socket_.fd(), message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent == static_cast<ssize_t>(message.size())) return true;
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EPIPE || errno == ECONNRESET)) close();
    return false;
  }
}

std::optional<std::string> Channel::receive() {
  while (valid()) {
    std::array<char, kMaxMessage> buffer{};
    const ssize_t got = recv(socket_.fd(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got > 0) return std::string(buffer.data(), static_cast<std::size_t>(got));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return std::nullopt;
    close();
  }
  return std::nullopt;
}

std::string to_text(const LossReport& report) {
  return dumped({{"kind", "lost"},
                 {"rank", report.rank},
                 {"exit_code", report.exit_code},
                 {"text", report.text.substr(0, kMaxText)},
                 {"replaced", report.replaced}});
}

std::optional<LossReport> loss_report_of(const std::string& text) {
  const Json json = parsed(text, "lost");
  if (json.is_null()) return std::nullopt;
  try {
    return LossReport{.rank = json.at("rank").get<int>(),
                      .exit_code = json.at("exit_code").get<int>(),
                      .text = json.at("text").get<std::string>(),
                      .replaced = json.at("replaced").get<std::vector<int>>()};
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

std::string to_text(const std::optional<JoinOrder>& order) {
  if (!order) return dumped({{"kind", "end"}});
  return dumped(
      {{"kind", "join"}, {"seconds", order->seconds}, {"port", order->port}, {"token", order->token}});
}

std::optional<JoinOrder> join_order_of(const std::string& text) {
  const Json json = parsed(text, "join");
  if (json.is_null()) return std::nullopt;
  try {
    return JoinOrder{.seconds = json.at("seconds").get<double>(),
                     .port = json.at("port").get<std::uint16_t>(),
                     .token = json.at("token").get<std::string>()};
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

std::string ready_text(std::uint16_t port) { return dumped({{"kind", "ready"}, {"port", port}}); }

std::optional<std::uint16_t> ready_port_of(const std::string& text) {
  const Json json = parsed(text, "ready");
  if (json.is_null() || !json.contains("port") || !json["port"].is_number_unsigned()) return std::nullopt;
  return json["port"].get<std::uint16_t>();
}

RejoiningRank::RejoiningRank()
    : channel_(Channel::inherited(kRankChannel)), replaces_(std::getenv(kReplacesVariable) != nullptr) {
  unsetenv(kReplacesVariable);
}

std::optional<JoinOrder> RejoiningRank::join(comm::JobEnvironment& place) {
  comm::Socket listener;
  if (place.rank == 0) listener = comm::listen_on(place.master_address, 0);
  if (!channel_.send(ready_text(listener.valid() ? comm::port_of(listener) : std::uint16_t{0})))
    return std::nullopt;
  while (channel_.valid()) {
    pollfd polled{channel_.fd(), POLLIN, 0};
    poll(&polled, 1, -1);
    const std::optional<std::string> text = channel_.receive();
    if (!text) continue;
    std::optional<JoinOrder> order = join_order_of(*text);
    if (!order) return std::nullopt;
    place.master_port = order->port;
    place.token = order->token;
    place.listening_socket = listener.release();
    return order;
  }
  return std::nullopt;
}

}  // namespace primus::launch
