// Reads the flight recorders of a run (logs/flight-rank-N.json), which ranks write when their job is aborted:
// the last 2 000 collectives of each rank. They show in which collective ranks waited, and for which ranks.
// Not thread-safe for one CaseFile.
#pragma once

#include "base/files/file.h"
#include "safe/postmortem/evidence.h"

namespace primus::postmortem {

// Adds evidence about collectives that did not end:
//   - a rank that has not called a collective in which others wait, and waits in no other one itself
//   - ranks that call different collectives at the same place of a group
//   - ranks that wait for a rank without a flight recorder; this evidence has no cause, because that rank may
//     have been killed or may hang
// `logs`: the folder of the run's logs. Files that were written before `began` (seconds since 1970) belong to
// earlier processes and are ignored. Files that cannot be read become notes.
void read_flights(const Path& logs, double began, CaseFile& into);

}  // namespace primus::postmortem
