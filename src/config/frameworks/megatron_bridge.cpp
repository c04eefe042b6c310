// Translates experiments for Megatron-Bridge. A recipe of Megatron-Bridge is a Python function that sets all
// values; the experiment's settings override them. The table presets/backends/megatron_bridge/keys.yaml has
// the values of the recipes. Source: Megatron-Bridge's recipes, and primus/backends/megatron_bridge of AMD
// Primus.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <initializer_list>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "config/framework.h"
#include "config/keys.h"
#include "config/stages.h"

namespace primus::config {
namespace {

constexpr std::string_view kPretraining = "_pretrain_config", kFinetuning = "_finetune_config";

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

std::string last_part(std::string_view path) {
  while (path.ends_with('/')) path.remove_suffix(1);
  return lower(std::string(path.substr(path.rfind('/') + 1)));
}

class MegatronBridgeSettings final : public Translator {
 public:
  using Translator::Translator;

 private:
  std::string_view model_setting() const override { return "flavor"; }
  bool describes_model() const override { return true; }

  bool accepts() override { return choose_recipe(); }

  void translate() override {
    full_ = fine_tunes_ && is_full();
    take_recipe();
    take_own_keys();
    take_sections();
    model_and_weights();
    rate();
    if (fine_tunes_) {
      adapters();
    } else {
      drop_settings_of_fine_tuning();
    }
    data();
    precision();
    checkpoints();
  }

  const Value* given(std::string_view path) const { return find_path(settings(), path); }
  bool is_typed(std::string_view path) const {  // on the command line
    const Value* value = given(path);
    return value && value->origin.source && !value->origin.source->is_file;
  }
  bool says(std::string_view path, bool what) const {
    const Value* value = given(path);
    return value && value->kind == Value::Kind::kBool && value->boolean == what;
  }

  // Finds the recipe's tables. Reports a recipe that Primus does not have.
  bool choose_recipe() {
    const std::string recipe = word("recipe"), flavor = word("flavor");
    if (recipe.empty() || flavor.empty()) {
      Value framework;
      framework.origin = settings().origin;
      refuse_at(
          framework, "the experiment names no recipe of Megatron-Bridge (recipe and flavor)",
          "choose a model preset that names one, such as model: qwen3_8b.yaml, or set framework: native");
      return false;
    }
    if (const Value* reason = fields().keys("refused_recipes").find(recipe)) {
      refuse("recipe", reason->text, "choose another model");
      return false;
    }
    fine_tunes_ = flavor.ends_with(kFinetuning);
    const bool named = fine_tunes_ || flavor.ends_with(kPretraining);
    const std::string name =
        named ? flavor.substr(0, flavor.size() - (fine_tunes_ ? kFinetuning : kPretraining).size()) : flavor;
    flavor_ = named ? fields().keys("flavors").find(name) : nullptr;
    const Value* family = fields().keys("recipes").find(recipe);
    if (!flavor_ || !family || flavor_->find("recipe")->text != recipe || !family->find(kind()) ||
        (fine_tunes_ && flavor_->find("pretrain_only"))) {
      refuse(family ? "flavor" : "recipe", "Primus does not have this recipe of Megatron-Bridge",
             fmt::format(
                 "recipes and flavors are in {}; or set framework: native, and a preset of presets/models",
                 (fields().folder() / "keys.yaml").string()));
      return false;
    }
    family_ = family;
    return agrees_with_stage(flavor);
  }

  bool agrees_with_stage(const std::string& flavor) {
    const std::string stage = is_set("stage") ? word("stage") : "";
    const auto found = std::ranges::find(stages(), stage, &Stage::name);
    if (found == stages().end() || found->fine_tunes == fine_tunes_) return true;
    refuse("stage",
           fmt::format("{} is a recipe for {}", flavor, fine_tunes_ ? "fine-tuning" : "pre-training"),
           fmt::format("set config: {}, or another flavor",
                       fine_tunes_ ? "sft_trainer.yaml" : "pretrain_trainer.yaml"));
    return false;
  }

  std::string_view kind() const { return fine_tunes_ ? "finetuning" : "pretraining"; }

  // Returns whether all weights are trained. Without the setting peft, recipes train adapters.
  bool is_full() const {
    const Value* peft = given("peft");
    return peft && (peft->is_null() || (peft->kind == Value::Kind::kString && lower(peft->text) == "none"));
  }

  void take_recipe() {
    const std::string_view variant = !fine_tunes_ ? kind() : full_ ? "all_weights" : "with_adapters";
    const bool packed = fine_tunes_ && says("packed_sequence", true);
    null_tokenizer_ = false;
    for (const Value* table : {fields().keys("every").find(kind()), family_->find(kind()),
                               packed ? family_->find("packed") : nullptr, flavor_->find(variant)}) {
      if (!table) continue;
      for (const Member& member : table->members) {
        if (member.key == "use_null_tokenizer") {
          null_tokenizer_ = member.value.boolean;
        } else {
          recommend(member.key, member.value);
        }
      }
    }
    // With context parallelism, Megatron-Bridge itself requires the mean over the tokens of a step.
    if (fine_tunes_ && is_set("context_parallel_size") && real("context_parallel_size") > 1)
      recommend("calculate_per_token_loss", plain_scalar("true", get("context_parallel_size").origin));
  }

  // Settings with the name of one of our keys.
  void take_own_keys() {
    for (const Member& member : settings().members) {
      const bool is_ours = find_key(member.key) && !fields().keys("settings").find(member.key);
      const bool is_part = member.value.is_map() && find_extra(fields(), member.key + ".");
      if (!is_ours || is_part || member.key == "lora") continue;
      // A recipe chooses these sizes itself if they are null.
      if (member.value.is_null() && (member.key == "global_batch_size" || member.key == "seq_length"))
        continue;
      put(member.key, member.value, member.key);
    }
  }

  // Settings of sections (train.manual_gc), which override the recipe's function in Megatron-Bridge.
  void take_sections() {
    for_each_setting(fields(), settings(), [&](const std::string& path, const Member& member) {
      const std::size_t dot = path.find('.');
      if (dot == std::string::npos || !find_extra(fields(), path)) return;
      const std::string section = path.substr(0, dot), name = path.substr(dot + 1);
      if (section == "peft" || path == "dataset.dataset_name" || member.value.is_null()) return;
      if (find_key(name)) {
        put(name, member.value, path);
      } else {
        refuse_at(member.value,
                  fmt::format("{} is {}: the native engine has no counterpart", path, member.value.show()),
                  fmt::format("leave {} out", path));
      }
    });
  }

  void model_and_weights() {
    const Value* path = given("hf_path");
    result().model_preset = flavor_->find("model")->text;
    result().model_origin = get("flavor").origin;
    if (path && !path->is_null()) {
      const Member* same = nullptr;
      for (const Member& other : fields().keys("flavors").members) {
        if (last_part(other.value.find("hf")->text) == last_part(path->text)) same = &other;
      }
      if (same) {
        result().model_preset = same->value.find("model")->text;
        result().model_origin = path->origin;
      } else if (!fine_tunes_) {
        refuse("hf_path", "Primus has no preset for this model, whose shape the recipe reads from it",
               "leave hf_path out for the flavor's model, or set framework: native, and model: NAME.yaml");
      } else if (std::error_code error; std::filesystem::is_directory(path->text, error)) {
        result().model_preset.clear();  // the folder describes the model
      }
    }
    if (!fine_tunes_) return;  // pre-training begins with random weights
    if (path && path->is_null()) {
      put("hf_path", *path, "hf_path");
    } else {
      recommend("hf_path", path ? *path : *flavor_->find("hf"));
    }
  }

  void rate() {
    if (!fine_tunes_) {
      if (is_set("lr")) put("lr", get("lr"), "lr");
      return;
    }
    const bool typed = is_typed("lr") && !is_typed("finetune_lr");
    if (is_set("lr") && (typed || !is_set("finetune_lr"))) {
      put("lr", get("lr"), "lr");
    } else if (is_set("finetune_lr")) {
      put("lr", get("finetune_lr"), "finetune_lr");
      if (is_set("lr")) result().dropped["finetune_lr is the learning rate"].emplace_back("lr");
    } else {
      recommend("lr", plain_scalar(full_ ? "5e-6" : "1e-4", get("flavor").origin));
    }
  }

  void drop_settings_of_fine_tuning() {
    for (const char* name :
         {"finetune_lr", "peft", "peft_dim", "peft_alpha", "packed_sequence", "dataset_name"}) {
      const bool nothing = !is_set(name) || says(name, false) || (get(name).text == "none");
      if (!nothing) result().dropped["the recipe is for pre-training"].emplace_back(name);
    }
  }

  void adapters() {
    const Value peft = get("peft");
    if (full_) {
      for (const char* name : {"peft_dim", "peft_alpha"})
        if (is_set(name)) result().dropped["all weights are trained"].emplace_back(name);
      for_each_setting(fields(), settings(), [&](const std::string& path, const Member&) {
        if (path.starts_with("peft.")) result().dropped["all weights are trained"].push_back(path);
      });
      if (const Value* own = given("lora")) put("lora", *own, "lora");
      return;
    }
    const bool is_word = peft.kind == Value::Kind::kString;
    if (!is_word && !peft.is_map() && !peft.is_null()) {
      refuse("peft", "it must be lora or none, or a map of settings", "write peft: lora");
      return;
    }
    if (is_word && lower(peft.text) != "lora") {
      refuse("peft",
             lower(peft.text) == "dora" ? "the native engine's DoRA has other matrices than Megatron-Bridge's"
                                        : "Megatron-Bridge has lora, dora and none",
             "set peft: lora, or set framework: native and the key lora (docs/posttrain.md)");
      return;
    }
    Value lora;
    lora.kind = Value::Kind::kMap;
    lora.origin = is_word || peft.is_map() ? peft.origin : get("flavor").origin;
    lora.set("enabled", lora.origin, plain_scalar("true", lora.origin));
    // A table is a recipe's PEFT object of the user, so that only values of the word are the recipe's own.
    if (const Value* usual = flavor_->find("adapters"); usual && !peft.is_map()) merge(lora, *usual);
    for (const auto& [name, key] : {std::pair("peft_dim", "dim"), std::pair("peft_alpha", "alpha")})
      if (is_set(name)) lora.set(key, get(name).origin, get(name));
    for_each_setting(fields(), settings(), [&](const std::string& path, const Member& member) {
      if (path.starts_with("peft.")) adapter_setting(lora, path.substr(5), member);
    });
    if (peft.is_map()) {
      for (const Member& member : peft.members) adapter_setting(lora, member.key, member);
    }
    if (const Value* own = given("lora"); own && own->is_map()) merge(lora, *own);
    put("lora", lora, "peft");
  }

  void adapter_setting(Value& lora, const std::string& name, const Member& member) {
    if (member.value.is_null()) return;
    if (name == "a2a_experimental") {
      result().dropped["only communication"].push_back("peft." + name);
    } else if (name == "lora_dtype") {
      refuse_at(member.value, "peft.lora_dtype: adapters have the type of the model", "leave it out");
    } else {
      lora.set(name, member.origin, member.value);
    }
  }

  void data() {
    for (const char* name : {"data_paths", "train_data_path", "data_path"}) {
      if (is_set(name)) result().settings.set("mock_data", {}, plain_scalar("false", get(name).origin));
    }
    if (says("use_null_tokenizer", true) || (null_tokenizer_ && !says("use_null_tokenizer", false))) {
      const Origin& origin = get(is_set("use_null_tokenizer") ? "use_null_tokenizer" : "flavor").origin;
      recommend("tokenizer_type", text_value("NullTokenizer", origin));
    }
    if (!fine_tunes_) return;
    if (says("packed_sequence", true)) {
      put("enable_packed_sequences", get("packed_sequence"), "packed_sequence");
      put("use_packed_attention", get("packed_sequence"), "packed_sequence");
    }
    if (is_set("sft_dataset_name")) return;
    const std::string from = is_set("dataset_name") ? "dataset_name" : "dataset.dataset_name";
    const Value name = is_set(from) ? get(from) : text_value("rajpurkar/squad", get("flavor").origin);
    put("sft_dataset_name", name, from);
    const Value* format = fields().keys("datasets").find(name.text);
    if (!format) return;
    if (!is_set("sft_conversation_format")) put_text("sft_conversation_format", format->text, from);
    std::error_code error;
    if (std::filesystem::exists(name.text, error)) return;
    result().warnings.push_back(fmt::format(
        "the recipe downloads the data set {}, and Primus reads files: set sft_dataset_name=FILE, and "
        "sft_conversation_format={} if the file has the records of {}",
        name.text, format->text, name.text));
  }

  void precision() {
    if (!is_set("precision_config")) return;
    const Value value = get("precision_config");
    std::string name = value.text;
    std::ranges::replace(name, '-', '_');
    const Value* keys = fields().keys("precisions").find(name);
    if (!keys) {
      refuse("precision_config", "the native engine does not have this precision",
             "set bf16_mixed, or the native engine's keys fp8 and fp8_recipe");
      return;
    }
    for (const Member& key : keys->members) {
      Value mine = key.value;
      mine.origin = value.origin;
      if (!given(key.key)) put(key.key, mine, "precision_config");
    }
  }

  void checkpoints() {
    if (says("enable_recompute", true)) {
      put_text("recompute_granularity", "full", "enable_recompute");
      put_text("recompute_method", "uniform", "enable_recompute");
      put("recompute_num_layers", 1.0, "enable_recompute");
    } else if (says("enable_recompute", false)) {
      for (const char* key : {"recompute_granularity", "recompute_method", "recompute_num_layers"})
        if (!given(key)) put(key, plain_scalar("null", get("enable_recompute").origin), "enable_recompute");
    }
    const Value* interval = given("save_interval");
    const bool none = says("skip_save", true);
    if (!none && (!interval || !interval->is_null())) {
      if (interval) put("save_interval", *interval, "save_interval");
      return;
    }
    // No checkpoint while training.
    const std::string from = none ? "skip_save" : "save_interval";
    const Value* steps = is_set("train_iters") ? given("train_iters") : result().recipe.find("train_iters");
    put("save_interval", std::max(steps ? steps->real : 1.0, 1.0), from);
    if (none) put("disable_last_saving", plain_scalar("true", given("skip_save")->origin), from);
  }

  const Value* flavor_ = nullptr;  // a row of the section `flavors`
  const Value* family_ = nullptr;  // a row of the section `recipes`
  bool fine_tunes_ = false;
  bool full_ = false;  // fine-tuning of all weights
  bool null_tokenizer_ = false;
};

}  // namespace

extern const FrameworkEntry kMegatronBridge{.name = "megatron_bridge",
                                            .title = "Megatron-Bridge",
                                            .place = 4,
                                            .keys = Framework::kNative,
                                            .translator = make_translator<MegatronBridgeSettings>,
                                            .runs_natively = true};

}  // namespace primus::config
