#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>

#include "base/system/openmp_threads.h"
#include "config/formats/decimal.h"
#include "config/keys.h"
#include "config/loading/loading.h"
#include "config/stages.h"
#include "config/trainer_config.h"

namespace primus::config {
namespace {

class NativeSettings {
 public:
  explicit NativeSettings(Loading& loading)
      : loading_(loading),
        read_variable_(loading.read_variable),
        lr_of_file_(loading.lr_of_file),
        problems_(loading.problems),
        result_(loading.result) {}

  // Sets `load` and `finetune` from other keys for the initial weights: Megatron-LM's pretrained_checkpoint,
  // and hf_path, the model that AMD Primus converts before fine-tuning.
  void take_weights() {
    TrainerConfig& c = result_.trainer;
    for (const auto& [name, folder] :
         {std::pair("pretrained_checkpoint", &c.pretrained_checkpoint), std::pair("hf_path", &c.hf_path)}) {
      if (!*folder) continue;
      if (c.load) {
        if (*c.load != **folder && result_.provenance_of(name).layer >= Layer::kOverrides) {
          result_.warnings.push_back(fmt::format("{}: {} is not used, because the weights come from {} ({})",
                                                 result_.provenance_of(name).describe(), name,
                                                 result_.name_of("load"), *c.load));
        }
        continue;
      }
      c.load = *folder;
      c.finetune = true;
      Provenance from = result_.provenance_of(name);
      from.name = name;
      result_.provenance.insert_or_assign("load", std::move(from));
    }
  }

  // Sets num_threads, if unset, from OMP_NUM_THREADS, as OpenMP does.
  void take_threads_of_environment() {
    if (result_.trainer->num_threads != 0) return;
    std::optional<Variable> variable = variable_of_run("OMP_NUM_THREADS");
    if (!variable) return;
    const OpenMpThreads threads = parse_openmp_threads(variable->text, variable->place());
    if (!threads.warning.empty()) result_.warnings.push_back(threads.warning);
    if (!threads.count) return;
    result_.trainer->num_threads = *threads.count;
    result_.provenance.insert_or_assign("num_threads", std::move(variable->from));
  }

  // If the experiment sets no target loss for an MLPerf run, reads the target loss from the environment. AMD
  // Primus's MLPerf scripts set one or both of the two variables.
  void take_target_of_environment() {
    if (!stage_of(result_.trainer).mlperf_log || result_.provenance.contains("target_eval_loss")) return;
    std::optional<std::pair<std::string, double>> first;
    for (const std::string name : {"MLLOG_TARGET_EVAL_LOSS", "TARGET_EVAL_LOSS"}) {
      std::optional<Variable> variable = variable_of_run(name);
      if (!variable) continue;
      const Value value = plain_scalar(variable->text, {});
      const bool number = value.kind == Value::Kind::kInt || value.kind == Value::Kind::kFloat;
      if (!number || !(value.real >= 0 && value.real <= 1e6)) {
        problems_.add(
            invalid(fmt::format("{} is '{}', which is not a loss", name, variable->text.substr(0, 80)),
                    fmt::format("set {} to the loss at which the run ends, or to 0 for none", name))
                .at(variable->place()));
        return;
      }
      if (first && first->second != value.real) {
        problems_.add(
            invalid(fmt::format("{} is {}, and {} is {}", first->first, first->second, name, value.real),
                    "set only one of them, or set both to the same loss")
                .at(variable->place()));
        return;
      }
      if (!first && value.real > 0) {
        result_.trainer->target_eval_loss = value.real;
        result_.provenance.insert_or_assign("target_eval_loss", std::move(variable->from));
      }
      first = {name, value.real};
    }
  }

  // If lr on the command line is below the file's min_lr, scales min_lr with lr, so that a sweep over lr
  // keeps the file's decay.
  void scale_min_lr() {
    TrainerConfig& c = result_.trainer;
    const Provenance from = result_.provenance_of("min_lr");
    const bool typed = result_.provenance_of("lr").layer == Layer::kCommandLine;
    if (!typed || from.layer >= Layer::kCommandLine || c.min_lr <= c.lr) return;
    const double share = c.min_lr / lr_of_file_;
    if (!(share <= 1)) return;  // the file has an error, which a later check reports
    const double before = std::exchange(c.min_lr, decimal(c.lr * share));
    result_.warnings.push_back(fmt::format(
        "min_lr is {} instead of {} ({}): lr={} is lower than that, and min_lr keeps its ratio to lr",
        c.min_lr, before, from.describe(), c.lr));
    result_.provenance.insert_or_assign("min_lr", Provenance{Layer::kDerived, from.origin});
  }

  void require_keys() {
    for (const KeySpec& key : all_keys()) {
      // With `load`, no key is required, because the shape of the model comes from its config.json.
      if (!key.is_required || result_.trainer->load) continue;
      const auto given = result_.provenance.find(key.name);
      const Value* value = result_.settings.find(key.name);
      if (given != result_.provenance.end() && value && !value->is_null()) continue;
      const Member& module = loading_.module_member();
      problems_.add(
          error_at(module.origin, fmt::format("{} is missing", key.name),
                   fmt::format("choose a model preset with model: NAME.yaml, load a model with load: "
                               "FOLDER, or set {}",
                               key.name),
                   module.key.size()));
    }
  }

 private:
  // An environment variable of the run, from the experiment's `env` or else from the process. `from` is its
  // origin.
  struct Variable {
    std::string text;
    Provenance from;
    std::string place() const { return from.origin.source ? from.origin.location() : "environment"; }
  };
  // Returns nullopt if the variable is unset or empty.
  std::optional<Variable> variable_of_run(const std::string& name) const {
    const auto own = result_.env.find(name);
    const std::optional<std::string> text =
        own != result_.env.end() ? std::optional(own->second) : read_variable_(name);
    if (!text || text->empty()) return std::nullopt;
    Provenance from{Layer::kDerived, Origin{.source = nullptr, .variable = name}};
    if (own != result_.env.end()) from.origin = result_.provenance_of("env." + name).origin;
    return Variable{.text = *text, .from = std::move(from)};
  }

  Loading& loading_;
  const ReadVariable& read_variable_;
  const double& lr_of_file_;
  Problems& problems_;
  Experiment& result_;
};

}  // namespace

void derive_fields(Experiment& experiment) {
  const TrainerConfig before = experiment.trainer;
  derive(experiment.trainer);
  for (const KeySpec& key : all_keys()) {
    if (!same_value(key, before, experiment.trainer)) {
      experiment.provenance.insert_or_assign(std::string(key.name), Provenance{Layer::kDerived, {}});
    }
  }
}

// Primus-Turbo's keys for sliding windows with attention sinks set window_size, unless window_size itself is
// set in the same layer or a stronger layer.
void derive_sink_windows(Loading& loading) {
  TrainerConfig& c = loading.result.trainer;
  const Provenance sink = loading.result.provenance_of("sink_sliding_window");
  if (!c.use_sink_attention || sink.layer <= loading.result.provenance_of("window_size").layer) return;
  c.window_size.clear();
  c.window_attn_skip_freq.clear();
  if (c.sink_sliding_window > 0) {
    c.window_size = {std::to_string(c.sink_sliding_window), "0"};
    if (c.sink_window_even_layers_only) {
      for (std::int64_t layer = 0; layer < c.num_layers; ++layer)
        c.window_attn_skip_freq.push_back(layer % 2 == 0 ? "1" : "0");
    }
  }
  for (const char* key : {"window_size", "window_attn_skip_freq"})
    loading.result.provenance.insert_or_assign(key, Provenance{Layer::kDerived, sink.origin});
}

void derive_native_settings(Loading& loading) {
  NativeSettings settings(loading);
  settings.take_weights();
  settings.take_threads_of_environment();
  settings.take_target_of_environment();
  settings.scale_min_lr();
  settings.require_keys();
}

}  // namespace primus::config
