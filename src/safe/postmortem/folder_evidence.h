// Completes a case from the files of the run's folder that are no records of steps: its checkpoints and
// its recorded ending. Not thread-safe for one CaseFile.
#pragma once

#include "base/files/file.h"
#include "safe/postmortem/evidence.h"

namespace primus::postmortem {

// Sets the step of the newest complete checkpoint if the events do not know it: a run that an error ends may
// save after its last event. Checkpoints after the run's newest step belong to an earlier process.
void find_checkpoint(const Path& run, CaseFile& into);

// Takes state, reason and message from ending.json if the events have no end. A file that cannot be read
// changes nothing.
void read_recorded_ending(const Path& run, CaseFile& into);

}  // namespace primus::postmortem
