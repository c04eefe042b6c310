// CheckpointReader validates and reads a checkpoint; find_resume_point() chooses one.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <nlohmann/json.hpp>

#include "base/files/crc32c.h"
#include "base/text/suggest.h"
#include "lm/checkpoint/checkpoint.h"
#include "lm/checkpoint/checkpoint_save.h"
#include "lm/checkpoint/reading_threads.h"

namespace primus {
namespace {

constexpr std::string_view kUnreadableHint =
    "the checkpoint is damaged: use an older one, and check this disk for errors";

[[noreturn]] void refuse(const Path& where, const std::string& what) {
  throw invalid(fmt::format("'{}': {}", where.string(), what), std::string(kUnreadableHint));
}

bool is_shard(std::string_view name) { return name.ends_with(".safetensors"); }

std::uint64_t bytes_of(const TensorRecord& record, const Slice& slice) {
  return static_cast<std::uint64_t>(elements(slice)) * static_cast<std::uint64_t>(size_of(record.dtype));
}

// Returns the checksum of a slice's bytes, with zeros in place of bytes outside its range [begin, end).
std::uint32_t crc_of(const TensorView& tensor, const Slice& slice, std::uint64_t begin, std::uint64_t end) {
  const auto element = static_cast<std::uint64_t>(size_of(tensor.dtype));
  std::uint32_t crc = 0;
  std::uint64_t at = 0;  // offset in the slice
  for_each_run(tensor.shape, slice, [&](std::int64_t first, std::int64_t count) {
    const std::uint64_t size = static_cast<std::uint64_t>(count) * element;
    const std::uint64_t from = std::clamp(begin, at, at + size), to = std::clamp(end, from, at + size);
    crc = crc32c_zeros(crc, from - at);
    crc = crc32c(crc,
                 tensor.data.subspan(static_cast<std::uint64_t>(first) * element + (from - at), to - from));
    crc = crc32c_zeros(crc, at + size - to);
    at += size;
  });
  return crc;
}

// Calls visit(index of the slice, record, slice, begin, end) for each slice that rank `rank` of `ranks`
// checks. The rank checks the bytes [begin, end) of the slice. Together the ranks check every byte, and each
// rank checks about the same number of bytes.
template <class Visit>
void for_each_share(const Manifest& manifest, int rank, int ranks, Visit visit) {
  std::uint64_t total = 0;
  for (const auto& record : manifest.tensors) {
    for (const auto& recorded : record.slices) total += bytes_of(record, recorded.slice);
  }
  const auto n = static_cast<std::uint64_t>(ranks), r = static_cast<std::uint64_t>(rank);
  const auto border = [&](std::uint64_t i) { return total / n * i + std::min(i, total % n); };
  const std::uint64_t first = border(r), last = border(r + 1);
  std::uint64_t at = 0;
  std::size_t number = 0;
  for (const auto& record : manifest.tensors) {
    for (const auto& recorded : record.slices) {
      const std::uint64_t size = bytes_of(record, recorded.slice);
      const std::uint64_t from = std::clamp(first, at, at + size), to = std::clamp(last, from, at + size);
      if (from < to) visit(number, record, recorded, from - at, to - at);
      at += size;
      ++number;
    }
  }
}

// Returns whether an error means that the checkpoint is damaged. Returns false if this process cannot read a
// file now (permission, too many open files), or if a rank is lost.
bool condemns(const Error& error, const CheckpointGroup& group) {
  if (group.size() > 1 && dynamic_cast<const GroupError*>(&error) == nullptr) return false;
  const int code = file_code_of(error);
  if (code != 0) return code == EIO || FileError("", code).no_such_file();
  return error.kind() == ErrorKind::kInvalid || error.kind() == ErrorKind::kUnsupported;
}

}  // namespace

CheckpointReader CheckpointReader::open(const Path& folder, Validation validation, Env& env,
                                        CheckpointGroup* group) {
  SingleRank single;
  if (group == nullptr) group = &single;
  CheckpointReader reader;
  const auto work = [&] {
    reader.read_structure(folder, validation, env);
    return validation == Validation::kFull ? reader.check_share(group->rank(), group->size()) : std::string();
  };
  const auto conclude = [&](const std::vector<std::string>& shares) {
    if (validation == Validation::kFull) reader.check_shares(shares);
    return std::string();
  };
  in_step(*group, work, conclude);
  return reader;
}

void CheckpointReader::read_structure(const Path& folder, Validation validation, Env& env) {
  folder_ = folder;
  validation_ = validation;
  env_ = &env;
  const Path manifest_path = folder / Manifest::kFileName;
  if (!env.status(manifest_path)) refuse(folder, "manifest.json is missing: this is not a Primus checkpoint");
  manifest_ = Manifest::parse(read_file(manifest_path, Manifest::kMaxBytes, env), manifest_path.string());
  for (const auto& record : manifest_.files) {
    const Path path = folder / record.name;
    const auto status = env.status(path);
    if (!status) refuse(path, "the file is missing");
    if (status->size != record.bytes) {
      refuse(path, fmt::format("the file has {} bytes, but {} were written", status->size, record.bytes));
    }
    if (is_shard(record.name)) {
      shards_.push_back(SafetensorsFile::open(path, env));
      if (crc32c(0, shards_.back().header()) != record.crc) {
        refuse(path, "the CRC32C of its header differs from the manifest's");
      }
    } else {
      const std::string content = file(record.name);  // file() checks the CRC32C
      if (record.name == kTrainerStateFile) trainer_state_ = content;
      shards_.emplace_back();
    }
  }
  check_tensors();
}

// Checks that the manifest and the shards list the same tensors.
void CheckpointReader::check_tensors() const {
  std::vector<std::size_t> recorded(shards_.size());
  for (const auto& record : manifest_.tensors) {
    const SafetensorsFile& shard = shards_[record.file];
    const auto tensor = shard.find(record.name);
    if (!tensor || tensor->dtype != record.dtype || !std::ranges::equal(tensor->shape, record.shape)) {
      refuse(folder_ / manifest_.files[record.file].name,
             fmt::format("tensor '{}' is missing, or differs from its manifest entry", record.name));
    }
    ++recorded[record.file];
  }
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    if (recorded[i] != shards_[i].size()) {
      refuse(folder_ / manifest_.files[i].name, "it holds a tensor that the manifest does not list");
    }
  }
}

// Returns the checksums of the bytes that this rank checks, as pairs of slice index and checksum. A slice may
// have several checksums, each of a part of its bytes.
std::string CheckpointReader::check_share(int rank, int ranks) const {
  struct Part {
    std::size_t number = 0;
    const Slice* slice = nullptr;
    TensorView tensor;
    std::uint64_t begin = 0, end = 0;
    std::uint32_t crc = 0;
  };
  std::vector<Part> parts;
  std::uint64_t bytes = 0;
  for_each_share(manifest_, rank, ranks,
                 [&](std::size_t number, const TensorRecord& record, const SliceRecord& recorded,
                     std::uint64_t begin, std::uint64_t end) {
                   const TensorView tensor = *shards_[record.file].find(record.name);
                   bytes += end - begin;
                   for (std::uint64_t at = begin; at < end; at += kReadingGrain)
                     parts.push_back({number, &recorded.slice, tensor, at,
                                      std::min<std::uint64_t>(at + kReadingGrain, end)});
                 });
  reading_threads(bytes)->parallel_for(static_cast<std::int64_t>(parts.size()), 1,
                                       [&](std::int64_t first, std::int64_t, int) {
                                         Part& part = parts[static_cast<std::size_t>(first)];
                                         part.crc = crc_of(part.tensor, *part.slice, part.begin, part.end);
                                       });
  nlohmann::json share = nlohmann::json::array();
  for (const Part& part : parts) share.push_back({part.number, part.crc});
  return share.dump();
}

void CheckpointReader::check_shares(const std::vector<std::string>& shares) const {
  std::map<std::size_t, std::vector<std::uint32_t>> checksums;
  for (const auto& share : shares) {
    for (const auto& line : nlohmann::json::parse(share)) checksums[line.at(0)].push_back(line.at(1));
  }
  std::size_t number = 0;
  for (const auto& record : manifest_.tensors) {
    for (const auto& recorded : record.slices) {
      const std::uint64_t bytes = bytes_of(record, recorded.slice);
      std::uint32_t crc = crc32c_zeros(0, bytes);
      for (const std::uint32_t part : checksums[number++]) crc = crc32c_merge(crc, part, bytes);
      if (crc != recorded.crc) refuse_tensor(record);
    }
  }
}

void CheckpointReader::refuse_tensor(const TensorRecord& record) const {
  refuse(folder_ / manifest_.files[record.file].name,
         fmt::format("the bytes of tensor '{}' differ from their CRC32C", record.name));
}

void CheckpointReader::check_slice(const TensorRecord& record, const TensorView& tensor,
                                   const SliceRecord& slice) const {
  if (crc_of(tensor, slice.slice, 0, bytes_of(record, slice.slice)) != slice.crc) refuse_tensor(record);
}

std::string CheckpointReader::file(std::string_view name) const {
  const auto record = std::ranges::lower_bound(manifest_.files, name, {}, &FileRecord::name);
  if (record == manifest_.files.end() || record->name != name || is_shard(name)) {
    throw invalid(fmt::format("checkpoint '{}' lacks the file '{}'", folder_.string(), name),
                  "it was saved without this file, or by another version of Primus");
  }
  const std::string content = read_file(folder_ / name, record->bytes, *env_);
  if (crc32c(0, as_bytes(content)) != record->crc) refuse(folder_ / name, "the file's CRC32C differs");
  return content;
}

const TensorRecord* CheckpointReader::find_record(TensorPart part, std::string_view name) const {
  const auto key = [](const TensorRecord& record) {
    return std::pair(record.part, std::string_view(record.name));
  };
  const auto record = std::ranges::lower_bound(manifest_.tensors, std::pair(part, name), {}, key);
  if (record == manifest_.tensors.end() || key(*record) != std::pair(part, name)) return nullptr;
  return &*record;
}

const TensorRecord& CheckpointReader::record(TensorPart part, std::string_view name) const {
  if (const TensorRecord* record = find_record(part, name)) return *record;
  std::vector<std::string_view> names;
  for (const auto& other : manifest_.tensors) {
    if (other.part == part) names.push_back(other.name);
  }
  std::string hint = did_you_mean(name, names);
  if (hint.empty()) hint = "was it saved by a run with another model or optimizer?";
  throw invalid(fmt::format("checkpoint '{}' lacks the {} tensor '{}'", folder_.string(),
                            part == TensorPart::kModel ? "model" : "optimizer", name),
                std::move(hint));
}

std::optional<TensorView> CheckpointReader::find(TensorPart part, std::string_view name) const {
  const TensorRecord* record = find_record(part, name);
  return record == nullptr ? std::nullopt : shards_[record->file].find(name);
}

void CheckpointReader::read(TensorPart part, std::string_view name, DType dtype,
                            std::span<const std::int64_t> shape, std::span<std::byte> out) const {
  read_runs(part, name, dtype, shape, {}, one_run(0, elements(whole(shape))), out);
}

void CheckpointReader::read_runs(TensorPart part, std::string_view name, DType dtype,
                                 std::span<const std::int64_t> shape, const AxisOrder& order,
                                 std::span<const StridedRun> runs, std::span<std::byte> out,
                                 ThreadPool* pool) const {
  const TensorRecord& found = record(part, name);
  if (found.dtype != dtype || !std::ranges::equal(found.shape, shape)) {
    throw invalid(fmt::format("tensor '{}' of checkpoint '{}' is {} {}, but {} {} is needed", name,
                              folder_.string(), safetensors_name(found.dtype), shape_text(found.shape),
                              safetensors_name(dtype), shape_text(shape)),
                  "resume with the model and precision of the saved run, or start a new run from its model "
                  "folder (load)");
  }
  const auto element = static_cast<std::size_t>(size_of(dtype));
  const bool inside = std::ranges::all_of(
      runs, [&](const StridedRun& run) { return run.begin >= 0 && run.end() <= elements(whole(shape)); });
  if (!inside || static_cast<std::size_t>(elements(runs)) * element != out.size()) {
    throw invalid(
        fmt::format("tensor '{}' of checkpoint '{}', {}, does not have the requested {} elements of {} bytes",
                    name, folder_.string(), shape_text(found.shape), elements(runs), out.size()));
  }
  const TensorView tensor = *shards_[found.file].find(name);
  if (validation_ == Validation::kStructure) {
    for (const auto& recorded : found.slices) check_slice(found, tensor, recorded);
  }
  copy_runs(order, element, tensor.data, runs, out, pool);
}

ResumePoint find_resume_point(const Path& root, Validation validation, Env& env, CheckpointGroup* group) {
  SingleRank single;
  if (group == nullptr) group = &single;
  const CheckpointRoot checkpoints(root, {}, env);
  // Rank 0 lists the checkpoints, so that all ranks try the same ones.
  const std::string there = in_step(
      *group, [] { return std::string(); },
      [&](const std::vector<std::string>&) {
        // The iterations up to `latest` come first, sorted from newest to oldest. Iterations after `latest`
        // follow, for the case that all iterations up to `latest` are damaged.
        std::vector<std::int64_t> order = checkpoints.iterations();
        std::reverse(order.begin(), order.end());
        std::string problem;
        if (const auto latest = checkpoints.latest(&problem)) {
          std::stable_partition(order.begin(), order.end(),
                                [&](std::int64_t iteration) { return iteration <= *latest; });
        }
        return nlohmann::json{order, problem}.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
      });
  const auto parsed = nlohmann::json::parse(there);
  ResumePoint result;
  if (auto problem = parsed.at(1).get<std::string>(); !problem.empty())
    result.notes.push_back(std::move(problem));
  for (const std::int64_t iteration : parsed.at(0).get<std::vector<std::int64_t>>()) {
    const Path folder = checkpoints.folder(iteration);
    try {
      auto reader = CheckpointReader::open(folder, validation, env, group);
      if (reader.iteration() != iteration) {
        refuse(folder, fmt::format("it was saved at iteration {}", reader.iteration()));
      }
      result.reader = std::move(reader);
      return result;
    } catch (const Error& error) {
      // Does not fall back to an older checkpoint if the current checkpoint may be valid, because the run
      // would later overwrite the current checkpoint.
      if (!condemns(error, *group)) throw;
      const std::string where = error.location().empty() ? "" : error.location() + ": ";
      result.rejected.push_back(fmt::format("{}: {}{}", folder.filename().string(), where, error.what()));
    }
  }
  if (result.rejected.empty()) return result;
  std::string all;
  for (const auto& line : result.rejected) all += "\n  " + line;
  if (env.status(root / "latest_checkpointed_iteration.txt")) {
    throw invalid(
        fmt::format("'{}' has checkpoints of Megatron-LM, which Primus does not read", root.string()),
        "convert the model to a Hugging Face folder with Megatron-Bridge, and load that folder; for save, "
        "choose another folder");
  }
  throw invalid(fmt::format("no checkpoint in '{}' can be used:{}", root.string(), all),
                "restore one from a copy, or move the folder away to start from the beginning");
}

}  // namespace primus
