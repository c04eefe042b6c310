// Looks at the files and the disk of a run. Failures give 0 or an empty text: the supervisor must not fail
// because of them. Free functions without state.
#pragma once

#include <cstdint>
#include <string>

#include "base/files/file.h"

namespace primus::supervise {

// Bytes that this user may still write to the file system of `folder`, or of its nearest parent that exists.
std::uint64_t free_bytes(const Path& folder);
// Returns "1.2 GiB of free space on the disk", for WaitNotice.
std::string free_space_text(std::uint64_t bytes);
// The newest complete checkpoint in the folder: its step and its size. Both are 0 if there is none.
struct NewestCheckpoint {
  std::int64_t step = 0;
  std::uint64_t bytes = 0;
};
NewestCheckpoint newest_checkpoint(const Path& checkpoints);
// Returns only its step, which is in one small file.
std::int64_t newest_step(const Path& checkpoints);
// Returns the message of the newest line in the error logs below `logs` of `ranks` ranks from `first` that
// changed after `since` (seconds since 1970). A rank that ends before it has an error log may have shown an
// error, which is in its output. Returns an empty text if there is none.
std::string last_error(const Path& logs, int ranks, double since, int first = 0);

// RUN/.gave-up-<job>: several supervisors of a job may give it up at once, and only one of them records and
// reports it. Returns whether this one may: it has made the file, or the file cannot be made. `job` is the
// number of the job's first leader (AgreedState). A supervisor that begins a job removes the files of all
// jobs.
bool is_first_to_give_up(const Path& run, std::uint64_t job);
void forget_given_up(const Path& run);

}  // namespace primus::supervise
