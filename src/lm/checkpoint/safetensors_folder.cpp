// SafetensorsFolder: one file, or the shards of model.safetensors.index.json.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/suggest.h"
#include "lm/checkpoint/json_cursor.h"
#include "lm/checkpoint/safetensors.h"

namespace primus {
namespace {

constexpr std::string_view kSingle = "model.safetensors";
constexpr std::string_view kIndex = "model.safetensors.index.json";
constexpr std::size_t kMaxShards = 99999;  // "-00001-of-99999"

// weight_map, compactly: a hostile index must not cost a multiple of its size.
struct ShardIndex {
  struct Line {
    std::uint32_t name_at, name_size, shard;
  };
  std::string names;
  std::vector<Line> lines;  // sorted by name
  std::vector<std::string> shards;
  std::optional<std::uint64_t> total_size;

  std::string_view name(const Line& line) const {
    return std::string_view(names).substr(line.name_at, line.name_size);
  }
};

ShardIndex parse_index(const std::string& text, const std::string& where) {
  const auto refuse = [&](const std::string& what) -> void {
    throw invalid(fmt::format("'{}': {}", where, what),
                  "the index is corrupt or hostile; get the model again");
  };
  ShardIndex index;
  std::map<std::string, std::uint32_t, std::less<>> shard_numbers;
  bool has_map = false, has_metadata = false;
  JsonCursor json(text, where);
  const auto weight_map = [&] {
    if (std::exchange(has_map, true)) refuse("weight_map is given twice");
    json.object([&](std::string_view tensor) {
      const ShardIndex::Line line{.name_at = static_cast<std::uint32_t>(index.names.size()),
                                  .name_size = static_cast<std::uint32_t>(tensor.size()),
                                  .shard = 0};
      index.names += tensor;
      const std::string shard = json.string();
      if (!is_plain_name(shard) || !shard.ends_with(".safetensors")) {
        refuse(fmt::format(
            "tensor '{}' is said to be in '{}', which is not the plain name of a .safetensors file",
            printable(index.name(line)), printable(shard)));
      }
      const auto [place, fresh] =
          shard_numbers.try_emplace(shard, static_cast<std::uint32_t>(shard_numbers.size()));
      if (fresh && index.shards.size() == kMaxShards) refuse(fmt::format("more than {} shards", kMaxShards));
      if (fresh) index.shards.push_back(shard);
      index.lines.push_back(line);
      index.lines.back().shard = place->second;
    });
  };
  json.object([&](std::string_view key) {
    if (key == "weight_map") {
      weight_map();
    } else if (key == "metadata" && json.peek() == '{') {
      if (std::exchange(has_metadata, true)) refuse("metadata is given twice");
      json.object([&](std::string_view entry) {
        if (entry == "total_size") {
          index.total_size = json.unsigned_number();
        } else {
          json.skip();
        }
      });
    } else {
      json.skip();
    }
  });
  json.end();
  if (!has_map) refuse("it has no weight_map");
  const auto by_name = [&](const ShardIndex::Line& line) { return index.name(line); };
  std::ranges::sort(index.lines, {}, by_name);
  const auto twice = std::ranges::adjacent_find(index.lines, {}, by_name);
  if (twice != index.lines.end())
    refuse(fmt::format("tensor '{}' is listed twice", printable(by_name(*twice))));
  return index;
}

// Why there is no model in this folder, as helpfully as its content allows.
[[noreturn]] void refuse_folder(const Path& folder, Env& env) {
  std::string other, pickle;
  for (const auto& name : env.list(folder)) {
    if (name.ends_with(".safetensors")) other = name;
    if (name.ends_with(".bin") || name.ends_with(".pt") || name.ends_with(".pth")) pickle = name;
  }
  const std::string what =
      fmt::format("there is no model in '{}': neither {} nor {}", folder.string(), kSingle, kIndex);
  if (!other.empty()) {
    throw invalid(what,
                  fmt::format("'{}' is there: a shard without its index? Get the missing files, or rename a "
                              "whole model to {}",
                              other, kSingle));
  }
  if (!pickle.empty()) {
    throw invalid(what,
                  fmt::format("'{}' is a pickle, which can run any program when loaded; convert it where you "
                              "trust it (transformers: save_pretrained(..., safe_serialization=True))",
                              pickle));
  }
  throw invalid(what, "give the folder that transformers' save_pretrained wrote");
}

}  // namespace

SafetensorsFolder SafetensorsFolder::open(const Path& folder, Env& env) {
  SafetensorsFolder result;
  result.folder_ = folder;
  if (env.status(folder / kSingle)) {
    result.files_.push_back(SafetensorsFile::open(folder / kSingle, env));
    const SafetensorsFile& file = result.files_.front();
    for (std::uint32_t i = 0; i < file.size(); ++i) result.tensors_.push_back({0, i});
    std::ranges::sort(result.tensors_, {}, [&](const Place& place) { return file[place.index].name; });
    return result;
  }
  if (!env.status(folder / kIndex)) refuse_folder(folder, env);

  const std::string where = (folder / kIndex).string();
  const ShardIndex index =
      parse_index(read_file(folder / kIndex, SafetensorsFile::kMaxHeaderBytes, env), where);
  constexpr std::string_view kMixed =
      "files of different models are mixed, or some are missing; get the model again";
  for (const auto& shard : index.shards) {
    if (!env.status(folder / shard)) {
      throw invalid(fmt::format("shard '{}' is missing, which '{}' lists", (folder / shard).string(), where),
                    "perhaps an incomplete download; get it again");
    }
    result.files_.push_back(SafetensorsFile::open(folder / shard, env));
  }
  // Each shard's tensors are exactly those that the index puts there.
  std::vector<std::size_t> listed(index.shards.size());
  std::uint64_t bytes = 0;
  for (const auto& line : index.lines) {
    const auto place = result.files_[line.shard].index_of(index.name(line));
    if (!place) {
      throw invalid(fmt::format("tensor '{}' is not in '{}', where '{}' says it is", index.name(line),
                                index.shards[line.shard], where),
                    std::string(kMixed));
    }
    result.tensors_.push_back({line.shard, *place});
    ++listed[line.shard];
    bytes += result.files_[line.shard][*place].data.size();
  }
  for (std::size_t shard = 0; shard < listed.size(); ++shard) {
    const SafetensorsFile& file = result.files_[shard];
    if (listed[shard] == file.size()) continue;
    for (std::size_t i = 0; i < file.size(); ++i) {
      const std::string_view name = file[i].name;
      const auto by_name = [&](const ShardIndex::Line& line) { return index.name(line); };
      const auto line = std::ranges::lower_bound(index.lines, name, {}, by_name);
      if (line != index.lines.end() && by_name(*line) == name && line->shard == shard) continue;
      throw invalid(fmt::format("'{}' holds tensor '{}', which '{}' does not list there", file.name(),
                                printable(name), where),
                    std::string(kMixed));
    }
  }
  if (index.total_size && *index.total_size != bytes) {
    result.warnings_.push_back(fmt::format("'{}' says that the tensors have {} bytes together; they have {}",
                                           where, *index.total_size, bytes));
  }
  return result;
}

std::optional<TensorView> SafetensorsFolder::find(std::string_view name) const {
  const auto name_of = [&](const Place& place) { return files_[place.file][place.index].name; };
  const auto place = std::ranges::lower_bound(tensors_, name, {}, name_of);
  if (place == tensors_.end() || name_of(*place) != name) return std::nullopt;
  return files_[place->file][place->index];
}

TensorView SafetensorsFolder::at(std::string_view name) const {
  if (const auto tensor = find(name)) return *tensor;
  std::vector<std::string_view> names;
  for (std::size_t i = 0; i < size(); ++i) names.push_back((*this)[i].name);
  std::string hint = did_you_mean(name, names);
  if (hint.empty()) hint = "is this the model that config.json describes?";
  throw invalid(fmt::format("tensor '{}' is missing in '{}'", name, folder_.string()), std::move(hint));
}

TensorView SafetensorsFolder::at(std::string_view name, std::span<const std::int64_t> shape) const {
  const TensorView tensor = at(name);
  if (!std::ranges::equal(tensor.shape, shape)) {
    throw invalid(fmt::format("tensor '{}' in '{}' has shape {}, where the model needs {}", name,
                              folder_.string(), shape_text(tensor.shape), shape_text(shape)),
                  "config.json and the weights belong to different models");
  }
  return tensor;
}

}  // namespace primus
