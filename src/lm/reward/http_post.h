// Sends JSON to an HTTP server (HTTP/1.1, without encryption).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace primus {

struct HttpUrl {
  std::string host;  // a name or an address, without the brackets of IPv6
  std::uint16_t port = 80;
  std::string path = "/";
};
// Parses "http://host:port/path". Throws Error(kInvalid) for other texts.
HttpUrl parse_http_url(std::string_view url);

struct HttpReply {
  enum class Outcome {
    kReply,    // `status` and `body` contain the server's reply
    kTimeout,  // no complete reply in time
    kBroken,   // the connection was refused or broke, or the reply is not HTTP
  };
  Outcome outcome = Outcome::kBroken;
  int status = 0;
  std::string body;
  std::string problem;  // why there is no reply; set for outcomes other than kReply
};

// Sends `body` as application/json by POST, over a new connection. A reply of more than 16 MiB gives kBroken.
// `stop`, if not null, ends the wait with kTimeout soon after another thread has set it. Thread-safe.
HttpReply http_post(const HttpUrl& url, std::string_view body, std::chrono::milliseconds timeout,
                    const std::atomic<bool>* stop = nullptr);

// Parses all bytes that a server sent before it closed the connection. Pure function.
HttpReply parse_http_reply(std::string_view text);

}  // namespace primus
