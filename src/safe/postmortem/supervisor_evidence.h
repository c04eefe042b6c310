// Reads the supervisor's record of a run (docs/supervise.md): its restarts, and the fault that ended the run.
// Not thread-safe for one CaseFile.
#pragma once

#include "base/files/file.h"
#include "safe/postmortem/evidence.h"

namespace primus::postmortem {

// Adds the restarts of the run, and each fault as evidence; also that the supervisor recorded no end, if it
// does not run any more. `run`: the folder of the run, of which the ranks have been read. `lives`: whether
// the run trains, waits or is restarted. A run without supervision adds nothing. A file that cannot be read
// becomes a note.
void read_supervisor(const Path& run, bool lives, CaseFile& into);

}  // namespace primus::postmortem
