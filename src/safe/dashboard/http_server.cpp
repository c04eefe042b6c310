#include "safe/dashboard/http_server.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/http.h>
#include <event2/keyvalq_struct.h>
#include <event2/listener.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/queue.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "base/error.h"

namespace primus::dashboard {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaxHeaders = 16 << 10;
// libevent stops reading from a connection with this many unread bytes.
constexpr std::size_t kMaxInput = 64 << 10;
constexpr std::size_t kMaxUnread = 256 << 10;
constexpr auto kPing = std::chrono::seconds(15);

timeval time_of(std::chrono::milliseconds duration) {
  return {.tv_sec = static_cast<time_t>(duration.count() / 1000),
          .tv_usec = static_cast<suseconds_t>(duration.count() % 1000 * 1000)};
}

std::string header(const evkeyvalq* headers, const char* name) {
  const char* const value = evhttp_find_header(headers, name);
  return value ? value : "";
}

std::map<std::string, std::string> query_of(const evhttp_uri* uri) {
  std::map<std::string, std::string> query;
  const char* const text = evhttp_uri_get_query(uri);
  evkeyvalq pairs;
  TAILQ_INIT(&pairs);
  if (!text || evhttp_parse_query_str(text, &pairs) != 0) return query;
  for (const evkeyval* pair = pairs.tqh_first; pair; pair = pair->next.tqe_next)
    query.emplace(pair->key, pair->value);
  evhttp_clear_headers(&pairs);
  return query;
}

const char* reason_of(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 303:
      return "See Other";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    default:
      return "Service Unavailable";
  }
}

// A connection. The server shares the ownership with libevent, which sets its callbacks to null when it
// closes the connection.
struct Connection {
  bufferevent* buffer;
  Clock::time_point since;  // of the connection, its last answer, or the begin of the current answer
  bool answering = false;   // a request has arrived and its answer is being sent
  bool stream = false;
  bool closed() const {
    bufferevent_event_cb event = nullptr;
    bufferevent_getcb(buffer, nullptr, nullptr, &event, nullptr);
    return event == nullptr;
  }
  // Ends both directions. libevent then closes the connection.
  void end() const { ::shutdown(bufferevent_getfd(buffer), SHUT_RDWR); }
};

}  // namespace

struct HttpServer::State {
  Handler handler;
  Times times;
  event_base* base = nullptr;
  evhttp* http = nullptr;
  evconnlistener* listener = nullptr;  // owned by http
  bool listening = true;
  int port = 0;
  std::vector<Connection> connections;
  std::vector<evhttp_request*> streams;
  Clock::time_point pinged = Clock::now();
  std::atomic<std::size_t> connection_count{0}, stream_count{0};

  ~State() {
    if (http) evhttp_free(http);
    for (const Connection& connection : connections) bufferevent_decref(connection.buffer);
    if (base) event_base_free(base);
  }

  void listen_on(const std::string& host, int wanted);
  void sweep();
  void make_room();
  Connection* find(evhttp_request* request);
  void answer(evhttp_request* request);
  void reply(evhttp_request* request, const Reply& reply);
  void begin_stream(evhttp_request* request, const Reply& reply);
  void send(std::string_view text);

  static bufferevent* on_connection(event_base* base, void* self);
  static void on_complete(evhttp_request* request, void* self);
  static void on_stream_end(evhttp_connection* connection, void* self);
};

void HttpServer::State::listen_on(const std::string& host, int wanted) {
  addrinfo hints{};
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int problem = ::getaddrinfo(host.c_str(), fmt::format("{}", wanted).c_str(), &hints, &found);
  if (problem != 0) {
    throw invalid(fmt::format("the address '{}' cannot be used: {}", host, ::gai_strerror(problem)),
                  "--host takes an address or a name of this machine: 127.0.0.1, 0.0.0.0, ::");
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> addresses(found, &::freeaddrinfo);
  constexpr unsigned kFlags = LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC | LEV_OPT_REUSEABLE;
  constexpr int kBacklog = 128;
  int code = 0;
  for (const addrinfo* address = found; address && !listener; address = address->ai_next) {
    listener = evconnlistener_new_bind(base, nullptr, nullptr, kFlags, kBacklog, address->ai_addr,
                                       static_cast<int>(address->ai_addrlen));
    code = errno;
  }
  if (!listener) {
    throw invalid(fmt::format("cannot listen on {}, port {}: {}", host, wanted, std::strerror(code)),
                  code == EADDRINUSE ? "another program uses this port; choose another one with --port, or "
                                       "--port 0 for any free port"
                                     : "choose another --host or --port");
  }
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  ::getsockname(evconnlistener_get_fd(listener), reinterpret_cast<sockaddr*>(&bound), &size);
  port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(bound).sin6_port
                                           : reinterpret_cast<const sockaddr_in&>(bound).sin_port);
  evhttp_bind_listener(http, listener);
}

// Removes closed connections, and ends connections that have exceeded their time.
void HttpServer::State::sweep() {
  const auto now = Clock::now();
  std::erase_if(connections, [&](const Connection& connection) {
    if (connection.closed()) {
      bufferevent_decref(connection.buffer);
      return true;
    }
    if (!connection.stream && now - connection.since > (connection.answering ? times.answer : times.request))
      connection.end();
    return false;
  });
  connection_count = connections.size();
  if (!listening && connections.size() < kMaxConnections) {
    evconnlistener_enable(listener);
    listening = true;
  }
}

// Ends the connection that has waited longest for a request. Without such a connection, new ones must wait.
void HttpServer::State::make_room() {
  const Connection* oldest = nullptr;
  for (const Connection& connection : connections) {
    if (!connection.answering && (!oldest || connection.since < oldest->since)) oldest = &connection;
  }
  if (oldest) oldest->end();
  if (connections.size() < kMaxConnections + kMaxConnections / 4) return;
  evconnlistener_disable(listener);
  listening = false;
}

bufferevent* HttpServer::State::on_connection(event_base* base, void* self) {
  State& state = *static_cast<State*>(self);
  // The socket must stay open until the server has released the buffer, too. Otherwise its number could
  // belong to another file while the buffer still reads from it.
  bufferevent* const buffer = bufferevent_socket_new(base, -1, BEV_OPT_CLOSE_ON_FREE);
  if (!buffer) return nullptr;
  bufferevent_setwatermark(buffer, EV_READ, 0, kMaxInput);
  bufferevent_incref(buffer);
  // The new connection has no callbacks yet, so it is added after the others have been checked.
  state.sweep();
  if (state.connections.size() >= kMaxConnections) state.make_room();
  state.connections.push_back({.buffer = buffer, .since = Clock::now()});
  return buffer;
}

Connection* HttpServer::State::find(evhttp_request* request) {
  evhttp_connection* const connection = evhttp_request_get_connection(request);
  if (!connection) return nullptr;
  const auto found = std::ranges::find(connections, evhttp_connection_get_bufferevent(connection),
                                       [](const Connection& known) { return known.buffer; });
  return found == connections.end() ? nullptr : &*found;
}

void HttpServer::State::on_complete(evhttp_request* request, void* self) {
  State& state = *static_cast<State*>(self);
  if (Connection* const connection = state.find(request)) {
    connection->answering = false;
    connection->since = Clock::now();
  }
}

void HttpServer::State::answer(evhttp_request* request) {
  if (Connection* const connection = find(request)) {
    connection->answering = true;
    connection->since = Clock::now();
  }
  evhttp_request_set_on_complete_cb(request, &State::on_complete, this);
  const evkeyvalq* const headers = evhttp_request_get_input_headers(request);
  const evhttp_cmd_type method = evhttp_request_get_command(request);
  const evhttp_uri* const uri = evhttp_request_get_evhttp_uri(request);
  const char* const path = uri ? evhttp_uri_get_path(uri) : nullptr;
  if (method != EVHTTP_REQ_GET && method != EVHTTP_REQ_HEAD) {
    reply(request,
          {.status = 405, .body = "only GET and HEAD are possible\n", .headers = {{"Allow", "GET, HEAD"}}});
  } else if (!path || *path != '/' || evhttp_find_header(headers, "Content-Length") ||
             evhttp_find_header(headers, "Transfer-Encoding")) {
    // A body after the request would be read as another request.
    reply(request, {.status = 400, .body = "bad request\n", .headers = {{"Connection", "close"}}});
  } else {
    const Reply made = handler({.path = path,
                                .query = query_of(uri),
                                .host = header(headers, "Host"),
                                .authorization = header(headers, "Authorization"),
                                .cookie = header(headers, "Cookie")});
    made.stream&& method == EVHTTP_REQ_GET ? begin_stream(request, made) : reply(request, made);
  }
}

namespace {

void add_headers(evhttp_request* request, const Reply& reply) {
  evkeyvalq* const headers = evhttp_request_get_output_headers(request);
  // The page may load only its own files, and no other page may embed it.
  constexpr std::pair<const char*, const char*> kAlways[] = {
      {"Content-Security-Policy",
       "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri "
       "'none'; "
       "form-action 'none'; frame-ancestors 'none'"},
      {"X-Content-Type-Options", "nosniff"},
      {"X-Frame-Options", "DENY"},
      {"Cross-Origin-Resource-Policy", "same-origin"},
      {"Referrer-Policy", "no-referrer"},
      {"Cache-Control", "no-store"},
  };
  for (const auto& [name, value] : kAlways) evhttp_add_header(headers, name, value);
  evhttp_add_header(headers, "Content-Type", reply.type.c_str());
  for (const auto& [name, value] : reply.headers) evhttp_add_header(headers, name.c_str(), value.c_str());
}

}  // namespace

void HttpServer::State::reply(evhttp_request* request, const Reply& reply) {
  add_headers(request, reply);
  evhttp_add_header(evhttp_request_get_output_headers(request), "Content-Length",
                    fmt::format("{}", reply.body.size()).c_str());
  if (evhttp_request_get_command(request) != EVHTTP_REQ_HEAD)
    evbuffer_add(evhttp_request_get_output_buffer(request), reply.body.data(), reply.body.size());
  evhttp_send_reply(request, reply.status, reason_of(reply.status), nullptr);
}

void HttpServer::State::begin_stream(evhttp_request* request, const Reply& reply) {
  Connection* const connection = find(request);
  if (!connection || streams.size() >= kMaxStreams) {
    this->reply(request, {.status = 503, .body = "too many viewers\n"});
    return;
  }
  connection->stream = true;
  streams.push_back(request);
  stream_count = streams.size();
  // A viewer sends nothing while it reads the stream.
  const timeval silence = time_of(times.silence);
  bufferevent_set_timeouts(connection->buffer, nullptr, &silence);
  evhttp_connection_set_closecb(evhttp_request_get_connection(request), &State::on_stream_end, this);
  add_headers(request, reply);
  evhttp_send_reply_start(request, 200, "OK");
  evbuffer* const out = evbuffer_new();
  evbuffer_add(out, reply.body.data(), reply.body.size());
  evhttp_send_reply_chunk(request, out);
  evbuffer_free(out);
}

void HttpServer::State::on_stream_end(evhttp_connection* connection, void* self) {
  State& state = *static_cast<State*>(self);
  std::erase_if(state.streams, [&](evhttp_request* stream) {
    evhttp_connection* const of_stream = evhttp_request_get_connection(stream);
    // libevent has taken an unfinished request from its lost connection. The end of the reply releases it.
    if (!of_stream) evhttp_send_reply_end(stream);
    return !of_stream || of_stream == connection;
  });
  state.stream_count = state.streams.size();
}

void HttpServer::State::send(std::string_view text) {
  // A failed write ends a stream, which removes it from the list.
  const std::vector<evhttp_request*> all = streams;
  for (evhttp_request* const stream : all) {
    if (std::ranges::find(streams, stream) == streams.end()) continue;
    const Connection* const connection = find(stream);
    if (!connection || evbuffer_get_length(bufferevent_get_output(connection->buffer)) > kMaxUnread) continue;
    evbuffer* const out = evbuffer_new();
    evbuffer_add(out, text.data(), text.size());
    evhttp_send_reply_chunk(stream, out);
    evbuffer_free(out);
  }
}

HttpServer::HttpServer(const std::string& host, int port, Handler handler, Times times)
    : state_(std::make_unique<State>()) {
  State& state = *state_;
  state.handler = std::move(handler);
  state.times = times;
  state.base = event_base_new();
  state.http = state.base ? evhttp_new(state.base) : nullptr;
  if (!state.http) throw Error(ErrorKind::kIo, "the server cannot start: libevent has no memory");
  evhttp_set_bevcb(state.http, &State::on_connection, &state);
  evhttp_set_max_headers_size(state.http, kMaxHeaders);
  evhttp_set_max_body_size(state.http, 0);
  const timeval silence = time_of(times.silence);
  evhttp_set_timeout_tv(state.http, &silence);
  evhttp_set_allowed_methods(state.http, EVHTTP_REQ_GET | EVHTTP_REQ_HEAD | EVHTTP_REQ_POST | EVHTTP_REQ_PUT |
                                             EVHTTP_REQ_DELETE | EVHTTP_REQ_OPTIONS | EVHTTP_REQ_PATCH);
  evhttp_set_gencb(
      state.http, [](evhttp_request* request, void* self) { static_cast<State*>(self)->answer(request); },
      &state);
  state.listen_on(host, port);
}

HttpServer::~HttpServer() = default;

int HttpServer::port() const { return state_->port; }
std::size_t HttpServer::connections() const { return state_->connection_count; }
std::size_t HttpServer::streams() const { return state_->stream_count; }

void HttpServer::serve(const std::function<std::chrono::milliseconds()>& work,
                       const std::atomic<bool>& stop) {
  State& state = *state_;
  const std::unique_ptr<event, decltype(&event_free)> timer(
      evtimer_new(
          state.base, [](evutil_socket_t, short, void*) {}, nullptr),
      &event_free);
  if (!timer) throw Error(ErrorKind::kIo, "the server cannot start: libevent has no memory");
  auto due = Clock::now();
  while (!stop) {
    const auto now = Clock::now();
    if (now >= due) {
      due = now + work();
      state.sweep();
      if (now - state.pinged > kPing) {
        state.pinged = now;
        state.send(": alive\n\n");
      }
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(due - Clock::now());
    const timeval wait = time_of(std::max(left, std::chrono::milliseconds(0)));
    evtimer_add(timer.get(), &wait);
    event_base_loop(state.base, EVLOOP_ONCE);
  }
}

void HttpServer::publish(std::string_view event, std::string_view data) {
  // The data is one line of JSON, so it needs no further "data:" lines.
  state_->send(fmt::format("event: {}\ndata: {}\n\n", event, data));
}

}  // namespace primus::dashboard
