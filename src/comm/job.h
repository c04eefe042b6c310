// A job of several processes, from the view of one rank: the rendezvous and the communicator of all ranks.
//
//   const auto environment = JobEnvironment::read();          // set by a launcher
//   const auto job = Job::connect(*environment, {});          // waits for all ranks
//   job->require_same({{"seq_length", "4096"}, ...});         // "ranks 0 and 3 differ in seq_length"
//   const auto world = job->world();
//   ...                                                       // after an error: job->abort(what, kind)
//   job->leave();
//
// If a rank ends without leave(), the job ends on all ranks: within a second, each waiting rank throws an
// Error with the reason that the lost rank gave, or with its number if it gave no reason.
//
// Thread-safety: the methods belong to the rank's thread, except abort().
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/files/file.h"
#include "comm/host_communicator.h"
#include "comm/rendezvous/environment.h"
#include "comm/rendezvous/store_client.h"
#include "comm/rendezvous/store_server.h"
#include "device/collectives.h"

namespace primus::comm {

// Returns the maximum shared memory, in bytes, that a rank touches when it communicates with all other ranks
// of a group of `ranks` ranks on one host.
std::int64_t shared_memory_of_rank(int ranks);

struct JobOptions {
  Transport transport = Transport::kAuto;                             // kAuto: as set in the environment
  std::chrono::milliseconds start_timeout = std::chrono::minutes(5);  // limit for all ranks to connect
  std::chrono::milliseconds timeout = RankState::kDefaultTimeout;     // see Communicator::set_timeout
  // Folder for flight-rank-N.json, written when the job is aborted; empty: not written.
  Path flight_folder = {};
  // Called every `notice_time` while ranks are missing, with "waiting for rank 1 of 2 (20 s)".
  std::function<void(const std::string& text)> notice = {};
  std::chrono::milliseconds notice_time = std::chrono::seconds(10);
  // Called on every rank as soon as the rank has reached the store, before the ranks wait for each other. So
  // ranks that have arrived can exchange data even if other ranks never arrive. An exception from this
  // callback ends the job.
  std::function<void(StoreClient& store)> before_start = {};
};

class Job {
 public:
  // Rank 0 listens, all others connect. Throws Error: port in use, wrong token, different WORLD_SIZE or
  // version, or ranks that are late (with their numbers).
  static std::unique_ptr<Job> connect(const JobEnvironment& environment, const JobOptions& options);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  int rank() const { return environment_.rank; }
  int size() const { return environment_.world; }
  const JobEnvironment& environment() const { return environment_; }

  // Returns a new communicator of all ranks. All ranks must call it.
  std::unique_ptr<HostCommunicator> world();
  // Returns a new communicator for tensors on this rank's `device`. The communicator uses the vendor's
  // library if the device kind has `collectives` (turbo::collectives_of); otherwise it equals world(). All
  // ranks need devices of the same kind, and no two ranks may share a GPU. Throws Error: kDependency if the
  // library is missing or too old, kInvalid if the ranks' devices or versions do not match. The device must
  // outlive the communicator.
  std::unique_ptr<Communicator> world(Device& device, const DeviceCollectives* collectives);

  // Compares names and values across all ranks, such as settings and hashes of data. If any two ranks differ,
  // all throw Error(kInvalid) naming the difference: "ranks 0 and 3 differ in seq_length: 4096, 2048; lr:
  // 0.1, 0.2".
  void require_same(const std::vector<std::pair<std::string, std::string>>& facts);
  // Blocks the host until all ranks have called it. Each name is used only once.
  void barrier(const std::string& name);

  // Returns this rank's client of the store on rank 0; null in a job of one rank.
  StoreClient* store() { return client_.get(); }
  RankState& state() { return *state_; }

  void abort(const std::string& reason, ErrorKind kind = ErrorKind::kIo) noexcept {
    state_->abort->abort(reason, kind);
  }
  // Ends this rank normally. Rank 0 waits until all other ranks have left, because other ranks need rank 0's
  // rendezvous.
  void leave();

 private:
  Job(const JobEnvironment& environment, const JobOptions& options);
  // Called on rank 0: waits until all ranks have reached the store, or until the deadline. Meanwhile it
  // reports missing ranks. Also checks that all ranks use the same transport.
  void wait_for_ranks(Deadline deadline);
  // All ranks publish their device, and rank 0 compares the devices. If they do not match, all ranks throw an
  // Error.
  void check_devices(const std::string& key, Device& device, const DeviceCollectives* collectives,
                     const std::string& version);
  void write_flight_record(const std::string& reason) noexcept;

  JobEnvironment environment_;
  JobOptions options_;
  std::shared_ptr<RankState> state_;
  std::unique_ptr<StoreServer> server_;
  std::shared_ptr<StoreClient> client_;
  std::shared_ptr<LinkFactory> factory_;
  std::shared_ptr<void> flight_subscription_;
  int worlds_ = 0, comparisons_ = 0;
  bool left_ = false;
};

}  // namespace primus::comm
