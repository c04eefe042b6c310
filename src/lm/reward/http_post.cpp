#include "lm/reward/http_post.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "base/terminal/terminal.h"
#include "comm/rendezvous/socket.h"

namespace primus {
namespace {

constexpr std::size_t kMaxReplyBytes = std::size_t{16} << 20;
constexpr int kStopPoll = 50;  // milliseconds

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

// Returns the value of a header; the head has lines that end with "\r\n".
std::optional<std::string> header(std::string_view head, std::string_view name) {
  for (std::size_t line = head.find("\r\n"); line != std::string_view::npos;
       line = head.find("\r\n", line + 2)) {
    const std::string_view rest = head.substr(line + 2, head.find("\r\n", line + 2) - line - 2);
    const std::size_t colon = rest.find(':');
    if (colon == std::string_view::npos || lower(rest.substr(0, colon)) != name) continue;
    std::string value = lower(rest.substr(colon + 1));
    value.erase(0, value.find_first_not_of(" \t"));
    value.erase(value.find_last_not_of(" \t") + 1);
    return value;
  }
  return std::nullopt;
}

// Joins the chunks of a reply; returns nullopt if they are incomplete or invalid.
std::optional<std::string> joined_chunks(std::string_view text) {
  std::string body;
  for (;;) {
    const std::size_t line = text.find("\r\n");
    if (line == std::string_view::npos) return std::nullopt;
    std::size_t size = 0;
    const auto number = std::from_chars(text.data(), text.data() + line, size, 16);
    if (number.ec != std::errc() || size > kMaxReplyBytes) return std::nullopt;
    if (size == 0) return body;
    text.remove_prefix(line + 2);
    if (text.size() < size + 2) return std::nullopt;
    body += text.substr(0, size);
    text.remove_prefix(size + 2);
  }
}

HttpReply broken(std::string problem) {
  return {.outcome = HttpReply::Outcome::kBroken, .problem = std::move(problem)};
}

// Returns whether `text` holds a complete reply, so that the caller need not wait for a server that keeps the
// connection open.
bool is_complete(std::string_view text) {
  const std::size_t head_end = text.find("\r\n\r\n");
  if (head_end == std::string_view::npos) return false;
  const std::string_view head = text.substr(0, head_end), body = text.substr(head_end + 4);
  if (const auto length = header(head, "content-length")) {
    std::size_t size = 0;
    const auto number = std::from_chars(length->data(), length->data() + length->size(), size);
    return number.ec == std::errc() && body.size() >= size;
  }
  return header(head, "transfer-encoding") == "chunked" && body.ends_with("0\r\n\r\n") &&
         joined_chunks(body).has_value();
}

}  // namespace

HttpUrl parse_http_url(std::string_view url) {
  constexpr std::string_view kScheme = "http://";
  const auto wrong = [&] {
    return invalid(fmt::format("'{}' is no address of an HTTP server", printable(std::string(url))),
                   "write http://HOST:PORT/PATH");
  };
  if (!url.starts_with(kScheme)) throw wrong();
  const bool plain = std::ranges::all_of(url, [](unsigned char c) { return c > ' ' && c < 0x7f; });
  if (!plain) throw wrong();
  std::string_view rest = url.substr(kScheme.size());
  HttpUrl result;
  const std::size_t slash = std::min(rest.find('/'), rest.size());
  if (slash < rest.size()) result.path = rest.substr(slash);
  std::string_view place = rest.substr(0, slash);
  if (place.find('@') != std::string_view::npos) throw wrong();
  const bool address6 = place.starts_with('[');
  const std::size_t close = address6 ? place.find(']') : 0;
  if (close == std::string_view::npos) throw wrong();
  const std::size_t colon = place.find(':', close);
  result.host = address6 ? place.substr(1, close - 1) : place.substr(0, colon);
  if (result.host.empty()) throw wrong();
  if (colon != std::string_view::npos) {
    const std::string_view digits = place.substr(colon + 1);
    const auto number = std::from_chars(digits.data(), digits.data() + digits.size(), result.port);
    if (number.ec != std::errc() || number.ptr != digits.data() + digits.size() || result.port == 0)
      throw wrong();
  }
  return result;
}

HttpReply parse_http_reply(std::string_view text) {
  const std::size_t head_end = text.find("\r\n\r\n");
  const bool is_http = text.starts_with("HTTP/1.") && text.size() > 12 && head_end != std::string_view::npos;
  if (!is_http)
    return broken(text.empty() ? "the server closed the connection" : "the reply is no HTTP reply");
  HttpReply reply{.outcome = HttpReply::Outcome::kReply};
  const auto number = std::from_chars(text.data() + 9, text.data() + 12, reply.status);
  if (number.ec != std::errc() || number.ptr != text.data() + 12)
    return broken("the reply has no HTTP status");
  const std::string_view head = text.substr(0, head_end), body = text.substr(head_end + 4);
  if (header(head, "transfer-encoding") == "chunked") {
    auto joined = joined_chunks(body);
    if (!joined) return broken("the reply is incomplete");
    reply.body = std::move(*joined);
  } else if (const auto length = header(head, "content-length")) {
    std::size_t size = 0;
    const auto parsed = std::from_chars(length->data(), length->data() + length->size(), size);
    if (parsed.ec != std::errc() || body.size() < size) return broken("the reply is incomplete");
    reply.body = body.substr(0, size);
  } else {
    reply.body = body;
  }
  return reply;
}

HttpReply http_post(const HttpUrl& url, std::string_view body, std::chrono::milliseconds timeout,
                    const std::atomic<bool>* stop) {
  const comm::Deadline deadline = comm::in(timeout);
  const auto late = [&] {
    return HttpReply{.outcome = HttpReply::Outcome::kTimeout,
                     .problem = fmt::format("the server did not reply within {} s",
                                            std::chrono::duration<double>(timeout).count())};
  };
  const auto stopped = [stop] { return stop != nullptr && stop->load(std::memory_order_relaxed); };
  comm::Socket socket;
  try {
    // connect_to() repeats attempts, so a server that starts at the same time is reached.
    constexpr std::chrono::milliseconds kConnect{5000};
    socket = comm::connect_to(url.host, url.port, std::min(deadline, comm::in(kConnect)), [&stopped] {
      if (stopped()) throw Error(ErrorKind::kIo, "the request was cancelled");
    });
  } catch (const Error& error) {
    return broken(error.what());
  }
  const bool address6 = url.host.find(':') != std::string::npos;
  const std::string host = address6 ? "[" + url.host + "]" : url.host;
  std::string request = fmt::format(
      "POST {} HTTP/1.1\r\nHost: {}:{}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nAccept: "
      "application/json\r\nConnection: close\r\n\r\n",
      url.path, host, url.port, body.size());
  request += body;
  switch (comm::send_all(socket, request, deadline)) {
    case comm::IoResult::kDone:
      break;
    case comm::IoResult::kTimeout:
      return late();
    case comm::IoResult::kClosed:
      return broken("the server closed the connection");
  }
  std::string text;
  std::array<char, 16384> buffer;
  while (!is_complete(text)) {
    pollfd waiting{socket.fd(), POLLIN, 0};
    const int left = comm::milliseconds_until(deadline);
    if (left <= 0 || stopped()) return late();
    if (::poll(&waiting, 1, stop == nullptr ? left : std::min(left, kStopPoll)) <= 0) continue;
    const ssize_t count = ::recv(socket.fd(), buffer.data(), buffer.size(), 0);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count < 0) return broken(fmt::format("the connection broke: {}", std::strerror(errno)));
    if (count == 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(count));
    if (text.size() > kMaxReplyBytes) return broken("the reply has more than 16 MiB");
  }
  return parse_http_reply(text);
}

}  // namespace primus
