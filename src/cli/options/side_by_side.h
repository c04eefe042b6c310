// Detects processes that were started with the same command and do not communicate: tasks of a Slurm step,
// ranks of torchrun or mpirun, nodes of a launcher. If each process runs a command separately, the files of
// each process need unique names. Otherwise, the processes would overwrite each other's files. Free
// functions; thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "launch/plan.h"

namespace primus::cli {

struct SideBySide {
  std::int64_t number = 0, of = 1;  // from 0
  std::string what = "task";        // "task", "rank" or "node"
  bool single() const { return of < 2; }
  std::string text() const;  // "task 0 of 2"
};

// Returns the number of this process among the processes that run side by side, and their count; 0 of 1 for a
// single process. Throws Error(kInvalid) if a variable is not a valid number.
SideBySide side_by_side(const launch::Surroundings& surroundings);
// Returns the number of this process's job among the jobs that were started side by side, and their count.
// This process is a rank of the job, or starts its ranks on `nodes` machines. A process that starts ranks
// passes the result to the ranks through for_ranks().
SideBySide jobs_side_by_side(const launch::Surroundings& surroundings, std::int64_t nodes);
std::map<std::string, std::string> for_ranks(const SideBySide& place);

// Add the place to a name: "gemm" -> "gemm.0-of-2", and "gemm.html" -> "gemm.0-of-2.html". For a single
// process, the name stays unchanged.
std::string own_name(const std::string& name, const SideBySide& place);
std::string own_file(const std::string& file, const SideBySide& place);
// Returns whether the folder of `file` contains files with such names, from any number of side-by-side
// processes.
bool has_own_files(const std::string& file);

}  // namespace primus::cli
