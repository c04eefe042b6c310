#include "lm/model/stated_adapters.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "config/lora_settings.h"
#include "config/trainer_config.h"
#include "lm/model/peft_config.h"

namespace primus {

namespace {

nlohmann::ordered_json json_of(const config::Value& value) {
  using Kind = config::Value::Kind;
  nlohmann::ordered_json result;
  switch (value.kind) {
    case Kind::kNull:
      return nullptr;
    case Kind::kBool:
      return value.boolean;
    case Kind::kInt:
      return value.integer;
    case Kind::kFloat:
      return value.real;
    case Kind::kString:
      return value.text;
    case Kind::kList:
      result = nlohmann::ordered_json::array();
      for (const config::Value& item : value.items) result.push_back(json_of(item));
      return result;
    case Kind::kMap:
      result = nlohmann::ordered_json::object();
      for (const config::Member& member : value.members) result[member.key] = json_of(member.value);
      return result;
  }
  return nullptr;
}

constexpr std::uint64_t kConfigLimit = 16U << 20;
constexpr const char* kPeftConfig = "adapter_config.json";

// Returns the last part of a path, also of one that ends with a slash.
std::string last_part(const Path& path) {
  const Path normal = path.lexically_normal();
  return (normal.has_filename() ? normal : normal.parent_path()).filename().string();
}

turbo::FourBitFormat base_format(const config::LoraSettings& lora) {
  using turbo::FourBitType;
  return {.type = lora.base_weights == "nf4"   ? FourBitType::kNf4
                  : lora.base_weights == "fp4" ? FourBitType::kFp4
                                               : FourBitType::kNone,
          .block = lora.base_block,
          .nested = lora.base_double_quant};
}

// Returns the adapters of single matrices. Their settings come from the PEFT folder, or else from the
// experiment, whose keys are those of adapter_config.json.
LoraConfig by_matrix(const config::Experiment& experiment, const config::LoraSettings& lora,
                     const ModelConfig& model, const FamilyRegistry& families) {
  if (!lora.adapters.empty() && !experiment.trainer->load)
    throw experiment.error_for("lora", "lora.adapters needs load, the folder of the base model", "set load");
  nlohmann::ordered_json root{
      {"peft_type", "LORA"}, {"r", lora.dim}, {"lora_alpha", lora.alpha}, {"target_modules", "all-linear"}};
  for (const config::Member& member : lora.peft) root[member.key] = json_of(member.value);
  std::string text = root.dump(), where = experiment.provenance_of("lora").describe();
  Entries entries = Entries::kAllMatch;
  if (!lora.adapters.empty()) {
    entries = Entries::kMayMatchNothing;
    const Path file = Path(lora.adapters) / kPeftConfig;
    if (std::filesystem::is_directory(lora.adapters) && !Env::posix().status(file)) {
      throw experiment.error_for(
          "lora", fmt::format("'{}' is no PEFT folder: it has no {}", lora.adapters, kPeftConfig),
          fmt::format(
              "if it is a run or checkpoint with adapters, set load={} and its lora settings to train "
              "them further, or write a PEFT folder: primus model export {} FOLDER --adapters",
              lora.adapters, lora.adapters));
    }
    text = read_file(file, kConfigLimit);
    where = file.string();
  }
  LoraConfig result = adapters_of(read_peft_config(text, where), model, families, where, entries);
  result.training = {.dropout = lora.dropout, .base = base_format(lora)};
  if (result.by_matrix.magnitudes && result.training.base)
    throw experiment.error_for("lora", "lora.use_dora does not support lora.base_weights",
                               "omit base_weights: the base weights then have 16 bits");
  if (result.by_matrix.magnitudes && lora.dropout > 0)
    throw experiment.error_for("lora", "lora.dropout does not support use_dora",
                               "set dropout of lora to 0.0");
  return result;
}

// Adapters do not change the biases that balance experts, so these are frozen like the experts.
void freeze_routers(ModelConfig& model) {
  model.moe.training.bias_update_rate = 0;
  model.moe.training.quantile_bins = 0;
}

}  // namespace

LoraConfig read_adapters(const Path& folder, const ModelConfig& model, const FamilyRegistry& families) {
  const Path file = folder / kPeftConfig;
  if (!Env::posix().status(file)) {
    throw invalid(
        fmt::format("'{}' is no PEFT folder: it has no {}", folder.string(), kPeftConfig),
        "'primus model export RUN FOLDER --adapters' writes the adapters of a run as a PEFT folder");
  }
  return adapters_of(read_peft_config(read_file(file, kConfigLimit), file.string()), model, families,
                     file.string());
}

void set_adapters(const config::Experiment& experiment, ModelConfig& model, const FamilyRegistry& families,
                  std::vector<std::string>* warnings) {
  const config::Value* const map = experiment.settings.find("lora");
  if (!map || !map->is_map()) return;
  const config::LoraSettings lora = config::read_lora(*map);
  if (!lora.enabled) {
    if (!base_format(lora)) return;
    throw experiment.error_for(
        "lora", "lora.base_weights needs adapters: weights in 4 bits are frozen, but lora.enabled is false",
        "set lora.enabled=true, or train all weights without lora.base_weights");
  }
  const auto warn_of_random_weights = [&] {
    if (!warnings || experiment.trainer->load) return;
    warnings->push_back(fmt::format("{}: lora without load trains adapters of a model with random weights",
                                    experiment.provenance_of("lora").describe()));
  };
  if (!lora.adapters.empty() || !lora.peft.empty()) {
    model.lora = by_matrix(experiment, lora, model, families);
    freeze_routers(model);
    if (lora.adapters.empty()) warn_of_random_weights();
    return;
  }
  model.lora = {.dim = lora.dim,
                .alpha = lora.alpha,
                .kaiming = lora.a_init == "kaiming",
                .modules = lora.target_modules,
                .training = {.dropout = lora.dropout,
                             .drops_after = lora.dropout_position == "post",
                             .base = base_format(lora)}};
  if (warnings && lora.dropout == 0 && lora.dropout_position != config::LoraSettings().dropout_position) {
    warnings->push_back(fmt::format("{}: lora.dropout_position has an effect only with lora.dropout",
                                    experiment.provenance_of("lora").describe()));
  }
  const bool feed_forwards = model.lora.has("linear_fc1") || model.lora.has("linear_fc2");
  if (model.moe.experts > 0 && feed_forwards && lora.dropout > 0) {
    throw experiment.error_for(
        "lora", "lora.dropout does not support adapters of experts (linear_fc1, linear_fc2)",
        "set dropout of lora to 0.0, or its target_modules to [linear_qkv, linear_proj]");
  }
  if ((model.any_keeps(Keeps::kLatents) || model.any_keeps(Keeps::kPooled)) && model.lora.has("linear_qkv")) {
    if (model.lora.modules.size() == 1)
      throw experiment.error_for("lora",
                                 "lora names only linear_qkv, but latent attention has no such module",
                                 "name linear_proj in target_modules");
    if (warnings)
      warnings->push_back(
          fmt::format("{}: latent attention has no linear_qkv, so its queries, keys and values have no "
                      "adapters, as in AMD Primus",
                      experiment.provenance_of("lora").describe()));
  }
  // Requires an adapted layer. Otherwise nothing would be trained, and a step without a backward pass
  // computes no loss.
  bool attends = false;
  for (std::int64_t layer = 0; layer < model.layers; ++layer) attends = attends || model.attends(layer);
  if (!feed_forwards && !attends) {
    throw experiment.error_for("lora",
                               !model.any_keeps(Keeps::kState)
                                   ? "lora names only attention modules, but every layer of this model is a "
                                     "short convolution (lfm_layer_types)"
                                   : "lora names only attention modules, but every layer of this model has "
                                     "linear attention (linear_attention_freq)",
                               "name linear_fc1 and linear_fc2 in target_modules");
  }
  freeze_routers(model);
  warn_of_random_weights();
}

std::optional<Path> adapters_to_load(const config::Experiment& experiment) {
  const config::Value* const map = experiment.settings.find("lora");
  if (!map || !map->is_map()) return std::nullopt;
  const config::LoraSettings lora = config::read_lora(*map);
  return lora.enabled && !lora.adapters.empty() ? std::optional<Path>(lora.adapters) : std::nullopt;
}

std::string warn_of_another_base(const Path& adapters, const Path& load) {
  const Path file = adapters / kPeftConfig;
  const std::string base = read_peft_config(read_file(file, kConfigLimit), file.string()).base;
  if (base.empty() || last_part(base) == last_part(load)) return {};
  const Path folder = std::filesystem::weakly_canonical(load);
  bool of_run = false;  // whether the adapters were trained on a checkpoint of Primus
  for (const Path& named : {Path(base), adapters / base}) {
    // The folder of a run contains its checkpoints.
    const Path outer = std::filesystem::weakly_canonical(named);
    if (std::mismatch(outer.begin(), outer.end(), folder.begin(), folder.end()).first == outer.end())
      return {};
    std::error_code none;
    of_run = of_run || std::filesystem::exists(outer / "checkpoints", none) ||
             std::filesystem::exists(outer / "latest", none) ||
             std::filesystem::exists(outer / "manifest.json", none);
  }
  // The cache of Hugging Face has the folder models--OWNER--NAME/snapshots/HASH for the model OWNER/NAME.
  std::string cached = "models--" + base;
  if (const std::size_t slash = cached.find('/'); slash != std::string::npos) cached.replace(slash, 1, "--");
  if (std::ranges::find(folder, Path(cached)) != folder.end()) return {};
  return fmt::format(
      "the adapters of '{}' were trained on '{}' (base_model_name_or_path in {}), but the base model is "
      "'{}': {}",
      adapters.string(), base, kPeftConfig, load.string(),
      of_run ? "they have a use only if it is an export of that run" : "on another model they have no use");
}

std::string note_on_base(const std::string& base) {
  Env& env = Env::posix();
  if (base.empty() || !env.status(base) || env.status(Path(base) / "config.json")) return {};
  return fmt::format(
      "the adapters name '{}' as their base model, a run that other programs cannot open; 'primus model "
      "export' "
      "writes it as a model",
      base);
}

std::string adapter_overrides(const LoraConfig& wanted, const LoraConfig& present) {
  if (!wanted) return "lora.enabled=false";
  if (wanted.by_matrix && wanted.training.base == present.training.base)
    return "the lora settings with which the adapters were trained";
  const config::LoraSettings usual;
  LoraConfig from = present;
  if (!present) {
    from.dim = 0;  // differs from wanted.dim, so the result always contains lora.dim, which enables adapters
    from.alpha = usual.alpha;
    from.kaiming = usual.a_init == "kaiming";
    from.modules = usual.target_modules;
  }
  std::vector<std::string> words;
  if (wanted.dim != from.dim) words.push_back(fmt::format("lora.dim={}", wanted.dim));
  if (wanted.alpha != from.alpha) words.push_back(fmt::format("lora.alpha={}", wanted.alpha));
  if (wanted.kaiming != from.kaiming)
    words.push_back(fmt::format("lora.lora_A_init_method={}", wanted.kaiming ? "kaiming" : "xavier"));
  if (wanted.modules != from.modules)
    words.push_back(fmt::format("lora.target_modules='[{}]'", fmt::join(wanted.modules, ", ")));
  if (const turbo::FourBitFormat& base = wanted.training.base; base != present.training.base) {
    words.push_back(fmt::format("lora.base_weights={}", name_of(base.type)));
    if (base && base.block != usual.base_block)
      words.push_back(fmt::format("lora.base_block={}", base.block));
    if (base && !base.nested) words.emplace_back("lora.base_double_quant=false");
  }
  return fmt::format("{}", fmt::join(words, " "));
}

}  // namespace primus
