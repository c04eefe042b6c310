// Records in a run's folder that a rank of this process's job failed, with what only the process that started
// it knows: the signal that killed it, and whether memory was exhausted. 'primus runs' and 'primus
// postmortem' read the record. Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/files/file.h"
#include "launch/ranks/local_launch.h"

namespace primus::cli {

class LostRankRecord {
 public:
  // Call it before the ranks start. `run`: folder of the run.
  explicit LostRankRecord(Path run);
  // Records the failure of a rank. Returns the sentences for the user. Never throws because of files.
  std::string add(const launch::LaunchResult& result) const;

 private:
  Path run_;
  double since_;                       // seconds since 1970
  std::optional<std::int64_t> kills_;  // by the kernel, because memory was exhausted
};

}  // namespace primus::cli
