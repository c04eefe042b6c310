// The causes that can end a run, and the texts by which programs, kernels and schedulers report them.
//
// Constant data and pure functions. Thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace primus::postmortem {

// How a piece of evidence relates to the end of the run, the weakest explanation first.
enum class Role : std::uint8_t {
  kConsequence,  // a reaction to another rank's end: "connection reset by peer"
  kStop,         // the run was asked to stop; nothing says why
  kTrouble,      // does not end a run, but may be why a user stopped it: "rank 1 is slow"
  kDeath,        // a process ended without saying why: "killed by signal 9"
  kRequest,      // a scheduler or a limit of the job asked the run to end
  kFault,        // a fault of the program, its data or its settings
  kLoop,         // a supervisor gave up, because the same fault came again and again
  kMachine,  // a fault of the machine, the network or the storage, as the kernel or a scheduler reports it
};

// The origin of a text. A cause is recognised only in texts of origins where its pattern is meaningful.
enum class Source : std::uint8_t { kEvent, kLog, kKernel, kScheduler };
std::string_view name_of(Source source);  // "event"

struct Pattern {
  Source source;
  // Fragments in lower case, joined by '*'. They must occur in this order, in any case of letters.
  std::string_view text;
};

struct Cause {
  std::string_view name;  // a stable identifier: "host-out-of-memory"
  Role role;
  std::string_view title;      // the cause in a few words
  std::string_view next_step;  // what the operator should do, as a sentence
  std::span<const Pattern> patterns;
  // The next step if a supervisor continues the run; "" if nothing remains to be done. nullopt: next_step.
  std::optional<std::string_view> supervised = {};
};

// Returns all causes. If several causes match a text, the first one in this list applies.
std::span<const Cause> causes();
// Returns the cause of this name. Throws Error(kInvalid) for an unknown name.
const Cause& cause_named(std::string_view name);
// Returns the cause that the text reports, or null. `text` is any line; the time is linear in its length and
// in the number of patterns.
const Cause* match(Source source, std::string_view text);

}  // namespace primus::postmortem
