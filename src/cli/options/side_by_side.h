// Processes that were started alike and know nothing of each other: the tasks of a step of Slurm's, the ranks
// of torchrun or mpirun, the nodes of a launcher. A command that each of them runs by itself gives its files
// names of their own, or the last one's would be all that is left. Free functions; thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "launch/plan.h"

namespace primus::cli {

struct SideBySide {
  std::int64_t number = 0, of = 1;  // from 0
  std::string what = "task";        // "task", "rank" or "node"
  bool alone() const { return of < 2; }
  std::string text() const;  // "task 0 of 2"
};

// This process's place among them; alone where nobody started others. Throws Error(kInvalid): a variable that
// is no such number.
SideBySide side_by_side(const launch::Surroundings& surroundings);
// The same of a job with ranks, of which this process is one, or starts those of `nodes` machines: whether
// the whole job was started side by side with others. Such a job's starter tells its ranks by for_ranks().
SideBySide jobs_side_by_side(const launch::Surroundings& surroundings, std::int64_t nodes);
std::map<std::string, std::string> for_ranks(const SideBySide& place);

// "gemm" -> "gemm.0-of-2", and "gemm.html" -> "gemm.0-of-2.html"; as it is where the process is alone.
std::string own_name(const std::string& name, const SideBySide& place);
std::string own_file(const std::string& file, const SideBySide& place);
// Whether processes side by side, however many, left such files beside where `file` would be.
bool has_own_files(const std::string& file);

}  // namespace primus::cli
