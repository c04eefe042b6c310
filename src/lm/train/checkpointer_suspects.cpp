// The part of Checkpointer for states that silent corruption may have damaged.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <exception>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "lm/events/corruption_error.h"
#include "lm/train/checkpointer.h"

namespace primus {
namespace {

// A file in the checkpoint root. It exists from a finding until the checkpoints have been moved, so that a
// process that starts after a kill in between completes this: "GOOD" or "GOOD not from the beginning".
constexpr const char* kSuspectNote = ".suspect-after";
constexpr std::string_view kNotFromBeginning = " not from the beginning";

}  // namespace

void Checkpointer::note_suspects(std::int64_t good, bool may_begin) const {
  try {
    write_file_atomic(root_ / kSuspectNote,
                      std::to_string(good) + std::string(may_begin ? "" : kNotFromBeginning));
  } catch (const Error& error) {
    // Moving the checkpoints needs less space, and may still succeed.
    plan_.log.warning("cannot record which checkpoints may be damaged: {}", error.what());
  }
}

Checkpointer::SetAside Checkpointer::move_suspects(std::int64_t good, bool may_begin) const {
  const auto remove_note = [&] {
    if (Env::posix().status(root_ / kSuspectNote)) Env::posix().remove_file(root_ / kSuspectNote);
  };
  CheckpointRoot root(root_);
  const std::vector<std::int64_t> all = root.iterations();
  const bool none_before = all.empty() || all.front() > good;
  if (none_before && !may_begin) {
    remove_note();  // only the user can decide
    return {.recovers = false, .text = "no checkpoint from before the damage is left"};
  }
  const std::optional<Path> aside = root.set_aside_after(good);
  remove_note();
  std::string text = aside ? fmt::format("later checkpoints were moved to '{}'; ", aside->string()) : "";
  const std::int64_t last = none_before ? 0 : *std::prev(std::ranges::upper_bound(all, good));
  if (last > 0) {
    text += fmt::format("the same command continues from step {}", last);
  } else {
    text += progress_.base.empty() ? "the same command starts from the beginning"
                                   : fmt::format("the same command starts from '{}' again", progress_.base);
  }
  const std::optional<std::int64_t> in_memory = snapshots_.newest();
  if (in_memory && *in_memory <= good && *in_memory > last)
    text += fmt::format(" (with --supervise, from step {} in memory)", *in_memory);
  return {.recovers = true, .text = std::move(text)};
}

Checkpointer::SetAside Checkpointer::set_aside_after(std::int64_t good) {
  // A run that continued from its own checkpoint may have a long past. Then only the user may decide to
  // repeat all of it.
  const bool may_begin = state_from_ != "disk" || progress_.first_iteration <= good;
  // Records the damaged states before the wait, which may take long. If the process dies while it waits, the
  // record prevents the next start from using damaged states.
  if (plan_.ranks.first()) note_suspects(good, may_begin);
  const bool distrusted = snapshots_.distrust_after(good);
  SetAside done;
  try {
    wait();
    log_written();
  } catch (const Error& error) {
    plan_.log.warning("the checkpoint that was being saved is not complete: {}", error.what());
  }
  if (plan_.ranks.first()) {
    try {
      done = move_suspects(good, may_begin);
    } catch (const Error& error) {
      done = {
          .recovers = false,
          .text = fmt::format("the checkpoints after step {} may be damaged, but cannot be moved: {}; move "
                              "them out of '{}'",
                              good, error.what(), root_.string())};
    }
    if (!distrusted && done.recovers) {
      done = {.recovers = false,
              .text = done.text +
                      "; the snapshots in memory may be damaged, which could not be recorded: end "
                      "the supervisors before the next start"};
    }
  }
  const std::string agreed = plan_.ranks.from_first((done.recovers ? "+" : "-") + done.text);
  return {.recovers = agreed.starts_with('+'), .text = agreed.substr(1)};
}

void Checkpointer::finish_set_aside() const {
  std::string problem;
  const Path note = root_ / kSuspectNote;
  if (plan_.ranks.first() && Env::posix().status(note)) {
    constexpr std::uint64_t kLimit = 256;
    const std::string text = read_file(note, kLimit);
    std::int64_t good = -1;
    std::from_chars(text.data(), text.data() + text.size(), good);
    if (good < 0)
      throw invalid(fmt::format("'{}' has no step", note.string()), "remove it, and check the checkpoints");
    const SetAside done = move_suspects(good, !text.ends_with(kNotFromBeginning));
    if (!done.recovers) problem = done.text;
    plan_.log.warning("silent corruption was found after step {} before the last process was killed: {}",
                      good, done.text);
  }
  problem = plan_.ranks.from_first(problem);
  if (problem.empty()) return;
  throw CorruptionError("silent corruption was found before the last process was killed",
                        problem + ": continue from an older copy, or start again to use the damaged state",
                        false);
}

}  // namespace primus
