// Translates the MaxText settings that the table presets/backends/maxtext/keys.yaml cannot express.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "config/formats/decimal.h"
#include "config/framework.h"

namespace primus::config {
namespace {

class MaxTextSettings final : public Translator {
 public:
  using Translator::Translator;

 private:
  std::string_view model_setting() const override { return "model_name"; }
  bool describes_model() const override { return word("model_name") == "default"; }

  void translate() override {
    const double steps = real("steps");
    put("train_iters", steps, "steps");
    const double model =
        model_parallel({"ici_tensor_parallelism", "ici_pipeline_parallelism", "ici_context_parallelism",
                        "dcn_tensor_parallelism", "dcn_pipeline_parallelism", "dcn_context_parallelism"});
    const double data = std::max(1.0, std::floor(ranks() / model));
    const double each = real("per_device_batch_size");
    if (each < 1) {
      refuse("per_device_batch_size", "a rank trains on whole sequences",
             "set per_device_batch_size: 1, and divide sequences by context parallelism");
      return;
    }
    put("micro_batch_size", each, "per_device_batch_size");
    // MaxText multiplies its batch per device by the number of all devices, including devices that share a
    // sequence or a layer.
    put("global_batch_size", each * ranks() * std::max(real("gradient_accumulation_steps"), 1.0),
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
    schedule(steps);

    const std::string remat = word("remat_policy");
    const bool none = remat == "none" || remat == "save_everything", full = remat == "full";
    put_text("recompute_granularity", none ? "none" : full ? "full" : "selective", "remat_policy");
    if (full) {
      put_text("recompute_method", "uniform", "remat_policy");
      put("recompute_num_layers", 1.0, "remat_policy");
    } else if (!none) {
      result().warnings.push_back(fmt::format(
          "remat_policy: {} chooses which tensors to recompute. The native engine recomputes attention "
          "instead (recompute_granularity: selective): results are the same, memory use differs",
          remat));
    }
    put("bf16", plain_scalar(word("dtype") == "bfloat16" ? "true" : "false", get("dtype").origin), "dtype");
    if (!word("quantization").empty()) {
      const bool fp8 = word("quantization").find("fp8") != std::string::npos;
      refuse("quantization",
             fp8 ? "in fp8, the native engine and MaxText derive scales from different histories of "
                   "magnitudes, and compute different products in fp8"
                 : "the native engine does not support this quantised training",
             "leave quantization out");
    }
    const std::string data_set = word("dataset_type");
    if (data_set == "synthetic") {
      put("mock_data", plain_scalar("true", get("dataset_type").origin), "dataset_type");
    } else {
      result().warnings.push_back(
          fmt::format("dataset_type: {} is a data pipeline of MaxText, which the native engine does not "
                      "have: set data_path=FILE to text, JSON lines or .bin/.idx",
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
    if (result().model_preset.empty()) own_model();
  }

  void schedule(double steps) {
    const double rate = real("learning_rate");
    double total = real("learning_rate_schedule_steps");
    if (total <= 0) total = steps;
    put("min_lr", decimal(rate * real("learning_rate_final_fraction")), "learning_rate_final_fraction");
    put("lr_warmup_iters", std::floor(total * real("warmup_steps_fraction")), "warmup_steps_fraction");
    // MaxText's decay ends at the last step, one step earlier than the native engine's decay.
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
             "in MaxText the learning rate is 0 in the last steps, and in the native engine it is min_lr",
             "set steps to the same number");
    }
  }

  void own_model() {
    const std::string block = word("decoder_block");
    const Value* family = fields().keys("decoder_blocks").find(block);
    if (!family) {
      refuse("decoder_block", "the native engine does not have this model family",
             fmt::format("choose a model with model_name, or keep framework: {}", fields().framework()));
      return;
    }
    put_text("model_type", family->text, "decoder_block");
    for (const Member& part : fields().keys("architecture").members) {
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
};

}  // namespace

extern const FrameworkEntry kMaxText{
    .name = "maxtext", .title = "MaxText", .place = 3, .translator = make_translator<MaxTextSettings>};

}  // namespace primus::config
