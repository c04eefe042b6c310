#include "lm/checkpoint/snapshot_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <sstream>

#include "base/files/sha256.h"
#include "lm/checkpoint/checkpoint.h"

namespace primus {
namespace {

constexpr std::string_view kRank = "rank-", kMade = " copied", kNone = " no copy";
constexpr const char *kCopied = "copied", *kDistrusted = "distrusted", *kHistories = "histories";
constexpr std::size_t kHistoryBytes = 8, kHistoryDigits = 2 * kHistoryBytes, kMaxIds = 64;

bool is_history(std::string_view name) {
  return name.size() == kHistoryDigits && name.find_first_not_of("0123456789abcdef") == name.npos;
}

}  // namespace

std::string new_history() { return hex(random_bytes(kHistoryBytes)); }

std::string to_text(const SnapshotId& id) { return fmt::format("{}/{}", id.history, id.iteration); }

std::optional<SnapshotId> snapshot_id_of(std::string_view text) {
  const std::size_t slash = text.find('/');
  if (slash == text.npos || !is_history(text.substr(0, slash))) return std::nullopt;
  SnapshotId found{.history = std::string(text.substr(0, slash))};
  const std::string_view digits = text.substr(slash + 1);
  const auto number = std::from_chars(digits.data(), digits.data() + digits.size(), found.iteration);
  if (number.ec != std::errc() || number.ptr != digits.data() + digits.size() || found.iteration <= 0)
    return std::nullopt;
  return found;
}

std::string to_text(const std::vector<SnapshotId>& ids) {
  std::string text;
  for (const SnapshotId& one : ids) text += (text.empty() ? "" : " ") + to_text(one);
  return text;
}

std::vector<SnapshotId> snapshot_ids_of(std::string_view text) {
  std::vector<SnapshotId> found;
  while (!text.empty() && found.size() < kMaxIds) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
    if (const auto one = snapshot_id_of(word)) found.push_back(*one);
  }
  return found;
}

Path SnapshotFolder::of_rank(Kind kind, int rank) const {
  return of_kind(kind) / fmt::format("{}{:05}", kRank, rank);
}

std::vector<int> SnapshotFolder::ranks(Kind kind) const {
  std::vector<int> found;
  if (!env_.status(of_kind(kind))) return found;
  for (const std::string& name : env_.list(of_kind(kind))) {
    int rank = 0;
    if (!name.starts_with(kRank)) continue;
    const char* const end = name.data() + name.size();
    const auto number = std::from_chars(name.data() + kRank.size(), end, rank);
    if (number.ec == std::errc() && number.ptr == end) found.push_back(rank);
  }
  return found;
}

Path SnapshotFolder::history(Kind kind, int rank, std::string_view history) const {
  return of_rank(kind, rank) / history;
}

Path SnapshotFolder::snapshot(Kind kind, int rank, const SnapshotId& id) const {
  return CheckpointRoot(history(kind, rank, id.history), {}, env_).folder(id.iteration);
}

std::vector<SnapshotId> SnapshotFolder::list(Kind kind, int rank) const {
  std::vector<SnapshotId> found;
  const Path folder = of_rank(kind, rank);
  if (!env_.status(folder)) return found;
  for (const std::string& name : env_.list(folder)) {
    if (!is_history(name)) continue;
    for (const std::int64_t iteration : CheckpointRoot(folder / name, {}, env_).iterations())
      found.push_back({.history = name, .iteration = iteration});
  }
  return found;
}

void SnapshotFolder::record_copy(int rank, const Copied& copied) const {
  make_folders(root_ / kCopied, env_);
  write_file_atomic(root_ / kCopied / fmt::format("{}{:05}", kRank, rank),
                    to_text(copied.id) + std::string(copied.exists ? kMade : kNone), env_);
}

std::optional<SnapshotFolder::Copied> SnapshotFolder::copied(int rank) const {
  const Path file = root_ / kCopied / fmt::format("{}{:05}", kRank, rank);
  if (!env_.status(file)) return std::nullopt;
  constexpr std::uint64_t kLimit = 4096;
  const std::string text = read_file(file, kLimit, env_);
  const auto id = snapshot_id_of(std::string_view(text).substr(0, text.find(' ')));
  return id ? std::optional(Copied{.id = *id, .exists = text.ends_with(kMade)}) : std::nullopt;
}

void SnapshotFolder::record_history(int rank, std::string_view history) const {
  std::vector<std::string> all = histories(rank);
  all.insert(all.begin(), std::string(history));
  all.resize(std::min(all.size(), kMaxIds));
  make_folders(root_ / kHistories, env_);
  write_file_atomic(root_ / kHistories / fmt::format("{}{:05}", kRank, rank),
                    fmt::format("{}", fmt::join(all, " ")), env_);
}

std::vector<std::string> SnapshotFolder::histories(int rank) const {
  const Path file = root_ / kHistories / fmt::format("{}{:05}", kRank, rank);
  if (!env_.status(file)) return {};
  constexpr std::uint64_t kLimit = 4096;
  std::istringstream text(read_file(file, kLimit, env_));
  std::vector<std::string> found;
  for (std::string word; text >> word;) {
    if (is_history(word)) found.push_back(word);
  }
  return found;
}

void SnapshotFolder::distrust(int rank, const std::vector<SnapshotId>& first) const {
  std::vector<SnapshotId> all = first;
  for (SnapshotId& earlier : distrusted(rank)) {
    const auto known = std::ranges::find(all, earlier.history, &SnapshotId::history);
    if (known == all.end()) {
      all.push_back(std::move(earlier));
    } else {
      known->iteration = std::min(known->iteration, earlier.iteration);
    }
  }
  all.resize(std::min(all.size(), kMaxIds));
  make_folders(root_ / kDistrusted, env_);
  write_file_atomic(root_ / kDistrusted / fmt::format("{}{:05}", kRank, rank), to_text(all), env_);
}

std::vector<SnapshotId> SnapshotFolder::distrusted(int rank) const {
  const Path file = root_ / kDistrusted / fmt::format("{}{:05}", kRank, rank);
  if (!env_.status(file)) return {};
  constexpr std::uint64_t kLimit = 4096;
  return snapshot_ids_of(read_file(file, kLimit, env_));
}

void SnapshotFolder::keep_only(Kind kind, int rank, const std::vector<SnapshotId>& kept) const {
  const Path folder = of_rank(kind, rank);
  if (!env_.status(folder)) return;
  for (const std::string& name : env_.list(folder)) {
    const bool needed = std::ranges::any_of(kept, [&](const SnapshotId& one) { return one.history == name; });
    if (!needed) {
      remove_tree(folder / name, env_);
      continue;
    }
    for (const std::string& entry : env_.list(folder / name)) {
      const bool keep = std::ranges::any_of(kept, [&](const SnapshotId& one) {
        return one.history == name && snapshot(kind, rank, one).filename() == entry;
      });
      if (!keep && entry != "latest") remove_tree(folder / name / entry, env_);
    }
  }
}

}  // namespace primus
