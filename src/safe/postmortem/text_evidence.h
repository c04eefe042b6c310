// Finds evidence in text files: logs of programs, kernels and schedulers, and the events of Kubernetes.
//
// Files are untrusted: time is linear in their size, memory is bounded, and damaged content is skipped.
// Not thread-safe for one CaseFile.
#pragma once

#include <optional>
#include <string_view>

#include "base/files/file.h"
#include "safe/postmortem/evidence.h"

namespace primus::postmortem {

// Where and when a line says that something happened.
struct LineFacts {
  double time = 0;  // seconds since 1970; 0: unknown
  int rank = -1;
  std::string node = {};
};
// Reads time, rank and node from a line of a log: "[20260101 12:00:00][rank-2/4]", ISO 8601, "[Sat Nov 28
// 05:00:31 2026]" (dmesg -T), "Nov 28 05:00:31 host kernel:" (syslog), "srun: error: n2: task 1: Killed",
// "JOB 26 ON n2 CANCELLED". A line that blames another rank ("rank 1 was lost") is about that rank. Times
// without a zone are local. `near`: a time that supplies missing years.
LineFacts facts_of(std::string_view line, double near);

// Returns the source of a line, from its content: a kernel's line has "kernel:", a time of dmesg, or the name
// of a driver; a scheduler's has "srun:", "slurmstepd:", "slurmctld" or fields of Kubernetes.
Source source_of(std::string_view line);

// Adds the lines of `file` that report a cause. A file that is a JSON object with "items" is read as
// Kubernetes' events ('kubectl get events -o json'). `rank`: the rank that wrote the file, if known. `node`:
// the node that the file is about, if known. At most 8 lines per cause are kept, the first and the newest
// ones. The nodes of pods and the nodes of a Slurm job are taken from tables of 'kubectl' and 'sacct'. Throws
// FileError.
void read_text(const Path& file, std::optional<int> rank, double near, CaseFile& into,
               const std::string& node = {});

// Adds the lines of `text`, such as a program's output. Reports show `name` in place of a file's name.
void read_output(std::string_view text, const std::string& name, double near, CaseFile& into);

}  // namespace primus::postmortem
