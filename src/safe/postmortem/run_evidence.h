// Reads the records of a run: the events of all ranks, their logs, and the recorded ending
// (docs/formats/run-folder.md). Not thread-safe for one CaseFile.
#pragma once

#include "base/files/file.h"
#include "safe/postmortem/evidence.h"

namespace primus::postmortem {

// Returns the case of the run in `folder`: the evidence of its last process. Files that cannot be read become
// notes. Throws Error(kInvalid) if `folder` is not the folder of a run.
CaseFile read_run(const Path& folder);

}  // namespace primus::postmortem
