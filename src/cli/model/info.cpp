// primus model info: describes a model folder or a preset
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/text/json_text.h"
#include "cli/command.h"
#include "config/experiment.h"
#include "config/trainer_config.h"
#include "lm/checkpoint/safetensors.h"
#include "lm/exchange/exchange.h"
#include "lm/generate/model_folder.h"
#include "lm/generate/preset_model.h"
#include "lm/model/layer_kind.h"
#include "lm/model/model_size.h"
#include "lm/optimizer/optimizer_settings.h"
#include "lm/train/model_report.h"

namespace primus::cli {
namespace {

struct Weights {
  std::int64_t tensors = 0, bytes = 0;
  std::int64_t mtp = 0;                         // elements of multi-token prediction, including copies of
                                                // shared tensors
  std::map<std::string, std::int64_t> by_type;  // elements
};

// Returns whether a tensor belongs to multi-token prediction. The blocks of multi-token prediction are
// numbered after the model's blocks.
bool of_multi_token_prediction(std::string_view name, std::int64_t layers) {
  constexpr std::string_view kBlocks = "model.layers.";
  if (!name.starts_with(kBlocks)) return false;
  std::int64_t layer = 0;
  std::from_chars(name.data() + kBlocks.size(), name.data() + name.size(), layer);
  return layer >= layers;
}

Weights count(const SafetensorsFolder& folder, std::int64_t layers) {
  Weights w;
  for (std::size_t i = 0; i < folder.size(); ++i) {
    const TensorView tensor = folder[i];
    const auto bytes = static_cast<std::int64_t>(tensor.data.size());
    const std::int64_t elements = bytes / size_of(tensor.dtype);
    ++w.tensors;
    w.bytes += bytes;
    w.by_type[std::string(name_of(tensor.dtype))] += elements;
    if (of_multi_token_prediction(tensor.name, layers)) w.mtp += elements;
  }
  return w;
}

std::string layers_text(const ModelConfig& c) {
  const auto dense = static_cast<std::int64_t>(c.dense_layers().size());
  if (c.moe.experts == 0) return fmt::format("{}", c.layers);
  return dense == 0 ? fmt::format("{}, all with experts", c.layers)
                    : fmt::format("{}, {} of them with experts", c.layers, c.layers - dense);
}

std::string experts_text(const MoeConfig& moe) {
  return fmt::format("{} of {}, feed-forward {}{}", moe.router.top_k, moe.experts, moe.ffn,
                     moe.shared_ffn > 0 ? fmt::format(", shared {}", moe.shared_ffn) : "");
}

// Lists the kinds of attention; kinds with a KV cache come first.
std::string attention_text(const ModelConfig& c) {
  std::vector<const LayerKind*> kinds = kinds_of(c);
  std::ranges::stable_sort(kinds, {}, [](const LayerKind* kind) { return kind->keeps; });
  std::string text;
  for (const LayerKind* kind : kinds) {
    if (kind->summary) text += (text.empty() ? "" : "; ") + kind->summary(c);
  }
  return text;
}

// Returns the names for display: "this, that or another".
std::string optimizer_names() {
  std::string names;
  for (const OptimizerEntry& entry : optimizers()) {
    if (!names.empty()) names += &entry == &optimizers().back() ? " or " : ", ";
    names += entry.name;
  }
  return names;
}

class ModelInfo final : public Command {
 public:
  void declare(Arguments& args) override {
    args.positional(
        "MODEL", &folder_,
        "a Hugging Face folder, a checkpoint, the folder of a run, or the name of a model preset");
    args.option("--seq-length", "N", &sequence_,
                "tokens per sequence in the memory table (default: the model's maximum, up to 4096)")
        .between(1, 1 << 26);
    args.option("--micro-batch-size", "N", &micro_batch_, "sequences per microbatch in the memory table")
        .between(1, 65536);
    args.option("--optimizer", "NAME", &optimizer_, "optimizer of the memory table: " + optimizer_names());
    args.flag("--tensors", tensors_, "list every tensor");
    args.flag("--json", json_, "print as JSON");
  }

  int run(Console& console) override {
    if (!find_optimizer(optimizer_))
      throw invalid(
          fmt::format("--optimizer must be {}, not '{}'", optimizer_names(), printable(optimizer_)));
    const FamilyRegistry families = builtin_families();
    if (names_a_preset(folder_)) {
      describe(preset_model(folder_, families), families);
      if (tensors_) throw invalid("a preset has no tensors to list", "remove --tensors");
    } else {
      const ModelFolder folder = find_model_folder(folder_);
      std::vector<std::string> notes;
      const ModelConfig config = load_model_config(folder, families, &notes);
      console.notes(notes);
      const bool weights = has_weights(folder.path);
      // Throws if the folder's weights do not match the model, because the output below describes the model
      // and its weights together.
      if (weights) check_model(folder, families);
      describe(config, families);
      add_folder(folder);
      weights ? add_weights(folder, config, console) : add_no_weights();
    }
    json_ ? console.write(json_text(json_report_) + "\n") : console.print(text_);
    return 0;
  }

 private:
  void line(std::string_view what, const std::string& value) {
    text_ += fmt::format("{:<17}{}\n", what, value);
  }

  // Returns the facts for JSON. `whole` includes multi-token prediction; `model` does not.
  nlohmann::ordered_json facts_of(const ModelConfig& c, const ModelSize& model, const ModelSize& whole,
                                  const ModelReport& report, std::int64_t sequence) const {
    nlohmann::ordered_json facts = {{"family", c.family},
                                    {"parameters", model.parameters},
                                    {"active_parameters", model.active},
                                    {"layers", c.layers},
                                    {"hidden", c.hidden},
                                    {"ffn", c.ffn},
                                    {"heads", c.heads},
                                    {"kv_heads", c.kv_heads},
                                    {"head_dim", c.head_dim},
                                    {"vocab", c.vocab},
                                    {"max_positions", c.max_positions},
                                    {"rope_theta", c.rope_theta},
                                    {"rope_scaling", name_of(c.rope_scaling.kind)},
                                    {"tied_embeddings", c.tied_embeddings},
                                    {"experts", c.moe.experts},
                                    {"experts_per_token", c.moe.experts > 0 ? c.moe.router.top_k : 0},
                                    {"expert_ffn", c.moe.ffn},
                                    {"shared_expert_ffn", c.moe.shared_ffn},
                                    {"flops_per_token", report.flops_per_token},
                                    {"sequence_length", sequence},
                                    {"micro_batch_size", micro_batch_},
                                    {"training_memory", nlohmann::json::array()}};
    if (c.mtp.layers > 0) {
      facts["mtp_layers"] = c.mtp.layers;
      facts["mtp_parameters"] = whole.parameters - model.parameters;
      facts["active_mtp_parameters"] = whole.active - model.active;
      facts["mtp_is_trained"] = c.mtp.enabled;  // included in FLOPs and memory
    }
    return facts;
  }

  void describe(const ModelConfig& c, const FamilyRegistry& families) {
    const std::int64_t sequence = sequence_.value_or(std::min<std::int64_t>(c.max_positions, 4096));
    config::Experiment experiment;
    experiment.trainer->optimizer = optimizer_;
    const ModelReport report =
        report_model(c, families, micro_batch_, sequence, OptimizerSettings::from(experiment));
    const auto count = [](std::int64_t n) {
      return fmt::format("{} ({})", human_count(static_cast<double>(n)), n);
    };
    line("family", c.family);
    // `model` is the part of the model that evaluation and generation use. The elements of multi-token
    // prediction are listed separately.
    ModelConfig config = c;
    config.mtp.enabled = false;
    const ModelSize model = model_size(config, families);
    config.mtp.enabled = true;
    const ModelSize whole = model_size(config, families);
    const std::int64_t mtp = whole.parameters - model.parameters;
    line("parameters", count(model.parameters));
    if (c.moe.experts > 0) line("active", count(model.active) + " for each token");
    if (c.mtp.layers > 0) {
      const std::string active =
          c.moe.experts > 0 ? ", active " + count(whole.active - model.active) : std::string();
      line("MTP depth", fmt::format("{} (multi-token prediction), with its own parameters: {}{}",
                                    c.mtp.layers, count(mtp), active));
    }
    line("layers", layers_text(c));
    line("hidden", fmt::format("{}, feed-forward {}", c.hidden, c.ffn));
    if (c.moe.experts > 0) line("experts", experts_text(c.moe));
    line("attention", attention_text(c));
    line("vocabulary", fmt::format("{}{}", c.vocab, c.tied_embeddings ? ", head tied to the embedding" : ""));
    line("positions", fmt::format("{}, rope theta {}, scaling {}", c.max_positions, c.rope_theta,
                                  name_of(c.rope_scaling.kind)));
    const std::string_view scope = c.mtp.layers == 0 ? ""
                                   : c.mtp.enabled   ? ", with multi-token prediction"
                                                     : ", without multi-token prediction";
    line("FLOPs", fmt::format("{:.3g} for each token of a training step, sequences of {}{}",
                              report.flops_per_token, sequence, scope));
    text_ += fmt::format("\ntraining memory with {}, {} x {} tokens{}:\n", find_optimizer(optimizer_)->title,
                         micro_batch_, sequence, scope);
    text_ += fmt::format("  {:<22}{:>12}{:>14}{:>12}\n", "", "weights etc.", "activations", "total");
    json_report_ = facts_of(c, model, whole, report, sequence);
    for (const TrainingMemory& m : report.training) {
      const std::int64_t activations = m.plan.stash + m.plan.scratch;
      const auto bytes = [](std::int64_t n) { return human_bytes(static_cast<double>(n)); };
      text_ += fmt::format("  {:<22}{:>12}{:>14}{:>12}\n",
                           fmt::format("{}{}", name_of(m.compute), m.recompute ? ", full recompute" : ""),
                           bytes(m.plan.persistent), bytes(activations), bytes(m.plan.total()));
      json_report_["training_memory"].push_back({{"compute", name_of(m.compute)},
                                                 {"optimizer", optimizer_},
                                                 {"recompute", m.recompute ? "full" : "none"},
                                                 {"persistent_bytes", m.plan.persistent},
                                                 {"activation_bytes", activations},
                                                 {"total_bytes", m.plan.total()}});
    }
  }

  void add_folder(const ModelFolder& folder) {
    text_ += "\n";
    line("folder", folder.path.string());
    json_report_["folder"] = folder.path.string();
    if (!folder.iteration) return;
    line("iteration", fmt::format("{}", *folder.iteration));
    json_report_["iteration"] = *folder.iteration;
  }

  void add_no_weights() {
    if (tensors_) throw invalid("a folder without weights has no tensors to list", "remove --tensors");
    line("weights", "none; the folder has only config.json");
    json_report_["tensors"] = 0;
  }

  // Describes the weights in the files. The files may contain other types than the model and further tensors.
  void add_weights(const ModelFolder& folder, const ModelConfig& config, Console& console) {
    const SafetensorsFolder weights = open_weights(folder);
    for (const std::string& warning : weights.warnings()) console.note("warning: " + warning);
    const Weights total = count(weights, config.layers);
    std::string types;
    for (const auto& [type, elements] : total.by_type) {
      types +=
          fmt::format("{}{} {}", types.empty() ? "" : ", ", human_count(static_cast<double>(elements)), type);
    }
    line("weights", fmt::format("{} tensors in {} file{}, {}: {}", total.tensors, weights.files().size(),
                                weights.files().size() == 1 ? "" : "s",
                                human_bytes(static_cast<double>(total.bytes)), types));
    if (total.mtp > 0) {
      line("",
           fmt::format(
               "{} of these are for multi-token prediction, with its copies of the embedding and the head",
               human_count(static_cast<double>(total.mtp))));
      json_report_["mtp_elements"] = total.mtp;
    }
    json_report_["tensors"] = total.tensors;
    json_report_["files"] = weights.files().size();
    json_report_["bytes"] = total.bytes;
    json_report_["elements_by_type"] = total.by_type;
    if (!tensors_) return;
    text_ += "\n";
    json_report_["tensor_list"] = nlohmann::json::array();
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const TensorView t = weights[i];
      text_ += fmt::format("{:<56} {:<5} {}\n", t.name, name_of(t.dtype), shape_text(t.shape));
      json_report_["tensor_list"].push_back(
          {{"name", t.name},
           {"type", name_of(t.dtype)},
           {"shape", std::vector<std::int64_t>(t.shape.begin(), t.shape.end())}});
    }
  }

  std::string folder_, text_, optimizer_ = "adam";
  nlohmann::json json_report_;
  std::optional<std::int64_t> sequence_;
  std::int64_t micro_batch_ = 1;
  bool tensors_ = false, json_ = false;
};

}  // namespace

extern const CommandEntry kModelInfo{
    "model info",
    "Shows a model's architecture, the memory that training needs, and the content of its folder",
    "The memory is what one device needs for one microbatch, with fp32 gradients, optimizer states and "
    "master weights. It is computed, not allocated.",
    "primus model info llama3.1_8B\n"
    "primus model info llama3.1_8B --optimizer muon\n"
    "primus model info Llama-3.2-1B --tensors\n"
    "primus model info my-run --json",
    make_command<ModelInfo>,
    {Section::kModel, 4}};

}  // namespace primus::cli
