// CheckpointRoot: writing a checkpoint so that it is complete or not there.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/crc32c.h"
#include "base/sha256.h"
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

// What one rank wrote of a tensor; the tensors are numbered in the order of the files.
struct HeldPart {
  std::size_t tensor = 0;
  ElementRun run;
  std::uint32_t crc = 0;  // with zeros in place of what others write
};

// The checksums of what one rank wrote.
struct Written {
  std::vector<ShardChecksums> model, optimizer;
};

std::string encode_parts(const std::vector<HeldPart>& parts) {
  nlohmann::json lines = nlohmann::json::array();
  for (const HeldPart& part : parts) lines.push_back({part.tensor, part.run.begin, part.run.end, part.crc});
  return lines.dump();
}

std::vector<HeldPart> decode_parts(const std::string& text) {
  std::vector<HeldPart> parts;
  for (const auto& line : nlohmann::json::parse(text)) {
    parts.push_back({.tensor = line.at(0), .run = {line.at(1), line.at(2)}, .crc = line.at(3)});
  }
  return parts;
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

  // What every rank must agree on.
  std::string fingerprint() const {
    std::string text = std::to_string(manifest.iteration);
    for (const auto* layout : {&model, &optimizer}) {
      for (const auto& shard : layout->shards) text += shard.file + shard.header;
    }
    return hex(as_text(sha256(text)));
  }

  // Calls visit(source, record of the manifest, checksum) for every tensor, in the order of the files.
  template <class Visit>
  void for_each_tensor(const Snapshot& snapshot, const Written& written, Visit visit) {
    for_each_tensor(TensorPart::kModel, model, snapshot.model, written.model, visit);
    for_each_tensor(TensorPart::kOptimizer, optimizer, snapshot.optimizer, written.optimizer, visit);
  }

  // The manifest's checksums, from those of all ranks.
  void fill_in(const Snapshot& snapshot, const Written& written, const std::vector<std::string>& of_ranks) {
    for (const auto& [layout, checksums] :
         {std::pair(&model, &written.model), std::pair(&optimizer, &written.optimizer)}) {
      for (std::size_t i = 0; i < layout->shards.size(); ++i) {
        manifest.files[index_of(layout->shards[i].file)].crc = (*checksums)[i].header;
      }
    }
    std::vector<std::vector<HeldPart>> parts;
    for (const auto& text : of_ranks) {
      for (const HeldPart& part : decode_parts(text)) {
        if (part.tensor >= parts.size()) parts.resize(part.tensor + 1);
        parts[part.tensor].push_back(part);
      }
    }
    std::size_t number = 0;
    for_each_tensor(snapshot, written, [&](const TensorSource& source, TensorRecord& record, std::uint32_t) {
      if (number == parts.size()) parts.emplace_back();
      record.slices[0].crc = merged(source, parts[number++]);
    });
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

  template <class Visit>
  void for_each_tensor(TensorPart part, const SafetensorsLayout& layout,
                       const std::vector<TensorSource>& sources, const std::vector<ShardChecksums>& checksums,
                       Visit visit) {
    for (std::size_t i = 0; i < layout.shards.size(); ++i) {
      const auto& tensors = layout.shards[i].tensors;
      for (std::size_t k = 0; k < tensors.size(); ++k) {
        const TensorSource& source = sources[tensors[k].source];
        visit(source, record(part, source.name), checksums[i].tensors[k]);
      }
    }
  }

  // The checksum of a tensor whose parts cover it, each element once.
  static std::uint32_t merged(const TensorSource& source, std::vector<HeldPart>& parts) {
    std::ranges::sort(parts, {}, [](const HeldPart& part) { return part.run.begin; });
    const std::uint64_t bytes = source.bytes();
    std::uint32_t crc = crc32c_zeros(0, bytes);
    std::int64_t covered = 0;
    for (const HeldPart& part : parts) {
      if (part.run.begin != covered) refuse_cover(source, covered, part.run.begin);
      covered = part.run.end;
      crc = crc32c_merge(crc, part.crc, bytes);
    }
    const auto elements =
        static_cast<std::int64_t>(bytes / static_cast<std::uint64_t>(size_of(source.dtype)));
    if (covered != elements) refuse_cover(source, covered, elements);
    return crc;
  }

  [[noreturn]] static void refuse_cover(const TensorSource& source, std::int64_t covered, std::int64_t next) {
    throw invalid(
        next > covered
            ? fmt::format("no rank writes the elements [{}, {}) of tensor '{}'", covered, next, source.name)
            : fmt::format("two ranks write element {} of tensor '{}'", next, source.name),
        "the ranks do not hold what they should: please report this");
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

// One rank's part of one save, step by step. Rank 0 has the files of its own: all but what other ranks hold
// of the tensors.
class Save {
 public:
  Save(const Snapshot& snapshot, std::uint64_t max_shard_bytes, const CheckpointGroup& group, Path folder,
       Env& env, const std::function<void(SaveProgress)>& progress)
      : snapshot_(snapshot),
        plan_(snapshot, max_shard_bytes),
        first_(group.rank() == 0),
        folder_(std::move(folder)),
        env_(env),
        progress_(progress) {
    for (const auto* sources : {&snapshot.model, &snapshot.optimizer}) {
      for (const auto& source : *sources) {
        state_.bytes_total += source.held_bytes();
        all_tensors_ += source.bytes();
      }
    }
    if (first_) state_.bytes_total += plan_.bytes - all_tensors_;
  }

  const Plan& plan() const { return plan_; }

  // Rank 0: everything that the other ranks write into.
  void create() {
    env_.make_folder(folder_);
    create_shards(folder_, plan_.model, env_, count_);
    create_shards(folder_, plan_.optimizer, env_, count_);
  }

  // Every rank: what it holds. Returns what rank 0 needs for the manifest.
  std::string write() {
    if (first_) {
      for (const auto& file : snapshot_.files) write_text(file.name, file.content);
      write_text(kTrainerState, snapshot_.trainer_state);
    }
    written_.model = write_held(folder_, snapshot_.model, plan_.model, first_, env_, count_);
    written_.optimizer = write_held(folder_, snapshot_.optimizer, plan_.optimizer, first_, env_, count_);
    std::vector<HeldPart> parts;
    std::size_t number = 0;
    plan_.for_each_tensor(snapshot_, written_,
                          [&](const TensorSource& source, TensorRecord&, std::uint32_t crc) {
                            const ElementRun run = source.held();
                            if (run.size() != 0) parts.push_back({.tensor = number, .run = run, .crc = crc});
                            ++number;
                          });
    return encode_parts(parts);
  }

  // Rank 0, when all have written: the manifest, and the folder's names.
  void finish(const std::vector<std::string>& of_ranks) {
    plan_.fill_in(snapshot_, written_, of_ranks);
    write_text(Manifest::kFileName, plan_.manifest.to_json());
    env_.sync_folder(folder_);
  }

 private:
  void write_text(std::string_view name, std::string_view content) {
    write_file(folder_ / name, content, env_);
    count_(content.size());
  }

  const Snapshot& snapshot_;
  Plan plan_;
  bool first_;
  Path folder_;
  Env& env_;
  const std::function<void(SaveProgress)>& progress_;
  SaveProgress state_;
  std::uint64_t all_tensors_ = 0;
  const std::function<void(std::uint64_t)> count_ = [this](std::uint64_t bytes) {
    state_.bytes_done += bytes;
    if (progress_) progress_(state_);
  };
  Written written_;
};

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
  SingleRank alone;
  CheckpointGroup& group = options_.group ? *options_.group : alone;
  const Path temporary = root_ / fmt::format("{}{}", kTemporary, folder_name(snapshot.iteration));
  std::optional<Save> save;
  const auto no_space = [&](int code, std::uint64_t free) {
    const auto last = latest();
    return FileError(fmt::format("cannot save checkpoint '{}': it needs {}, and {} are free",
                                 folder(snapshot.iteration).string(), in_gb(save->plan().bytes), in_gb(free)),
                     code,
                     fmt::format("free some space on that disk, or keep fewer checkpoints{}",
                                 last ? fmt::format("; {} is intact", folder_name(*last)) : std::string()));
  };
  const auto clean_up = [&](const Error& error) {
    // A full disk should at least get its space back; if that fails too, the next start sees to it.
    try_remove_tree(temporary, env_);
    if (const int code = file_code_of(error); code != 0 && FileError("", code).out_of_space()) {
      throw no_space(code, env_.free_space(root_));
    }
  };

  in_step(
      group,
      [&] {
        check_names(snapshot);
        return save.emplace(snapshot, options_.max_shard_bytes, group, temporary, env_, progress)
            .plan()
            .fingerprint();
      },
      [&](const std::vector<std::string>& plans) {
        for (std::size_t rank = 1; rank < plans.size(); ++rank) {
          if (plans[rank] == plans[0]) continue;
          throw invalid(fmt::format("ranks 0 and {} do not save the same tensors or iteration", rank),
                        "start all ranks with the same experiment and the same build of Primus");
        }
        make_folders(root_, env_);
        recover();
        if (const auto free = env_.free_space(root_); free < save->plan().bytes) throw no_space(ENOSPC, free);
        try {
          save->create();
        } catch (const Error& error) {
          clean_up(error);
          throw;
        }
        return std::string();
      });
  in_step(
      group, [&] { return save->write(); },
      [&](const std::vector<std::string>& parts) {
        save->finish(parts);
        publish(temporary, snapshot.iteration);
        return std::string();
      },
      clean_up);
  last_saved_ = snapshot.iteration;
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
    // A folder cannot be renamed over another; recover() undoes this if we stop before the next rename is
    // durable.
    env_.rename(final, replaced);
    env_.sync_folder(root_);
  }
  env_.rename(temporary, final);
  env_.sync_folder(root_);
  write_file_atomic(root_ / kLatest, folder_name(iteration) + "\n", env_);
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
