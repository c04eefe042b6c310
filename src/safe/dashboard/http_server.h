// A small HTTP/1.1 server for one page and its data: GET and HEAD, and streams of server-sent events.
// libevent reads and writes the connections, on the thread that calls serve().
//
// Limits: a request has at most 16 KiB of headers and no body. At most kMaxConnections connections are open;
// a further connection replaces the one that has waited longest without a request. A client gets 15 s for a
// request, and 120 s to read an answer. A stream whose viewer does not read gets no further events until the
// viewer has read, and ends when the system accepts no byte for 30 s.
//
// The process must ignore SIGPIPE, which a viewer that goes away would raise.
//
// Errors: Error, if the address cannot be used. Not thread-safe, except where noted.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace primus::dashboard {

struct Request {
  std::string path;                          // not decoded: "/api/runs"
  std::map<std::string, std::string> query;  // decoded
  std::string host, authorization, cookie;   // headers; empty if absent
};

struct Reply {
  int status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body = {};
  std::vector<std::pair<std::string, std::string>> headers = {};
  bool stream = false;  // the connection stays open for publish(); `body` is sent first
};

class HttpServer {
 public:
  static constexpr std::size_t kMaxConnections = 256, kMaxStreams = 64;
  // Limits of waiting. Tests use shorter times.
  struct Times {
    std::chrono::milliseconds request{15'000}, answer{120'000}, silence{30'000};
  };
  using Handler = std::function<Reply(const Request&)>;

  // Listens on `host`, a name or an address. Port 0: the system chooses one.
  HttpServer(const std::string& host, int port, Handler handler, Times times);
  HttpServer(const std::string& host, int port, Handler handler)
      : HttpServer(host, port, std::move(handler), Times()) {}
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;
  // Serves until `stop` is true. Between requests, it calls work(), which returns the time until its next
  // call. The server checks `stop` after each call of work().
  void serve(const std::function<std::chrono::milliseconds()>& work, const std::atomic<bool>& stop);
  // Sends an event to all streams. Streams that have more than 256 KiB unread miss it.
  void publish(std::string_view event, std::string_view data);
  // Numbers of open connections and streams; any thread may call these functions.
  std::size_t connections() const;
  std::size_t streams() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace primus::dashboard
