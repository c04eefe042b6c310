#include "lm/events/supervisor_record.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace primus {

SupervisorRecord::SupervisorRecord(Path run, bool supervises) : run_(std::move(run)) {
  if (!supervises) return;
  try {
    make_folders(run_);
    write_file_atomic(run_ / kSupervisorFile, to_json(this_job()));
    written_ = true;
  } catch (const Error&) {
    // The ranks report a folder that cannot be written.
  }
}

SupervisorRecord::~SupervisorRecord() {
  if (!written_) return;
  std::error_code none;
  std::filesystem::remove(run_ / kSupervisorFile, none);
  std::filesystem::remove(run_, none);  // fails if the ranks have written something
}

std::optional<ProcessIdentity> supervisor_of(const Path& run) {
  try {
    constexpr std::uint64_t kLimit = 65536;
    const auto job = job_from_json(read_file(run / kSupervisorFile, kLimit));
    return job ? seen_from_here(job->process) : std::nullopt;
  } catch (const Error&) {
    return std::nullopt;  // there is no such file
  }
}

}  // namespace primus
