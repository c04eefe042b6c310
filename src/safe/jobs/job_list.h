// Lists running and waiting jobs: the runs under a folder, and the jobs of Slurm and Kubernetes. Stateless.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "safe/jobs/scheduler.h"

namespace primus::jobs {

struct ListedJob {
  std::string name = {};   // "slurm:123", "k8s:team/llama", "process 4711"
  std::string state = {};  // "running", "waiting" or "restarting" as in RunState, or "ending"
  std::string place = {};  // host, nodes or pods
  std::string title = {};  // the scheduler's name of the job
  std::string reason = {};
  std::string starts = {};                  // local time at which a waiting job may start
  std::optional<double> seconds_left = {};  // until Slurm's time limit
  Path run = {};                            // empty: no run under the folder belongs to the job
  std::int64_t step = 0;
  std::optional<std::int64_t> steps = {};
  std::optional<double> eta_seconds = {};  // until the last step
};

struct JobListRequest {
  Path folder = {};             // folder to search for runs; empty: none
  std::string name_space = {};  // of Kubernetes, as for kubernetes_jobs()
  bool asks_kubernetes = true;
};

struct JobList {
  std::vector<ListedJob> jobs = {};     // running jobs first
  std::vector<std::string> notes = {};  // schedulers that failed, folders that could not be searched
};

// A scheduler whose tools are not installed is left out. Throws Error(kInvalid) if the folder does not exist.
JobList list_jobs(const JobListRequest& request, const Tools& tools);

}  // namespace primus::jobs
