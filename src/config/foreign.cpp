#include "config/foreign.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/text/suggest.h"
#include "config/decimal.h"

namespace primus::config {
namespace {

Value number(double value, const Origin& origin) {
  // Steps and sizes are whole.
  if (value == std::floor(value) && std::abs(value) < 1e15)
    return plain_scalar(fmt::format("{}", static_cast<int64_t>(value)), origin);
  return plain_scalar(fmt::format("{}", value), origin);
}

Value text(std::string_view word, const Origin& origin) {
  Value value;
  value.kind = Value::Kind::kString;
  value.quoted = true;
  value.text = word;
  value.origin = origin;
  return value;
}

bool is_one_of(const Value& value, const Value& list) {
  return std::ranges::any_of(list.items, [&](const Value& item) {
    const bool nothing = value.is_null() || (value.is_list() && value.items.empty());
    if (item.is_null() || nothing) return item.is_null() && nothing;
    const bool numbers = item.kind != Value::Kind::kString && value.kind != Value::Kind::kString &&
                         item.kind != Value::Kind::kBool && value.kind != Value::Kind::kBool;
    return numbers ? item.real == value.real : item.text == value.text;
  });
}

class Translator {
 public:
  Translator(const BackendFields& fields, const Value& settings, int64_t ranks, Problems& problems)
      : fields_(fields), settings_(settings), ranks_(ranks), problems_(problems) {
    title_ = fields.keys().find("title")->text;
  }

  Translation run() {
    result_.settings.kind = Value::Kind::kMap;
    for (const Member& row : fields_.keys("settings").members) apply(row);
    for_each_setting(fields_, settings_,
                     [&](const std::string& path, const Member& member) { left_over(path, member); });
    model();
    if (fields_.framework() == "torchtitan") torchtitan();
    if (fields_.framework() == "maxtext") maxtext();
    for (const Value& warning : list("differences")) result_.warnings.push_back(warning.text);
    return std::move(result_);
  }

 private:
  const std::vector<Value>& list(std::string_view section) const {
    static const std::vector<Value> nothing;
    const Value* found = fields_.keys().find(section);
    return found ? found->items : nothing;
  }

  // What the run would have: as set, or the framework's default.
  Value get(std::string_view path) const {
    if (const Value* value = find_path(settings_, path); value && !value->is_null()) return *value;
    const BackendField* field = fields_.find(path);
    Value value = field ? field->fallback : Value{};
    value.origin = {};
    return value;
  }
  bool is_set(std::string_view path) const {
    const Value* value = find_path(settings_, path);
    return value && !value->is_null();
  }
  double real(std::string_view path) const { return get(path).real; }
  bool on(std::string_view path) const { return get(path).boolean; }
  std::string word(std::string_view path) const { return get(path).text; }

  void put(std::string_view key, Value value, std::string_view from) {
    result_.names[std::string(key)] = from;
    Origin origin = value.origin;
    result_.settings.set(std::string(key), std::move(origin), std::move(value));
  }
  void put(std::string_view key, double value, std::string_view from) {
    put(key, number(value, get(from).origin), from);
  }
  void put_text(std::string_view key, std::string_view value, std::string_view from) {
    put(key, text(value, get(from).origin), from);
  }

  void refuse(std::string_view path, const std::string& why, const std::string& hint) {
    const Value value = get(path);
    refuse_at(value, fmt::format("{} is {}: {}", path, value.show(), why), hint);
  }
  // Understood, and nothing that the native engine has.
  void refuse_at(const Value& value, const std::string& what, const std::string& hint) {
    Error error = unsupported(what, hint);
    if (value.origin.source) error.at(value.origin.location(), value.origin.snippet(value.width()));
    problems_.add(std::move(error));
  }

  // One line of the section `settings`.
  void apply(const Member& row) {
    const Value value = get(row.key);
    if (const Value* only = row.value.find("only"); only && !is_one_of(value, *only)) {
      const Value* because = row.value.find("because");
      refuse(row.key, because ? because->text : "the native engine has nothing like it",
             fmt::format("leave {} out, or keep framework: {}", row.key, fields_.framework()));
      return;
    }
    const Value* key = row.value.find("key");
    if (!key || value.is_null()) return;
    Value mine = value;
    if (const Value* values = row.value.find("values")) {
      if (const Value* found = values->find(value.text)) {
        mine = *found;
        mine.origin = value.origin;
      }
    }
    put(key->text, std::move(mine), row.key);
  }

  // A setting that no line translates.
  void left_over(const std::string& path, const Member& member) {
    const Value* row = fields_.keys("settings").find(path);
    if (row) {
      if (const Value* none = row->find("none")) result_.dropped[none->text].push_back(path);
      return;
    }
    if (const Value* extra = find_extra(fields_, path)) {
      const Value* key = extra->find("key");
      const Value* because = extra->find("because");
      if (key && !member.value.is_null()) {
        put(key->text, member.value, path);
      } else if (!key) {
        result_.dropped[because ? because->text : "Primus adds it"].push_back(path);
      }
      return;
    }
    for (const Member& reason : fields_.keys("nothing").members) {
      for (const Value& item : reason.value.items) {
        const bool star = item.text.ends_with('*');
        if (star ? path.starts_with(item.text.substr(0, item.text.size() - 1)) : path == item.text) {
          result_.dropped[reason.key].push_back(path);
          return;
        }
      }
    }
    // A setting at the framework's own default says nothing.
    const BackendField* field = fields_.find(path);
    if (!field || member.value.is_null() ||
        (field->fallback.text == member.value.text && member.value.is_scalar()))
      return;
    result_.dropped["the native engine has nothing like it"].push_back(path);
  }

  // Which of our presets has the architecture that the settings name.
  void model() {
    for (const Member& preset : fields_.keys("models").members) {
      const bool same = std::ranges::all_of(
          preset.value.members, [&](const Member& part) { return get(part.key).text == part.value.text; });
      if (!same) continue;
      result_.model_preset = preset.key;
      result_.model_origin = get(preset.value.members.front().key).origin;
      return;
    }
    if (fields_.framework() == "maxtext" && word("model_name") == "default")
      return;  // it describes one itself
    const std::string path = fields_.framework() == "maxtext" ? "model_name" : "model.flavor";
    refuse(path, fmt::format("there is no preset of this model of {}", title_),
           "'primus config show' with framework: native and model: NAME has the models that there are");
  }

  double model_parallel(std::initializer_list<std::string_view> paths) const {
    double product = 1;
    for (const std::string_view path : paths) product *= std::max(real(path), 1.0);
    return product;
  }

  // ---- TorchTitan ---------------------------------------------------------------------------------

  void torchtitan() {
    const double steps = real("training.steps"), rate = real("optimizer.lr");
    const double model =
        model_parallel({"parallelism.tensor_parallel_degree", "parallelism.pipeline_parallel_degree",
                        "parallelism.context_parallel_degree"});
    const double replicate = std::max(real("parallelism.data_parallel_replicate_degree"), 1.0);
    double shard = real("parallelism.data_parallel_shard_degree");
    if (shard < 0) shard = std::max(1.0, std::floor(static_cast<double>(ranks_) / model / replicate));
    const double local = real("training.local_batch_size");
    const bool staged = real("parallelism.pipeline_parallel_degree") > 1;
    put("micro_batch_size", staged ? real("parallelism.pipeline_parallel_microbatch_size") : local,
        staged ? "parallelism.pipeline_parallel_microbatch_size" : "training.local_batch_size");
    const double global = real("training.global_batch_size");
    put("global_batch_size", global > 0 ? global : local * replicate * shard, "training.global_batch_size");
    sharding(replicate, shard);
    recompute();
    schedule(steps, rate);

    const bool bf16 = word("training.mixed_precision_param") == "bfloat16";
    put("bf16", plain_scalar(bf16 ? "true" : "false", get("training.mixed_precision_param").origin),
        "training.mixed_precision_param");
    for (const Value& converter : get("model.converters").items) {
      if (converter.text == "primus_turbo") {
        result_.dropped["Primus-Turbo's kernels"].emplace_back("model.converters: primus_turbo");
      } else if (converter.text == "quantize.linear.float8" || converter.text == "float8") {
        float8(converter);
      } else {
        refuse_at(converter,
                  fmt::format("model.converters has {}, which the native engine has not", converter.show()),
                  "leave it out");
      }
    }
    if (on("validation.enable")) {
      put("eval_interval", real("validation.freq"), "validation.freq");
      put("eval_iters", std::max(real("validation.steps"), 1.0), "validation.steps");
    } else {
      put("eval_iters", 0.0, "validation.enable");
    }
    if (is_set("training.dataset_path")) {
      put_text("data_path", word("training.dataset_path"), "training.dataset_path");
    } else if (!result_.settings.find("mock_data") || !result_.settings.find("mock_data")->boolean) {
      result_.warnings.push_back(
          fmt::format("TorchTitan streams the data set '{}' from its hub; here data_path=FILE names text, "
                      "JSON lines or .bin/.idx",
                      word("training.dataset")));
    }
    if (!on("checkpoint.enable")) {
      put("save_interval", std::max(steps, 1.0), "checkpoint.enable");
      put("disable_last_saving", plain_scalar("true", get("checkpoint.enable").origin), "checkpoint.enable");
    }
  }

  void sharding(double replicate, double shard) {
    const std::string from = "parallelism.data_parallel_shard_degree";
    const bool keeps = word("parallelism.fsdp_reshard_after_forward") == "never";
    put_text("data_parallel_sharding_strategy",
             shard <= 1 ? "no_shard"
             : keeps    ? "optim_grads"
                        : "optim_grads_params",
             from);
    if (shard > 1 && replicate > 1)
      put("num_distributed_optimizer_instances", replicate, "parallelism.data_parallel_replicate_degree");
  }

  // torchao's float8 with a scale for each tensor: gradients of outputs are e5m2.
  void float8(const Value& converter) {
    const std::string section = "quantize.linear.float8.";
    if (word(section + "recipe_name").starts_with("rowwise"))
      refuse(section + "recipe_name", "the native engine's fp8 has one scale for each tensor",
             "set tensorwise, or leave the converter out");
    bool head = true;
    for (const Value& name : get(section + "filter_fqns").items) {
      if (name.text == "output")
        head = false;
      else if (name.text != "router.gate")  // in fp32 here
        refuse_at(
            name,
            fmt::format("{}filter_fqns has {}, and the native engine's fp8 is in all linear layers of blocks",
                        section, name.show()),
            "leave it out, or the converter");
    }
    if (head)
      result_.warnings.push_back(
          "quantize.linear.float8: the native engine multiplies the head in bf16, TorchTitan in fp8 unless "
          "filter_fqns has output");
    put("fp8", text("hybrid", converter.origin), "model.converters");
    put("fp8_recipe", text("tensorwise", converter.origin), "model.converters");
  }

  void recompute() {
    const std::string mode = word("activation_checkpoint.mode"), from = "activation_checkpoint.mode";
    if (mode == "full") {
      put_text("recompute_granularity", "full", from);
      put_text("recompute_method", "uniform", from);
      put("recompute_num_layers", 1.0, from);
    } else if (mode == "none") {
      put_text("recompute_granularity", "none", from);
    } else {
      put_text("recompute_granularity", "selective", from);
      result_.warnings.push_back(
          fmt::format("activation_checkpoint.mode: {} chooses operators of its own; recompute_granularity: "
                      "selective recomputes "
                      "attention: the same numbers with another need of memory",
                      mode));
    }
  }

  // Its first step has lr / warmup_steps, where Megatron-LM's and the native engine's has lr_warmup_init: one
  // step less of warm-up from that rate gives the same line.
  void schedule(double steps, double rate) {
    const double warmup = std::min(real("lr_scheduler.warmup_steps"), steps);
    const double total = is_set("lr_scheduler.total_steps") ? real("lr_scheduler.total_steps") : steps;
    put("lr_warmup_iters", std::max(warmup - 1, 0.0), "lr_scheduler.warmup_steps");
    if (warmup > 1) put("lr_warmup_init", rate / warmup, "lr_scheduler.warmup_steps");
    put("min_lr", decimal(rate * real("lr_scheduler.min_lr_factor")), "lr_scheduler.min_lr_factor");
    const std::string type = word("lr_scheduler.decay_type"), from = "lr_scheduler.decay_type";
    // Steps count from 0 there, and the decay is one ahead: so it ends at step `total`, as here.
    put("lr_decay_iters", total, "training.steps");
    const bool whole = !is_set("lr_scheduler.decay_ratio");
    double decay = whole ? total - warmup : std::nearbyint(total * real("lr_scheduler.decay_ratio"));
    decay = std::min(decay, total - warmup);
    if (decay <= 0) {
      put_text("lr_decay_style", "constant", from);
      return;
    }
    put_text("lr_decay_style", "WSD", from);
    put("lr_wsd_decay_iters", decay, whole ? "lr_scheduler.decay_type" : "lr_scheduler.decay_ratio");
    put_text("lr_wsd_decay_style", type == "sqrt" ? "minus_sqrt" : type, from);
  }

  // ---- MaxText ------------------------------------------------------------------------------------

  void maxtext() {
    const double steps = real("steps");
    put("train_iters", steps, "steps");
    const double model =
        model_parallel({"ici_tensor_parallelism", "ici_pipeline_parallelism", "ici_context_parallelism",
                        "dcn_tensor_parallelism", "dcn_pipeline_parallelism", "dcn_context_parallelism"});
    const double data = std::max(1.0, std::floor(static_cast<double>(ranks_) / model));
    const double each = real("per_device_batch_size");
    if (each < 1) {
      refuse("per_device_batch_size", "a rank takes whole sequences",
             "set per_device_batch_size: 1 and context parallelism");
      return;
    }
    put("micro_batch_size", each, "per_device_batch_size");
    // Per device of all, also of those that share a sequence or a layer.
    put("global_batch_size",
        each * static_cast<double>(ranks_) * std::max(real("gradient_accumulation_steps"), 1.0),
        "per_device_batch_size");
    const double tensor = model_parallel({"ici_tensor_parallelism", "dcn_tensor_parallelism"});
    put("tensor_model_parallel_size", tensor, "ici_tensor_parallelism");
    put("pipeline_model_parallel_size",
        model_parallel({"ici_pipeline_parallelism", "dcn_pipeline_parallelism"}), "ici_pipeline_parallelism");
    put("context_parallel_size", model_parallel({"ici_context_parallelism", "dcn_context_parallelism"}),
        "ici_context_parallelism");
    put("expert_model_parallel_size", model_parallel({"ici_expert_parallelism", "dcn_expert_parallelism"}),
        "ici_expert_parallelism");
    double shard = real("ici_fsdp_parallelism");
    if (shard < 0) shard = data;
    put_text("data_parallel_sharding_strategy", shard > 1 && data > 1 ? "optim_grads_params" : "no_shard",
             "ici_fsdp_parallelism");
    maxtext_schedule(steps);

    const std::string remat = word("remat_policy");
    const bool none = remat == "none" || remat == "save_everything", full = remat == "full";
    put_text("recompute_granularity", none ? "none" : full ? "full" : "selective", "remat_policy");
    if (full) {
      put_text("recompute_method", "uniform", "remat_policy");
      put("recompute_num_layers", 1.0, "remat_policy");
    } else if (!none) {
      result_.warnings.push_back(
          fmt::format("remat_policy: {} chooses tensors of its own; recompute_granularity: selective "
                      "recomputes attention: the same "
                      "numbers with another need of memory",
                      remat));
    }
    put("bf16", plain_scalar(word("dtype") == "bfloat16" ? "true" : "false", get("dtype").origin), "dtype");
    if (!word("quantization").empty()) {
      const bool fp8 = word("quantization").find("fp8") != std::string::npos;
      refuse("quantization",
             fp8 ? "the native engine's fp8 has another history of magnitudes, and other products, than "
                   "MaxText's"
                 : "the native engine has no such quantised training",
             "leave quantization out");
    }
    const std::string data_set = word("dataset_type");
    if (data_set == "synthetic") {
      put("mock_data", plain_scalar("true", get("dataset_type").origin), "dataset_type");
    } else {
      result_.warnings.push_back(
          fmt::format("dataset_type: {} is read by MaxText's own pipelines; here data_path=FILE names text, "
                      "JSON lines or .bin/.idx",
                      data_set));
    }
    const double every = real("eval_interval");
    put("eval_iters", every > 0 ? std::max(real("eval_steps"), 1.0) : 0.0, "eval_interval");
    if (every > 0) put("eval_interval", every, "eval_interval");
    if (on("enable_checkpointing")) {
      put("save_interval", real("checkpoint_period"), "checkpoint_period");
    } else {
      put("save_interval", std::max(steps, 1.0), "enable_checkpointing");
      put("disable_last_saving", plain_scalar("true", get("enable_checkpointing").origin),
          "enable_checkpointing");
    }
    if (result_.model_preset.empty()) maxtext_model();
  }

  void maxtext_schedule(double steps) {
    const double rate = real("learning_rate");
    double total = real("learning_rate_schedule_steps");
    if (total <= 0) total = steps;
    put("min_lr", decimal(rate * real("learning_rate_final_fraction")), "learning_rate_final_fraction");
    put("lr_warmup_iters", std::floor(total * real("warmup_steps_fraction")), "warmup_steps_fraction");
    // Its decay reaches the end with its last step, and not behind it.
    put("lr_decay_iters", std::max(total - 1, 1.0), "learning_rate_schedule_steps");
    if (word("lr_schedule_type") == "wsd") {
      put_text("lr_decay_style", "WSD", "lr_schedule_type");
      put("lr_wsd_decay_iters", std::max(std::floor(total * real("wsd_decay_steps_fraction")) - 1, 1.0),
          "wsd_decay_steps_fraction");
      put_text("lr_wsd_decay_style", word("wsd_decay_style"), "wsd_decay_style");
    } else {
      put_text("lr_decay_style", "cosine", "lr_schedule_type");
    }
    if (total < steps) {
      refuse("learning_rate_schedule_steps",
             "the rate would be zero for the last steps, and here it is min_lr",
             "set steps to the same number");
    }
  }

  void maxtext_model() {
    const std::string block = word("decoder_block");
    const Value* family = fields_.keys("decoder_blocks").find(block);
    if (!family) {
      refuse("decoder_block", "it is no family that the native engine has",
             fmt::format("choose a model with model_name, or keep framework: {}", fields_.framework()));
      return;
    }
    put_text("model_type", family->text, "decoder_block");
    for (const Member& part : fields_.keys("architecture").members) {
      const Value value = get(part.key);
      if (!value.is_null()) put(part.value.text, value, part.key);
    }
    put("untie_embeddings_and_output_weights",
        plain_scalar(on("logits_via_embedding") ? "false" : "true", get("logits_via_embedding").origin),
        "logits_via_embedding");
    if (real("num_experts") > 1) {
      put("num_experts", real("num_experts"), "num_experts");
      put("moe_router_topk", real("num_experts_per_tok"), "num_experts_per_tok");
      if (real("base_moe_mlp_dim") > 0)
        put("moe_ffn_hidden_size", real("base_moe_mlp_dim"), "base_moe_mlp_dim");
    }
  }

  const BackendFields& fields_;
  const Value& settings_;
  int64_t ranks_;
  Problems& problems_;
  std::string title_;
  Translation result_;
};

}  // namespace

const Value* find_path(const Value& settings, std::string_view path) {
  if (const Value* whole = settings.find(path)) return whole;
  const size_t dot = path.find('.');
  if (dot == std::string_view::npos) return nullptr;
  const Value* section = settings.find(path.substr(0, dot));
  return section && section->is_map() ? find_path(*section, path.substr(dot + 1)) : nullptr;
}

bool has_foreign_settings(const Experiment& experiment) {
  return std::ranges::any_of(experiment.settings.members, [](const Member& member) {
    const KeySpec* key = find_key(member.key);
    return !key || (member.value.is_map() && key->type == KeyType::kString);
  });
}

void set_path(Value& settings, std::string_view path, Value value) {
  settings.kind = Value::Kind::kMap;
  const size_t dot = path.find('.');
  const std::string head(path.substr(0, dot));
  if (dot == std::string_view::npos) {
    Origin origin = value.origin;
    settings.set(head, std::move(origin), std::move(value));
    return;
  }
  const Value* before = settings.find(head);
  Value section = before && before->is_map() ? *before : Value{};
  set_path(section, path.substr(dot + 1), std::move(value));
  settings.set(head, {}, std::move(section));
}

const Value* find_extra(const BackendFields& fields, std::string_view path) {
  for (const Member& extra : fields.keys("extra").members) {
    const bool star = extra.key.ends_with('*');
    if (star ? path.starts_with(extra.key.substr(0, extra.key.size() - 1)) : path == extra.key)
      return &extra.value;
  }
  return nullptr;
}

bool knows(const BackendFields& fields, std::string_view path) {
  return fields.find(path) || fields.is_section(path) || find_extra(fields, path) ||
         find_extra(fields, std::string(path) + ".");
}

void check_settings(const BackendFields& fields, const Value& settings, Problems& problems) {
  std::vector<std::string_view> names;
  for (const auto& [name, field] : fields.all()) names.push_back(name);
  for_each_setting(fields, settings, [&](const std::string& path, const Member& member) {
    if (const BackendField* field = fields.find(path)) {
      problems.collect([&] { BackendFields::check(*field, member.value); });
      return;
    }
    if (find_extra(fields, path) || !problems.are_kept()) return;
    if (member.value.is_null() && fields.is_section(path)) return;
    const std::string near = did_you_mean(path, names);
    problems.add(error_at(
        member.origin,
        fmt::format("unknown key '{}' of {}", path.substr(0, 80), fields.keys().find("title")->text),
        near.empty() ? "'primus config reference' lists Primus's own keys" : near, member.key.size()));
  });
}

Translation to_own_keys(const BackendFields& fields, const Value& settings, int64_t ranks,
                        Problems& problems) {
  return Translator(fields, settings, ranks, problems).run();
}

}  // namespace primus::config
