#include "safe/supervise/recovery/snapshot_home.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/files/sha256.h"
#include "base/system/threads.h"
#include "base/system/without_signals.h"
#include "comm/rendezvous/socket.h"
#include "safe/supervise/nodes/own_address.h"

namespace primus::supervise {
namespace {

using namespace std::chrono_literals;
using Kind = SnapshotFolder::Kind;

constexpr auto kLook = 50ms;        // between looks for new snapshots
constexpr auto kBusyPause = 200ms;  // until a node that receives another copy is asked again

// A supervisor holds this file of its folder locked as long as it lives.
constexpr const char* kLock = "lock";

std::string prefix_of_user() { return fmt::format("primus-{}-", ::geteuid()); }

// Returns a new name for the folder of this run's snapshots on this machine. Several nodes may be processes
// of one machine, and a supervisor may start while an earlier one of the same node still lives.
Path new_folder(const SnapshotHome::Options& options, int node) {
  constexpr std::size_t kDigits = 16, kRandom = 8;
  const std::string run = std::filesystem::absolute(options.run).string();
  const std::string name = hex(as_text(hmac_sha256("primus snapshots", run))).substr(0, kDigits);
  return options.memory / fmt::format("{}{}-{}-{}", prefix_of_user(), name, node, hex(random_bytes(kRandom)));
}

// Returns a descriptor that is invalid if the file does not exist or another process holds its lock.
comm::Socket lock_file(const Path& file, int flags) {
  constexpr mode_t kPrivate = 0600;
  comm::Socket lock(::open(file.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | flags, kPrivate));
  if (lock.valid() && ::flock(lock.fd(), LOCK_EX | LOCK_NB) != 0) return {};
  return lock;
}

// Makes the folder, and returns its lock. The folder appears under its name when the lock is held.
comm::Socket make_private(const Path& folder) {
  constexpr mode_t kPrivate = 0700;
  const Path arriving = folder.parent_path() / ("." + folder.filename().string());
  comm::Socket lock;
  if (::mkdir(arriving.c_str(), kPrivate) == 0) {
    lock = lock_file(arriving / kLock, O_CREAT | O_EXCL);
    if (lock.valid() && ::rename(arriving.c_str(), folder.c_str()) == 0) return lock;
  }
  const int code = errno;
  try_remove_tree(arriving);
  throw FileError(fmt::format("cannot make the folder '{}' for snapshots", folder.string()), code,
                  "set snapshot_interval=0, or mount a file system in memory there");
}

// Removes the folders of this user's supervisors that were killed, of all runs.
void remove_left_behind(const Path& memory) {
  std::error_code error;
  for (std::filesystem::directory_iterator entry(memory, error), end; !error && entry != end;
       entry.increment(error)) {
    const Path& folder = entry->path();
    struct stat status {};
    if (!folder.filename().string().starts_with(prefix_of_user()) || ::lstat(folder.c_str(), &status) != 0 ||
        !S_ISDIR(status.st_mode) || status.st_uid != ::geteuid())
      continue;
    // Without the file, someone has removed only a part of the folder.
    const bool exists = ::access((folder / kLock).c_str(), F_OK) == 0;
    if (!exists || lock_file(folder / kLock, 0).valid()) try_remove_tree(folder);
  }
}

std::vector<int> ranks_here(const SnapshotFolder& folder) {
  try {
    return folder.ranks(Kind::kOwn);
  } catch (const Error&) {
    return {};  // a rank removes or makes folders at this moment
  }
}

}  // namespace

SnapshotHome::SnapshotHome(const Options& options, const std::optional<SupervisedNodes>& nodes)
    : options_(options), folder_(new_folder(options, nodes ? nodes->node : 0)) {
  remove_left_behind(options_.memory);
  lock_ = make_private(folder_.root());
  // Before the threads of the link exist, which read the environment.
  ::setenv(kSnapshotVariable, folder_.root().c_str(), 1);
  try {
    guard_ = std::make_unique<FolderGuard>(folder_.root());
    if (nodes) open_link(*nodes);
  } catch (...) {
    ::unsetenv(kSnapshotVariable);
    try_remove_tree(folder_.root());
    throw;
  }
}

SnapshotHome::~SnapshotHome() {
  stop_ = true;
  if (copier_.joinable()) copier_.join();
  server_.reset();
  if (link_) link_->withdraw(port_);
  ::unsetenv(kSnapshotVariable);
  try_remove_tree(folder_.root());
}

void SnapshotHome::open_link(const SupervisedNodes& nodes) {
  SupervisedJob job;
  job.run = options_.run;
  job.ranks = options_.ranks;
  link_ = SnapshotLink{.peers = std::filesystem::absolute(options_.run) / ".snapshot-hosts",
                       .key = snapshot_key(nodes.token, shape_of(job, nodes)),
                       .node = nodes.node,
                       .nodes = nodes.nodes,
                       .ranks = options_.ranks,
                       .world = options_.ranks * nodes.places};
  std::string address = address_towards(nodes.address, nodes.port);
  if (address.empty()) address = nodes.address;
  comm::Socket listener = comm::listen_on(address, 0);
  port_ = comm::port_of(listener);
  link_->publish(address, port_);
  write_file(folder_.link_file(), link_->text());
  const WithoutSignals blocked;
  server_ = std::make_unique<SnapshotServer>(std::move(listener), folder_, *link_);
  copier_ = start_thread([this] { copy(); }, "copies snapshots");
}

// Copies each new snapshot of this machine's ranks.
void SnapshotHome::copy() {
  SendRate rate(options_.bytes_per_second, &stop_);
  struct Sent {
    SnapshotFolder::Copied copied;
    bool recorded = false;
  };
  std::map<int, Sent> sent;
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
        auto last = sent.find(rank);
        if (last == sent.end() || last->second.copied.id != newest) {
          const bool copied = copy_to_partner(rank, newest, rate);
          if (stop_) return;
          last = sent.insert_or_assign(rank, Sent{.copied = {.id = newest, .exists = copied}}).first;
        }
        // The rank takes no further snapshot before it reads this.
        if (!last->second.recorded) folder_.record_copy(rank, last->second.copied);
        last->second.recorded = true;
      } catch (const std::exception&) {
        // The job has removed the snapshot meanwhile, the partner was lost, or the memory is full: the next
        // look tries again.
      }
    }
  }
}

bool SnapshotHome::copy_to_partner(int rank, const SnapshotId& id, SendRate& rate) {
  // The last partner first: connecting to a lost machine takes time.
  std::vector<int> candidates;
  if (partner_) candidates.push_back(*partner_);
  for (int i = 1; i < link_->nodes; ++i) {
    const int node = (link_->node + i) % link_->nodes;
    if (node != partner_) candidates.push_back(node);
  }
  while (!candidates.empty()) {
    std::vector<int> busy;  // they receive other copies
    for (const int node : candidates) {
      if (stop_) return false;
      try {
        std::optional<SnapshotPeer> peer = SnapshotPeer::connect(*link_, node);
        if (!peer) continue;
        const std::string answer = peer->put(rank, id, folder_, rate);
        if (answer == SnapshotPeer::kBusy) busy.push_back(node);
        if (!answer.empty()) continue;
        partner_ = node;
        return true;
      } catch (const Error&) {
        // The connection was lost, or the job has removed the snapshot meanwhile: then the last file to read
        // is missing for every peer.
        if (!Env::posix().status(folder_.snapshot(Kind::kOwn, rank, id))) throw;
      }
    }
    candidates = std::move(busy);
    if (!candidates.empty()) std::this_thread::sleep_for(kBusyPause);
  }
  return false;
}

}  // namespace primus::supervise
