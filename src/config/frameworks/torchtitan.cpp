// Translates the TorchTitan settings that the table presets/backends/torchtitan/keys.yaml cannot express.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "config/formats/decimal.h"
#include "config/framework.h"

namespace primus::config {
namespace {

class TorchTitanSettings final : public Translator {
 public:
  using Translator::Translator;

 private:
  std::string_view model_setting() const override { return "model.flavor"; }

  void translate() override {
    const double steps = real("training.steps"), rate = real("optimizer.lr");
    const double model =
        model_parallel({"parallelism.tensor_parallel_degree", "parallelism.pipeline_parallel_degree",
                        "parallelism.context_parallel_degree"});
    const double replicate = std::max(real("parallelism.data_parallel_replicate_degree"), 1.0);
    double shard = real("parallelism.data_parallel_shard_degree");
    if (shard < 0) shard = std::max(1.0, std::floor(ranks() / model / replicate));
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
        result().dropped["Primus-Turbo's kernels"].emplace_back("model.converters: primus_turbo");
      } else if (converter.text == "quantize.linear.float8" || converter.text == "float8") {
        float8(converter);
      } else {
        refuse_at(converter,
                  fmt::format("model.converters has {}, which the native engine does not support",
                              converter.show()),
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
    } else if (!result().settings.find("mock_data") || !result().settings.find("mock_data")->boolean) {
      result().warnings.push_back(
          fmt::format("TorchTitan streams the data set '{}' from its hub, which the native engine cannot do: "
                      "set data_path=FILE to text, JSON lines or .bin/.idx",
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

  // Translates torchao's float8 with one scale per tensor, which uses e5m2 for output gradients.
  void float8(const Value& converter) {
    const std::string section = "quantize.linear.float8.";
    if (word(section + "recipe_name").starts_with("rowwise"))
      refuse(section + "recipe_name", "the native engine's fp8 uses one scale per tensor",
             "set tensorwise, or remove the converter");
    bool head = true;
    for (const Value& name : get(section + "filter_fqns").items) {
      if (name.text == "output")
        head = false;
      else if (name.text != "router.gate")  // the native engine computes this layer in fp32
        refuse_at(name,
                  fmt::format("{}filter_fqns excludes {} from fp8, but the native engine uses fp8 in all "
                              "linear layers of blocks",
                              section, name.show()),
                  "remove it, or remove the converter");
    }
    if (head)
      result().warnings.push_back(
          "quantize.linear.float8: the native engine multiplies the head in bf16; TorchTitan uses fp8 unless "
          "filter_fqns lists output");
    put("fp8", text_value("hybrid", converter.origin), "model.converters");
    put("fp8_recipe", text_value("tensorwise", converter.origin), "model.converters");
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
      result().warnings.push_back(fmt::format(
          "activation_checkpoint.mode: {} chooses which operators to recompute. The native engine recomputes "
          "attention instead (recompute_granularity: selective): results are the same, memory use differs",
          mode));
    }
  }

  // TorchTitan's first step has the rate lr / warmup_steps; Megatron-LM's and the native engine's first step
  // has lr_warmup_init. A warm-up that starts at lr / warmup_steps and is one step shorter gives the same
  // rates.
  void schedule(double steps, double rate) {
    const double warmup = std::min(real("lr_scheduler.warmup_steps"), steps);
    const double total = is_set("lr_scheduler.total_steps") ? real("lr_scheduler.total_steps") : steps;
    put("lr_warmup_iters", std::max(warmup - 1, 0.0), "lr_scheduler.warmup_steps");
    if (warmup > 1) put("lr_warmup_init", rate / warmup, "lr_scheduler.warmup_steps");
    put("min_lr", decimal(rate * real("lr_scheduler.min_lr_factor")), "lr_scheduler.min_lr_factor");
    const std::string type = word("lr_scheduler.decay_type"), from = "lr_scheduler.decay_type";
    // TorchTitan counts steps from 0, but its decay is one step ahead. Both frameworks therefore end the
    // decay at step `total`.
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
};

}  // namespace

extern const FrameworkEntry kTorchTitan{.name = "torchtitan",
                                        .title = "TorchTitan",
                                        .place = 2,
                                        .translator = make_translator<TorchTitanSettings>};

}  // namespace primus::config
