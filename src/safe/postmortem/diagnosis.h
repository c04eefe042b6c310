// Finds the cause of a run's end in its evidence. Pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "safe/postmortem/evidence.h"

namespace primus::postmortem {

enum class Confidence : std::uint8_t {
  kNone,      // nothing was found
  kPossible,  // the evidence does not name a cause, or has no time
  kLikely,    // the evidence names a cause, but another cause could have the same traces
  kCertain,   // evidence of the time of the end names the cause, and nothing contradicts it
};
std::string_view name_of(Confidence confidence);         // "likely"
std::string_view explanation_of(Confidence confidence);  // what the name says about the evidence

struct Diagnosis {
  const Cause* cause = nullptr;  // never null after diagnose()
  Confidence confidence = Confidence::kNone;
  int rank = -1;             // the rank that failed first; -1: unknown, or no single rank
  std::string node = {};     // its node; empty: unknown
  double first_sign = 0;     // time of the earliest evidence of the cause, in seconds since 1970; 0: unknown
  double last_event = 0;     // time of the newest event of all ranks; 0: unknown
  std::string summary = {};  // the decisive text
  std::vector<Evidence> timeline = {};          // evidence in order of time; without a time at the end
  std::vector<const Cause*> alternatives = {};  // further causes that the evidence names, the best first
};

// Returns the diagnosis. The cause is chosen among evidence of the time around the end of the run, by the
// role of its cause, by whether it concerns the rank or node that failed first, by the number of its
// witnesses, and by its time (docs/postmortem.md, "How the cause is chosen"). A running run has the cause
// "unknown" and no confidence. A finished one has a cause only if it had trouble, or if a later attempt
// failed.
Diagnosis diagnose(const CaseFile& file);

}  // namespace primus::postmortem
