// All ranks that train one run, seen from one of them. Rank 0 owns the run's folder, including records and
// names of checkpoints. Rank 0 also broadcasts values that only rank 0 can determine.
//
// Every rank makes the same calls in the same order. Throws Error(kIo) if a rank is lost. Not thread-safe.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/job.h"
#include "engine/parallel/mesh.h"
#include "lm/checkpoint/store_group.h"

namespace primus {

// The timeout for waiting for other ranks: three times the longest step so far, but at least ten seconds
// (comm::watchdog_timeout).
class RankPatience {
 public:
  std::chrono::milliseconds after_step(double seconds);

 private:
  double longest_ = 0;
};

// Returns the number of ranks on each host, if all hosts have the same number of consecutive ranks; else 0.
// `hosts`: the identity of each rank's host, at least one.
int ranks_per_host(const std::vector<std::string>& hosts);

class JobRanks {
 public:
  // If `job` is null, this process trains alone. The job must outlive this object.
  explicit JobRanks(comm::Job* job);

  int rank() const { return job_ ? job_->rank() : 0; }
  int size() const { return job_ ? job_->size() : 1; }
  bool single() const { return size() == 1; }
  bool first() const { return rank() == 0; }
  // Return the number of ranks on this host, which share its cores and memory, and the index of this rank
  // among them.
  int on_host() const { return job_ ? job_->environment().local_world : 1; }
  int number_on_host() const { return job_ ? job_->environment().local_rank : 0; }

  int per_host() const { return per_host_; }  // ranks_per_host() of all ranks

  // Runs `work` first on rank 0, then on the other ranks. The other ranks can use the files that rank 0
  // wrote.
  void first_then_others(const std::function<void()>& work);
  // Returns the argument of rank 0 on every rank.
  std::string from_first(const std::string& own);
  std::int64_t from_first(std::int64_t own);
  // Throws on all ranks if two ranks have different values, with a message such as "ranks 0 and 3 differ in
  // seq_length".
  void require_same(const std::vector<std::pair<std::string, std::string>>& facts);
  // Returns on every rank whether `own` is true on any rank.
  bool any(bool own);
  // Returns on every rank the first argument that is not empty, in rank order; "" if all are empty.
  std::string first_text(const std::string& own);
  // Sets how long ranks wait for a rank that is busy(), and the function that logs the wait.
  void wait_for_busy(std::chrono::minutes limit, std::function<void(const std::string& text)> notice);
  // Announces work outside of steps, so that other ranks do not consider this rank as hanging. The
  // announcement is valid as long as the returned object exists.
  comm::Activity busy(const char* what) { return {single() ? nullptr : &job_->state().activities, what}; }
  // Return the groups of ranks for loading, and for the thread that saves; null if this rank trains alone.
  CheckpointGroup* group() const { return group_.get(); }
  std::shared_ptr<CheckpointGroup> saving_group() const { return saving_group_; }

  // Returns the mesh of all ranks. `device` is this rank's device. `ordered_sums`: as in comm::Communicator.
  engine::Mesh make_mesh(Device& device, const engine::MeshShape& shape, bool ordered_sums);

 private:
  comm::Job* job_;
  int per_host_ = 1;
  std::unique_ptr<CheckpointGroup> group_;
  std::shared_ptr<CheckpointGroup> saving_group_;
};

}  // namespace primus
