#include "safe/supervise/snapshot_home.h"

#include <fmt/format.h>
#include <netdb.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/files/sha256.h"
#include "base/system/threads.h"
#include "comm/rendezvous/socket.h"

namespace primus::supervise {
namespace {

using namespace std::chrono_literals;
using Kind = SnapshotFolder::Kind;

constexpr auto kLook = 50ms;  // between looks for new snapshots

// Returns the folder of this run's snapshots on this machine. Several nodes may be processes of one machine.
Path folder_of(const SnapshotHome::Options& options, int node) {
  constexpr std::size_t kDigits = 16;
  const std::string run = std::filesystem::absolute(options.run).string();
  const std::string name = hex(as_text(hmac_sha256("primus snapshots", run))).substr(0, kDigits);
  return options.memory / fmt::format("primus-{}-{}-{}", ::geteuid(), name, node);
}

void make_private(const Path& folder) {
  struct stat status {};
  if (::lstat(folder.c_str(), &status) == 0) {
    if (status.st_uid != ::geteuid() || !S_ISDIR(status.st_mode)) {
      throw invalid(
          fmt::format("snapshots cannot be kept in '{}', which another user owns or which is no folder",
                      folder.string()),
          "remove it, or set snapshot_interval=0");
    }
    remove_tree(folder);
  }
  constexpr mode_t kPrivate = 0700;
  if (::mkdir(folder.c_str(), kPrivate) != 0) {
    throw FileError(fmt::format("cannot make the folder '{}' for snapshots", folder.string()), errno,
                    "set snapshot_interval=0, or mount a file system in memory there");
  }
}

// Returns this machine's address on the way to `host`; empty if there is no way.
std::string address_towards(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* list = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list) != 0) return "";
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, ::freeaddrinfo);
  for (const addrinfo* a = list; a; a = a->ai_next) {
    const comm::Socket socket(::socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    // Connecting sends nothing.
    if (socket.valid() && ::connect(socket.fd(), a->ai_addr, a->ai_addrlen) == 0)
      return comm::own_address(socket);
  }
  return "";
}

std::vector<int> ranks_here(const SnapshotFolder& folder) {
  try {
    return folder.ranks(Kind::kOwn);
  } catch (const Error&) {
    return {};  // a rank removes or makes folders at this moment
  }
}

// Blocks all signals of this thread while it exists, because threads inherit the mask: signals are for the
// program's main thread.
class WithoutSignals {
 public:
  WithoutSignals() {
    sigset_t all;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~WithoutSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  WithoutSignals(const WithoutSignals&) = delete;
  WithoutSignals& operator=(const WithoutSignals&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace

SnapshotHome::SnapshotHome(const Options& options, const std::optional<SupervisedNodes>& nodes)
    : options_(options), folder_(folder_of(options, nodes ? nodes->node : 0)) {
  make_private(folder_.root());
  try {
    if (nodes) open_link(*nodes);
  } catch (...) {
    try_remove_tree(folder_.root());
    throw;
  }
  ::setenv(kSnapshotVariable, folder_.root().c_str(), 1);
}

SnapshotHome::~SnapshotHome() {
  stop_ = true;
  if (copier_.joinable()) copier_.join();
  server_.reset();
  ::unsetenv(kSnapshotVariable);
  try_remove_tree(folder_.root());
}

void SnapshotHome::open_link(const SupervisedNodes& nodes) {
  link_ = SnapshotLink{.peers = std::filesystem::absolute(options_.run) / ".snapshot-hosts",
                       .key = snapshot_key(nodes.token),
                       .node = nodes.node,
                       .nodes = nodes.nodes,
                       .ranks = options_.ranks,
                       .world = options_.ranks * nodes.places};
  std::string address = address_towards(nodes.address, nodes.port);
  if (address.empty()) address = nodes.address;
  comm::Socket listener = comm::listen_on(address, 0);
  link_->publish(address, comm::port_of(listener));
  write_file(folder_.link_file(), link_->text());
  const WithoutSignals blocked;
  server_ = std::make_unique<SnapshotServer>(std::move(listener), folder_, *link_);
  copier_ = start_thread([this] { copy(); }, "copies snapshots");
}

// Copies each new snapshot of this machine's ranks.
void SnapshotHome::copy() {
  SendRate rate(options_.bytes_per_second, &stop_);
  std::map<int, SnapshotId> sent;
  while (!stop_) {
    std::this_thread::sleep_for(kLook);
    for (const int rank : ranks_here(folder_)) {
      if (stop_) return;
      try {
        // A history is a random number, so the newest snapshot is the one that was written last.
        std::vector<SnapshotId> here = folder_.list(Kind::kOwn, rank);
        if (here.empty()) continue;
        const auto written = [&](const SnapshotId& one) {
          return std::filesystem::last_write_time(folder_.snapshot(Kind::kOwn, rank, one));
        };
        const SnapshotId newest = *std::ranges::max_element(here, {}, written);
        const auto before = sent.find(rank);
        if (before != sent.end() && before->second == newest) continue;
        const bool copied = copy_to_partner(rank, newest, rate);
        if (stop_) return;
        sent.insert_or_assign(rank, newest);
        folder_.record_copy(rank, {.id = newest, .exists = copied});
      } catch (const std::exception&) {
        // The job has removed the snapshot meanwhile, or the partner was lost: the next look tries again.
      }
    }
  }
}

bool SnapshotHome::copy_to_partner(int rank, const SnapshotId& id, SendRate& rate) {
  // The last partner first: connecting to a lost machine takes time.
  std::vector<int> candidates;
  if (partner_) candidates.push_back(*partner_);
  for (int i = 1; i < link_->nodes; ++i) candidates.push_back((link_->node + i) % link_->nodes);
  for (const int node : candidates) {
    if (stop_) return false;
    try {
      std::optional<SnapshotPeer> peer = SnapshotPeer::connect(*link_, node);
      if (!peer || !peer->put(rank, id, folder_, rate).empty()) continue;
      partner_ = node;
      return true;
    } catch (const Error&) {
      // The connection was lost, or the job has removed the snapshot meanwhile: then the last file to read is
      // missing for every peer.
      if (!Env::posix().status(folder_.snapshot(Kind::kOwn, rank, id))) throw;
    }
  }
  return false;
}

}  // namespace primus::supervise
