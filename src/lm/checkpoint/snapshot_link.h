// Copies snapshots between the hosts of a supervised job. Each host's supervisor serves its SnapshotFolder;
// supervisors send copies to the next host, and ranks that start on a host without their snapshots fetch
// them.
//
//   server   magic, nonce
//   client   magic, nonce, HMAC(key, both nonces)
//   server   HMAC(key, both nonces)
//   client   a request: "list RANK", "get RANK HISTORY/STEP" or "put RANK HISTORY/STEP BYTES"
//
// A text is its length and its bytes. A file is its name and size as a text, its bytes, and their CRC32C.
//
// Hosts find each other by files in a folder that all of them see: node-00003 holds the address and the port
// of node 3. The key never leaves the hosts. Peers may be hostile until they have proved that they know it: a
// connection must do so within five seconds, at most 64 connections exist, and texts have limits. A
// connection ends after 20 s without a request. The data are not encrypted. A copy that does not fit into the
// memory file system is refused. A host receives one copy at a time, and refuses others meanwhile.
//
// Errors: Error. Thread-safety: each object belongs to one thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/rendezvous/socket.h"
#include "lm/checkpoint/snapshot_folder.h"

namespace primus {

// How the programs of one host reach the others.
struct SnapshotLink {
  Path peers;               // the folder in which each host has a file
  std::string key;          // the job's secret for this purpose
  int node = 0, nodes = 1;  // this host's number, and the number of hosts
  int ranks = 1;            // per host
  int world = 1;            // all ranks

  std::string text() const;
  static std::optional<SnapshotLink> parse(std::string_view text);
  // Reads the file that the supervisor has written; nullopt: there is only one host.
  static std::optional<SnapshotLink> read(const SnapshotFolder& folder);
  void publish(const std::string& address, std::uint16_t port) const;
  // Removes this host's file, if it still names this port. Ignores errors.
  void withdraw(std::uint16_t port) const;
};
// Returns the key for a job's token. No proof for another purpose, or of another job, is one for this
// purpose. `shape`: a text that is equal on the hosts of one job only.
std::string snapshot_key(const std::string& token, const std::string& shape);

// Limits the bytes that are sent within a second.
class SendRate {
 public:
  // 0: no limit. `stop`: if given and true, wait() throws.
  explicit SendRate(double bytes_per_second, const std::atomic<bool>* stop = nullptr)
      : rate_(bytes_per_second), stop_(stop) {}
  // Waits until so many bytes may be sent.
  void wait(std::uint64_t bytes);

 private:
  double rate_, free_at_ = 0;
  const std::atomic<bool>* stop_;
};

// A connection to one peer. The functions throw Error if the connection ends or times out.
class SnapshotPeer {
 public:
  // Connects to a node; nullopt if it cannot be reached, or does not know the key.
  static std::optional<SnapshotPeer> connect(const SnapshotLink& link, int node);
  // Returns the snapshots of a rank that the peer has, its own and copies.
  std::vector<SnapshotId> list(int rank);
  // Fetches one of them into `folder` as an own snapshot of this host.
  void get(int rank, const SnapshotId& id, const SnapshotFolder& folder);
  // Sends a snapshot of this host. Returns an empty text, or why the peer does not take it; kBusy: it
  // receives another copy.
  static constexpr std::string_view kBusy = "it receives another copy";
  std::string put(int rank, const SnapshotId& id, const SnapshotFolder& folder, SendRate& rate);

 private:
  explicit SnapshotPeer(comm::Socket socket) : socket_(std::move(socket)) {}
  comm::Socket socket_;
};

// Fetches a snapshot of a rank from whichever node has it, the usual holder first. Returns whether it was
// found. `problem`: called with what went wrong with a peer.
bool fetch_snapshot(const SnapshotLink& link, const SnapshotFolder& folder, int rank, const SnapshotId& id,
                    const std::function<void(const std::string&)>& problem);

// Serves a host's folder in separate threads.
class SnapshotServer {
 public:
  SnapshotServer(comm::Socket listener, SnapshotFolder folder, SnapshotLink link);
  ~SnapshotServer();
  SnapshotServer(const SnapshotServer&) = delete;
  SnapshotServer& operator=(const SnapshotServer&) = delete;

 private:
  struct Connection {
    comm::Socket socket;
    std::atomic<bool> done{false};
    std::thread thread = {};
  };
  void accept();
  void serve(const comm::Socket& socket);
  void take(const comm::Socket& socket, int rank, const SnapshotId& id, std::uint64_t bytes);

  comm::Socket listener_;
  SnapshotFolder folder_;
  SnapshotLink link_;
  std::mutex taking_;  // held while copies of ranks are written
  std::atomic<bool> stop_{false};
  std::list<Connection> connections_;  // used by thread_ only
  std::thread thread_;
};

}  // namespace primus
