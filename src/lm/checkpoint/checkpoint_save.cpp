#include "lm/checkpoint/checkpoint_save.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/files/crc32c.h"
#include "base/files/sha256.h"

namespace primus {
namespace {

using nlohmann::json;

// The range of a tensor that one rank holds, and its checksum with zeros in place of the data of other ranks.
struct HeldPart {
  HeldRuns runs;
  std::uint32_t crc = 0;
};

[[noreturn]] void refuse_cover(const TensorSource& source, std::int64_t covered, std::int64_t next) {
  throw invalid(next > covered ? fmt::format("no rank writes the elements [{}, {}) of tensor '{}'", covered,
                                             next, source.name)
                               : fmt::format("two ranks write element {} of tensor '{}'", next, source.name),
                "the ranks' shards do not fit together: please report this bug");
}

// Returns the checksum of a tensor from the parts of all ranks, which contain each element exactly once.
std::uint32_t merged(const TensorSource& source, const std::vector<HeldPart>& parts) {
  const std::uint64_t bytes = source.bytes();
  std::uint32_t crc = crc32c_zeros(0, bytes);
  std::vector<ElementRun> runs;
  for (const HeldPart& part : parts) {
    for_each_run(part.runs, [&](ElementRun run, std::int64_t) { runs.push_back(run); });
    crc = crc32c_merge(crc, part.crc, bytes);
  }
  std::ranges::sort(runs, {}, &ElementRun::begin);
  std::int64_t covered = 0;
  for (const ElementRun& run : runs) {
    if (run.begin != covered) refuse_cover(source, covered, run.begin);
    covered = run.end;
  }
  const auto elements = static_cast<std::int64_t>(bytes / static_cast<std::uint64_t>(size_of(source.dtype)));
  if (covered != elements) refuse_cover(source, covered, elements);
  return crc;
}

}  // namespace

CheckpointSave::CheckpointSave(const Snapshot& snapshot, std::uint64_t max_shard_bytes, int rank, Path folder,
                               Env& env)
    : snapshot_(snapshot),
      rank_(rank),
      folder_(std::move(folder)),
      env_(env),
      model_(plan_safetensors(snapshot.model, {.stem = "model", .max_shard_bytes = max_shard_bytes})),
      optimizer_(
          plan_safetensors(snapshot.optimizer, {.stem = "optimizer", .max_shard_bytes = max_shard_bytes})) {
  manifest_.iteration = snapshot.iteration;
  add_text(kTrainerStateFile, snapshot.trainer_state);
  for (const auto& file : snapshot.files) add_text(file.name, file.content);
  for (const auto* layout : {&model_, &optimizer_}) {
    if (!layout->index_file.empty()) add_text(layout->index_file, layout->index);
    for (const auto& shard : layout->shards) {
      manifest_.files.push_back({shard.file, shard.bytes, crc32c(0, as_bytes(shard.header))});
    }
  }
  std::ranges::sort(manifest_.files, {}, &FileRecord::name);
  add_tensors(TensorPart::kModel, snapshot.model, model_);
  add_tensors(TensorPart::kOptimizer, snapshot.optimizer, optimizer_);
  for (const auto& file : manifest_.files) bytes_ += file.bytes;
  // The checksums are not known yet, but have a fixed width, so this size is final.
  const std::uint64_t manifest_bytes = manifest_.to_json().size();
  if (manifest_bytes > Manifest::kMaxBytes)
    throw invalid("the checkpoint has too many tensors for its manifest");
  bytes_ += manifest_bytes;
}

void CheckpointSave::add_text(std::string_view name, std::string_view content) {
  manifest_.files.push_back({std::string(name), content.size(), crc32c(0, as_bytes(content))});
}

void CheckpointSave::add_tensors(TensorPart part, const std::vector<TensorSource>& sources,
                                 const SafetensorsLayout& layout) {
  const auto first = static_cast<std::ptrdiff_t>(manifest_.tensors.size());
  for (const auto& shard : layout.shards) {
    const auto file = static_cast<std::uint32_t>(index_of(shard.file));
    for (const auto& tensor : shard.tensors) {
      const TensorSource& source = sources[tensor.source];
      manifest_.tensors.push_back({.name = source.name,
                                   .part = part,
                                   .dtype = source.dtype,
                                   .shape = source.shape,
                                   .file = file,
                                   .slices = {{.slice = whole(source.shape), .crc = 0}}});
    }
  }
  const auto sorted = std::ranges::subrange(manifest_.tensors.begin() + first, manifest_.tensors.end());
  std::ranges::sort(sorted, {}, &TensorRecord::name);
  for (const auto& shard : layout.shards) {
    for (const auto& tensor : shard.tensors) {
      const TensorSource& source = sources[tensor.source];
      const auto record = std::ranges::lower_bound(sorted, source.name, {}, &TensorRecord::name);
      tensors_.push_back({.source = &source,
                          .file = shard.file,
                          .file_offset = tensor.file_offset,
                          .record = static_cast<std::size_t>(record - manifest_.tensors.begin())});
    }
  }
}

std::size_t CheckpointSave::index_of(std::string_view file) const {
  return static_cast<std::size_t>(std::ranges::lower_bound(manifest_.files, file, {}, &FileRecord::name) -
                                  manifest_.files.begin());
}

std::string CheckpointSave::fingerprint() const {
  std::string text = std::to_string(manifest_.iteration);
  for (const auto* layout : {&model_, &optimizer_}) {
    for (const auto& shard : layout->shards) text += shard.file + shard.header;
  }
  return hex(as_text(sha256(text)));
}

void CheckpointSave::write_text(std::string_view name, std::string_view content) {
  write_file(folder_ / name, content, env_);
}

void CheckpointSave::create() {
  env_.make_folder(folder_);
  create_shards(folder_, model_, env_);
  create_shards(folder_, optimizer_, env_);
}

// Returns {"held": [[tensor, checksum, begin, length, count, stride, begin, ...], ...],
//          "handed": [[tensor, begin, end, offset], ...]}
std::string CheckpointSave::write() {
  if (rank_ == 0) {
    for (const auto& file : snapshot_.files) write_text(file.name, file.content);
    write_text(kTrainerStateFile, snapshot_.trainer_state);
  }
  json held = json::array();
  std::size_t tensor = 0;
  for (const auto& [layout, sources] :
       {std::pair(&model_, &snapshot_.model), {&optimizer_, &snapshot_.optimizer}}) {
    for (const WrittenShard& shard : write_held(folder_, *sources, *layout, rank_ == 0, env_)) {
      written_.all += shard.bytes.all;
      written_.direct += shard.bytes.direct;
      for (const SharedSlab& slab : shard.shared) hand_over(tensor + slab.tensor, slab.part);
      for (const std::uint32_t crc : shard.tensors) {
        const HeldRuns runs = tensors_[tensor].source->held();
        json line{tensor++, crc};
        for (const StridedRun& run : runs) {
          for (const std::int64_t number : {run.begin, run.length, run.count, run.stride})
            line.push_back(number);
        }
        if (!runs.empty()) held.push_back(std::move(line));
      }
    }
  }
  if (handover_) handover_->close();
  json handed = json::array();
  for (const Handed& part : handed_)
    handed.push_back({part.tensor, part.run.begin, part.run.end, part.offset});
  return json{{"held", std::move(held)}, {"handed", std::move(handed)}}.dump();
}

Path CheckpointSave::handover_file(int rank) const { return folder_ / fmt::format(".handover-{:05}", rank); }

// If the element order in the file differs from memory, one rank writes the complete slab: the rank that
// holds the slab's first element in memory. Other ranks hand over their elements, because the elements of two
// ranks may alternate in the file.
void CheckpointSave::hand_over(std::size_t tensor, const HeldRun& part) {
  const TensorSource& source = *tensors_[tensor].source;
  const ElementRun& run = part.run;
  if (run.begin % source.order.slab_elements() == 0) {
    owned_.push_back({tensor, part});
    return;
  }
  if (!handover_) handover_ = env_.open(handover_file(rank_), OpenMode::kWrite);
  const auto element = static_cast<std::uint64_t>(size_of(source.dtype));
  std::vector<std::byte> buffer;
  const auto bytes = source.read(static_cast<std::uint64_t>(part.before) * element,
                                 static_cast<std::uint64_t>(run.size()) * element, buffer);
  handover_->append(bytes);
  handed_.push_back({tensor, run, rank_, handover_bytes_});
  handover_bytes_ += bytes.size();
}

std::string CheckpointSave::collect(const std::vector<std::string>& written) {
  std::vector<std::vector<HeldPart>> parts(tensors_.size());
  json handed = json::array();
  for (std::size_t rank = 0; rank < written.size(); ++rank) {
    const json of_rank = json::parse(written[rank]);
    for (const json& line : of_rank.at("held")) {
      HeldPart& part = parts.at(line.at(0)).emplace_back(HeldPart{.runs = {}, .crc = line.at(1)});
      for (std::size_t i = 2; i < line.size(); i += 4)
        part.runs.push_back({line.at(i), line.at(i + 1), line.at(i + 2), line.at(i + 3)});
    }
    for (const json& line : of_rank.at("handed")) {
      handed.push_back({line.at(0), line.at(1), line.at(2), rank, line.at(3)});
    }
    if (!of_rank.at("handed").empty()) handing_ranks_.push_back(static_cast<int>(rank));
  }
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    manifest_.tensors[tensors_[i].record].slices[0].crc = merged(*tensors_[i].source, parts[i]);
  }
  return handed.empty() ? std::string() : handed.dump();
}

void CheckpointSave::assemble(const std::string& collected) {
  if (owned_.empty()) return;
  std::map<std::size_t, std::vector<Handed>> of_tensor;
  for (const json& line : json::parse(collected)) {
    const Handed part{line.at(0), {line.at(1), line.at(2)}, line.at(3), line.at(4)};
    of_tensor[part.tensor].push_back(part);
  }
  std::map<std::string, std::unique_ptr<File>> files;
  std::vector<std::byte> in_file;
  for (const Owned& owned : owned_) {
    const Placed& tensor = tensors_[owned.tensor];
    const ElementRun& run = owned.part.run;
    const std::vector<std::byte> slab = slab_of(tensor, owned.part, of_tensor[owned.tensor]);
    const auto element = static_cast<std::uint64_t>(size_of(tensor.source->dtype));
    in_file.resize(slab.size());
    to_file_order(tensor.source->order, element, slab, in_file);
    std::unique_ptr<File>& file = files[tensor.file];
    if (!file) file = env_.open(folder_ / tensor.file, OpenMode::kUpdate);
    file->write_at(in_file, tensor.file_offset + static_cast<std::uint64_t>(run.begin) * element);
  }
  for (auto& [name, file] : files) {
    file->sync();
    file->close();
  }
}

// Returns a slab in memory order, assembled from the parts of this rank and others.
std::vector<std::byte> CheckpointSave::slab_of(const Placed& tensor, const HeldRun& own,
                                               const std::vector<Handed>& handed) const {
  const TensorSource& source = *tensor.source;
  const auto element = static_cast<std::uint64_t>(size_of(source.dtype));
  const auto bytes_of = [&](std::int64_t elements) { return static_cast<std::uint64_t>(elements) * element; };
  const std::int64_t size = source.order.slab_elements();
  std::vector<std::byte> slab(bytes_of(size)), buffer;
  const auto held = source.read(bytes_of(own.before), bytes_of(own.run.size()), buffer);
  std::ranges::copy(held, slab.begin());
  for (const Handed& part : handed) {
    if (part.run.begin < own.run.begin || part.run.begin >= own.run.begin + size) continue;
    const auto out =
        std::span(slab).subspan(bytes_of(part.run.begin - own.run.begin), bytes_of(part.run.size()));
    const Path path = handover_file(part.rank);
    const auto file = env_.open(path, OpenMode::kRead);
    if (file->read_at(out, part.offset) != out.size()) {
      throw Error(ErrorKind::kIo,
                  fmt::format("'{}' is shorter than what rank {} wrote", path.string(), part.rank),
                  "hosts do not see each other's writes on this file system: save to a shared file system");
    }
  }
  return slab;
}

void CheckpointSave::finish() {
  for (const int rank : handing_ranks_) env_.remove_file(handover_file(rank));
  write_text(Manifest::kFileName, manifest_.to_json());
  env_.sync_folder(folder_);
}

}  // namespace primus
