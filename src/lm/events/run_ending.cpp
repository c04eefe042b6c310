#include "lm/events/run_ending.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "lm/events/corruption_error.h"
#include "lm/events/lost_rank.h"

namespace primus {
namespace {

using Json = nlohmann::ordered_json;
using State = RunEnding::State;

// The file always has this size. The file can therefore be overwritten even when the disk is full.
constexpr std::size_t kBytes = 2048, kMaxText = 1000;

constexpr std::array<std::pair<State, std::string_view>, 4> kStates = {{{State::kRunning, "running"},
                                                                        {State::kFinished, "finished"},
                                                                        {State::kStopped, "stopped"},
                                                                        {State::kFailed, "failed"}}};

std::string name_of(State state) {
  for (const auto& [value, name] : kStates) {
    if (value == state) return std::string(name);
  }
  return {};
}

// Returns whether the text of an error contains this errno's message. Errors of other ranks arrive only as
// text.
bool says(std::string_view text, int errno_value) {
  return text.find(std::strerror(errno_value)) != std::string_view::npos;
}

// Returns whether `text` contains "rank N was lost", which the remaining ranks report (comm).
bool says_a_rank_was_lost(std::string_view text) {
  constexpr std::string_view kRank = "rank ", kLost = " was lost", kDigits = "0123456789";
  for (std::size_t at = text.find(kLost); at != text.npos; at = text.find(kLost, at + 1)) {
    const std::string_view before = text.substr(0, at);
    const std::size_t name = before.find_last_not_of(kDigits) + 1;
    if (name < at && before.substr(0, name).ends_with(kRank)) return true;
  }
  return false;
}

std::string reason_of(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error)) return "out of memory";
  const std::string_view text = error.what();
  if (says(text, ENOSPC) || says(text, EDQUOT)) return "disk full";
  if (const auto* file = dynamic_cast<const FileError*>(&error); file && file->out_of_space())
    return "disk full";
  if (says_a_rank_was_lost(text)) return std::string(kLostRank);
  if (dynamic_cast<const CorruptionError*>(&error)) return std::string(kCorruptionReason);
  const auto* known = dynamic_cast<const Error*>(&error);
  return known && known->kind() == ErrorKind::kNumerics ? "NaN" : "error";
}

std::string padded(const RunEnding& ending) {
  std::string text = to_json(ending);
  text.resize(std::max(text.size(), kBytes - 1), ' ');
  return text + "\n";
}

}  // namespace

std::string to_json(const RunEnding& ending) {
  Json json{{"state", name_of(ending.state)}, {"reason", ending.reason}, {"iteration", ending.iteration}};
  // Writes only the first line, because the text about a lost rank continues with the last lines of that
  // rank's output.
  if (!ending.text.empty()) json["text"] = ending.text.substr(0, std::min(ending.text.find('\n'), kMaxText));
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::optional<RunEnding> ending_from_json(std::string_view text) {
  const Json json = Json::parse(text, nullptr, false);
  const auto text_in = [&](const char* key) {
    const auto found = json.find(key);
    return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  if (!json.is_object()) return std::nullopt;
  const auto iteration = json.find("iteration");
  const bool counted = iteration != json.end() && iteration->is_number_integer();
  for (const auto& [value, name] : kStates) {
    if (name != text_in("state")) continue;
    return RunEnding{.state = value,
                     .reason = text_in("reason"),
                     .text = text_in("text"),
                     .iteration = counted ? iteration->get<std::int64_t>() : 0};
  }
  return std::nullopt;
}

void write_ending(const Path& folder, const RunEnding& ending, Env& env) noexcept {
  try {
    const Path path = folder / kEndingFile;
    const std::string text = padded(ending);
    const auto there = env.status(path);
    const bool in_place =
        there && there->type == FileStatus::Type::kFile && there->size == text.size() && !env.is_link(path);
    if (!in_place) return write_file_atomic(path, text, env);
    const auto file = env.open(path, OpenMode::kUpdate);
    file->write_at(as_bytes(text), 0);
    file->sync();
  } catch (const std::exception&) {
    // A failure to write the record must not hide how the run ended.
  }
}

std::optional<RunEnding> read_ending(const Path& folder, Env& env) {
  try {
    constexpr std::uint64_t kLimit = 64 << 10;
    return ending_from_json(read_file(folder / kEndingFile, kLimit, env));
  } catch (const std::exception&) {
    // Primus did not write this file.
    return std::nullopt;
  }
}

RunEnding ending_of(const std::exception& error, std::int64_t iteration) {
  return {.state = State::kFailed,
          .reason = reason_of(error),
          .text = dynamic_cast<const std::bad_alloc*>(&error) ? "out of memory" : error.what(),
          .iteration = iteration};
}

}  // namespace primus
