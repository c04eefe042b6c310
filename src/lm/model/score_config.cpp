#include "lm/model/score_config.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string_view>

namespace primus {
namespace {

using nlohmann::json;

// Ends of the names of transformers' classes: a language model, and a model with a head for labels.
constexpr std::string_view kCausal = "ForCausalLM", kLabelled = "ForSequenceClassification";

}  // namespace

bool reads_scores(const ConfigReader& r, const json& root) {
  const auto names = root.find("architectures");
  if (names == root.end() || !names->is_array() || names->empty() || !names->front().is_string())
    return false;
  if (!names->front().get<std::string>().ends_with(kLabelled)) return false;
  const auto labels = root.find("id2label");
  const bool listed = labels != root.end() && labels->is_object();
  // Without either key, transformers assumes two labels.
  const std::int64_t count = listed ? static_cast<std::int64_t>(labels->size())
                                    : r.integer_or("num_labels", 2, 0, std::int64_t{1} << 30);
  if (count != 1) {
    throw r.not_supported(listed ? "id2label" : "num_labels",
                          fmt::format(": a head with {} labels is not supported", count),
                          "only heads with one label, which is a score, are");
  }
  return true;
}

void write_scores(std::string architecture, json& root) {
  if (architecture.ends_with(kCausal)) architecture.resize(architecture.size() - kCausal.size());
  root["architectures"] = {architecture + std::string(kLabelled)};
  root["id2label"] = {{"0", "LABEL_0"}};
  root["label2id"] = {{"LABEL_0", 0}};
}

}  // namespace primus
