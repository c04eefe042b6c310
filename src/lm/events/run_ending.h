// ending.json: records how the last process that trained in a folder ended, for 'primus runs' and users
// (docs/formats/run-folder.md). The recorded state is "running" while the process trains, and remains
// "running" if the process is killed.
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
  // kFinished: the last step was completed and saved. kStopped: a request or a limit ended the run early.
  // kFailed: an error ended the run.
  enum class State : std::uint8_t { kRunning, kFinished, kStopped, kFailed } state = State::kRunning;
  // The reason in a word or two: "SIGTERM", "exit_interval", "NaN", "disk full", "out of memory", "error".
  std::string reason = {};
  std::string text = {};  // error message of a failed run, in one sentence
  std::int64_t iteration = 0;
};

constexpr const char* kEndingFile = "ending.json";

// Writes the file. Never throws: a run must not fail because this file cannot be written. An existing file is
// overwritten in place, so that the reason for a failure can be recorded even on a full disk.
void write_ending(const Path& folder, const RunEnding& ending, Env& env = Env::posix()) noexcept;
// Reads the file; returns nullopt if there is no readable file.
std::optional<RunEnding> read_ending(const Path& folder, Env& env = Env::posix());

// Convert to and from the JSON object in ending.json, without whitespace. ending_from_json() returns nullopt
// if `text` is not such an object; it never throws because of the content.
std::string to_json(const RunEnding& ending);
std::optional<RunEnding> ending_from_json(std::string_view text);

// Returns the RunEnding of a run that failed with `error`.
RunEnding ending_of(const std::exception& error, std::int64_t iteration);

}  // namespace primus
