#include "lm/model/stored_lora.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "config/lora_settings.h"
#include "lm/model/config_reader.h"

namespace primus {
namespace {

using nlohmann::json;

// Reads the adapters of single matrices, which write_matrix_adapters() writes.
MatrixAdapters read_matrix_adapters(const json& lora, const ConfigReader& r) {
  MatrixAdapters result{.magnitudes = r.flag_or("use_dora", false), .biases = r.flag_or("lora_bias", false)};
  const json& matrices = lora.at("matrices");
  if (!matrices.is_object()) throw r.bad("matrices", "must be an object");
  for (const auto& [name, value] : matrices.items()) {
    if (!value.is_object()) throw r.bad("matrices", "must have objects");
    const ConfigReader m(value);
    result.matrices.push_back({.name = name,
                               .dim = m.integer("dim", 1, config::kMaxLoraDim),
                               .scale = m.positive_or("scale", 1),
                               .out = m.integer("out", 1, ConfigReader::kMaxWidth),
                               .in = m.integer("in", 1, ConfigReader::kMaxWidth)});
  }
  std::ranges::sort(result.matrices, {}, &MatrixAdapters::Matrix::name);
  for (const json& name : lora.value("modules_to_save", json::array())) {
    if (!name.is_string()) throw r.bad("modules_to_save", "must be a list of names");
    result.saved.push_back(name.get<std::string>());
  }
  std::ranges::sort(result.saved);
  return result;
}

void write_matrix_adapters(const MatrixAdapters& adapters, json& lora) {
  json matrices = json::object();
  for (const MatrixAdapters::Matrix& m : adapters.matrices)
    matrices[m.name] = {{"dim", m.dim}, {"scale", m.scale}, {"out", m.out}, {"in", m.in}};
  lora["matrices"] = std::move(matrices);
  lora["modules_to_save"] = adapters.saved;
  lora["use_dora"] = adapters.magnitudes;
  lora["lora_bias"] = adapters.biases;
}

// Reads how the run that saved the folder held the frozen matrices.
turbo::FourBitFormat read_base_weights(const ConfigReader& r) {
  constexpr std::int64_t kMaxBlock = 4096;
  const std::string type = r.text_or("base_weights", "none");
  turbo::FourBitFormat format{.nested = r.flag_or("base_double_quant", true)};
  if (type == "none") return format;
  for (const auto known : {turbo::FourBitType::kNf4, turbo::FourBitType::kFp4}) {
    if (type == name_of(known)) format.type = known;
  }
  if (!format) throw r.bad("base_weights", "must be nf4 or fp4");
  format.block = r.integer("base_block", 2, kMaxBlock);
  return format;
}

}  // namespace

LoraConfig read_stored_lora(const json& root, const std::string& where) {
  const auto it = root.find(kLoraKey);
  if (it == root.end() || it->is_null()) return {};
  const ConfigReader common(root, where);
  if (!it->is_object()) throw common.bad(kLoraKey, "must be an object");
  const ConfigReader r(*it, where);
  LoraConfig lora{.dim = r.integer("dim", 1, config::kMaxLoraDim), .alpha = r.positive_or("alpha", 0)};
  if (lora.alpha <= 0) throw r.bad("alpha", "is missing");
  lora.kaiming = r.text_or("init", "xavier") == "kaiming";
  lora.training.base = read_base_weights(r);
  if (it->contains("matrices")) {
    lora.by_matrix = read_matrix_adapters(*it, r);
    return lora;
  }
  const auto modules = it->find("target_modules");
  const bool list = modules != it->end() && modules->is_array() && !modules->empty();
  for (const json& module : list ? *modules : json::array()) {
    if (module.is_string() && std::ranges::count(config::lora_modules(), module.get<std::string>()) > 0)
      lora.modules.push_back(module.get<std::string>());
  }
  if (!list || lora.modules.size() != modules->size())
    throw r.bad("target_modules", "must be a list of linear_qkv, linear_proj, linear_fc1 and linear_fc2");
  return lora;
}

void write_stored_lora(const LoraConfig& lora, std::string_view family, json& root) {
  root["model_type"] = kLoraKey;
  json& out = root[kLoraKey];
  out = {{"model_type", family},
         {"dim", lora.dim},
         {"alpha", lora.alpha},
         {"init", lora.kaiming ? "kaiming" : "xavier"},
         {"target_modules", lora.modules}};
  if (lora.by_matrix) write_matrix_adapters(lora.by_matrix, out);
  const turbo::FourBitFormat& base = lora.training.base;
  if (!base) return;
  out["base_weights"] = name_of(base.type);
  out["base_block"] = base.block;
  out["base_double_quant"] = base.nested;
}

}  // namespace primus
