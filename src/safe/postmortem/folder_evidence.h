// Completes a case from the files of the run's folder that are no records of steps: its checkpoints, its
// recorded ending, and the request to stop it. Not thread-safe for one CaseFile.
#pragma once

#include "base/files/file.h"
#include "safe/postmortem/evidence.h"

namespace primus::postmortem {

// Sets the step of the newest complete checkpoint if the events do not have it: a run that an error ends may
// save after its last event. Checkpoints after the run's newest step belong to an earlier process.
void find_checkpoint(const Path& run, CaseFile& into);

// Takes state, reason and message from ending.json if the events have no end. A file that cannot be read
// changes nothing.
void read_recorded_ending(const Path& run, CaseFile& into);

// Adds evidence if the run ended without a record after 'primus stop' had asked it to end, as it does after
// 'primus stop --now'. `began`: the begin of the run's last process, in seconds since 1970.
void read_stop_request(const Path& run, double began, CaseFile& into);

}  // namespace primus::postmortem
