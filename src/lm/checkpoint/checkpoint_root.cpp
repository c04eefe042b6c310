// CheckpointRoot writes a checkpoint atomically: the checkpoint is either complete or absent.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>

#include "base/terminal/terminal.h"
#include "lm/checkpoint/checkpoint.h"
#include "lm/checkpoint/checkpoint_save.h"

namespace primus {
namespace {

constexpr std::string_view kLatest = "latest";
constexpr std::string_view kTemporary = ".tmp-";
constexpr std::string_view kReplaced = ".replaced-";
constexpr std::string_view kPrefix = "iter_";
constexpr std::string_view kSetAside = "previous-";
constexpr std::string_view kSuspect = "suspect-";
constexpr std::string_view kNotOurs = "latest-";

std::string folder_name(std::int64_t iteration) { return fmt::format("{}{:07}", kPrefix, iteration); }

std::optional<std::int64_t> iteration_of(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const std::string_view digits = name.substr(kPrefix.size());
  std::int64_t iteration = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), iteration);
  if (error != std::errc() || end != digits.data() + digits.size() || iteration < 0) return std::nullopt;
  // Primus does not create names such as "iter_100" or "iter_+0000100".
  if (folder_name(iteration) != name) return std::nullopt;
  return iteration;
}

void check_names(const Snapshot& snapshot) {
  std::vector<std::string_view> names = {Manifest::kFileName, kTrainerStateFile};
  for (const auto& file : snapshot.files) {
    const bool taken = std::ranges::find(names, file.name) != names.end();
    if (!is_plain_name(file.name) || taken || file.name.find(".safetensors") != file.name.npos) {
      throw invalid(fmt::format("a checkpoint cannot hold a file named '{}'", file.name),
                    taken ? "each file name can occur only once" : "use a plain name");
    }
    names.push_back(file.name);
  }
}

}  // namespace

std::string optimizer_tensor_name(std::string_view state, std::string_view parameter) {
  return fmt::format("{}.{}", state, parameter);
}

CheckpointRoot::CheckpointRoot(Path root, SaveOptions options, Env& env)
    : root_(std::move(root)), options_(options), env_(env) {}

Path CheckpointRoot::folder(std::int64_t iteration) const {
  const Path final = root_ / folder_name(iteration);
  const Path replaced = replaced_folder(iteration);
  return !env_.status(final) && env_.status(replaced) ? replaced : final;
}

Path CheckpointRoot::replaced_folder(std::int64_t iteration) const {
  return root_ / fmt::format("{}{}", kReplaced, folder_name(iteration));
}

std::vector<std::int64_t> CheckpointRoot::iterations() const {
  std::vector<std::int64_t> found;
  if (!env_.status(root_)) return found;
  for (const auto& entry : env_.list(root_)) {
    std::string_view name = entry;
    if (name.starts_with(kReplaced)) name.remove_prefix(kReplaced.size());
    if (const auto iteration = iteration_of(name)) found.push_back(*iteration);
  }
  std::ranges::sort(found);
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

std::optional<std::int64_t> CheckpointRoot::latest(std::string* problem) const {
  const auto refuse = [&](const std::string& what) {
    if (problem) *problem = fmt::format("{} {}", kLatest, what);
    return std::nullopt;
  };
  std::string name;
  try {
    if (!env_.status(root_ / kLatest)) return std::nullopt;
    constexpr std::uint64_t kLimit = 4096;
    name = read_file(root_ / kLatest, kLimit, env_);
  } catch (const Error& error) {
    const auto* refused = dynamic_cast<const FileError*>(&error);
    if (refused && !refused->no_such_file()) throw;
    return refuse(fmt::format("cannot be read: {}", error.what()));
  }
  while (!name.empty() && (name.back() == '\n' || name.back() == '\r' || name.back() == ' ')) name.pop_back();
  const auto iteration = iteration_of(name);
  if (!iteration) return refuse("names no checkpoint");
  if (!env_.status(folder(*iteration))) return refuse(fmt::format("names {}, which does not exist", name));
  return iteration;
}

Path CheckpointRoot::free_path(std::string_view prefix) const {
  for (int i = 1;; ++i) {
    const Path path = root_ / fmt::format("{}{}", prefix, i);
    if (!env_.is_link(path) && !env_.status(path)) return path;
  }
}

void CheckpointRoot::recover() {
  if (!env_.status(root_)) return;
  for (const auto& name : env_.list(root_)) {
    const Path path = root_ / name;
    if (name.starts_with(kReplaced)) {
      // An earlier save of this iteration was interrupted between two renames: the old checkpoint was moved
      // away, but the new checkpoint did not get its final name.
      const Path original = root_ / name.substr(kReplaced.size());
      if (!env_.is_link(original) && !env_.status(original)) {
        env_.rename(path, original);
        env_.sync_folder(root_);
        continue;
      }
    } else if (!name.starts_with(kTemporary)) {
      continue;
    }
    remove_tree(path, env_);
  }
}

std::optional<Path> CheckpointRoot::set_aside() {
  recover();
  if (iterations().empty()) return std::nullopt;
  Path aside = free_path(kSetAside);
  env_.make_folder(aside);
  for (const std::string& name : env_.list(root_)) {
    if (iteration_of(name) || name == kLatest) env_.rename(root_ / name, aside / name);
  }
  env_.sync_folder(aside);
  env_.sync_folder(root_);
  return aside;
}

std::optional<Path> CheckpointRoot::set_aside_after(std::int64_t good) {
  recover();
  std::vector<std::int64_t> kept = iterations(), moved;
  std::erase_if(kept, [&](std::int64_t iteration) {
    if (iteration > good) moved.push_back(iteration);
    return iteration > good;
  });
  if (moved.empty()) return std::nullopt;
  Path aside = free_path(kSuspect);
  env_.make_folder(aside);
  // `latest` first: if the process is killed before all checkpoints are moved, the run resumes from the kept
  // one.
  if (kept.empty()) {
    if (env_.status(root_ / kLatest)) env_.rename(root_ / kLatest, aside / kLatest);
  } else {
    write_file_atomic(root_ / kLatest, folder_name(kept.back()) + "\n", env_);
  }
  for (const std::int64_t iteration : moved) env_.rename(folder(iteration), aside / folder_name(iteration));
  env_.sync_folder(aside);
  env_.sync_folder(root_);
  return aside;
}

void CheckpointRoot::save(const Snapshot& snapshot) {
  SingleRank single;
  CheckpointGroup& group = options_.group ? *options_.group : single;
  const Path temporary = root_ / fmt::format("{}{}", kTemporary, folder_name(snapshot.iteration));
  std::optional<CheckpointSave> save;
  const auto no_space = [&](int code, std::uint64_t free) {
    const auto last = latest();
    const auto amount = [](std::uint64_t bytes) { return human_bytes(static_cast<double>(bytes)); };
    return FileError(fmt::format("cannot save checkpoint '{}': it needs {}, but {} are free",
                                 folder(snapshot.iteration).string(), amount(save->bytes()), amount(free)),
                     code,
                     fmt::format("free some space on that disk, or keep fewer checkpoints{}",
                                 last ? fmt::format("; {} is intact", folder_name(*last)) : std::string()));
  };
  const auto clean_up = [&](const Error& error) {
    // Frees the disk space of the unfinished save. If removing fails, too, the next start removes the folder.
    try_remove_tree(temporary, env_);
    if (const int code = file_code_of(error); code != 0 && FileError("", code).out_of_space()) {
      throw no_space(code, env_.free_space(root_));
    }
  };

  in_step(
      group,
      [&] {
        check_names(snapshot);
        return save.emplace(snapshot, options_.max_shard_bytes, group.rank(), temporary, env_).fingerprint();
      },
      [&](const std::vector<std::string>& plans) {
        for (std::size_t rank = 1; rank < plans.size(); ++rank) {
          if (plans[rank] == plans[0]) continue;
          throw invalid(fmt::format("ranks 0 and {} save different tensors or iterations", rank),
                        "start all ranks with the same experiment and the same build of Primus");
        }
        make_folders(root_, env_);
        recover();
        if (const auto free = env_.free_space(root_); free < save->bytes()) throw no_space(ENOSPC, free);
        try {
          save->create();
        } catch (const Error& error) {
          clean_up(error);
          throw;
        }
        return std::string();
      });
  const auto complete = [&] {
    save->finish();
    publish(temporary, snapshot.iteration);
  };
  const std::string collected = in_step(
      group, [&] { return save->write(); },
      [&](const std::vector<std::string>& written) {
        std::string result = save->collect(written);
        if (result.empty()) complete();
        return result;
      },
      clean_up);
  if (!collected.empty()) {
    in_step(
        group,
        [&] {
          save->assemble(collected);
          return std::string();
        },
        [&](const std::vector<std::string>&) {
          complete();
          return std::string();
        },
        clean_up);
  }
  last_saved_ = snapshot.iteration;
  last_written_ = save->written();
  in_step(
      group, [] { return std::string(); },
      [&](const std::vector<std::string>&) {
        remove_tree(replaced_folder(snapshot.iteration), env_);
        retire_old(snapshot.iteration);
        return std::string();
      });
}

void CheckpointRoot::publish(const Path& temporary, std::int64_t iteration) {
  const Path final = root_ / folder_name(iteration), replaced = replaced_folder(iteration);
  if (env_.status(final)) {
    // A folder cannot replace another folder by a rename. If the process stops before the next rename is
    // durable, recover() undoes this rename.
    env_.rename(final, replaced);
    env_.sync_folder(root_);
  }
  env_.rename(temporary, final);
  env_.sync_folder(root_);
  const Path latest = root_ / kLatest;
  const auto there = env_.is_link(latest) ? std::nullopt : env_.status(latest);
  if (there && there->type == FileStatus::Type::kFolder) env_.rename(latest, free_path(kNotOurs));
  write_file_atomic(latest, folder_name(iteration) + "\n", env_);
}

void CheckpointRoot::retire_old(std::int64_t newest) {
  if (options_.keep_last <= 0) return;
  // Removes only checkpoints of earlier iterations. Keeps checkpoints of later iterations, which exist if the
  // run resumed from an older checkpoint.
  auto old = iterations();
  std::erase_if(old, [&](std::int64_t iteration) { return iteration > newest; });
  const auto keep = static_cast<std::size_t>(options_.keep_last);
  // The newest checkpoint of these iterations.
  const std::int64_t behind = options_.keep_behind ? options_.keep_behind->load() : -1;
  const auto above = std::ranges::upper_bound(old, behind);
  const std::int64_t good = above == old.begin() ? -1 : *std::prev(above);
  for (std::size_t i = 0; i + keep < old.size(); ++i) {
    if (old[i] == good) continue;
    // Renames the folder before removing it, so that a partly removed checkpoint is not mistaken for a
    // complete one.
    const Path doomed = root_ / fmt::format("{}{}", kTemporary, folder_name(old[i]));
    env_.rename(folder(old[i]), doomed);
    env_.sync_folder(root_);
    remove_tree(doomed, env_);
  }
}

}  // namespace primus
