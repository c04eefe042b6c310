// The logs that an operator copied into a run's folder: the job's output, the kernels' logs of the
// nodes, NCCL's logs, and the events of a scheduler.
#pragma once

#include <string>
#include <vector>

#include "base/files/file.h"
#include "safe/postmortem/evidence.h"

namespace primus::postmortem {

// Returns the text files (.log, .out, .err, .txt, .json) in `folder` and in its folders, except for the run's
// own records. Returns at most 4,096 files, sorted by name.
std::vector<Path> logs_beside(const Path& folder);

// Returns the node that a file is about, by its name: "n2-kernel.log" or "nccl.n2.log" if a rank ran on n2,
// or "kernel/n2.log". Returns an empty text if the name has no node.
std::string node_of_file(const Path& file, const CaseFile& known);

// Adds evidence of a log, with corrected times. Throws FileError.
void read_log(const Path& file, double near, CaseFile& into);

// Completes nodes after all files are read: the nodes of Kubernetes' pods that evidence names, and the list
// of nodes if no scheduler lists them. `logs`: the files that were read.
void complete_nodes(const std::vector<Path>& logs, CaseFile& file);

}  // namespace primus::postmortem
