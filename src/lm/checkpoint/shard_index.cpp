#include "lm/checkpoint/shard_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/files/file.h"
#include "base/text/excerpt.h"
#include "base/text/json_reader.h"

namespace primus {
namespace {

// Ignores an invalid value, because the value is used only for warnings.
std::optional<std::uint64_t> read_total_size(JsonReader& json) {
  if (json.peek() != JsonReader::Kind::kNumber) {
    json.skip();
    return std::nullopt;
  }
  constexpr double kExact = 9007199254740992.0;  // doubles represent every integer below this number exactly
  const std::string_view text = json.skip();
  std::uint64_t whole = 0;
  const char* const end = text.data() + text.size();
  if (std::from_chars(text.data(), end, whole).ptr == end) return whole;
  double number = -1;
  std::from_chars(text.data(), end, number);
  if (number < 0 || number > kExact || number != std::floor(number)) return std::nullopt;
  return static_cast<std::uint64_t>(number);
}

}  // namespace

ShardIndex ShardIndex::parse(std::string_view text, const std::string& where) {
  constexpr std::string_view kHint = "the index is corrupt or hostile; get the model again";
  const auto refuse = [&](const std::string& what) -> void {
    throw invalid(fmt::format("'{}': {}", where, what), std::string(kHint));
  };
  ShardIndex index;
  std::map<std::string, std::uint32_t, std::less<>> shard_numbers;
  bool has_map = false, has_metadata = false;
  JsonReader json(text, where, {.hint = kHint});
  const auto weight_map = [&] {
    if (std::exchange(has_map, true)) refuse("weight_map is given twice");
    json.object([&](std::string_view tensor) {
      const ShardIndex::Line line{.name_at = static_cast<std::uint32_t>(index.names.size()),
                                  .name_size = static_cast<std::uint32_t>(tensor.size()),
                                  .shard = 0};
      index.names += tensor;
      const std::string shard = json.read_string();
      if (!is_plain_name(shard) || !shard.ends_with(".safetensors")) {
        refuse(
            fmt::format("tensor '{}' is listed in '{}', which is not the plain name of a .safetensors file",
                        excerpt(index.name(line)), excerpt(shard)));
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
    } else if (key == "metadata" && json.peek() == JsonReader::Kind::kObject) {
      if (std::exchange(has_metadata, true)) refuse("metadata is given twice");
      json.object([&](std::string_view entry) {
        if (entry == "total_size") {
          index.total_size = read_total_size(json);
        } else {
          json.skip();
        }
      });
    } else {
      json.skip();
    }
  });
  json.finish();
  if (!has_map) refuse("it has no weight_map");
  const auto by_name = [&](const ShardIndex::Line& line) { return index.name(line); };
  std::ranges::sort(index.lines, {}, by_name);
  const auto twice = std::ranges::adjacent_find(index.lines, {}, by_name);
  if (twice != index.lines.end())
    refuse(fmt::format("tensor '{}' is listed twice", excerpt(by_name(*twice))));
  return index;
}

}  // namespace primus
