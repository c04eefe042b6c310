#include "lm/data/blend_list.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/files/file.h"
#include "lm/data/indexed_dataset.h"
#include "lm/data/numpy_random.h"

namespace primus::data {
namespace {

std::optional<double> parse_weight(std::string_view text) {
  double value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc() || result.ptr != text.data() + text.size()) return std::nullopt;
  return value;
}

// Returns whether `entry` is a number and not the name of existing data.
bool is_weight(const std::string& entry) {
  return parse_weight(entry) && !IndexedDataset::exists(entry) && !Env::posix().status(entry);
}

// Returns the error for a list that has weights but does not alternate weight and path.
Error uneven_blend(const std::vector<std::string>& list) {
  const std::string hint = "write weights and paths alternately ('0.7 data/a 0.3 data/b'), or only paths";
  for (std::size_t i = 0; i < list.size(); ++i) {
    const bool weight = is_weight(list[i]), weight_is_due = i % 2 == 0;
    if (weight_is_due && !weight) {
      return invalid(
          fmt::format("in the data path '{}', the weight of '{}' is missing", fmt::join(list, " "), list[i]),
          hint);
    }
    if (weight_is_due ? i + 1 == list.size() : weight) {
      return invalid(fmt::format("in the data path '{}', the path after the weight {} is missing",
                                 fmt::join(list, " "), list[weight_is_due ? i : i - 1]),
                     hint);
    }
  }
  return invalid("only some entries of the data path have a weight", hint);
}

}  // namespace

std::vector<std::string> notes_on_repeated_paths(const BlendList& blend) {
  std::vector<std::string> notes, seen;
  for (const std::string& path : blend.paths) {
    if (std::ranges::find(seen, path) != seen.end() || std::ranges::count(blend.paths, path) < 2) continue;
    seen.push_back(path);
    notes.push_back(fmt::format("the data path names '{}' {} times, so an epoch reads it that often", path,
                                std::ranges::count(blend.paths, path)));
  }
  return notes;
}

std::vector<double> normalized(const std::vector<double>& weights) {
  const double sum = pairwise_sum(weights);
  std::vector<double> result;
  for (const double weight : weights) result.push_back(weight / sum);
  return result;
}

BlendList parse_blend(const std::vector<std::string>& list) {
  BlendList blend;
  if (list.size() % 2 == 0) {
    for (std::size_t i = 0; i < list.size(); i += 2) {
      if (const auto weight = parse_weight(list[i])) blend.weights.push_back(*weight);
    }
  }
  if (blend.weights.empty()) {
    if (std::ranges::any_of(list, is_weight)) throw uneven_blend(list);
    blend.paths = list;
    return blend;
  }
  if (blend.weights.size() != list.size() / 2) throw uneven_blend(list);
  for (std::size_t i = 0; i < list.size(); i += 2) {
    const double weight = blend.weights[i / 2];
    if (!(weight >= 0) || !std::isfinite(weight))
      throw invalid(fmt::format("'{}' is not a valid blend weight for '{}'", list[i], list[i + 1]),
                    "write a number of 0 or more before each path: 0.7, A, 0.3, B");
    blend.paths.push_back(list[i + 1]);
  }
  if (!(pairwise_sum(blend.weights) > 0)) {
    throw invalid(fmt::format("the blend weights {} add up to zero", fmt::join(blend.weights, ", ")),
                  "give at least one path a weight above 0");
  }
  blend.weights = normalized(blend.weights);
  return blend;
}

std::vector<std::string> paths_of(const std::vector<std::string>& list) { return parse_blend(list).paths; }

}  // namespace primus::data
