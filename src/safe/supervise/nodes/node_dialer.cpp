#include "safe/supervise/nodes/node_dialer.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <utility>

#include "base/error.h"
#include "base/system/threads.h"
#include "base/system/without_signals.h"

namespace primus::supervise {
namespace {

constexpr auto kConnectTime = std::chrono::milliseconds(1500);

}  // namespace

struct NodeDialer::Call {
  Delegate to = {};
  std::thread thread = {};
  std::atomic<bool> done = false;
  // While the thread runs, only the thread uses the members below.
  std::unique_ptr<NodeClient> client = {};
  int reason = 0;
  std::exception_ptr error = {};
};

NodeDialer::NodeDialer(std::string token, int node, int nodes)
    : token_(std::move(token)), node_(node), nodes_(nodes), wakes_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!wakes_.valid()) throw io_error("cannot watch the calls of the job's machines", errno);
}

NodeDialer::~NodeDialer() {
  for (auto& [node, call] : calls_) forgotten_.push_back(std::move(call));
  for (const auto& call : forgotten_)
    if (call->thread.joinable()) call->thread.join();
}

// In the thread of the call.
void NodeDialer::ring(Call& call) const {
  try {
    // Only a refused connection proves that no process listens. A busy process does not answer either, and a
    // network that is down does not show whether a process listens.
    comm::Socket socket =
        comm::try_connect(call.to.address, call.to.port, comm::in(kConnectTime), call.reason);
    if (socket.valid())
      call.client = std::make_unique<NodeClient>(std::move(socket), call.to.address, call.to.port, token_,
                                                 node_, nodes_, comm::in(kConnectTime));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kIo) call.error = std::current_exception();
  } catch (...) {
    call.error = std::current_exception();
  }
  call.done = true;
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wakes_.fd(), &one, sizeof(one));
}

void NodeDialer::call(const Delegate& to) {
  forget(to.node);
  auto call = std::make_shared<Call>();
  call->to = to;
  const WithoutSignals blocked;
  try {
    call->thread =
        start_thread([this, one = call.get()] { ring(*one); }, "calls another supervisor of the job");
  } catch (const Error&) {
    call->done = true;  // too many threads: as if the machine did not answer; it is called again
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wakes_.fd(), &one, sizeof(one));
  }
  calls_[to.node] = std::move(call);
}

void NodeDialer::forget(int node) {
  open_.erase(node);
  if (const auto found = calls_.find(node); found != calls_.end()) {
    forgotten_.push_back(std::move(found->second));
    calls_.erase(found);
  }
}

void NodeDialer::reap() {
  std::erase_if(forgotten_, [](const std::shared_ptr<Call>& call) {
    if (!call->done) return false;
    if (call->thread.joinable()) call->thread.join();
    return true;
  });
}

std::vector<NodeDialer::Answer> NodeDialer::answers() {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(wakes_.fd(), &count, sizeof(count));
  std::vector<Answer> found;
  for (auto entry = calls_.begin(); entry != calls_.end();) {
    Call& call = *entry->second;
    if (!call.done) {
      ++entry;
      continue;
    }
    if (call.thread.joinable()) call.thread.join();
    found.push_back({.node = entry->first,
                     .open = call.client != nullptr,
                     .refused = call.reason == ECONNREFUSED,
                     .error = call.error});
    if (call.client) open_[entry->first] = std::move(call.client);
    entry = calls_.erase(entry);
  }
  reap();
  return found;
}

std::unique_ptr<NodeClient> NodeDialer::take(int node) {
  const auto found = open_.find(node);
  if (found == open_.end()) return nullptr;
  auto client = std::move(found->second);
  open_.erase(found);
  return client;
}

}  // namespace primus::supervise
