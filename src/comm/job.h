// A job of several processes, as one of its ranks sees it: the rendezvous, and the communicator of all ranks.
//
//   const auto environment = JobEnvironment::read();          // of a launcher
//   const auto job = Job::connect(*environment, {});          // waits for all ranks
//   job->require_same({{"seq_length", "4096"}, ...});         // "ranks 0 and 3 differ in seq_length"
//   const auto world = job->world();
//   ...                                                       // an error: job->abort(error.what(),
//   error.kind()) job->leave();
//
// A rank that ends without leave() ends the job for all: each waiting rank throws within a second, and says
// which rank was lost or which reason it gave.
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

// Shared memory that a rank touches, in the end, when it exchanges with all of a group of `ranks` ranks of
// one host: bytes.
std::int64_t shared_memory_of_rank(int ranks);

struct JobOptions {
  Transport transport = Transport::kAuto;                             // kAuto: the environment's
  std::chrono::milliseconds start_timeout = std::chrono::minutes(5);  // for all ranks to come
  std::chrono::milliseconds timeout = RankState::kDefaultTimeout;     // see Communicator::set_timeout
  // Where flight-rank-N.json is written when the job is aborted; empty: nowhere.
  Path flight_folder = {};
  // Told every `notice_time` while ranks are missing: "waiting for rank 1 of 2 (20 s)".
  std::function<void(const std::string& text)> notice = {};
  std::chrono::milliseconds notice_time = std::chrono::seconds(10);
  // Called on every rank as soon as it has reached the store, before all wait for each other: for what ranks
  // tell each other even where some never come. What it throws ends the job.
  std::function<void(StoreClient& store)> before_start = {};
};

class Job {
 public:
  // Rank 0 listens, all others connect. Throws Error: taken port, wrong token, differing WORLD_SIZE or
  // version, ranks that did not come in time (by number).
  static std::unique_ptr<Job> connect(const JobEnvironment& environment, const JobOptions& options);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  int rank() const { return environment_.rank; }
  int size() const { return environment_.world; }
  const JobEnvironment& environment() const { return environment_; }

  // The communicator of all ranks; a new one for each call, which all ranks make.
  std::unique_ptr<HostCommunicator> world();
  // The same for tensors on this rank's `device`: by the vendor's library where its kind has `collectives`
  // (turbo::collectives_of), else world(). All ranks' devices are of one kind, and no two ranks share a GPU.
  // Throws Error: kDependency when the library is missing or too old, kInvalid when devices or versions of
  // the ranks do not fit. The device must outlive the communicator.
  std::unique_ptr<Communicator> world(Device& device, const DeviceCollectives* collectives);

  // Compares names and values over all ranks: configuration, hashes of data. All ranks throw Error(kInvalid)
  // when any two differ, and names what does: "ranks 0 and 3 differ in seq_length: 4096, 2048; lr: 0.1, 0.2".
  void require_same(const std::vector<std::pair<std::string, std::string>>& facts);
  // The host waits for all ranks; a name is used once.
  void barrier(const std::string& name);

  // The store on rank 0; null in a job of one rank.
  StoreClient* store() { return client_.get(); }
  RankState& state() { return *state_; }

  void abort(const std::string& reason, ErrorKind kind = ErrorKind::kIo) noexcept {
    state_->abort->abort(reason, kind);
  }
  // The good end. Rank 0 waits until all others have left, because they need its rendezvous.
  void leave();

 private:
  Job(const JobEnvironment& environment, const JobOptions& options);
  // Rank 0 waits until all ranks have reached the store, or until the deadline, says whom it waits for, and
  // compares how they are to exchange.
  void wait_for_ranks(Deadline deadline);
  // All ranks say what they compute on; rank 0 compares, and all throw what it finds.
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
