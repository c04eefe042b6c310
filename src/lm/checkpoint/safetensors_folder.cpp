// SafetensorsFolder: a single file, or the shards of model.safetensors.index.json.
#include <fmt/format.h>

#include <algorithm>

#include "base/text/excerpt.h"
#include "base/text/suggest.h"
#include "lm/checkpoint/safetensors.h"
#include "lm/checkpoint/shard_index.h"

namespace primus {
namespace {

constexpr std::string_view kSingle = "model.safetensors";
constexpr std::string_view kIndex = "model.safetensors.index.json";

// The model files in a folder. If a folder has several files of one kind, the member names the last one. A
// member is empty if no such file exists. Folders also contain tensor files that are not weights:
// training_args.bin, optimizer.pt, test data.
struct WeightFiles {
  std::string index, safetensors, pickle;
};
WeightFiles find_weight_files(const Path& folder, Env& env) {
  WeightFiles found;
  for (const auto& name : env.list(folder)) {
    const auto is = [&](std::string_view begin, std::string_view end) {
      return name.starts_with(begin) && name.ends_with(end);
    };
    if (name.ends_with(".index.json")) found.index = name;
    if (is("model", ".safetensors")) found.safetensors = name;
    if (is("pytorch_model", ".bin") || is("consolidated", ".pth")) found.pickle = name;
  }
  return found;
}

// Throws an error that explains, from the folder's content, why the folder contains no model.
[[noreturn]] void refuse_folder(const Path& folder, Env& env) {
  const WeightFiles found = find_weight_files(folder, env);
  for (const std::string& name : {found.index, found.safetensors}) {
    if (name.empty() || env.status(folder / name)) continue;
    throw invalid(fmt::format("'{}' is a link to a missing file", (folder / name).string()),
                  "get the file that it points to (if it is in a download cache, complete the download)");
  }
  const std::string what =
      fmt::format("'{}' contains no model: neither {} nor {} exists", folder.string(), kSingle, kIndex);
  if (!found.safetensors.empty()) {
    throw invalid(what, fmt::format("'{}' exists; it may be a shard whose index is missing. Get the missing "
                                    "files, or rename a complete model to {}",
                                    found.safetensors, kSingle));
  }
  if (!found.pickle.empty()) {
    throw invalid(
        what, fmt::format("'{}' is a pickle, which can run any code when loaded; convert it on a machine "
                          "where you trust it (transformers: save_pretrained(..., safe_serialization=True))",
                          found.pickle));
  }
  throw invalid(what, "give the folder that transformers' save_pretrained wrote");
}

// Returns the last component of a name, such as "bias" for "model.layers.0.self_attn.q_proj.bias".
std::string_view last_word(std::string_view name) { return name.substr(name.rfind('.') + 1); }

std::string without_digits(std::string_view name) {
  std::string rest(name);
  std::erase_if(rest, [](char c) { return c >= '0' && c <= '9'; });
  return rest;
}

// Returns a warning if a folder with model.safetensors also has an index that lists other files. As in
// transformers, the single file takes precedence, and the index is not read.
std::optional<std::string> warning_on_index(const Path& folder, Env& env) {
  const Path file = folder / kIndex;
  if (!env.status(file)) return std::nullopt;
  std::string content;
  try {
    const ShardIndex index =
        ShardIndex::parse(read_file(file, SafetensorsFile::kMaxHeaderBytes, env), file.string());
    const auto other = std::ranges::find_if(index.shards, [](const auto& name) { return name != kSingle; });
    if (other == index.shards.end()) return std::nullopt;
    content = fmt::format("which lists '{}'{}", *other, index.shards.size() > 1 ? " and other files" : "");
  } catch (const Error&) {
    content = "which is damaged";
  }
  return fmt::format(
      "'{}' is loaded; {}, {}, is not read, as in transformers: delete the one that does not belong to this "
      "model",
      (folder / kSingle).string(), kIndex, content);
}

// Returns a warning if a folder also contains PEFT adapters, which transformers would add to the weights.
std::optional<std::string> warning_on_adapters(const Path& folder, Env& env) {
  for (const char* name : {"adapter_model.safetensors", "adapter_model.bin"}) {
    if (!env.status(folder / name)) continue;
    return fmt::format(
        "'{}' is ignored: Primus does not read adapters of PEFT that are next to a model. To include them, "
        "move "
        "them and adapter_config.json to their own folder, and give that folder",
        (folder / name).string());
  }
  constexpr const char* kSettings = "adapter_config.json";
  if (!env.status(folder / kSettings)) return std::nullopt;
  return fmt::format(
      "'{}' is ignored, and its adapters (adapter_model.safetensors) are missing. If the model should "
      "include "
      "them, download them and merge them into the weights first (PEFT: merge_and_unload)",
      (folder / kSettings).string());
}

}  // namespace

bool has_weights(const Path& folder, Env& env) {
  const WeightFiles found = find_weight_files(folder, env);
  return !found.index.empty() || !found.safetensors.empty() || !found.pickle.empty();
}

SafetensorsFolder SafetensorsFolder::open(const Path& folder, Env& env) {
  SafetensorsFolder result;
  result.folder_ = folder;
  if (auto warning = warning_on_adapters(folder, env)) result.warnings_.push_back(std::move(*warning));
  if (env.status(folder / kSingle)) {
    result.files_.push_back(SafetensorsFile::open(folder / kSingle, env));
    const SafetensorsFile& file = result.files_.front();
    for (std::uint32_t i = 0; i < file.size(); ++i) result.tensors_.push_back({0, i});
    std::ranges::sort(result.tensors_, {}, [&](const Place& place) { return file[place.index].name; });
    if (auto warning = warning_on_index(folder, env)) result.warnings_.push_back(std::move(*warning));
    return result;
  }
  if (!env.status(folder / kIndex)) refuse_folder(folder, env);

  const std::string where = (folder / kIndex).string();
  const ShardIndex index =
      ShardIndex::parse(read_file(folder / kIndex, SafetensorsFile::kMaxHeaderBytes, env), where);
  constexpr std::string_view kMixed = "files are missing, or belong to different models; get the model again";
  for (const auto& shard : index.shards) {
    if (!env.status(folder / shard)) {
      throw invalid(fmt::format("shard '{}' is missing, which '{}' lists", (folder / shard).string(), where),
                    "perhaps an incomplete download; get it again");
    }
    result.files_.push_back(SafetensorsFile::open(folder / shard, env));
  }
  // Each shard must contain exactly the tensors that the index lists for this shard.
  std::vector<std::size_t> listed(index.shards.size());
  std::uint64_t bytes = 0;
  for (const auto& line : index.lines) {
    const auto place = result.files_[line.shard].index_of(index.name(line));
    if (!place) {
      throw invalid(fmt::format("tensor '{}' is missing in '{}', although '{}' lists it there",
                                index.name(line), index.shards[line.shard], where),
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
                                excerpt(name), where),
                    std::string(kMixed));
    }
  }
  if (index.total_size && *index.total_size != bytes) {
    result.warnings_.push_back(fmt::format("'{}' lists a total of {} bytes for the tensors, but they have {}",
                                           where, *index.total_size, bytes));
  }
  return result;
}

SafetensorsFolder SafetensorsFolder::open_adapted(const Path& folder, const Path& adapters, Env& env) {
  constexpr std::string_view kPrefix = "base_model.model.", kBaseLayer = ".base_layer.";
  SafetensorsFolder result = open(folder, env);
  const Path path = adapters / "adapter_model.safetensors";
  if (!env.status(path)) {
    throw invalid(
        fmt::format("'{}' is missing", path.string()),
        env.status(adapters / "adapter_model.bin")
            ? "adapter_model.bin is a pickle, which can run any code when loaded; load it with PEFT on "
              "a machine where you trust it, and save it with save_pretrained"
            : "get the PEFT folder again");
  }
  SafetensorsFile own = SafetensorsFile::open(path, env).renamed([&](std::string_view name) {
    if (!name.starts_with(kPrefix)) {
      throw invalid(
          fmt::format("tensor '{}' does not begin with '{}', as tensors of PEFT do", excerpt(name), kPrefix))
          .at(path.string());
    }
    std::string within(name.substr(kPrefix.size()));
    // If an embedding has adapters, PEFT also saves the embedding, with ".base_layer" in its name.
    if (const std::size_t at = within.find(kBaseLayer); at != std::string::npos)
      within.replace(at, kBaseLayer.size(), ".");
    return within;
  });
  std::erase_if(result.tensors_, [&](const Place& place) {
    return own.index_of(result.files_[place.file][place.index].name).has_value();
  });
  const auto file = static_cast<std::uint32_t>(result.files_.size());
  for (std::uint32_t i = 0; i < own.size(); ++i) result.tensors_.push_back({file, i});
  result.files_.push_back(std::move(own));
  std::ranges::sort(result.tensors_, {},
                    [&](const Place& place) { return result.files_[place.file][place.index].name; });
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
  // A name that differs only in digits (layer, expert) is shown as an example, not as a spelling suggestion.
  const std::string part = without_digits(name);
  std::vector<std::string_view> names;
  std::string hint;
  for (std::size_t i = 0; i < size(); ++i) {
    const std::string_view other = (*this)[i].name;
    if (without_digits(other) != part) {
      // Suggests only names with the same last word, because "weight" is not a misspelling of "bias".
      if (last_word(other) == last_word(name)) names.push_back(other);
    } else if (hint.empty()) {
      hint = fmt::format(
          "similar tensors exist, e.g. '{}': check that the model is complete and that config.json belongs "
          "to it",
          excerpt(other));
    }
  }
  if (hint.empty()) hint = did_you_mean(name, names);
  if (hint.empty()) hint = "check that config.json belongs to these weights";
  throw invalid(fmt::format("tensor '{}' is missing in '{}'", name, folder_.string()), std::move(hint));
}

TensorView SafetensorsFolder::at(std::string_view name, std::span<const std::int64_t> shape) const {
  const TensorView tensor = at(name);
  if (!std::ranges::equal(tensor.shape, shape)) {
    throw invalid(fmt::format("tensor '{}' in '{}' has shape {}, but the model needs {}", name,
                              folder_.string(), shape_text(tensor.shape), shape_text(shape)),
                  "config.json and the weights belong to different models");
  }
  return tensor;
}

}  // namespace primus
