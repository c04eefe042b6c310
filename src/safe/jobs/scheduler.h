// The jobs of Slurm and Kubernetes, asked and ended through their own tools (squeue, scancel, scontrol,
// kubectl). Slurm 20.11 or newer. Stateless; thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/system/subprocess.h"
#include "lm/events/run_job.h"

namespace primus::jobs {

// The programs of the schedulers, in the folders of `path` (the variable PATH).
class Tools {
 public:
  explicit Tools(std::string path) : path_(std::move(path)) {}

  bool has(const std::string& program) const;
  // Throws Error: kDependency if the program is missing, kIo if it takes longer than 30 s.
  SubprocessResult run(const std::vector<std::string>& command) const;
  // Like run(), and throws Error(kIo) with the program's own message if it fails.
  std::string output(const std::vector<std::string>& command) const;

 private:
  std::string path_;
};

struct ScheduledJob {
  RunJob::Scheduler scheduler = RunJob::Scheduler::kNone;
  std::string id = {};          // as in RunJob
  std::string shown = {};       // "slurm:123_4", "k8s:team/llama"; 'primus stop' accepts this name
  std::string name_space = {};  // Kubernetes
  std::string kind = {};        // Kubernetes: "jobset" or "pytorchjob"
  std::string name = {};
  // kWaiting: it has no nodes yet, or its pods are not ready.
  enum class State : std::uint8_t { kRunning, kWaiting, kEnding } state = State::kWaiting;
  std::string reason = {};  // why it waits, in the scheduler's words
  std::string nodes = {};   // Slurm: its nodes. Kubernetes: "2 of 4 pods"
  // Seconds until the time limit of a running job, and local time at which a waiting job may start, if known.
  std::optional<double> seconds_left = {};
  std::string starts = {};
};

// Returns the jobs of this user. Throws Error if the scheduler's tool is missing or fails.
std::vector<ScheduledJob> slurm_jobs(const Tools& tools);
// `name_space`: empty: kubectl's current one; "*": all. Only jobs of 'primus k8s' that have not ended.
std::vector<ScheduledJob> kubernetes_jobs(const Tools& tools, const std::string& name_space);

// Returns the job, or nullopt if it has ended. Throws Error like the functions above; Error(kInvalid) if the
// job belongs to another cluster of Slurm than the tools here.
std::optional<ScheduledJob> find_job(const Tools& tools, const RunJob& job);

// Asks a job to save and end; with `now`, ends it without saving. Returns what was done, in one sentence.
// Throws Error if the scheduler refuses.
std::string stop_job(const Tools& tools, const RunJob& job, const ScheduledJob& found, bool now);

// Returns the job that "slurm:123", "k8s:llama" or "k8s:team/llama" names; nullopt for other words.
std::optional<RunJob> named_job(const std::string& word);

// Returns the seconds of Slurm's time left, "2-03:04:05" or "10:00"; nullopt: none.
std::optional<double> seconds_of_slurm(const std::string& text);

}  // namespace primus::jobs
