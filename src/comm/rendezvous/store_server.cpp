#include "comm/rendezvous/store_server.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/error.h"
#include "base/system/threads.h"

namespace primus::comm {
namespace {

using namespace std::chrono_literals;
using wire::Reader;
using wire::Type;
using wire::Writer;

constexpr std::size_t kMaxStrangers = 128;  // connections not yet authenticated
constexpr auto kIntroductionTime = 5s, kFrameTime = 30s;
constexpr std::size_t kMaxOut = 64U << 20;  // unread data for one peer
constexpr auto kLongestWait = 24h;

// Returns the time that is `ms` from now, or the end of the longest allowed wait if that is earlier.
std::chrono::steady_clock::time_point deadline_after(std::uint64_t ms) {
  return std::chrono::steady_clock::now() +
         std::min<std::chrono::milliseconds>(std::chrono::milliseconds(ms & 0x7fffffff), kLongestWait);
}

}  // namespace

StoreServer::StoreServer(Socket listener, std::string token, int world)
    : listener_(std::move(listener)),
      waker_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      token_(std::move(token)),
      world_(world),
      seen_(static_cast<std::size_t>(world)),
      left_(static_cast<std::size_t>(world)) {
  if (!waker_.valid()) throw io_error("cannot create an eventfd for the rendezvous", errno);
  thread_ = start_thread([this] { serve(); }, "serves the rendezvous");
}

StoreServer::~StoreServer() {
  stop_ = true;
  const std::uint64_t one = 1;
  if (::write(waker_.fd(), &one, sizeof(one)) < 0) {
    // A failed write is ignored. The write fails only if the counter is full, and then the thread wakes up
    // anyway.
  }
  thread_.join();
}

void StoreServer::wait_until_left(Deadline deadline) {
  std::unique_lock lock(over_mutex_);
  over_changed_.wait_until(lock, deadline, [&] { return over_; });
}

// ---- The loop -----------------------------------------------------------------------------------

void StoreServer::serve() {
  std::optional<Deadline> end;
  for (;;) {
    if (stop_ && !end) {
      end = in(1s);
      listener_.close();
    }
    const bool drained = std::all_of(connections_.begin(), connections_.end(),
                                     [](const Connection& c) { return c.out.empty(); });
    if (end && milliseconds_until(*end) == 0) return;
    std::vector<pollfd> polled{{waker_.fd(), static_cast<short>(end ? 0 : POLLIN), 0},
                               {listener_.fd(), POLLIN, 0}};
    Deadline next = end ? *end : in(1h);
    std::vector<Connection*> order;
    for (Connection& c : connections_) {
      polled.push_back({c.socket.fd(), static_cast<short>(c.out.empty() ? POLLIN : POLLIN | POLLOUT), 0});
      order.push_back(&c);
      if (c.deadline) next = std::min(next, *c.deadline);
    }
    for (const Waiting& w : waiting_) next = std::min(next, w.deadline);
    for (const auto& [number, question] : questions_) next = std::min(next, question.deadline);
    const int ready = poll(polled.data(), polled.size(), end && drained ? 0 : milliseconds_until(next));
    // Messages that have already arrived are still forwarded: one of them may state why this rank ends.
    if (end && drained && ready == 0) return;

    for (std::size_t i = 0; i < order.size(); ++i) {
      const short events = polled[i + 2].revents;
      if ((events & POLLOUT) != 0) write(*order[i]);
      if ((events & (POLLIN | POLLHUP | POLLERR)) != 0 && !order[i]->dead) read(*order[i]);
      if (!order[i]->dead && order[i]->deadline && milliseconds_until(*order[i]->deadline) == 0) {
        drop(*order[i]);
      }
    }
    if ((polled[1].revents & POLLIN) != 0) accept_new();
    finish_waiting();
    connections_.remove_if([](const Connection& c) { return c.dead; });
  }
}

void StoreServer::accept_new() {
  for (;;) {
    Socket socket = accept_from(listener_);
    if (!socket.valid()) {
      // Without free descriptors, the connection stays in the queue. The sleep avoids a busy loop.
      if (errno == EMFILE || errno == ENFILE) std::this_thread::sleep_for(10ms);
      return;
    }
    const auto unknown = std::count_if(connections_.begin(), connections_.end(),
                                       [](const Connection& c) { return c.rank < 0 && !c.dead; });
    if (static_cast<std::size_t>(unknown) >= kMaxStrangers) continue;  // dropped; legitimate ranks retry
    Connection& c = connections_.emplace_back();
    c.socket = std::move(socket);
    expect_acknowledgements(c.socket);
    c.nonce = random_bytes(wire::kNonce);
    c.deadline = in(kIntroductionTime);
    c.out = std::string(wire::kServerMagic, 8) + wire::u32(wire::kVersion) + c.nonce;
    write(c);
  }
}

void StoreServer::read(Connection& c) {
  char buffer[64 << 10];
  // Limit the reads per peer, so that a busy peer does not block the others.
  for (int i = 0; i < 16; ++i) {
    const ssize_t got = recv(c.socket.fd(), buffer, sizeof(buffer), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) break;
    if (got <= 0) return drop(c);
    if (c.closing) continue;
    c.in.append(buffer, static_cast<std::size_t>(got));
    while (!c.dead && !c.closing && (c.rank < 0 ? introduce(c) : read_frame(c))) {
    }
    if (c.dead) return;
    if (c.rank < 0 && c.in.size() > wire::kIntroductionBytes) return drop(c);
  }
  if (c.rank < 0 || c.dead) return;
  // A frame's time limit starts with its first byte.
  if (c.in.empty()) {
    c.deadline.reset();
  } else if (!c.deadline) {
    c.deadline = in(kFrameTime);
  }
}

void StoreServer::write(Connection& c) {
  while (!c.out.empty()) {
    const ssize_t sent = send(c.socket.fd(), c.out.data(), c.out.size(), MSG_NOSIGNAL);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (sent <= 0) return drop(c);
    c.out.erase(0, static_cast<std::size_t>(sent));
  }
  if (c.closing) drop(c);
}

void StoreServer::post(Connection& c, std::string frame) {
  if (c.dead || c.closing) return;
  if (c.out.size() + frame.size() > kMaxOut) return drop(c);
  c.out += frame;
  write(c);
}

// ---- Introductions ------------------------------------------------------------------------------

void StoreServer::refuse(Connection& c, wire::Verdict verdict, const std::string& text) {
  // A refusal has a code of zeros: an unauthenticated peer must not get a code that was computed from the
  // token.
  const std::string code(32, '\0');
  c.out += wire::u32(static_cast<std::uint32_t>(verdict)) + code +
           wire::u32(static_cast<std::uint32_t>(text.size())) + text;
  c.in.clear();
  c.closing = true;
  write(c);
}

bool StoreServer::introduce(Connection& c) {
  if (c.in.size() < 12) return false;
  if (c.in.compare(0, 8, wire::kClientMagic, 8) != 0) {
    drop(c);
    return false;
  }
  const std::uint32_t version = wire::u32_at(c.in, 8);
  if (version != wire::kVersion) {
    refuse(c, wire::Verdict::kRefused,
           fmt::format("rank 0 uses version {} of the rendezvous protocol, this rank version {}",
                       wire::kVersion, version));
    return false;
  }
  if (c.in.size() < wire::kIntroductionBytes) return false;
  const std::uint32_t rank = wire::u32_at(c.in, 12), world = wire::u32_at(c.in, 16);
  const std::string nonce = c.in.substr(20, wire::kNonce);
  const std::string code = c.in.substr(20 + wire::kNonce, 32);
  c.in.erase(0, wire::kIntroductionBytes);
  if (!equal_in_constant_time(code, wire::client_code(token_, c.nonce, nonce, rank, world))) {
    ++strangers_;
    refuse(c, wire::Verdict::kWrongToken, "");
    return false;
  }
  if (world != static_cast<std::uint32_t>(world_)) {
    const std::string reason =
        fmt::format("rank {} was started with WORLD_SIZE={}, rank 0 with WORLD_SIZE={}", rank, world, world_);
    refuse(c, wire::Verdict::kRefused, reason);
    abort(reason, ErrorKind::kInvalid);
    return false;
  }
  if (aborted_) {
    refuse(c, wire::Verdict::kRefused, *aborted_);
    return false;
  }
  if (rank >= world || seen_[rank]) {
    refuse(c, wire::Verdict::kRefused,
           fmt::format("rank {} has already joined the job: two processes were started with RANK={}", rank,
                       rank));
    return false;
  }
  seen_[rank] = true;
  c.rank = static_cast<int>(rank);
  c.deadline.reset();
  c.out += wire::u32(static_cast<std::uint32_t>(wire::Verdict::kWelcome)) +
           wire::server_code(token_, c.nonce, nonce) + wire::u32(0);
  write(c);
  return !c.dead;
}

// ---- Frames -------------------------------------------------------------------------------------

bool StoreServer::read_frame(Connection& c) {
  if (c.in.size() < 4) return false;
  const std::uint32_t size = wire::u32_at(c.in, 0);
  if (size > wire::kMaxFrame) {
    drop(c);
    return false;
  }
  if (c.in.size() < 4 + std::size_t{size}) return false;
  const std::string body = c.in.substr(4, size);
  c.in.erase(0, 4 + std::size_t{size});
  c.deadline.reset();
  handle(c, body);
  return !c.dead;
}

void StoreServer::handle(Connection& c, std::string_view body) {
  Reader reader(body);
  const Type type = reader.type();
  const std::uint64_t request = reader.number();
  const auto reply = [&] { return Writer(Type::kReply, request); };
  switch (type) {
    case Type::kSet:
      return set(c, request, reader);
    case Type::kGet: {
      const std::string key = reader.string(wire::kMaxKey);
      if (!reader.ok()) return drop(c);
      const auto found = stored_.values.find(key);
      const bool there = found != stored_.values.end();
      return post(c, reply().number(there ? 1 : 0).string(there ? found->second : "").frame());
    }
    case Type::kErase: {
      const std::string key = reader.string(wire::kMaxKey);
      if (!reader.ok()) return drop(c);
      if (const auto found = stored_.values.find(key); found != stored_.values.end()) {
        stored_.bytes -= found->first.size() + found->second.size();
        stored_.values.erase(found);
      }
      return post(c, reply().frame());
    }
    case Type::kWait: {
      std::string key = reader.string(wire::kMaxKey);
      const Deadline deadline = deadline_after(reader.number());
      if (!reader.ok()) return drop(c);
      waiting_.push_back({&c, request, std::move(key), deadline});
      return;  // finish_waiting() handles the request in this iteration of the loop
    }
    case Type::kAdd:
      return add(c, request, reader);
    case Type::kAsk:
      return ask(c, request, reader);
    case Type::kAnswer: {
      const std::uint64_t number = reader.number();
      std::string text = reader.string(wire::kMaxText);
      if (!reader.ok()) return drop(c);
      return answer_question(number, c, std::move(text));
    }
    case Type::kAbort: {
      const std::string reason = reader.string(wire::kMaxText);
      const ErrorKind kind = wire::error_kind(reader.number());
      if (!reader.ok()) return drop(c);
      return abort(reason, kind);
    }
    case Type::kLeave:
      return leave(c);
    default:
      return drop(c);
  }
}

void StoreServer::set(Connection& c, std::uint64_t request, wire::Reader& reader) {
  const std::string key = reader.string(wire::kMaxKey);
  std::string value = reader.string(wire::kMaxValue);
  if (!reader.ok()) return drop(c);
  std::string& slot = stored_.values[key];
  stored_.bytes += key.size() + value.size() - slot.size();
  slot = std::move(value);
  if (stored_.bytes > wire::kMaxStored) return abort("the ranks store too much data at the rendezvous");
  post(c, Writer(Type::kReply, request).frame());
}

void StoreServer::add(Connection& c, std::uint64_t request, wire::Reader& reader) {
  const std::string key = reader.string(wire::kMaxKey);
  const auto number = static_cast<std::int64_t>(reader.number());
  if (!reader.ok()) return drop(c);
  const auto [slot, added] = stored_.sums.try_emplace(key, 0);
  if (added) stored_.bytes += key.size();
  slot->second = static_cast<std::int64_t>(static_cast<std::uint64_t>(slot->second) +
                                           static_cast<std::uint64_t>(number));
  if (stored_.bytes > wire::kMaxStored) return abort("the ranks store too much data at the rendezvous");
  post(c, Writer(Type::kReply, request).number(static_cast<std::uint64_t>(slot->second)).frame());
}

void StoreServer::ask(Connection& c, std::uint64_t request, wire::Reader& reader) {
  const std::string group = reader.string(wire::kMaxKey);
  const Deadline deadline = deadline_after(reader.number());
  if (!reader.ok()) return drop(c);
  const std::uint64_t number = next_question_++;
  std::vector<Connection*> asked;
  for (Connection& other : connections_) {
    if (other.rank >= 0 && !other.dead) asked.push_back(&other);
  }
  questions_[number] = {&c, request, {}, asked.size(), deadline};
  for (Connection* other : asked) {
    post(*other, Writer(Type::kQuestion).number(number).string(group).frame());
  }
}

void StoreServer::leave(const Connection& c) {
  if (left_[static_cast<std::size_t>(c.rank)]) return;
  left_[static_cast<std::size_t>(c.rank)] = true;
  if (++left_count_ < world_) return;
  const std::lock_guard lock(over_mutex_);
  over_ = true;
  over_changed_.notify_all();
}

void StoreServer::answer_question(std::uint64_t number, Connection& c, std::string text) {
  const auto found = questions_.find(number);
  if (found == questions_.end()) return;
  found->second.answers[c.rank] = std::move(text);
  if (found->second.answers.size() >= found->second.asked) end_question(number);
}

void StoreServer::end_question(std::uint64_t number) {
  const auto found = questions_.find(number);
  const Question question = std::move(found->second);
  questions_.erase(found);
  if (!question.connection) return;
  Writer reply(Type::kReply, question.request);
  for (int rank = 0; rank < world_; ++rank) {
    const auto answer = question.answers.find(rank);
    reply.string(answer == question.answers.end() ? "" : answer->second);
  }
  post(*question.connection, reply.frame());
}

void StoreServer::finish_waiting() {
  for (auto w = waiting_.begin(); w != waiting_.end();) {
    const auto found = stored_.values.find(w->key);
    const bool there = found != stored_.values.end();
    if (!there && milliseconds_until(w->deadline) != 0) {
      ++w;
      continue;
    }
    const Waiting done = *w;
    w = waiting_.erase(w);
    post(*done.connection, Writer(Type::kReply, done.request)
                               .number(there ? 1 : 0)
                               .string(there ? std::string_view(found->second) : std::string_view())
                               .frame());
    // Dropping a peer also removes other requests of the peer, so restart the iteration.
    if (done.connection->dead) w = waiting_.begin();
  }
  std::vector<std::uint64_t> late;
  for (const auto& [number, question] : questions_) {
    if (milliseconds_until(question.deadline) == 0) late.push_back(number);
  }
  for (const std::uint64_t number : late) end_question(number);
}

void StoreServer::drop(Connection& c) {
  if (c.dead) return;
  c.dead = true;
  c.out.clear();
  c.deadline.reset();
  waiting_.remove_if([&](const Waiting& w) { return w.connection == &c; });
  for (auto& [number, question] : questions_) {
    if (question.connection == &c) question.connection = nullptr;
  }
  if (c.rank >= 0 && !left_[static_cast<std::size_t>(c.rank)]) {
    abort(fmt::format("rank {} was lost: its process exited, or its connection broke", c.rank));
  }
}

void StoreServer::abort(const std::string& reason, ErrorKind kind) {
  if (aborted_) return;
  aborted_ = reason;
  const std::string frame =
      Writer(Type::kAborted).string(reason).number(static_cast<std::uint64_t>(kind)).frame();
  for (Connection& c : connections_) {
    if (c.rank >= 0) post(c, frame);
  }
  const std::lock_guard lock(over_mutex_);
  over_ = true;
  over_changed_.notify_all();
}

}  // namespace primus::comm
