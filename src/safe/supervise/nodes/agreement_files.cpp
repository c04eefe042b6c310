#include "safe/supervise/nodes/agreement_files.h"

#include <fmt/format.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "base/error.h"

namespace primus::supervise {
namespace {

constexpr std::uint64_t kMostBytes = 256U << 20;

}  // namespace

Path supervisors_file(const Path& run) { return run / ".supervisors"; }

Path AgreementFiles::votes_file() const { return run_ / ".supervisors-votes"; }

std::optional<AgreedState> AgreementFiles::state() {
  try {
    // Opens the file without first checking whether it exists: on NFS, only opening it shows the newest file.
    auto state = read_state(primus::read_file(supervisors_file(run_), kMostBytes, env_), nodes_);
    seen_ = true;
    return state && state->exists() ? state : std::nullopt;
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::optional<Votes> AgreementFiles::votes() {
  try {
    const std::string text = primus::read_file(votes_file(), kMostBytes, env_);
    seen_ = true;
    return read_votes(text, nodes_);
  } catch (const FileError& error) {
    seen_ = seen_ || !error.no_such_file();  // the file may exist
    return std::nullopt;
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Returns false if the run has no folder yet. Throws FileError if that is unknown, or the folder has
// vanished.
bool AgreementFiles::has_folder() {
  const auto found = env_.status(run_);
  if (found && found->type == FileStatus::Type::kFolder) return seen_ = true;
  if (!found && !seen_) return false;
  throw FileError(fmt::format("cannot look at '{}'", run_.string()), found ? ENOTDIR : ENOENT);
}

bool AgreementFiles::keep(const Votes& votes) {
  try {
    if (has_folder()) write_file_atomic(votes_file(), to_text(votes), env_);
    votes_error_.clear();
    return true;
  } catch (const Error& error) {
    votes_error_ = error.what();
    return false;  // the vote is asked for again
  }
}

bool AgreementFiles::write(const AgreedState& state) {
  if (state.view == written_view_ && state.version == written_version_) return true;
  try {
    const bool writes = has_folder();
    state_error_.clear();
    if (!writes) return true;  // the run has not begun
    // Another leader may have written a newer one.
    const auto other = this->state();
    if (other && other->job == state.job && is_newer(*other, state)) return false;
    write_file_atomic(supervisors_file(run_), to_text(state), env_);
    written_view_ = state.view;
    written_version_ = state.version;
    return true;
  } catch (const Error& error) {
    state_error_ = error.what();
    return false;  // the next turn tries again
  }
}

void AgreementFiles::remove() const {
  std::error_code none;
  std::filesystem::remove(supervisors_file(run_), none);
  std::filesystem::remove(votes_file(), none);
}

}  // namespace primus::supervise
