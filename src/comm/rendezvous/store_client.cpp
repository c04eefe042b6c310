#include "comm/rendezvous/store_client.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

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

constexpr auto kHandshake = 10s;
constexpr auto kSend = 30s;
constexpr auto kAskGrace = 2s;  // extra time for sending a question and its answers

Error not_a_rendezvous(const JobEnvironment& e) {
  return invalid(fmt::format("the program on port {} of {} is not the rendezvous of this job", e.master_port,
                             e.master_address),
                 "another program uses the port: set MASTER_PORT to a free port on all ranks");
}

}  // namespace

StoreClient::StoreClient(const JobEnvironment& environment, Deadline deadline,
                         std::shared_ptr<AbortState> abort,
                         std::function<std::string(const std::string&)> answer,
                         const std::function<void()>& still_trying)
    : environment_(environment), abort_(std::move(abort)), answer_(std::move(answer)) {
  introduce(deadline, still_trying);
  reader_ = start_thread([this] { read(); }, "listens to the rendezvous");
  subscription_ = abort_->subscribe([this](const std::string& reason, ErrorKind kind) {
    try {
      send(Writer(Type::kAbort)
               .string(reason.substr(0, wire::kMaxText))
               .number(static_cast<std::uint64_t>(kind))
               .frame());
    } catch (const std::exception&) {
      // Ignored: the rendezvous has ended, so the other ranks end without this message.
    }
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
  });
}

StoreClient::~StoreClient() {
  subscription_.reset();
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  shutdown(socket_.fd(), SHUT_RDWR);
  reader_.join();
}

void StoreClient::introduce(Deadline deadline, const std::function<void()>& still_trying) {
  for (;;) {
    socket_ = connect_to(environment_.master_address, environment_.master_port, deadline, [&] {
      abort_->check();
      if (still_trying) still_trying();
    });
    // The launcher opens the port before rank 0 serves it, so the first bytes may take as long as rank 0
    // does.
    while (milliseconds_until(deadline) != 0 && !wait_for(socket_, POLLIN, std::min(deadline, in(1s)))) {
      abort_->check();
      if (still_trying) still_trying();
    }
    const Deadline limit = std::min(deadline, in(kHandshake));
    char hello[wire::kHelloBytes];
    const IoResult greeted = receive_all(socket_, hello, limit);
    if (greeted == IoResult::kClosed && milliseconds_until(deadline) != 0) {
      // retry, because the server has closed the connection or has just ended
      std::this_thread::sleep_for(50ms);
      continue;
    }
    const std::string_view text(hello, sizeof(hello));
    if (greeted != IoResult::kDone || !text.starts_with(std::string_view(wire::kServerMagic, 8))) {
      throw not_a_rendezvous(environment_);
    }
    if (wire::u32_at(text, 8) != wire::kVersion) {
      throw invalid(fmt::format("rank 0 uses version {} of the rendezvous protocol, rank {} version {}",
                                wire::u32_at(text, 8), environment_.rank, wire::kVersion),
                    "run the same build of Primus on all hosts");
    }
    const std::string_view server_nonce = text.substr(12, wire::kNonce);
    const std::string nonce = random_bytes(wire::kNonce);
    const auto rank = static_cast<std::uint32_t>(environment_.rank);
    const auto world = static_cast<std::uint32_t>(environment_.world);
    const std::string introduction = std::string(wire::kClientMagic, 8) + wire::u32(wire::kVersion) +
                                     wire::u32(rank) + wire::u32(world) + nonce +
                                     wire::client_code(environment_.token, server_nonce, nonce, rank, world);
    char head[wire::kVerdictBytes];
    if (send_all(socket_, introduction, limit) != IoResult::kDone ||
        receive_all(socket_, head, limit) != IoResult::kDone) {
      throw not_a_rendezvous(environment_);
    }
    const std::string_view verdict(head, sizeof(head));
    const auto status = static_cast<wire::Verdict>(wire::u32_at(verdict, 0));
    if (status == wire::Verdict::kWelcome) {
      expect_acknowledgements(socket_);
      const std::string code = wire::server_code(environment_.token, server_nonce, nonce);
      if (!equal_in_constant_time(verdict.substr(4, 32), code)) throw not_a_rendezvous(environment_);
      return;
    }
    if (status == wire::Verdict::kWrongToken) {
      throw invalid(
          fmt::format("the rendezvous on port {} of {} refuses rank {}: wrong token",
                      environment_.master_port, environment_.master_address, environment_.rank),
          "give all ranks the same PRIMUS_JOB_TOKEN or PRIMUS_JOB_TOKEN_FILE; if the port belongs to "
          "another job, set MASTER_PORT to a free one");
    }
    std::string reason(std::min<std::size_t>(wire::u32_at(verdict, 36), wire::kMaxText), '\0');
    if (receive_all(socket_, reason, limit) != IoResult::kDone) reason = "no reason was given";
    throw invalid("the rendezvous refuses rank " + std::to_string(environment_.rank) + ": " + reason,
                  "start all ranks with the same settings and the same build of Primus");
  }
}

// ---- Requests -----------------------------------------------------------------------------------

void StoreClient::send(const std::string& frame) {
  const std::lock_guard lock(send_mutex_);
  if (send_all(socket_, frame, in(kSend)) != IoResult::kDone) {
    throw Error(ErrorKind::kIo, "the connection to the rendezvous on rank 0 was lost",
                "see the log of rank 0 for the reason");
  }
}

std::string StoreClient::call(std::uint64_t request, const std::string& frame, Deadline deadline) {
  abort_->check();
  {
    const std::lock_guard lock(mutex_);
    replies_[request];
  }
  bool sent = true;
  try {
    send(frame);
  } catch (const Error&) {
    sent = false;
    shutdown(socket_.fd(), SHUT_RDWR);  // data that has arrived can still be read
  }
  // A lost connection becomes an abort. The reason for the abort is the last reason that rank 0 sent, or else
  // the lost connection.
  std::unique_lock lock(mutex_);
  const auto ended = [&] { return abort_->aborted() || (closed_ && leaving_); };
  const bool in_time =
      changed_.wait_until(lock, deadline, [&] { return (sent && replies_[request]) || ended(); });
  std::optional<std::string> reply = std::move(replies_[request]);
  replies_.erase(request);
  lock.unlock();
  if (!in_time) {
    throw Error(ErrorKind::kIo, "the rendezvous on rank 0 does not answer",
                "check the host of rank 0 and the network to it");
  }
  if (!reply) {
    abort_->check();
    throw Error(ErrorKind::kIo, "the connection to the rendezvous on rank 0 was lost",
                "see the log of rank 0 for the reason");
  }
  return *reply;
}

namespace {

std::uint64_t new_request(std::mutex& mutex, std::uint64_t& next) {
  const std::lock_guard lock(mutex);
  return next++;
}

}  // namespace

void StoreClient::set(const std::string& key, const std::string& value) {
  const std::uint64_t request = new_request(mutex_, next_request_);
  call(request, Writer(Type::kSet, request).string(key).string(value).frame());
}

std::optional<std::string> StoreClient::get(const std::string& key) {
  const std::uint64_t request = new_request(mutex_, next_request_);
  const std::string reply = call(request, Writer(Type::kGet, request).string(key).frame());
  Reader reader(reply);
  const bool there = reader.number() == 1;
  std::string value = reader.string(wire::kMaxValue);
  return there ? std::optional(std::move(value)) : std::nullopt;
}

void StoreClient::erase(const std::string& key) {
  const std::uint64_t request = new_request(mutex_, next_request_);
  call(request, Writer(Type::kErase, request).string(key).frame());
}

std::string StoreClient::wait(const std::string& key, Deadline deadline) {
  const std::uint64_t request = new_request(mutex_, next_request_);
  const auto left = static_cast<std::uint64_t>(milliseconds_until(deadline));
  const std::string reply =
      call(request, Writer(Type::kWait, request).string(key).number(left).frame(), deadline + kSilence);
  Reader reader(reply);
  const bool there = reader.number() == 1;
  std::string value = reader.string(wire::kMaxValue);
  if (!there) {
    throw Error(ErrorKind::kIo,
                fmt::format("rank {} timed out while waiting for '{}'", environment_.rank, key),
                "see the logs of the other ranks: one of them did not start, or hangs");
  }
  return value;
}

std::int64_t StoreClient::add(const std::string& key, std::int64_t number) {
  const std::uint64_t request = new_request(mutex_, next_request_);
  const std::string reply = call(
      request, Writer(Type::kAdd, request).string(key).number(static_cast<std::uint64_t>(number)).frame());
  return static_cast<std::int64_t>(Reader(reply).number());
}

void StoreClient::barrier(const std::string& name, Deadline deadline) {
  set("barrier/" + name + "/" + std::to_string(environment_.rank), "");
  if (add("barrier/" + name, 1) == environment_.world) set("barrier/" + name + "/all", "");
  try {
    wait("barrier/" + name + "/all", deadline);
  } catch (const Error&) {
    abort_->check();
    std::string missing;
    int count = 0;
    for (int rank = 0; rank < environment_.world; ++rank) {
      if (get(fmt::format("barrier/{}/{}", name, rank))) continue;
      if (++count <= 16) missing += fmt::format("{}{}", count > 1 ? ", " : "", rank);
    }
    throw Error(ErrorKind::kIo,
                fmt::format("{} of {} ranks did not reach '{}' in time: {}{}", count, environment_.world,
                            name, missing, count > 16 ? ", ..." : ""),
                "see the logs of these ranks: they did not start, or hang");
  }
}

std::vector<std::optional<std::string>> StoreClient::ask(const std::string& group,
                                                         std::chrono::milliseconds time) {
  const std::uint64_t request = new_request(mutex_, next_request_);
  const auto milliseconds = static_cast<std::uint64_t>(time.count());
  std::vector<std::optional<std::string>> answers(static_cast<std::size_t>(environment_.world));
  std::string reply;
  try {
    reply = call(request, Writer(Type::kAsk, request).string(group).number(milliseconds).frame(),
                 in(time + kAskGrace));
  } catch (const Error&) {
    abort_->check();
    return answers;  // without rank 0, no rank can be reached
  }
  Reader reader(reply);
  for (std::optional<std::string>& answer : answers) {
    std::string text = reader.string(wire::kMaxText);
    if (!text.empty()) answer = std::move(text);
  }
  return answers;
}

void StoreClient::leave() {
  {
    const std::lock_guard lock(mutex_);
    if (leaving_) return;
    leaving_ = true;
  }
  send(Writer(Type::kLeave).frame());
}

// ---- Incoming messages --------------------------------------------------------------------------

void StoreClient::read() {
  const Deadline never = Deadline::max() - 24h;
  std::string body;
  for (;;) {
    char head[4];
    pollfd entry{socket_.fd(), POLLIN, 0};
    poll(&entry, 1, -1);
    if (receive_all(socket_, head, never) != IoResult::kDone) break;
    const std::uint32_t size = wire::u32_at({head, 4}, 0);
    // The longest frame holds one text per rank.
    if (size > wire::kMaxFrame + (wire::kMaxText + 4) * static_cast<std::size_t>(environment_.world)) break;
    body.resize(size);
    if (receive_all(socket_, body, never) != IoResult::kDone) break;
    Reader reader(body);
    const Type type = reader.type();
    const std::uint64_t request = reader.number();
    if (type == Type::kReply) {
      const std::lock_guard lock(mutex_);
      const auto slot = replies_.find(request);
      if (slot != replies_.end()) slot->second = body.substr(9);
      changed_.notify_all();
    } else if (type == Type::kAborted) {
      const std::string reason = reader.string(wire::kMaxText);
      abort_->abort(reason, wire::error_kind(reader.number()));
    } else if (type == Type::kQuestion) {
      const std::uint64_t number = reader.number();
      const std::string answer = answer_(reader.string(wire::kMaxKey));
      try {
        send(Writer(Type::kAnswer).number(number).string(answer.substr(0, wire::kMaxText)).frame());
      } catch (const Error&) {
        break;
      }
    }
  }
  bool lost = false;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    lost = !leaving_;
    changed_.notify_all();
  }
  if (lost)
    abort_->abort("the connection to the rendezvous was lost: rank 0 has exited, or its host is unreachable");
}

}  // namespace primus::comm
