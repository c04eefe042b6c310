// CheckpointRoot: writing a checkpoint so that it is complete or not there.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>

#include "base/crc32c.h"
#include "lm/checkpoint/checkpoint.h"

namespace primus {
namespace {

constexpr std::string_view kLatest = "latest";
constexpr std::string_view kTrainerState = "trainer_state.json";
constexpr std::string_view kTemporary = ".tmp-";
constexpr std::string_view kReplaced = ".replaced-";
constexpr std::string_view kPrefix = "iter_";
constexpr std::string_view kSetAside = "previous-";

std::string folder_name(std::int64_t iteration) { return fmt::format("{}{:07}", kPrefix, iteration); }

std::optional<std::int64_t> iteration_of(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const std::string_view digits = name.substr(kPrefix.size());
  std::int64_t iteration = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), iteration);
  if (error != std::errc() || end != digits.data() + digits.size() || iteration < 0) return std::nullopt;
  // "iter_100" or "iter_+0000100" are somebody else's.
  if (folder_name(iteration) != name) return std::nullopt;
  return iteration;
}

std::string in_gb(std::uint64_t bytes) {
  return fmt::format("{} bytes ({:.2f} GB)", bytes, static_cast<double>(bytes) / 1e9);
}

void check_names(const Snapshot& snapshot) {
  std::vector<std::string_view> names = {Manifest::kFileName, kTrainerState};
  for (const auto& file : snapshot.files) {
    const bool taken = std::ranges::find(names, file.name) != names.end();
    if (!is_plain_name(file.name) || taken || file.name.find(".safetensors") != file.name.npos) {
      throw invalid(fmt::format("a checkpoint cannot hold a file named '{}'", file.name),
                    taken ? "each name can be there once" : "use a plain name");
    }
    names.push_back(file.name);
  }
}

// The manifest of what will be written; the checksums of tensors and shards are filled in afterwards.
class Plan {
 public:
  Plan(const Snapshot& snapshot, std::uint64_t max_shard_bytes)
      : model(plan_safetensors(snapshot.model, {.stem = "model", .max_shard_bytes = max_shard_bytes})),
        optimizer(
            plan_safetensors(snapshot.optimizer, {.stem = "optimizer", .max_shard_bytes = max_shard_bytes})) {
    manifest.iteration = snapshot.iteration;
    add_text(std::string(kTrainerState), snapshot.trainer_state);
    for (const auto& file : snapshot.files) add_text(file.name, file.content);
    for (const auto* layout : {&model, &optimizer}) {
      if (!layout->index_file.empty()) add_text(layout->index_file, layout->index);
      for (const auto& shard : layout->shards) manifest.files.push_back({shard.file, shard.bytes, 0});
    }
    std::ranges::sort(manifest.files, {}, &FileRecord::name);
    add_tensors(TensorPart::kModel, snapshot.model, model);
    add_tensors(TensorPart::kOptimizer, snapshot.optimizer, optimizer);
    for (const auto& file : manifest.files) bytes += file.bytes;
    const std::uint64_t manifest_bytes = manifest.to_json().size();  // checksums have a fixed width
    if (manifest_bytes > Manifest::kMaxBytes)
      throw invalid("a checkpoint of too many tensors for its manifest");
    bytes += manifest_bytes;
  }

  void fill_in(TensorPart part, const SafetensorsLayout& layout, const std::vector<TensorSource>& sources,
               const std::vector<ShardChecksums>& checksums) {
    for (std::size_t i = 0; i < layout.shards.size(); ++i) {
      const auto& shard = layout.shards[i];
      manifest.files[index_of(shard.file)].crc = checksums[i].header;
      for (std::size_t k = 0; k < shard.tensors.size(); ++k) {
        record(part, sources[shard.tensors[k].source].name).slices[0].crc = checksums[i].tensors[k];
      }
    }
  }

  SafetensorsLayout model, optimizer;
  Manifest manifest;
  std::uint64_t bytes = 0;  // of all files, the manifest included

 private:
  void add_text(const std::string& name, std::string_view content) {
    manifest.files.push_back({name, content.size(), crc32c(0, as_bytes(content))});
  }

  void add_tensors(TensorPart part, const std::vector<TensorSource>& sources,
                   const SafetensorsLayout& layout) {
    const auto first = static_cast<std::ptrdiff_t>(manifest.tensors.size());
    for (const auto& shard : layout.shards) {
      const auto file = static_cast<std::uint32_t>(index_of(shard.file));
      for (const auto& tensor : shard.tensors) {
        const TensorSource& source = sources[tensor.source];
        manifest.tensors.push_back({.name = source.name,
                                    .part = part,
                                    .dtype = source.dtype,
                                    .shape = source.shape,
                                    .file = file,
                                    .slices = {{.slice = whole(source.shape), .crc = 0}}});
      }
    }
    std::ranges::sort(manifest.tensors.begin() + first, manifest.tensors.end(), {}, &TensorRecord::name);
  }

  std::size_t index_of(const std::string& file) const {
    return static_cast<std::size_t>(std::ranges::lower_bound(manifest.files, file, {}, &FileRecord::name) -
                                    manifest.files.begin());
  }

  TensorRecord& record(TensorPart part, const std::string& name) {
    return *std::ranges::lower_bound(
        manifest.tensors, std::pair(part, std::string_view(name)), {},
        [](const TensorRecord& tensor) { return std::pair(tensor.part, std::string_view(tensor.name)); });
  }
};

void write_folder(const Path& folder, const Snapshot& snapshot, Plan& plan, Env& env,
                  const std::function<void(std::uint64_t)>& written) {
  env.make_folder(folder);
  const auto write_text = [&](std::string_view name, std::string_view content) {
    write_file(folder / name, content, env);
    written(content.size());
  };
  for (const auto& file : snapshot.files) write_text(file.name, file.content);
  write_text(kTrainerState, snapshot.trainer_state);
  plan.fill_in(TensorPart::kModel, plan.model, snapshot.model,
               write_safetensors(folder, snapshot.model, plan.model, env, written));
  plan.fill_in(TensorPart::kOptimizer, plan.optimizer, snapshot.optimizer,
               write_safetensors(folder, snapshot.optimizer, plan.optimizer, env, written));
  write_text(Manifest::kFileName, plan.manifest.to_json());
  env.sync_folder(folder);
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
  if (!env_.status(folder(*iteration))) return refuse(fmt::format("names {}, which is not there", name));
  return iteration;
}

void CheckpointRoot::recover() {
  if (!env_.status(root_)) return;
  for (const auto& name : env_.list(root_)) {
    const Path path = root_ / name;
    if (name.starts_with(kReplaced)) {
      // A save of the same iteration stopped between moving the old one away and the new one in.
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
  Path aside;
  for (int i = 1; aside.empty() || env_.is_link(aside) || env_.status(aside); ++i) {
    aside = root_ / fmt::format("{}{}", kSetAside, i);
  }
  env_.make_folder(aside);
  for (const std::string& name : env_.list(root_)) {
    if (iteration_of(name) || name == kLatest) env_.rename(root_ / name, aside / name);
  }
  env_.sync_folder(aside);
  env_.sync_folder(root_);
  return aside;
}

void CheckpointRoot::save(const Snapshot& snapshot, const std::function<void(SaveProgress)>& progress) {
  check_names(snapshot);
  Plan plan(snapshot, options_.max_shard_bytes);
  make_folders(root_, env_);
  recover();
  const Path temporary = root_ / fmt::format("{}{}", kTemporary, folder_name(snapshot.iteration));
  SaveProgress state{.bytes_done = 0, .bytes_total = plan.bytes};
  const auto written = [&](std::uint64_t bytes) {
    state.bytes_done += bytes;
    if (progress) progress(state);
  };
  const auto no_space = [&](int code, std::uint64_t free) {
    const auto last = latest();
    return FileError(fmt::format("cannot save checkpoint '{}': it needs {}, and {} are free",
                                 folder(snapshot.iteration).string(), in_gb(plan.bytes), in_gb(free)),
                     code,
                     fmt::format("free some space on that disk, or keep fewer checkpoints{}",
                                 last ? fmt::format("; {} is intact", folder_name(*last)) : std::string()));
  };
  if (const auto free = env_.free_space(root_); free < plan.bytes) throw no_space(ENOSPC, free);
  try {
    write_folder(temporary, snapshot, plan, env_, written);
    publish(temporary, snapshot.iteration);
  } catch (const FileError& error) {
    // A full disk should at least get its space back; if that fails too, the next start sees to it.
    try_remove_tree(temporary, env_);
    if (error.out_of_space()) throw no_space(error.code(), env_.free_space(root_));
    throw;
  } catch (const Error&) {
    try_remove_tree(temporary, env_);
    throw;
  }
  retire_old(snapshot.iteration);
}

void CheckpointRoot::publish(const Path& temporary, std::int64_t iteration) {
  const Path final = root_ / folder_name(iteration), replaced = replaced_folder(iteration);
  const bool replaces = env_.status(final).has_value();
  if (replaces) {
    // A folder cannot be renamed over another; recover() undoes this if we stop before the next rename is
    // durable.
    env_.rename(final, replaced);
    env_.sync_folder(root_);
  }
  env_.rename(temporary, final);
  env_.sync_folder(root_);
  write_file_atomic(root_ / kLatest, folder_name(iteration) + "\n", env_);
  last_saved_ = iteration;
  if (replaces) remove_tree(replaced, env_);
}

void CheckpointRoot::retire_old(std::int64_t newest) {
  if (options_.keep_last <= 0) return;
  // Only those before the new one: after a return to an older checkpoint, what lies ahead was not saved by
  // this run.
  auto old = iterations();
  std::erase_if(old, [&](std::int64_t iteration) { return iteration > newest; });
  const auto keep = static_cast<std::size_t>(options_.keep_last);
  for (std::size_t i = 0; i + keep < old.size(); ++i) {
    // Under a temporary name, so that a half-removed checkpoint never looks like one.
    const Path doomed = root_ / fmt::format("{}{}", kTemporary, folder_name(old[i]));
    env_.rename(folder(old[i]), doomed);
    env_.sync_folder(root_);
    remove_tree(doomed, env_);
  }
}

}  // namespace primus
