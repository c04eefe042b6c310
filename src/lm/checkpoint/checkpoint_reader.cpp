// CheckpointReader: validating and reading a checkpoint; find_resume_point: choosing one.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/crc32c.h"
#include "base/suggest.h"
#include "lm/checkpoint/checkpoint.h"

namespace primus {
namespace {

constexpr std::string_view kTrainerState = "trainer_state.json";
constexpr std::string_view kHint =
    "the checkpoint is damaged; use an older one, and find out what happened to this disk";

[[noreturn]] void refuse(const Path& where, const std::string& what) {
  throw invalid(fmt::format("'{}': {}", where.string(), what), std::string(kHint));
}

bool is_shard(std::string_view name) { return name.ends_with(".safetensors"); }

std::uint32_t crc_of(const TensorView& tensor, const Slice& slice) {
  const auto element = static_cast<std::size_t>(size_of(tensor.dtype));
  std::uint32_t crc = 0;
  for_each_run(tensor.shape, slice, [&](std::int64_t first, std::int64_t count) {
    crc = crc32c(crc, tensor.data.subspan(static_cast<std::size_t>(first) * element,
                                          static_cast<std::size_t>(count) * element));
  });
  return crc;
}

}  // namespace

CheckpointReader CheckpointReader::open(const Path& folder, Validation validation, Env& env) {
  CheckpointReader reader;
  reader.folder_ = folder;
  reader.validation_ = validation;
  reader.env_ = &env;
  const Path manifest_path = folder / Manifest::kFileName;
  if (!env.status(manifest_path)) refuse(folder, "there is no manifest.json: not a checkpoint of Primus");
  reader.manifest_ =
      Manifest::parse(read_file(manifest_path, Manifest::kMaxBytes, env), manifest_path.string());
  for (const auto& file : reader.manifest_.files) {
    const Path path = folder / file.name;
    const auto status = env.status(path);
    if (!status) refuse(path, "the file is missing");
    if (status->size != file.bytes) {
      refuse(path, fmt::format("the file has {} bytes, and was written with {}", status->size, file.bytes));
    }
    if (is_shard(file.name)) {
      reader.shards_.push_back(SafetensorsFile::open(path, env));
      if (crc32c(0, reader.shards_.back().header()) != file.crc) {
        refuse(path, "the CRC32C of its header differs from the manifest's");
      }
    } else {
      const std::string content = reader.file(file.name);  // checks it
      if (file.name == kTrainerState) reader.trainer_state_ = content;
      reader.shards_.emplace_back();
    }
  }
  reader.check_tensors();
  return reader;
}

// Manifest and shards hold the same tensors.
void CheckpointReader::check_tensors() const {
  std::vector<std::size_t> recorded(shards_.size());
  for (const auto& record : manifest_.tensors) {
    const SafetensorsFile& shard = shards_[record.file];
    const auto tensor = shard.find(record.name);
    if (!tensor || tensor->dtype != record.dtype || !std::ranges::equal(tensor->shape, record.shape)) {
      refuse(folder_ / manifest_.files[record.file].name,
             fmt::format("tensor '{}' is not there as the manifest has it", record.name));
    }
    ++recorded[record.file];
    if (validation_ == Validation::kFull) {
      for (const auto& slice : record.slices) check_slice(record, *tensor, slice);
    }
  }
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    if (recorded[i] != shards_[i].size()) {
      refuse(folder_ / manifest_.files[i].name, "it holds a tensor that the manifest does not list");
    }
  }
}

void CheckpointReader::check_slice(const TensorRecord& record, const TensorView& tensor,
                                   const SliceRecord& slice) const {
  if (crc_of(tensor, slice.slice) != slice.crc) {
    refuse(folder_ / manifest_.files[record.file].name,
           fmt::format("the bytes of tensor '{}' differ from their CRC32C", record.name));
  }
}

std::string CheckpointReader::file(std::string_view name) const {
  const auto record = std::ranges::lower_bound(manifest_.files, name, {}, &FileRecord::name);
  if (record == manifest_.files.end() || record->name != name || is_shard(name)) {
    throw invalid(fmt::format("checkpoint '{}' has no file '{}'", folder_.string(), name),
                  "it was saved without, or by another version");
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
  throw invalid(fmt::format("checkpoint '{}' has no {} tensor '{}'", folder_.string(),
                            part == TensorPart::kModel ? "model" : "optimizer", name),
                std::move(hint));
}

std::optional<TensorView> CheckpointReader::find(TensorPart part, std::string_view name) const {
  const TensorRecord* record = find_record(part, name);
  return record == nullptr ? std::nullopt : shards_[record->file].find(name);
}

void CheckpointReader::read(TensorPart part, std::string_view name, DType dtype,
                            std::span<const std::int64_t> shape, std::span<std::byte> out) const {
  const TensorRecord& found = record(part, name);
  if (found.dtype != dtype || !std::ranges::equal(found.shape, shape)) {
    throw invalid(
        fmt::format("tensor '{}' of checkpoint '{}' is {} {}, where {} {} is needed", name, folder_.string(),
                    safetensors_name(found.dtype), shape_text(found.shape), safetensors_name(dtype),
                    shape_text(shape)),
        "resume with the model and precision it was saved with, or start from its model folder (load)");
  }
  read_slice(part, name, whole(shape), out);
}

void CheckpointReader::read_slice(TensorPart part, std::string_view name, const Slice& slice,
                                  std::span<std::byte> out) const {
  const TensorRecord& found = record(part, name);
  const auto element = static_cast<std::size_t>(size_of(found.dtype));
  if (!is_inside(slice, found.shape) || static_cast<std::size_t>(elements(slice)) * element != out.size()) {
    throw invalid(fmt::format("tensor '{}' of checkpoint '{}', {}, has no slice {} at {} of {} bytes", name,
                              folder_.string(), shape_text(found.shape), shape_text(slice.extent),
                              shape_text(slice.offset), out.size()));
  }
  const TensorView tensor = *shards_[found.file].find(name);
  if (validation_ == Validation::kStructure) {
    for (const auto& recorded : found.slices) {
      if (!are_disjoint(recorded.slice, slice)) check_slice(found, tensor, recorded);
    }
  }
  std::size_t at = 0;
  for_each_run(found.shape, slice, [&](std::int64_t first, std::int64_t count) {
    const std::size_t size = static_cast<std::size_t>(count) * element;
    std::memcpy(out.data() + at, tensor.data.data() + static_cast<std::size_t>(first) * element, size);
    at += size;
  });
}

ResumePoint find_resume_point(const Path& root, Validation validation, Env& env) {
  const CheckpointRoot checkpoints(root, {}, env);
  // From latest downwards; then, since something is better than nothing, those beyond it from the top.
  std::vector<std::int64_t> order = checkpoints.iterations();
  std::reverse(order.begin(), order.end());
  ResumePoint result;
  std::string problem;
  if (const auto latest = checkpoints.latest(&problem)) {
    std::stable_partition(order.begin(), order.end(),
                          [&](std::int64_t iteration) { return iteration <= *latest; });
  }
  if (!problem.empty()) result.notes.push_back(std::move(problem));
  for (const std::int64_t iteration : order) {
    const Path folder = checkpoints.folder(iteration);
    try {
      auto reader = CheckpointReader::open(folder, validation, env);
      if (reader.iteration() != iteration) {
        refuse(folder, fmt::format("it was saved as iteration {}", reader.iteration()));
      }
      result.reader = std::move(reader);
      return result;
    } catch (const Error& error) {
      // What this process may not or cannot read now (permission, too many open files) says nothing about the
      // checkpoint: no reason to go back behind it, and to write over it later.
      const auto* refused = dynamic_cast<const FileError*>(&error);
      if (refused && refused->code() != EIO && !refused->no_such_file()) throw;
      const std::string where = error.location().empty() ? "" : error.location() + ": ";
      result.rejected.push_back(fmt::format("{}: {}{}", folder.filename().string(), where, error.what()));
    }
  }
  if (result.rejected.empty()) return result;
  std::string all;
  for (const auto& line : result.rejected) all += "\n  " + line;
  throw invalid(fmt::format("no checkpoint in '{}' can be used:{}", root.string(), all),
                "restore one from a copy, or move the folder away to start from the beginning");
}

}  // namespace primus
