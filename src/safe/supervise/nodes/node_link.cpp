#include "safe/supervise/nodes/node_link.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/files/sha256.h"
#include "base/system/threads.h"
#include "base/system/without_signals.h"
#include "base/terminal/terminal.h"
#include "comm/rendezvous/wire.h"

namespace primus::supervise {
namespace {

using namespace std::chrono_literals;
using comm::Deadline;
using comm::Socket;
namespace wire = comm::wire;

constexpr std::string_view kServerMagic = "PRIMUSN2", kClientMagic = "PRIMUSM2";
constexpr std::size_t kHello = 8 + wire::kNonce, kIntroduction = 8 + 4 + 4 + wire::kNonce + 32;
constexpr std::size_t kVerdict = 4 + 32 + 4, kMaxReason = 1024;
constexpr std::size_t kMaxStrangers = 128, kMaxOut = 2 * kMaxMessage;
constexpr auto kIntroductionTime = 5s, kSendTime = 5s;

// A key of its own, so that no proof for the rendezvous of the ranks is one for the supervisors.
std::string key_of(const std::string& token) {
  return std::string(as_text(hmac_sha256(token, "primus supervisors 2")));
}

Error no_leader(const std::string& host, std::uint16_t port) {
  return invalid(fmt::format("the program on port {} of {} is not the supervisor of this job", port, host),
                 "another program uses the port: set MASTER_PORT to a free port on all machines");
}

Error no_answer(const std::string& host, std::uint16_t port) {
  return {ErrorKind::kIo, fmt::format("the supervisor on port {} of {} does not answer", port, host),
          "see the log of node 0 for the reason"};
}

}  // namespace

std::string secret_of_attempt(const std::string& token, const std::string& salt, std::uint64_t attempt) {
  return hex(as_text(hmac_sha256(token, fmt::format("primus attempt {} {}", attempt, salt))));
}

// ---- Beats ----------------------------------------------------------------------------------------

void Heart::start(std::function<void()> beat) {
  beat_ = std::move(beat);
  alive();
  const WithoutSignals blocked;
  thread_ = start_thread([this] { run(); }, "keeps the connections of supervisors alive");
}

void Heart::alive() { alive_ = steady_seconds(); }

void Heart::stop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Heart::run() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, 1s, [this] { return stops_; })) {
    lock.unlock();
    if (steady_seconds() - alive_ < kMaxBlocked) beat_();
    lock.lock();
  }
}

// ---- The leader ---------------------------------------------------------------------------------

NodeServer::NodeServer(Socket listener, const std::string& token, int self, int nodes, std::string shape)
    : listener_(std::move(listener)),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      key_(key_of(token)),
      self_(self),
      nodes_(nodes),
      shape_(std::move(shape)) {
  epoll_event event{.events = EPOLLIN, .data = {.ptr = nullptr}};
  if (!epoll_.valid() || ::epoll_ctl(epoll_.fd(), EPOLL_CTL_ADD, listener_.fd(), &event) != 0)
    throw io_error("cannot watch the connections of the job's machines", errno);
  heart_.start([this] { beat(); });
}

NodeServer::~NodeServer() { heart_.stop(); }

void NodeServer::beat() {
  const std::lock_guard lock(mutex_);
  for (Connection& one : connections_)
    if (one.node >= 0 && !one.dead && !one.closing) post(one, {.kind = NodeMessage::Kind::kBeat});
}

NodeServer::Connection* NodeServer::of(int node) {
  for (Connection& one : connections_)
    if (one.node == node && !one.dead && !one.closing) return &one;
  return nullptr;
}

void NodeServer::want(const Connection& connection, bool writable) {
  epoll_event event{.events = EPOLLIN | (writable ? EPOLLOUT : 0U),
                    .data = {.ptr = const_cast<Connection*>(&connection)}};
  ::epoll_ctl(epoll_.fd(), EPOLL_CTL_MOD, connection.socket.fd(), &event);
}

void NodeServer::serve(const Handler& handler) {
  heart_.alive();
  std::vector<Heard> heard;
  {
    const std::lock_guard lock(mutex_);
    look();
    heard.swap(heard_);
  }
  // The calls may wait for a file system, and the thread that beats needs the lock meanwhile.
  for (const Heard& one : heard) {
    if (one.message) {
      handler.message(one.node, *one.message);
    } else {
      handler.lost(one.node, one.why);
    }
  }
}

void NodeServer::look() {
  constexpr int kEvents = 256;
  std::array<epoll_event, kEvents> events{};
  const int ready = ::epoll_wait(epoll_.fd(), events.data(), kEvents, 0);
  for (int i = 0; i < ready; ++i) {
    const epoll_event& event = events[static_cast<std::size_t>(i)];
    auto* const connection = static_cast<Connection*>(event.data.ptr);
    if (!connection) {
      accept_new();
      continue;
    }
    if (connection->dead) continue;
    if ((event.events & EPOLLOUT) != 0) write(*connection);
    if (!connection->dead && (event.events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) read(*connection);
  }
  for (Connection& one : connections_) {
    if (!one.dead && one.deadline && comm::milliseconds_until(*one.deadline) == 0)
      drop(one, false, "no introduction");
    // A write found that the connection has ended.
    if (one.dead && one.node >= 0) drop(one, true, "its connection ended");
  }
  connections_.remove_if([](const Connection& one) { return one.dead; });
}

void NodeServer::accept_new() {
  for (;;) {
    Socket socket = comm::accept_from(listener_);
    if (!socket.valid()) {
      // Without free descriptors, the connection stays in the queue. The sleep avoids a busy loop.
      if (errno == EMFILE || errno == ENFILE) std::this_thread::sleep_for(10ms);
      return;
    }
    const auto strangers = std::count_if(connections_.begin(), connections_.end(),
                                         [](const Connection& one) { return one.node < 0 && !one.dead; });
    if (static_cast<std::size_t>(strangers) >= kMaxStrangers) continue;  // legitimate nodes try again
    Connection& one = connections_.emplace_back();
    one.socket = std::move(socket);
    comm::expect_acknowledgements(one.socket);
    one.nonce = random_bytes(wire::kNonce);
    one.deadline = comm::in(kIntroductionTime);
    one.out = std::string(kServerMagic) + one.nonce;
    epoll_event event{.events = EPOLLIN | EPOLLOUT, .data = {.ptr = &one}};
    if (::epoll_ctl(epoll_.fd(), EPOLL_CTL_ADD, one.socket.fd(), &event) != 0) one.dead = true;
  }
}

void NodeServer::read(Connection& one) {
  std::array<char, 16 << 10> buffer;
  const ssize_t got = ::recv(one.socket.fd(), buffer.data(), buffer.size(), 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) return drop(one, true, "its connection ended");
  if (one.closing) return;
  one.in.append(buffer.data(), static_cast<std::size_t>(got));
  if (one.claims < 0 && !introduce(one)) return;
  for (;;) {
    NodeMessage message;
    const FrameState state = take_frame(one.in, message);
    if (state == FrameState::kBroken) return drop(one, true, "it sent an invalid message");
    if (state == FrameState::kMore) return;
    if (one.node < 0 && !admit(one, message)) return;
    heard_.push_back({.node = one.node, .message = std::move(message), .why = {}});
  }
}

// Judges the first message of an authenticated node. Supervisors of different jobs may have the same token
// and port, so only a node of the same job may displace an earlier connection.
bool NodeServer::admit(Connection& one, const NodeMessage& hello) {
  using Kind = NodeMessage::Kind;
  if (hello.kind != Kind::kHello) {
    drop(one, false, "");
    return false;
  }
  const auto quit = [this](Connection& connection, std::string text, bool other_job) {
    connection.node = -1;
    connection.closing = true;
    post(connection, {.kind = Kind::kQuit, .number = 2, .flag = other_job, .text = std::move(text)});
  };
  if (hello.more != shape_) {
    quit(one,
         fmt::format("node {} was started for another job ({}) than node {} ({}); start the same command "
                     "on all machines, and use another MASTER_PORT for each job",
                     one.claims, printable(hello.more), self_, shape_),
         true);
    return false;
  }
  // The node has noticed the end of its first connection earlier than this process.
  if (Connection* const before = of(one.claims)) {
    heard_.push_back({.node = one.claims, .message = {}, .why = "another supervisor took its number"});
    quit(*before, fmt::format("another supervisor has joined the job as node {}", one.claims), false);
  }
  one.node = one.claims;
  one.deadline.reset();
  return true;
}

// Takes an introduction from the front of the input. Returns whether the peer is a node of the job.
bool NodeServer::introduce(Connection& one) {
  if (!kClientMagic.starts_with(std::string_view(one.in).substr(0, kClientMagic.size()))) {
    drop(one, false, "");  // another program
    return false;
  }
  if (one.in.size() < kIntroduction) return false;
  const std::string text = one.in.substr(0, kIntroduction);
  one.in.erase(0, kIntroduction);
  const std::uint32_t node = wire::u32_at(text, 8), nodes = wire::u32_at(text, 12);
  const std::string nonce = text.substr(16, wire::kNonce), code = text.substr(16 + wire::kNonce);
  if (!equal_in_constant_time(code, wire::client_code(key_, one.nonce, nonce, node, nodes))) {
    refuse(one, "wrong token, or another version of Primus");
    return false;
  }
  if (nodes != static_cast<std::uint32_t>(nodes_) || node == static_cast<std::uint32_t>(self_) ||
      node >= nodes) {
    refuse(one, fmt::format("this job has {} nodes, and its node {} runs; this is node {} of {}", nodes_,
                            self_, node, nodes));
    return false;
  }
  one.claims = static_cast<int>(node);
  one.out += wire::u32(0) + wire::server_code(key_, one.nonce, nonce) + wire::u32(0);
  write(one);
  return !one.dead;
}

void NodeServer::refuse(Connection& one, const std::string& text) {
  one.out += wire::u32(1) + std::string(32, '\0') + wire::u32(static_cast<std::uint32_t>(text.size())) + text;
  one.closing = true;
  write(one);
}

void NodeServer::write(Connection& one) {
  while (!one.out.empty()) {
    const ssize_t sent = ::send(one.socket.fd(), one.out.data(), one.out.size(), MSG_NOSIGNAL);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return want(one, true);
    if (sent <= 0) {
      one.dead = true;  // serve() reports it
      return;
    }
    one.out.erase(0, static_cast<std::size_t>(sent));
  }
  want(one, false);
  // The peer reads the refusal, and closes; its deadline ends it otherwise.
  if (one.closing) ::shutdown(one.socket.fd(), SHUT_WR);
  if (one.closing && !one.deadline) one.deadline = comm::in(kIntroductionTime);
}

void NodeServer::drop(Connection& one, bool tell, const std::string& why) {
  one.dead = true;
  const int node = std::exchange(one.node, -1);
  if (node >= 0 && tell) heard_.push_back({.node = node, .message = {}, .why = why});
}

void NodeServer::post(Connection& one, const NodeMessage& message) {
  one.out += to_frame(message);
  if (one.out.size() > kMaxOut) one.dead = true;  // it does not read; serve() reports it
  if (!one.dead) write(one);
}

void NodeServer::send(int node, const NodeMessage& message) {
  const std::lock_guard lock(mutex_);
  if (Connection* const one = of(node)) post(*one, message);
}

void NodeServer::send_all(const NodeMessage& message) {
  for (int node = 0; node < nodes_; ++node)
    if (node != self_) send(node, message);
}

void NodeServer::close(int node) {
  const std::lock_guard lock(mutex_);
  if (Connection* const one = of(node)) drop(*one, false, "");
}

void NodeServer::dismiss(int node) {
  const std::lock_guard lock(mutex_);
  Connection* const one = of(node);
  if (!one) return;
  one->node = -1;
  one->closing = true;
  write(*one);
}

void NodeServer::flush(Deadline deadline) {
  const std::lock_guard lock(mutex_);
  for (Connection& one : connections_) {
    while (!one.dead && !one.out.empty() && comm::milliseconds_until(deadline) != 0) {
      comm::wait_for(one.socket, POLLOUT, deadline);
      write(one);
    }
  }
}

// ---- The other nodes ----------------------------------------------------------------------------

NodeClient::NodeClient(const std::string& host, std::uint16_t port, const std::string& token, int node,
                       int nodes, Deadline deadline, const std::function<void()>& check) {
  const std::string key = key_of(token);
  do {
    socket_ = comm::connect_to(host, port, deadline, check);
    if (introduce(host, port, key, node, nodes, deadline)) return;
    std::this_thread::sleep_for(50ms);
    check();
  } while (comm::milliseconds_until(deadline) != 0);
  throw no_answer(host, port);
}

NodeClient::NodeClient(Socket socket, const std::string& host, std::uint16_t port, const std::string& token,
                       int node, int nodes, Deadline deadline)
    : socket_(std::move(socket)) {
  if (!introduce(host, port, key_of(token), node, nodes, deadline)) throw no_answer(host, port);
}

// Returns false if the leader closed the connection, so that another attempt may succeed.
bool NodeClient::introduce(const std::string& host, std::uint16_t port, const std::string& key, int node,
                           int nodes, Deadline deadline) {
  const Deadline limit = std::min(deadline, comm::in(kIntroductionTime));
  std::array<char, kHello> hello{};
  const comm::IoResult greeted = comm::receive_all(socket_, hello, limit);
  if (greeted != comm::IoResult::kDone) return false;
  const std::string_view text(hello.data(), hello.size());
  if (!text.starts_with(kServerMagic)) throw no_leader(host, port);
  const std::string_view server_nonce = text.substr(kServerMagic.size());
  const std::string nonce = random_bytes(wire::kNonce);
  const auto number = static_cast<std::uint32_t>(node), count = static_cast<std::uint32_t>(nodes);
  const std::string introduction = std::string(kClientMagic) + wire::u32(number) + wire::u32(count) + nonce +
                                   wire::client_code(key, server_nonce, nonce, number, count);
  std::array<char, kVerdict> head{};
  if (comm::send_all(socket_, introduction, limit) != comm::IoResult::kDone ||
      comm::receive_all(socket_, head, limit) != comm::IoResult::kDone)
    return false;
  const std::string_view verdict(head.data(), head.size());
  if (wire::u32_at(verdict, 0) == 0) {
    if (!equal_in_constant_time(verdict.substr(4, 32), wire::server_code(key, server_nonce, nonce)))
      throw no_leader(host, port);
    comm::expect_acknowledgements(socket_);
    return true;
  }
  std::string reason(std::min<std::size_t>(wire::u32_at(verdict, 36), kMaxReason), '\0');
  if (comm::receive_all(socket_, reason, limit) != comm::IoResult::kDone) reason = "no reason was given";
  throw invalid(fmt::format("the supervisor on port {} of {} refuses node {}: {}", port, host, node, reason),
                "start the same command with the same PRIMUS_JOB_TOKEN on all machines");
}

NodeClient::~NodeClient() { heart_.stop(); }

void NodeClient::receive(std::vector<NodeMessage>& messages) {
  heart_.alive();
  std::array<char, 16 << 10> buffer;
  while (open_) {
    const ssize_t got = ::recv(socket_.fd(), buffer.data(), buffer.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) {
      open_ = false;
      return;
    }
    in_.append(buffer.data(), static_cast<std::size_t>(got));
    for (FrameState state = FrameState::kMessage; state == FrameState::kMessage;) {
      NodeMessage message;
      state = take_frame(in_, message);
      if (state == FrameState::kMessage) messages.push_back(std::move(message));
      if (state == FrameState::kBroken) open_ = false;
    }
  }
}

void NodeClient::send(const NodeMessage& message) {
  const std::lock_guard lock(mutex_);
  if (message.kind == NodeMessage::Kind::kHello)
    heart_.start([this] { send({.kind = NodeMessage::Kind::kBeat}); });
  if (open_ && comm::send_all(socket_, to_frame(message), comm::in(kSendTime)) != comm::IoResult::kDone)
    open_ = false;
}

}  // namespace primus::supervise
