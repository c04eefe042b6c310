// The ranks that train one run together, as the run of one of them sees it. Rank 0 keeps the run's folder,
// its records and its checkpoints' names; what it alone can know or decide, the others are told.
//
// Every rank makes the same calls in the same order. Errors: Error (kIo) when a rank was lost. Not
// thread-safe.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "comm/job.h"
#include "engine/mesh.h"
#include "lm/checkpoint/store_group.h"

namespace primus {

// How long a rank waits for another one: as long as three of the longest steps so far, whatever the last one
// took, and as watchdog_timeout() has it.
class RankPatience {
 public:
  std::chrono::milliseconds after_step(double seconds);

 private:
  double longest_ = 0;
};

class JobRanks {
 public:
  // Null: this process trains alone. The job must outlive this.
  explicit JobRanks(comm::Job* job);

  int rank() const { return job_ ? job_->rank() : 0; }
  int size() const { return job_ ? job_->size() : 1; }
  bool alone() const { return size() == 1; }
  bool first() const { return rank() == 0; }
  // Ranks on this host, which share its cores and its memory, and this one's number among them.
  int on_host() const { return job_ ? job_->environment().local_world : 1; }
  int number_on_host() const { return job_ ? job_->environment().local_rank : 0; }

  // Rank 0 does `work`, and when it has, the others: what it leaves on disk is found there by them.
  void first_then_others(const std::function<void()>& work);
  // What rank 0 gives.
  std::string from_first(const std::string& own);
  std::int64_t from_first(std::int64_t own);
  // All ranks throw where any two give different values: "ranks 0 and 3 differ in seq_length".
  void require_same(const std::vector<std::pair<std::string, std::string>>& facts);
  // Whether any rank says so; all get the same answer.
  bool any(bool own);
  // How long ranks wait for one that is busy(), and what is told who waits.
  void wait_for_busy(std::chrono::minutes limit, std::function<void(const std::string& text)> notice);
  // What this rank does now outside the steps: those that wait for it meanwhile do not take it for hanging.
  // It says so for as long as the returned object lives.
  comm::Activity busy(const char* what) { return {alone() ? nullptr : &job_->state().activities, what}; }
  // For loading, and for the thread that saves; null when alone.
  CheckpointGroup* group() const { return group_.get(); }
  std::shared_ptr<CheckpointGroup> saving_group() const { return saving_group_; }

  // The mesh of all ranks; `device`: this rank's.
  engine::Mesh make_mesh(Device& device, const engine::MeshShape& shape);

 private:
  comm::Job* job_;
  std::unique_ptr<CheckpointGroup> group_;
  std::shared_ptr<CheckpointGroup> saving_group_;
};

}  // namespace primus
