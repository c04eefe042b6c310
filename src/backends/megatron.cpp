// Megatron-LM: translates the experiment's keys to arguments of pretrain_gpt.py.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "backends/backend.h"
#include "backends/key_rules.h"
#include "backends/megatron_arguments.h"
#include "backends/megatron_log.h"
#include "backends/megatron_parts.h"
#include "config/keys.h"
#include "config/trainer_config.h"

namespace primus::backends {
namespace megatron {
namespace {

using config::BackendField;
using config::KeySpec;
using config::KeyType;
using config::Layer;
using config::Value;

// Returns whether two lists of words have equal values. Numbers are compared by value, so "0" equals "0.0".
bool same_words(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const std::string& x, const std::string& y) {
    return x == y || says(config::plain_scalar(x, {}), y);
  });
}

void check_length(Megatron& m) {
  if (!config::length_is_open(m.t)) return;
  const char* key = m.t.train_epochs ? "train_epochs" : "train_minutes";
  m.problems.add(m.error_for(key,
                             fmt::format("Megatron-LM needs a number of steps, which {} does not set", key),
                             "set train_iters instead"));
}

void check(const Megatron& m, const KeySpec& key, const BackendField& field, const Value& value) {
  try {
    config::BackendFields::check(field, value);
  } catch (const Error& error) {
    throw m.error_for(key.name, fmt::format("Megatron-LM: {}", error.what()), error.hint());
  }
}

// Translates a key that corresponds to one argument.
void take(Megatron& m, const KeySpec& key) {
  if (m.rules.is_together(key.name)) return;
  const bool has_field = !std::holds_alternative<std::monostate>(key.field);
  const Value* set = m.experiment.settings.find(key.name);
  if (!set && !has_field) return;
  if (key.name.starts_with("muon_") && m.t.optimizer.find("muon") == std::string::npos) return;
  if (!m.is_set(key.name) && (key.is_required || m.rules.is_own_default(key.name))) return;
  const Value value = has_field ? config::current_value(key, m.t) : *set;
  m.problems.collect([&] {
    const std::string name = m.rules.renamed(key.name);
    const BackendField* field = m.fields.find(name);
    if (!field) return m.rules.check_missing(key, value);
    const Value there = m.rules.value_there(key.name, value);
    if (there.is_null()) return;
    if (m.is_set(key.name)) check(m, key, *field, there);
    m.put(name, there);
  });
}

// Notes differences between AMD Primus's defaults and ours for keys that neither the experiment nor the
// command line sets.
void compare_with_primus(Megatron& m) {
  std::vector<std::string> lines;
  const auto compare = [&](const std::string& key, const Value& theirs) {
    if (m.experiment.provenance_of(key).layer >= Layer::kOverrides) return;
    const BackendField* field = m.fields.find(m.rules.renamed(key));
    if (!field) return;
    const auto found = m.arguments.find(m.rules.renamed(key));
    const Value& ours = found != m.arguments.end() ? found->second : field->fallback;
    if (says(ours, theirs.is_null() ? "null" : theirs.text)) return;
    lines.push_back(fmt::format("{} {}, ours {}", key, theirs.text,
                                ours.is_null() ? "Megatron-LM's default" : ours.text));
  };
  for (const config::Member& member : m.fields.keys("primus_defaults").members) {
    compare(member.key, *member.value.find("value"));
  }
  if (const Value* own = m.fields.keys("primus_models").find(m.model_name())) {
    for (const config::Member& member : own->members) compare(member.key, member.value);
  }
  if (lines.empty()) return;
  m.job.notes.push_back(
      fmt::format("this run has other values than AMD Primus's presets; to train as AMD Primus does, set: {}",
                  fmt::join(lines, "; ")));
}

// Runs with_parts.py before Megatron-LM's program if arguments cannot describe the model.
void add_parts(Megatron& m) {
  const nlohmann::ordered_json parts = megatron_parts(m.t);
  if (parts.empty()) return;
  const Path script = m.fields.folder() / "with_parts.py";
  m.job.command.insert(m.job.command.begin(), {script.string(), parts.dump()});
  std::vector<std::string> names;
  for (const auto& part : parts.items()) names.push_back(part.key());
  m.job.notes.push_back(
      fmt::format("no argument of Megatron-LM describes {}: with_parts.py adds {} to its model",
                  fmt::join(names, ", "), names.size() == 1 ? "it" : "them"));
}

std::string text_of(const BackendField& field, const Value& value) {
  const bool number = value.kind == Value::Kind::kInt || value.kind == Value::Kind::kFloat;
  if (field.type == KeyType::kInt && number) return fmt::format("{}", static_cast<std::int64_t>(value.real));
  if (field.type == KeyType::kFloat && number) return fmt::format("{}", value.real);
  return value.text;
}

// Writes the arguments that differ from Megatron-LM's own defaults, in alphabetical order.
void emit(Megatron& m) {
  for (const auto& [name, value] : m.arguments) {
    const BackendField* found = m.fields.find(name);
    if (!found) {
      throw unsupported(fmt::format("Megatron-LM has no argument for {}", name), "choose framework: native");
    }
    const BackendField& field = *found;
    if (field.type == KeyType::kBool && field.flag.empty()) {
      const bool wanted = value.boolean || value.text == "1";
      if (wanted == field.fallback.boolean) continue;
      const std::string& flag = wanted ? field.on : field.off;
      if (!flag.empty()) m.job.command.push_back(flag);
      continue;
    }
    if (field.type == KeyType::kList) {
      const std::vector<std::string> words = words_of(value);
      if (words.empty() || same_words(words, words_of(field.fallback))) continue;
      m.job.command.push_back(field.flag);
      m.job.command.insert(m.job.command.end(), words.begin(), words.end());
      continue;
    }
    const std::string text = text_of(field, value);
    if (!field.fallback.is_null() && text == text_of(field, field.fallback)) continue;
    // The argument and its value are joined by '=', because a separate value that begins with a dash would be
    // parsed as an option.
    if (text.starts_with('-')) {
      m.job.command.push_back(field.flag + "=" + text);
    } else {
      m.job.command.insert(m.job.command.end(), {field.flag, text});
    }
  }
}

void environment(Megatron& m) {
  const bool fsdp = m.t.use_torch_fsdp2 || m.is_on("use_megatron_fsdp");
  // With CUDA_DEVICE_MAX_CONNECTIONS=1, kernels of different streams start in the order of their launches.
  // Tensor parallelism needs the value 1, and FSDP forbids it.
  if (fsdp) {
    m.job.required["CUDA_DEVICE_MAX_CONNECTIONS"] = "8";
  } else {
    m.job.environment["CUDA_DEVICE_MAX_CONNECTIONS"] = "1";
  }
  if (!m.checkout.empty()) m.job.environment["PYTHONPATH"] = m.checkout.string();
}

// Warns about keys whose meaning in Megatron-LM differs from their meaning in Primus.
void meaning(Megatron& m) {
  const std::int64_t model =
      m.t.tensor_model_parallel_size * m.t.pipeline_model_parallel_size * m.t.context_parallel_size;
  if (m.shape.ranks() % std::max<std::int64_t>(model, 1) != 0 && m.shape.ranks() > 1) {
    m.job.warnings.push_back(
        fmt::format("{} ranks are not a multiple of {}, which is tensor x pipeline x context parallelism: "
                    "Megatron-LM will refuse this",
                    m.shape.ranks(), model));
  }
  const std::int64_t samples =
      m.t.micro_batch_size * std::max<std::int64_t>(m.shape.ranks() / std::max<std::int64_t>(model, 1), 1);
  if (m.shape.ranks() > 1 && samples > 0 && m.t.global_batch_size % samples != 0) {
    m.job.warnings.push_back(
        fmt::format("global_batch_size {} is not a multiple of {}, which is micro_batch_size x data-parallel "
                    "ranks: Megatron-LM will refuse this",
                    m.t.global_batch_size, samples));
  }
  const auto format = m.arguments.find("ckpt_format");
  if (m.t.use_torch_fsdp2 && format != m.arguments.end() && format->second.text == "torch")
    m.job.warnings.emplace_back(
        "use_torch_fsdp2 needs ckpt_format torch_dist or torch_dcp: Megatron-LM will refuse ckpt_format "
        "torch");
  const std::int64_t microbatches = m.t.global_batch_size / std::max<std::int64_t>(m.t.micro_batch_size, 1);
  if (!m.t.calculate_per_token_loss && m.t.eod_mask_loss && microbatches > 1) {
    m.job.warnings.push_back(
        "Megatron-LM averages the loss over the means of microbatches. With eod_mask_loss, tokens get a "
        "higher weight in a microbatch with more end-of-document tokens (calculate_per_token_loss: true "
        "weights all tokens equally)");
  }
}

ExternalJob render_megatron(const config::Experiment& experiment, const config::BackendFields& fields,
                            const Path& checkout, const JobShape& shape) {
  Megatron m(experiment, fields, checkout, shape);
  m.job.framework = "megatron";
  m.job.title = m.fields.keys().find("title")->text;
  const std::string entry = (m.is_mamba() ? m.fields.keys("mamba") : m.fields.keys()).find("entry")->text;
  m.job.command = {(m.checkout.empty() ? Path("<" + m.job.title + ">") : m.checkout) / entry};
  check_length(m);
  for (const KeySpec& key : config::all_keys()) take(m, key);
  m.problems.collect([&] { fill_family(m); });
  experts(m);
  m.problems.collect([&] { rope(m); });
  m.problems.collect([&] { temperature(m); });
  m.problems.collect([&] { layers(m); });
  parallelism(m);
  m.problems.collect([&] { narrow_states(m); });
  m.problems.collect([&] { recipes(m); });
  m.problems.collect([&] { stages(m); });
  recomputation(m);
  pipeline_patches(m);
  schedule(m);
  patterns(m);
  m.problems.collect([&] { data(m); });
  tokenizer(m);
  checkpoints(m);
  reports(m);
  m.problems.throw_if_any();
  emit(m);
  add_parts(m);
  environment(m);
  compare_with_primus(m);
  m.job.dropped = m.rules.dropped();
  // Since January 2026, the second log line includes the sums of the first line.
  m.job.second_line_is_mean =
      m.source_says("megatron/training/training.py", "should_reset = not is_first_iteration");
  meaning(m);
  return std::move(m.job);
}

}  // namespace
}  // namespace megatron

extern const BackendEntry kMegatron{"megatron", megatron::render_megatron, megatron_iteration,
                                    megatron_evaluation};

}  // namespace primus::backends
