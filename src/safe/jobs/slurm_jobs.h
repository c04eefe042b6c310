// Jobs of Slurm. Internal to safe/jobs; scheduler.h is the public interface.
#pragma once

#include <optional>
#include <string>

#include "safe/jobs/scheduler.h"

namespace primus::jobs {

std::optional<ScheduledJob> find_slurm_job(const Tools& tools, const RunJob& job);
std::string stop_slurm_job(const Tools& tools, const RunJob& job, const ScheduledJob& found, bool now);

}  // namespace primus::jobs
