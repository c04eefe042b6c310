// A mixture of Qwen3.5 in its published layout: the language model under model.language_model, all experts of
// a layer in two tensors, and further tensors for multi-token prediction and images.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/files/file.h"
#include "lm/checkpoint/safetensors.h"

namespace primus::test {

// Writes the golden's weights in that layout into the folder `to`. `experts`: if not 0, the number of experts
// in config.json, instead of the number in the tensors.
inline void write_published_qwen3_5(const Path& golden, const Path& to, std::int64_t experts = 0) {
  const SafetensorsFolder weights = SafetensorsFolder::open(golden);
  auto text = nlohmann::json::parse(read_file(golden / "config.json"));
  const std::int64_t count = text.at("num_experts");
  std::map<std::string, std::vector<std::byte>> fused;
  std::vector<TensorSource> sources;
  const auto add = [&](std::string name, const TensorView& like, std::vector<std::int64_t> shape,
                       const std::byte* data) {
    TensorSource& source = sources.emplace_back();
    source.name = std::move(name);
    source.dtype = like.dtype;
    source.shape = std::move(shape);
    source.data = data;
  };
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const TensorView t = weights[i];
    std::string name(t.name);
    if (name.starts_with("model.")) name.replace(0, 6, "model.language_model.");
    const std::size_t at = name.find(".experts.");
    if (at == std::string::npos) {
      add(name, t, {t.shape.begin(), t.shape.end()}, t.data.data());
      continue;
    }
    // Two fused tensors replace the matrices of all experts of the layer: one in place of the first expert's
    // gate_proj, and one in place of its down_proj.
    const bool gate = name.ends_with(".experts.0.gate_proj.weight");
    if (!gate && !name.ends_with(".experts.0.down_proj.weight")) continue;
    const std::string whole = name.substr(0, at) + (gate ? ".experts.gate_up_proj" : ".experts.down_proj");
    const std::string original = std::string(t.name.substr(0, t.name.find(".experts.")));
    std::vector<std::byte>& bytes = fused[whole];
    for (std::int64_t e = 0; e < count; ++e) {
      for (const char* const matrix : {"gate_proj", "up_proj", "down_proj"}) {
        if (gate == (std::string(matrix) == "down_proj")) continue;
        const TensorView piece = weights.at(fmt::format("{}.experts.{}.{}.weight", original, e, matrix));
        bytes.insert(bytes.end(), piece.data.begin(), piece.data.end());
      }
    }
    add(whole, t, {count, (gate ? 2 : 1) * t.shape[0], t.shape[1]}, bytes.data());
  }
  const std::vector<float> zeros(4);
  for (const char* const other :
       {"mtp.layers.0.mlp.experts.0.up_proj.weight", "mtp.fc.weight", "model.visual.patch_embed.proj.weight"})
    sources.push_back({other, DType::kF32, {2, 2}, zeros.data(), {}});
  make_folders(to);
  save_safetensors(to, sources);
  if (experts > 0) text["num_experts"] = experts;
  write_file_atomic(to / "config.json",
                    nlohmann::json{{"model_type", "qwen3_5_moe"}, {"text_config", text}}.dump());
}

}  // namespace primus::test
