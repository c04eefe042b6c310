// Megatron-LM: the experiment's keys as arguments of pretrain_gpt.py.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "backends/backend.h"
#include "backends/key_rules.h"
#include "backends/megatron_log.h"
#include "backends/megatron_parts.h"
#include "base/error.h"
#include "base/files/file.h"
#include "config/keys.h"
#include "config/problems.h"
#include "config/stages.h"
#include "lm/model/family_switches.h"
#include "lm/model/model_config.h"
#include "lm/model/model_parts.h"
#include "lm/train/training_settings.h"

namespace primus::backends {
namespace {

using config::BackendField;
using config::KeySpec;
using config::KeyType;
using config::Layer;
using config::Value;

constexpr std::int64_t kMockVocabulary = 131072;  // Primus's, of generated tokens
constexpr const char* kTracker = "latest_checkpointed_iteration.txt";

std::vector<std::string> words_of(const Value& value) {
  std::vector<std::string> words;
  if (value.is_list()) {
    for (const Value& item : value.items) words.push_back(item.text);
    return words;
  }
  std::string word;
  for (const char c : value.text + " ") {
    if (c != ' ') {
      word += c;
    } else if (!word.empty()) {
      words.push_back(std::move(word));
      word.clear();
    }
  }
  return words;
}

// "0" and "0.0" are the same.
bool same_words(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const std::string& x, const std::string& y) {
    return x == y || says(config::plain_scalar(x, {}), y);
  });
}

// As Megatron-LM writes one word for a pattern over layers: "1", "([0]*3+[1]*58)", "[0,1,1]".
std::string pattern_word(const std::vector<std::string>& words) {
  if (words.size() == 1) return words[0];
  std::string text = fmt::format("{}", fmt::join(words, ","));
  std::erase(text, ' ');
  return text.starts_with('[') || text.starts_with('(') ? text : "[" + text + "]";
}

bool is_text_file(const std::string& path) {
  for (const char* ending : {".txt", ".jsonl", ".json", ".gz", ".zst", ".md"}) {
    if (path.ends_with(ending)) return true;
  }
  return false;
}

class Megatron {
 public:
  Megatron(const config::Experiment& experiment, const config::BackendFields& fields, const Path& checkout,
           const JobShape& shape)
      : e_(experiment),
        t_(experiment.trainer),
        fields_(fields),
        rules_(experiment, fields),
        run_(run_folder_of(experiment)),
        checkout_(checkout),
        shape_(shape) {}

  ExternalJob run() {
    job_.framework = "megatron";
    job_.title = fields_.keys().find("title")->text;
    const std::string entry = (is_mamba() ? fields_.keys("mamba") : fields_.keys()).find("entry")->text;
    job_.command = {(checkout_.empty() ? Path("<" + job_.title + ">") : checkout_) / entry};
    check_length();
    for (const KeySpec& key : config::all_keys()) take(key);
    problems_.collect([&] { fill_family(); });
    experts();
    problems_.collect([&] { rope(); });
    problems_.collect([&] { temperature(); });
    problems_.collect([&] { layers(); });
    parallelism();
    problems_.collect([&] { narrow_states(); });
    problems_.collect([&] { recipes(); });
    problems_.collect([&] { stages(); });
    recomputation();
    pipeline_patches();
    schedule();
    patterns();
    problems_.collect([&] { data(); });
    tokenizer();
    checkpoints();
    reports();
    problems_.throw_if_any();
    emit();
    add_parts();
    environment();
    compare_with_primus();
    job_.dropped = rules_.dropped();
    // Since January 2026: what the first line sums stays in the sums of the second.
    job_.second_line_is_mean =
        source_says("megatron/training/training.py", "should_reset = not is_first_iteration");
    meaning();
    return std::move(job_);
  }

 private:
  bool is_mamba() const { return t_.model_type == "mamba"; }
  bool is_set(std::string_view key) const { return e_.provenance_of(key).layer > Layer::kDerived; }
  // Explicitly null, in the experiment or a preset.
  bool is_null(std::string_view key) const {
    const Value* value = e_.settings.find(key);
    return value && value->is_null();
  }
  Error error_for(std::string_view key, const std::string& what, const std::string& hint) const {
    return unsupported_there(e_, key, what, hint);
  }

  // What differs between versions: whether the checkout's file has this text.
  bool source_says(const char* file, std::string_view text) const {
    const Path path = checkout_ / file;
    std::error_code error;
    return !checkout_.empty() && std::filesystem::exists(path, error) &&
           read_file(path).find(text) != std::string::npos;
  }

  void check_length() {
    if (!config::length_is_open(t_)) return;
    const char* key = t_.train_epochs ? "train_epochs" : "train_minutes";
    problems_.add(error_for(key, fmt::format("Megatron-LM counts steps, and {} says none", key),
                            "set train_iters in its place"));
  }

  // A key with an argument of its own.
  void take(const KeySpec& key) {
    if (rules_.is_together(key.name)) return;
    const bool has_field = !std::holds_alternative<std::monostate>(key.field);
    const Value* set = e_.settings.find(key.name);
    if (!set && !has_field) return;
    if (key.name.starts_with("muon_") && t_.optimizer.find("muon") == std::string::npos) return;
    if (!is_set(key.name) && (key.is_required || rules_.is_own_default(key.name))) return;
    const Value value = has_field ? config::current_value(key, t_) : *set;
    problems_.collect([&] {
      const std::string name = rules_.renamed(key.name);
      const BackendField* field = fields_.find(name);
      if (!field) return rules_.check_missing(key, value);
      const Value there = rules_.value_there(key.name, value);
      if (there.is_null()) return;
      if (is_set(key.name)) check(key, *field, there);
      put(name, there);
    });
  }

  void check(const KeySpec& key, const BackendField& field, const Value& value) const {
    try {
      config::BackendFields::check(field, value);
    } catch (const Error& error) {
      throw error_for(key.name, fmt::format("Megatron-LM: {}", error.what()), error.hint());
    }
  }

  // Whether a switch is among the arguments, and not as one that is off.
  bool is_on(const std::string& argument) const {
    const auto found = arguments_.find(argument);
    return found != arguments_.end() && found->second.boolean;
  }
  void put(const std::string& argument, Value value) {
    arguments_.insert_or_assign(argument, std::move(value));
  }
  void put(const std::string& argument, bool value) {
    put(argument, config::plain_scalar(value ? "true" : "false", {}));
  }
  void put_number(const std::string& argument, double value) {
    put(argument, config::plain_scalar(fmt::format("{}", value), {}));
  }
  void put_text(const std::string& argument, std::string text) {
    Value value;
    value.kind = Value::Kind::kString;
    value.text = std::move(text);
    put(argument, std::move(value));
  }
  void put_words(const std::string& argument, const std::vector<std::string>& words) {
    Value value;
    value.kind = Value::Kind::kList;
    for (const std::string& word : words) {
      Value& item = value.items.emplace_back();
      item.kind = Value::Kind::kString;
      item.text = word;
    }
    put(argument, std::move(value));
  }

  // What model_type says already, and Megatron-LM has switches for.
  void fill_family() {
    if (t_.model_type == "gpt" || is_mamba()) return;
    const FamilyRegistry families = builtin_families();
    const ModelConfig model = model_config_of(e_, t_.vocab_size.value_or(kMockVocabulary), families);
    const Family& family = families.find(model.family);
    for (const FamilySwitch& common : switches_of(family)) {
      const std::string name = rules_.renamed(common.key);
      if (common.value == kEither || common.value.empty() || arguments_.contains(name)) continue;
      if (common.key == "softmax_type" && t_.use_sink_attention) continue;
      put(name, config::plain_scalar(common.value, {}));
    }
    // gpt-oss's activation is a gated one of its own in Megatron-LM.
    if (arguments_.contains("quick_geglu") && arguments_.at("quick_geglu").boolean)
      arguments_.erase("swiglu");
    // A chunk that holds the whole sequence limits nothing.
    if (model.attention.chunk > 0 && model.attention.chunk < t_.seq_length) {
      throw error_for(
          is_set("attention_chunk_size") ? "attention_chunk_size" : "model_type",
          fmt::format("Megatron-LM has no attention within chunks: sequences of {} tokens do not fit into "
                      "one of {} (attention_chunk_size)",
                      t_.seq_length, model.attention.chunk),
          fmt::format("set seq_length to at most {}, or choose framework: native", model.attention.chunk));
    }
    if (model.moe.experts == 0) return;
    const auto unless_set = [&](const char* key, auto&& set) {
      if (!arguments_.contains(key)) set();
    };
    unless_set("moe_router_score_function", [&] {
      const bool sigmoid = model.moe.router.scoring == turbo::RouterRule::Scoring::kSigmoid;
      put_text("moe_router_score_function", sigmoid ? "sigmoid" : "softmax");
      if (!sigmoid && !model.moe.router.normalise) put("moe_router_pre_softmax", true);
    });
    unless_set("moe_router_enable_expert_bias",
               [&] { put("moe_router_enable_expert_bias", model.moe.choice_bias); });
    unless_set("moe_apply_probs_on_input", [&] { put("moe_apply_probs_on_input", model.moe.weigh_input); });
  }

  // What makes experts fast and changes nothing that is learnt. Its own layers (transformer_impl: local) have
  // no such products.
  void experts() {
    if (t_.num_experts.value_or(0) <= 1) return;
    const bool local = text_of("transformer_impl") == "local";
    for (const config::Member& member : fields_.keys("experts").members) {
      const Value* with_local = member.value.find("local");
      if (is_set(member.key) || (local && with_local && !with_local->boolean)) continue;
      const Value* without = member.value.find("without");
      if (without &&
          std::ranges::any_of(without->items, [&](const Value& v) { return v.text == model_name(); }))
        continue;
      put(member.key, *member.value.find("value"));
    }
  }

  // The model preset, without its extension.
  std::string model_name() const {
    const std::string& preset = e_.model_preset;
    return preset.ends_with(".yaml") ? preset.substr(0, preset.size() - 5) : preset;
  }

  // Differences between Primus's presets and ours, where neither the experiment nor the command line says
  // anything: one note.
  void compare_with_primus() {
    std::vector<std::string> lines;
    const auto compare = [&](const std::string& key, const Value& theirs) {
      if (e_.provenance_of(key).layer >= Layer::kOverrides) return;
      const BackendField* field = fields_.find(rules_.renamed(key));
      if (!field) return;
      const auto found = arguments_.find(rules_.renamed(key));
      const Value& ours = found != arguments_.end() ? found->second : field->fallback;
      if (says(ours, theirs.is_null() ? "null" : theirs.text)) return;
      lines.push_back(fmt::format("{} {}, ours {}", key, theirs.text,
                                  ours.is_null() ? "Megatron-LM's default" : ours.text));
    };
    for (const config::Member& member : fields_.keys("primus_defaults").members) {
      compare(member.key, *member.value.find("value"));
    }
    if (const Value* own = fields_.keys("primus_models").find(model_name())) {
      for (const config::Member& member : own->members) compare(member.key, member.value);
    }
    if (lines.empty()) return;
    job_.notes.push_back(
        fmt::format("Primus's presets have other values than ours, which this run has; set them to train as "
                    "Primus does: {}",
                    fmt::join(lines, "; ")));
  }

  // Queries are scaled by 1 + scale * log(1 + floor((position + 1) / floor)), which is 1 before the first
  // step.
  void temperature() {
    const double scale = t_.attention_temperature_scale.value_or(0);
    const std::int64_t floor = t_.attention_temperature_floor;
    if (scale == 0 || t_.seq_length < floor) return;
    throw error_for("attention_temperature_scale",
                    fmt::format("Megatron-LM has no temperature of attention by position "
                                "(attention_temperature_scale {}), and sequences of {} tokens reach "
                                "attention_temperature_floor {}",
                                scale, t_.seq_length, floor),
                    fmt::format("set seq_length below {}, or choose framework: native", floor));
  }

  void rope() {
    const std::string& type = t_.position_embedding_type;
    put_text("position_embedding_type", type == "yarn" ? "rope" : type);  // of yarn, see megatron_parts()
    if (t_.rotary_base != std::floor(t_.rotary_base)) {
      throw error_for("rotary_base", "Megatron-LM's --rotary-base is a whole number", "round it");
    }
    const bool latent = t_.multi_latent_attention;
    if (latent) {
      const bool yarn = t_.rope_scaling_type == "yarn";
      put_text("rope_type", t_.rope_type.value_or(yarn ? "yarn" : "rope"));
      put_number("rotary_scaling_factor", t_.rotary_scaling_factor);
      if (yarn) {
        constexpr std::int64_t kFixed = 4096;  // Megatron-LM's, which no argument changes
        if (t_.original_max_position_embeddings != 0 && t_.original_max_position_embeddings != kFixed) {
          throw error_for("original_max_position_embeddings",
                          "Megatron-LM's latent attention has original_max_position_embeddings 4096",
                          "take this value, or framework: native");
        }
        put_number("mscale", t_.mscale.value_or(1));
        put_number("mscale_all_dim", t_.mscale_all_dim.value_or(0));
      }
      return;
    }
    // megatron_parts() describes the rest of a scaled rope.
    if (t_.rope_scaling_type == "llama3") {
      put("use_rope_scaling", true);
      put_number("rope_scaling_factor", t_.rope_scaling_factor);
    } else if (t_.rope_scaling_type == "yarn" && t_.rotary_percent < 1) {
      throw error_for("rotary_percent",
                      "Megatron-LM's yarn rotates whole heads, and rotary_percent is below 1",
                      "set rotary_percent: 1, or choose framework: native");
    }
  }

  // Runs with_parts.py in front of Megatron-LM's program where arguments do not describe the model.
  void add_parts() {
    const nlohmann::ordered_json parts = megatron_parts(t_);
    if (parts.empty()) return;
    const Path script = fields_.folder() / "with_parts.py";
    job_.command.insert(job_.command.begin(), {script.string(), parts.dump()});
    std::vector<std::string> names;
    for (const auto& part : parts.items()) names.push_back(part.key());
    job_.notes.push_back(
        fmt::format("no argument of Megatron-LM describes {}: with_parts.py adds {} to its model",
                    fmt::join(names, ", "), names.size() == 1 ? "it" : "them"));
  }

  void parallelism() {
    put("sequence_parallel", t_.tensor_model_parallel_size > 1 && is_true("sequence_parallel"));
    // A module preset's setting gives way where Megatron-LM does not support it.
    const bool is_of_preset = e_.provenance_of("use_distributed_optimizer").layer == Layer::kModulePreset;
    if (is_of_preset && (t_.use_torch_fsdp2 || t_.optimizer == "muon"))
      put("use_distributed_optimizer", false);
    const std::string& sharding = t_.data_parallel_sharding_strategy;
    const bool fsdp = is_true("use_megatron_fsdp") || is_true("use_custom_fsdp");
    if (fsdp) {
      put("use_megatron_fsdp", true);
      put_text("data_parallel_sharding_strategy", sharding);
    } else if (sharding == "optim") {
      put("use_distributed_optimizer", true);
    } else if (sharding != "no_shard" && !t_.use_torch_fsdp2) {
      put("use_megatron_fsdp", true);
      put_text("data_parallel_sharding_strategy", sharding);
      put_text("ckpt_format", "fsdp_dtensor");
    }
    if (is_set("overlap_grad_reduce")) put("overlap_grad_reduce", t_.overlap_grad_reduce);
    if (is_set("overlap_param_gather") && t_.overlap_param_gather) gather_beside();
    // Sizes of a derived model's heads, where they differ from what Megatron-LM would take.
    const bool grouped = t_.group_query_attention.value_or(t_.num_query_groups > 0 &&
                                                           t_.num_query_groups != t_.num_attention_heads);
    if (grouped && !t_.multi_latent_attention) {
      put("group_query_attention", true);
      put_number("num_query_groups", static_cast<double>(t_.num_query_groups));
    }
  }

  // Only what is shared between ranks can be gathered. Where nobody says, Primus has the distributed
  // optimizer on.
  void gather_beside() {
    const bool shares = is_on("use_distributed_optimizer") || is_on("use_megatron_fsdp");
    if (!shares && (is_set("use_distributed_optimizer") || t_.use_torch_fsdp2)) {
      job_.warnings.emplace_back(
          "overlap_param_gather is left out: without use_distributed_optimizer there is nothing to gather");
      return;
    }
    if (!shares) put("use_distributed_optimizer", true);
    put("overlap_param_gather", true);
  }

  // Gradients and moments in another type than fp32 are there with its precision-aware optimizer alone, which
  // is Adam's and a distributed one.
  void narrow_states() {
    for (const auto& [key, type] : {std::pair("main_grads_dtype", &t_.main_grads_dtype),
                                    {"main_params_dtype", &t_.main_params_dtype},
                                    {"exp_avg_dtype", &t_.exp_avg_dtype},
                                    {"exp_avg_sq_dtype", &t_.exp_avg_sq_dtype}}) {
      if (*type == "fp32") continue;
      const auto refuse = [&, key = key, type = type](const std::string& what) {
        throw error_for(key, fmt::format("Megatron-LM has {}: {} only with {}", key, *type, what),
                        fmt::format("set {}: fp32, or {}", key, what));
      };
      if (t_.optimizer != "adam") refuse("optimizer: adam");
      for (const char* needed : {"use_precision_aware_optimizer", "use_distributed_optimizer"}) {
        if (is_set(needed) && !is_true(needed)) refuse(fmt::format("{}: true", needed));
      }
      put("use_precision_aware_optimizer", true);
      if (!arguments_.contains("use_megatron_fsdp")) put("use_distributed_optimizer", true);
    }
  }

  // with_parts.py knows what MXFP4 is, and Megatron-LM asks a recipe of another's for a name.
  void recipes() {
    if (t_.fp4 && t_.fp4_recipe == "mxfp4") put_text("fp4_quantizer_factory", "mxfp4");
    if (is_mamba() && t_.final_logit_softcapping.value_or(0) > 0) {
      throw error_for("final_logit_softcapping", "Megatron-LM has no cap of logits for state-space models",
                      "leave final_logit_softcapping out");
    }
  }

  // What specifies the layers. A specification of Primus's own cannot be imported there.
  void layers() {
    std::vector<std::string> spec;
    if (const Value* set = e_.settings.find("spec"); set && !set->is_null()) spec = words_of(*set);
    const Value& mamba = fields_.keys("mamba");
    if (is_mamba() && (spec.empty() || spec == words_of(*mamba.find("same_as"))))
      spec = words_of(*mamba.find("spec"));
    if (spec.empty()) return;
    if (spec[0].starts_with("primus.")) {
      throw error_for("spec",
                      fmt::format("Megatron-LM does not have the layers of {}, which are Primus's", spec[0]),
                      "name a specification of Megatron-LM's, or leave spec out");
    }
    put_words("spec", spec);
    if (is_mamba()) state_space_layers();
  }

  // Which layers of such a model are of which kind: a pattern of letters, which also says how many there are.
  void state_space_layers() {
    if (t_.multi_latent_attention) {
      throw error_for("multi_latent_attention",
                      "Megatron-LM has no latent attention beside state-space layers",
                      "choose another model");
    }
    for (const char* key : {"pipeline_model_parallel_layout", "num_layers_per_virtual_pipeline_stage",
                            "virtual_pipeline_model_parallel_size"}) {
      if (!arguments_.contains(rules_.renamed(key))) continue;
      throw error_for(key, fmt::format("Megatron-LM has no {} for state-space models", key),
                      fmt::format("leave {} out", key));
    }
    if (arguments_.contains("hybrid_override_pattern")) return;
    put_text("hybrid_layer_pattern", std::string(static_cast<std::size_t>(t_.num_layers), 'M'));
    arguments_.erase("num_layers");
  }

  // In Megatron-LM's letters.
  std::string uneven_layout(std::int64_t parts) const {
    std::vector<std::string> words;
    for (const std::int64_t stage : even_blocks(t_.num_layers, parts))
      words.push_back(fmt::format("t*{}", stage));
    return fmt::format("E{},{}L", fmt::join(words, "|"), modules());
  }

  // A layout's letters for the modules of multi-token prediction.
  std::string modules() const {
    return std::string(static_cast<std::size_t>(t_.mtp_num_layers.value_or(0)), 'm');
  }

  // Megatron-LM asks for a letter for each module of multi-token prediction.
  void modules_of_layout() {
    const std::string layout = t_.pipeline_model_parallel_layout.value_or("");
    const std::size_t loss = layout.rfind('L');
    if (modules().empty() || loss == std::string::npos || layout.find('m') != std::string::npos) return;
    put_text("pipeline_model_parallel_layout", layout.substr(0, loss) + modules() + layout.substr(loss));
    job_.warnings.push_back(
        fmt::format("pipeline_model_parallel_layout has no m for the model's multi-token prediction, which "
                    "Megatron-LM asks for: it is passed as {}",
                    arguments_.at("pipeline_model_parallel_layout").text));
  }

  // A layout says how many stages each rank has, and Megatron-LM takes no other word for it. In Primus the
  // layout counts.
  void virtual_stages_of_layout() {
    if (!t_.pipeline_model_parallel_layout) return;
    if (t_.num_layers_per_virtual_pipeline_stage) {
      throw error_for(
          "num_layers_per_virtual_pipeline_stage",
          "pipeline_model_parallel_layout and num_layers_per_virtual_pipeline_stage exclude each other",
          "leave one of them out: the layout has all stages");
    }
    if (arguments_.erase(rules_.renamed("virtual_pipeline_model_parallel_size")) == 0) return;
    if (t_.virtual_pipeline_model_parallel_size.value_or(1) == 1) return;
    job_.warnings.push_back(fmt::format(
        "virtual_pipeline_model_parallel_size {} is left out: pipeline_model_parallel_layout has all "
        "stages, and Megatron-LM does not take both",
        *t_.virtual_pipeline_model_parallel_size));
  }

  // Megatron-LM divides a model's layers equally, unless it is told what each stage has.
  void stages() {
    const std::int64_t parts = t_.pipeline_model_parallel_size;
    modules_of_layout();
    virtual_stages_of_layout();
    if (parts <= 1 || t_.pipeline_model_parallel_layout || t_.decoder_first_pipeline_num_layers ||
        t_.decoder_last_pipeline_num_layers || t_.num_layers <= 0)
      return;
    const std::int64_t layers = t_.num_layers + (t_.account_for_embedding_in_pipeline_split ? 1 : 0) +
                                (t_.account_for_loss_in_pipeline_split ? 1 : 0);
    const bool only_layers = layers == t_.num_layers && t_.num_layers >= parts && !is_mamba() &&
                             !t_.num_layers_per_virtual_pipeline_stage &&
                             t_.virtual_pipeline_model_parallel_size.value_or(1) == 1;
    if (layers % parts != 0 && only_layers) {
      put_text("pipeline_model_parallel_layout", uneven_layout(parts));
      job_.warnings.push_back(
          fmt::format("{} layers are no equal parts for {} pipeline stages, which Megatron-LM asks for: they "
                      "are divided by "
                      "--pipeline-model-parallel-layout {}; what is computed is the same",
                      layers, parts, arguments_.at("pipeline_model_parallel_layout").text));
      return;
    }
    if (layers % parts != 0) {
      throw error_for(
          "pipeline_model_parallel_size",
          fmt::format("Megatron-LM cannot divide {} layers equally by {} pipeline stages", layers, parts),
          "choose a size that divides them, or say what each stage has by decoder_first_pipeline_num_layers, "
          "decoder_last_pipeline_num_layers or pipeline_model_parallel_layout");
    }
    const std::int64_t each = layers / parts;
    const std::int64_t chunk = t_.num_layers_per_virtual_pipeline_stage.value_or(0);
    const std::int64_t chunks = t_.virtual_pipeline_model_parallel_size.value_or(1);
    if ((chunk > 0 && each % chunk != 0) || each % chunks != 0) {
      throw error_for(
          chunk > 0 ? "num_layers_per_virtual_pipeline_stage" : "virtual_pipeline_model_parallel_size",
          fmt::format("Megatron-LM cannot divide the {} layers of a pipeline stage into {}", each,
                      chunk > 0 ? fmt::format("parts of {}", chunk) : fmt::format("{} parts", chunks)),
          "choose a number that divides them");
    }
  }

  // Patches of Primus's order a pipeline's work in another way. What is computed is the same.
  void pipeline_patches() {
    for (const char* key : {"patch_primus_pipeline", "patch_zero_bubble"}) {
      if (!is_true(key)) continue;
      job_.warnings.push_back(
          fmt::format("{} is left out: Megatron-LM has the schedules 1F1B and interleaved 1F1B alone; what "
                      "is computed is the "
                      "same, and speed and memory are not",
                      key));
    }
  }

  // Which layers are computed again is a choice of memory and speed: the result is the same. Megatron-LM
  // chooses by count.
  void recomputation() {
    const Value* ids = e_.settings.find("recompute_layer_ids");
    if (!ids || ids->is_null()) return;
    const bool whole = t_.recompute_granularity == "full";
    if (whole) {
      put_text("recompute_method", "uniform");
      put_number("recompute_num_layers", 1);
    }
    job_.warnings.push_back(
        fmt::format("recompute_layer_ids is left out, since Megatron-LM chooses layers by count and not by "
                    "number: {}; what is "
                    "computed is the same",
                    whole ? "every layer is computed again, which takes less memory and more time"
                          : "recompute_granularity decides"));
  }

  void schedule() {
    put_number("train_iters", static_cast<double>(t_.train_iters));
    if (is_set("lr_decay_iters") && t_.lr_decay_iters > 0)
      put_number("lr_decay_iters", static_cast<double>(t_.lr_decay_iters));
    if (t_.lr_warmup_fraction) {
      put_number("lr_warmup_fraction", *t_.lr_warmup_fraction);
    } else {
      put_number("lr_warmup_iters", static_cast<double>(t_.lr_warmup_iters));
    }
  }

  void patterns() {
    const auto pattern = [&](const char* key, const std::vector<std::string>& words) {
      if (!words.empty()) put_text(key, pattern_word(words));
    };
    if (t_.num_experts) pattern("moe_layer_freq", t_.moe_layer_freq);
    pattern("linear_attention_freq", t_.linear_attention_freq);
    pattern("no_rope_freq", t_.no_rope_freq);
    pattern("window_attn_skip_freq", t_.window_attn_skip_freq);
    if (!t_.window_size.empty()) {
      std::string text = fmt::format("{}", fmt::join(t_.window_size, ","));
      std::erase_if(text, [](char c) { return c == '(' || c == ')' || c == '[' || c == ']' || c == ' '; });
      put_text("window_size", text);
    }
    if (t_.use_sink_attention) {
      put_text("softmax_type", "learnable");
    } else if (t_.softmax_type) {
      put_text("softmax_type", *t_.softmax_type);
    }
  }

  void data() {
    if (t_.mock_data) {
      put("mock_data", true);
      return;
    }
    const std::pair<const char*, const std::vector<std::string>*> sources[] = {
        {"data_path", &t_.data_path},
        {"train_data_path", &t_.train_data_path},
        {"valid_data_path", &t_.valid_data_path},
        {"test_data_path", &t_.test_data_path}};
    bool any = false;
    for (const auto& [key, paths] : sources) {
      if (paths->empty()) continue;
      std::vector<std::string> words = *paths;
      for (std::string& word : words) {
        if (is_text_file(word)) {
          throw error_for(
              key, fmt::format("Megatron-LM reads tokens from .bin/.idx, and '{}' is text", word),
              fmt::format("'primus data tokenize --input {} --output-prefix NAME' makes them", word));
        }
        for (const char* ending : {".bin", ".idx"}) {
          if (word.ends_with(ending)) word.resize(word.size() - 4);
        }
      }
      put_words(key, words);
      any = true;
    }
    // Conversations are refused with their stage.
    if (!any && config::stage_of(t_).material == config::Material::kText) {
      throw e_.error_for("data_path", "there is no data to train on",
                         "set data_path or train_data_path to .bin/.idx files, or mock_data: true");
    }
    if (!t_.data_path.empty() && t_.split) put_text("split", *t_.split);
  }

  // Its NullTokenizer has one id more than its --vocab-size says, which ends documents; since April 2026 the
  // last of these ids does.
  void null_tokenizer(std::int64_t ids) {
    const bool counts_all =
        source_says("megatron/core/tokenizers/text/libraries/null_tokenizer.py", "eod_id=None");
    put_text("tokenizer_type", "NullTokenizer");
    put_number("vocab_size", static_cast<double>(counts_all ? ids : ids - 1));
  }

  void tokenizer() {
    if (t_.mock_data) return null_tokenizer(t_.vocab_size.value_or(kMockVocabulary));
    if (t_.tokenizer_type == "NullTokenizer" && t_.vocab_size) return null_tokenizer(*t_.vocab_size);
    if (t_.vocab_size) put_number("vocab_size", static_cast<double>(*t_.vocab_size));
    if (t_.tokenizer_model) put_text("tokenizer_model", *t_.tokenizer_model);
    if (t_.tokenizer_type == "ByteTokenizer") {
      problems_.add(
          error_for("tokenizer_type", "Megatron-LM has no tokenizer of bytes",
                    "set tokenizer_type: NullTokenizer and vocab_size: 257 for .bin/.idx made of bytes"));
      return;
    }
    const config::KeySpec& key = *config::find_key("tokenizer_type");
    Value value = rules_.value_there(key.name, config::current_value(key, t_));
    if (value.is_null() && t_.tokenizer_model) {
      value = config::plain_scalar("HuggingFaceTokenizer", {});
    }
    if (!value.is_null()) put_text("tokenizer_type", value.text);
  }

  // Where it finds no checkpoint, Megatron-LM goes on with random weights.
  void check_load(const Path& folder) {
    std::error_code error;
    if (std::filesystem::exists(folder / kTracker, error)) return;
    if (std::filesystem::exists(folder, error)) {
      problems_.add(e_.error_for(
          "load",
          fmt::format("load '{}' has no {}: Megatron-LM would start from random weights", folder.string(),
                      kTracker),
          "convert the model with Megatron-LM's tools/checkpoint/convert.py, or choose framework: native, "
          "which loads Hugging Face folders"));
    } else {
      job_.warnings.push_back(
          fmt::format("load '{}' is not on this machine: where Megatron-LM finds no checkpoint, it starts "
                      "from random weights",
                      folder.string()));
    }
  }

  void checkpoints() {
    const Path own = std::filesystem::absolute(run_.checkpoints());
    // Primus's `save: null` writes no checkpoints; an experiment that does not name it has them in the run's
    // folder.
    Path folder;
    if (t_.save) {
      folder = std::filesystem::absolute(*t_.save);
    } else if (!is_null("save")) {
      folder = own;
    }
    if (!folder.empty()) put_text("save", folder.string());
    std::error_code error;
    const bool has_checkpoint = !folder.empty() && std::filesystem::exists(folder / kTracker, error);
    if (t_.auto_continue_train && has_checkpoint && (is_set("auto_continue_train") || !t_.load)) {
      put_text("load", folder.string());
      put("finetune", false);
    } else if (t_.load) {
      check_load(*t_.load);
      put_text("load", *t_.load);
      put("finetune", t_.finetune);
    }
  }

  void reports() {
    if (!t_.disable_tensorboard) {
      put_text("tensorboard_dir",
               t_.tensorboard_dir.value_or(std::filesystem::absolute(run_.tensorboard()).string()));
    }
    const Value* off = e_.settings.find("disable_wandb");
    if (off && off->kind == Value::Kind::kBool && !off->boolean) {
      put_text("wandb_project", text_of("wandb_project").value_or(e_.work_group + "_" + e_.user_name));
      put_text("wandb_exp_name", text_of("wandb_exp_name").value_or(e_.exp_name));
      put_text("wandb_save_dir", std::filesystem::absolute(run_.root() / "wandb").string());
    }
    if (!e_.settings.find("eval_iters") && !is_set("eval_iters"))
      put_number("eval_iters", static_cast<double>(t_.eval_iters));
    if (is_set("eval_interval") || t_.eval_iters > 0)
      put_number("eval_interval", static_cast<double>(t_.eval_interval));
    if (is_set("eval_iters")) put_number("eval_iters", static_cast<double>(t_.eval_iters));
    if (!is_set("log_throughput")) put("log_throughput", true);  // what primus report shows
    if (is_set("save_interval") || arguments_.contains("save"))
      put_number("save_interval", static_cast<double>(t_.save_interval));
  }

  bool is_true(const char* key) const {
    const Value* value = e_.settings.find(key);
    return value && (value->boolean || value->text == "1");
  }
  std::optional<std::string> text_of(const char* key) const {
    const Value* value = e_.settings.find(key);
    return value && !value->is_null() ? std::optional(value->text) : std::nullopt;
  }

  // What differs from Megatron-LM's own defaults, in the order of its names.
  void emit() {
    for (const auto& [name, value] : arguments_) {
      const BackendField* found = fields_.find(name);
      if (!found) {
        throw unsupported(fmt::format("Megatron-LM has no argument for {}", name),
                          "choose framework: native");
      }
      const BackendField& field = *found;
      if (field.type == KeyType::kBool && field.flag.empty()) {
        const bool wanted = value.boolean || value.text == "1";
        if (wanted == field.fallback.boolean) continue;
        const std::string& flag = wanted ? field.on : field.off;
        if (!flag.empty()) job_.command.push_back(flag);
        continue;
      }
      if (field.type == KeyType::kList) {
        const std::vector<std::string> words = words_of(value);
        if (words.empty() || same_words(words, words_of(field.fallback))) continue;
        job_.command.push_back(field.flag);
        job_.command.insert(job_.command.end(), words.begin(), words.end());
        continue;
      }
      const std::string text = text_of(field, value);
      if (!field.fallback.is_null() && text == text_of(field, field.fallback)) continue;
      // Attached with '=' a value that begins with a dash cannot be taken for an option.
      if (text.starts_with('-')) {
        job_.command.push_back(field.flag + "=" + text);
      } else {
        job_.command.insert(job_.command.end(), {field.flag, text});
      }
    }
  }

  static std::string text_of(const BackendField& field, const Value& value) {
    const bool number = value.kind == Value::Kind::kInt || value.kind == Value::Kind::kFloat;
    if (field.type == KeyType::kInt && number)
      return fmt::format("{}", static_cast<std::int64_t>(value.real));
    if (field.type == KeyType::kFloat && number) return fmt::format("{}", value.real);
    return value.text;
  }

  void environment() {
    const bool fsdp = t_.use_torch_fsdp2 || is_on("use_megatron_fsdp");
    // Order of kernels between streams, which tensor parallelism needs and FSDP must not have.
    if (fsdp) {
      job_.required["CUDA_DEVICE_MAX_CONNECTIONS"] = "8";
    } else {
      job_.environment["CUDA_DEVICE_MAX_CONNECTIONS"] = "1";
    }
    if (!checkout_.empty()) job_.environment["PYTHONPATH"] = checkout_.string();
  }

  // What the same keys mean there.
  void meaning() {
    const std::int64_t model =
        t_.tensor_model_parallel_size * t_.pipeline_model_parallel_size * t_.context_parallel_size;
    if (shape_.ranks() % std::max<std::int64_t>(model, 1) != 0 && shape_.ranks() > 1) {
      job_.warnings.push_back(
          fmt::format("{} ranks cannot be divided by {}, which is tensor x pipeline x context parallelism: "
                      "Megatron-LM will refuse it",
                      shape_.ranks(), model));
    }
    const std::int64_t microbatches = t_.global_batch_size / std::max<std::int64_t>(t_.micro_batch_size, 1);
    if (!t_.calculate_per_token_loss && t_.eod_mask_loss && microbatches > 1) {
      job_.warnings.push_back(
          "the loss is averaged over microbatches, each over its own tokens: with eod_mask_loss, tokens of a "
          "microbatch "
          "with more end-of-document tokens count more (calculate_per_token_loss: true weighs all alike)");
    }
  }

  const config::Experiment& e_;
  const config::TrainerConfig& t_;
  const config::BackendFields& fields_;
  KeyRules rules_;
  RunFolder run_;
  Path checkout_;
  JobShape shape_;
  std::map<std::string, Value> arguments_;
  config::Problems problems_;
  ExternalJob job_;
};

ExternalJob render_megatron(const config::Experiment& experiment, const config::BackendFields& fields,
                            const Path& checkout, const JobShape& shape) {
  return Megatron(experiment, fields, checkout, shape).run();
}

}  // namespace

extern const BackendEntry kMegatron{"megatron", render_megatron, megatron_iteration, megatron_evaluation};

}  // namespace primus::backends
