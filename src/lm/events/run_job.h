// The job that trains a run: a process of this machine, a step of a Slurm job, or a job of Kubernetes. Rank 0
// records its job in its `begin` event (docs/formats/events.md), so that 'primus stop' can end the run in the
// way of its scheduler.
//
// Plain data and free functions. Linux only (/proc). Thread-safe, if no other thread changes the environment.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/files/file.h"

namespace primus {

// A process. Its number alone does not identify it, because Linux reuses numbers.
struct ProcessIdentity {
  std::string host = {};       // name of its machine
  pid_t pid = 0;               // 0: unknown
  std::uint64_t started = 0;   // clock ticks between the start of the machine and that of the process
  std::string boot = {};       // the machine's boot_id, which is new after each start of the machine
  std::string pid_space = {};  // namespace of `pid`, "pid:[4026531836]". Containers have their own
  bool operator==(const ProcessIdentity&) const = default;
};

// Returns the identity of a process of this machine; nullopt if there is no such process.
std::optional<ProcessIdentity> process_identity(pid_t pid);
// Returns the identity, with the number in this namespace, of a process of this machine that was identified
// in another pid namespace, such as that of a container. Returns nullopt if this process cannot see it.
std::optional<ProcessIdentity> seen_from_here(const ProcessIdentity& process);
// Returns whether this very process runs on this machine, and `pid` is its number in this namespace.
bool is_running(const ProcessIdentity& process);

struct RunJob {
  enum class Scheduler : std::uint8_t { kNone, kSlurm, kKubernetes } scheduler = Scheduler::kNone;
  // Slurm: number of the job. Kubernetes: name of the job.
  std::string id = {};
  std::string step = {};        // Slurm: number of the step
  std::string cluster = {};     // Slurm: name of the cluster
  std::string name_space = {};  // Kubernetes: namespace
  std::string kind = {};        // Kubernetes: "jobset" or "pytorchjob"
  std::string node_order = {};  // the launcher's order of the nodes, a JSON object (docs/formats/events.md)
  // The process that passes requests to stop on to the ranks: the supervisor, the launcher, or rank 0 itself.
  ProcessIdentity process = {};
};
std::string_view name_of(RunJob::Scheduler scheduler);  // "local", "slurm", "kubernetes"

// Variables with the name, the kind and the namespace of a job of Kubernetes, which 'primus k8s' sets in
// pods.
constexpr const char* kKubernetesJob = "PRIMUS_KUBERNETES_JOB";
constexpr const char* kKubernetesKind = "PRIMUS_KUBERNETES_KIND";
constexpr const char* kKubernetesNamespace = "PRIMUS_KUBERNETES_NAMESPACE";

// Variable in which a launcher passes the order of the nodes, if it knows the network.
constexpr const char* kNodeOrder = "PRIMUS_NODE_ORDER";

// Returns the job of this process. A process of a batch script that was started without srun is not a step of
// Slurm: its scheduler is kNone.
RunJob this_job();

// Returns the topmost of the processes that are ancestors of `pid`, or `pid` itself, and that run the same
// program, without other programs in between. This process passes signals on to all others.
pid_t topmost_of_program(pid_t pid);

// Convert to and from a JSON object without whitespace. job_from_json() returns nullopt if `text` is not such
// an object; it never throws because of the content.
std::string to_json(const RunJob& job);
std::optional<RunJob> job_from_json(std::string_view text);

// The newest start of a run, as rank 0 recorded it.
struct RunStart {
  std::optional<RunJob> job = {};  // nullopt: an older version trained
  double time = 0;                 // seconds since 1970
  bool ended = false;              // rank 0 has recorded the end of this start
};
// Returns nullopt if the run has recorded no start. Throws FileError.
std::optional<RunStart> read_run_start(const Path& run);

// Returns the process that holds the lock of the run (RunLock), if it is a process of this machine that this
// process can see.
std::optional<ProcessIdentity> lock_holder(const Path& run);

}  // namespace primus
