// RUN/.supervisor: names the supervisor of a run on several machines from its start to its end. A run whose
// machines have not all joined has no other record, so 'primus runs', 'jobs' and 'stop' find it by this file.
#pragma once

#include <optional>

#include "base/files/file.h"
#include "lm/events/run_job.h"

namespace primus {

// Writes the file, and makes the run's folder for it; removes both at the end, the folder only if it is
// empty. A failure to write is ignored, because it must not end the job. Not thread-safe.
class SupervisorRecord {
 public:
  // `supervises`: whether this process has such a record; else nothing is done.
  SupervisorRecord(Path run, bool supervises);
  ~SupervisorRecord();
  SupervisorRecord(const SupervisorRecord&) = delete;
  SupervisorRecord& operator=(const SupervisorRecord&) = delete;

 private:
  Path run_;
  bool written_ = false;
};

constexpr const char* kSupervisorFile = ".supervisor";

// Returns the supervisor of the run, if it is a process of this machine that runs now. Thread-safe.
std::optional<ProcessIdentity> supervisor_of(const Path& run);

}  // namespace primus
