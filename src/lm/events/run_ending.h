// ending.json: how the last process that trained in a folder ended, for 'primus runs' and people
// (docs/formats/run-folder.md). It says "running" while the process trains; one that is killed leaves that.
//
// Free functions without state.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <string_view>

#include "base/files/file.h"

namespace primus {

struct RunEnding {
  // running; finished: its last step is done and saved; stopped: on request, or by a limit; failed.
  enum class State : std::uint8_t { kRunning, kFinished, kStopped, kFailed } state = State::kRunning;
  // In a word or two: "SIGTERM", "exit_interval", "NaN", "disk full", "out of memory", "error".
  std::string reason = {};
  std::string text = {};  // what a failed one said, in one sentence
  std::int64_t iteration = 0;
};

constexpr const char* kEndingFile = "ending.json";

// Never throws: a run does not end for it. The file is written in place where it is there already, so that a
// full disk does not keep the reason for a failure from being written.
void write_ending(const Path& folder, const RunEnding& ending, Env& env = Env::posix()) noexcept;
// Empty: there is none, or none that can be read.
std::optional<RunEnding> read_ending(const Path& folder, Env& env = Env::posix());

// The object of ending.json, without blanks; and back. Empty: `text` is none. Never throws for its sake.
std::string to_json(const RunEnding& ending);
std::optional<RunEnding> ending_from_json(std::string_view text);

// A failure by its exception.
RunEnding ending_of(const std::exception& error, std::int64_t iteration);

}  // namespace primus
