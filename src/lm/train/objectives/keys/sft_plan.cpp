#include "lm/train/objectives/keys/sft_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/terminal/terminal.h"
#include "base/text/counted.h"
#include "config/formats/decimal.h"
#include "config/stages.h"
#include "config/trainer_config.h"
#include "config/validation/missing_data.h"
#include "config/validation/without_effect.h"
#include "lm/data/chat_template.h"
#include "lm/model/model_size.h"
#include "lm/tokenizer/huggingface/side_files.h"
#include "lm/train/continued_run.h"
#include "lm/train/resume.h"
#include "lm/train/settings/training_settings.h"

namespace primus {
namespace {

using config::Layer;

// Returns the format that the run was started with; "" for a new run.
std::string recorded_format(const config::Experiment& e) {
  const std::optional<TrainerState> state = own_state(e);
  return state ? recorded_setting(*state, "sft_conversation_format") : "";
}

// Returns the file of the tokenizer's chat template; "" if unknown.
std::string template_file(const config::TrainerConfig& c) {
  if (!c.tokenizer_model) return "";
  const std::filesystem::path named = *c.tokenizer_model;
  const auto file = chat_template_file(std::filesystem::is_directory(named) ? named : named.parent_path());
  return file ? file->string() : "";
}

void choose_format(SftPlan& plan, const Tokenizer& tokenizer) {
  config::Experiment& e = plan.experiment;
  std::string& format = e.trainer->sft_conversation_format;
  const bool chosen =
      format != "auto" && e.provenance_of("sft_conversation_format").layer >= Layer::kOverrides;
  const std::string recorded = chosen ? "" : recorded_format(e);
  std::string wanted = chosen ? format : recorded.empty() ? "auto" : recorded;
  if (wanted == "auto" && e.trainer->sft_bridge_compat_inline_bos) {
    // Megatron Bridge encodes the parts of a turn separately. A template cannot do so, but a named format
    // can.
    const auto own = data::style_of_template(tokenizer.chat_template(), tokenizer);
    if (own) wanted = data::name_of(own->format);
  }
  std::optional<data::ChosenStyle> style;
  bool ends_answers = true;
  try {
    style = data::choose_style(wanted, tokenizer);
    if (style->style.own) ends_answers = data::ConversationWriter(style->style, tokenizer).ends_answers();
  } catch (const Error& error) {
    const std::string hint = error.hint() + " (sft_conversation_format=NAME; docs/posttrain.md)";
    if (chosen) throw e.error_for("sft_conversation_format", error.what(), hint);
    throw Error(error.kind(), error.what(), hint).at(template_file(e.trainer));
  }
  const std::string_view name = data::name_of(style->style.format);
  if (!chosen) {
    format = style->style.own ? "auto" : name;
    e.provenance.insert_or_assign("sft_conversation_format", config::Provenance{Layer::kDerived, {}});
  }
  std::string fact = fmt::format("conversations are written as {} ({})", name,
                                 recorded.empty() ? style->why : "as when the run was started");
  if (!style->style.default_system.empty())
    fact += fmt::format("; system message if none is given: '{}'", style->style.default_system);
  if (!ends_answers) {
    fact +=
        "; the template ends an answer by no special token, so the model does not learn to stop: choose a "
        "format by name (docs/posttrain.md) if it should";
  }
  const std::string_view jinja = tokenizer.chat_template();
  if (style->style.own) {
    plan.facts.push_back(std::move(fact));
    return;
  }
  const auto own = jinja.empty() ? std::nullopt : data::style_of_template(jinja, tokenizer);
  if (!jinja.empty() && (!own || own->format != style->style.format)) {
    fact += fmt::format("; the model's own template, which writes {}, is replaced",
                        own ? data::name_of(own->format) : "another format");
  } else if (const std::string rest = data::left_out_of(jinja); !rest.empty()) {
    fact += fmt::format("; omitted from the model's template: {}", rest);
  }
  plan.facts.push_back(std::move(fact));
}

bool compares(const config::TrainerConfig& c) {
  return config::stage_of(c).material == config::Material::kPreferences;
}

// Returns a peak learning rate that is safe for large models and lets small models learn within a hundred
// steps. `share`: factor for the objective.
double usual_learning_rate(std::int64_t parameters, bool adapters, double share) {
  constexpr double kRate = 1e-5, kParameters = 8e9, kMax = 3e-3, kOfAdapters = 10, kMaxOfAdapters = 5e-3;
  const double rate =
      std::clamp(kRate * std::sqrt(kParameters / static_cast<double>(std::max<std::int64_t>(parameters, 1))),
                 kRate, kMax);
  return config::decimal(share * (adapters ? std::min(kOfAdapters * rate, kMaxOfAdapters) : rate), 2);
}

class Fitting {
 public:
  Fitting(SftPlan& plan, const FamilyRegistry& families, const Tokenizer& tokenizer, int world,
          const CountEpochs& count)
      : plan_(plan),
        e_(plan.experiment),
        families_(families),
        tokenizer_(tokenizer),
        world_(world),
        count_(count) {}

  void run() {
    config::TrainerConfig& c = e_.trainer;
    const config::Experiment filled = with_loaded_model(e_, families_);
    e_.loaded_config = filled.loaded_config;
    const ModelConfig model = model_of(filled, families_, &tokenizer_);
    data::SftOptions options = sft_options_of(filled, tokenizer_);
    options.valid_samples = options.test_samples = 0;
    plan_.units = count_(options, tokenizer_, 1).units;
    const data::TrainingUnits& all = *plan_.units;
    const auto count = static_cast<std::int64_t>(all.size());

    const bool has_evaluated = data::find_conversations(options.dataset, options.train_split).has_evaluated();
    const bool kept =
        is_open("eval_iters") && !begins_to_evaluate(has_evaluated) && keep("eval_iters", c.eval_iters);
    if (!kept && is_open("eval_iters") && !c.split && !has_evaluated && count < kFew) {
      set("eval_iters", c.eval_iters, 0);
      // Stages that compare texts evaluate nothing, and nor does a run on prompts without answers.
      if (!compares(c) && all.has_answers()) {
        plan_.facts.push_back(
            fmt::format("none of the {} is held out, so overfitting would not show: split=90,10,0 holds out "
                        "a tenth",
                        noun_for(0, all.noun())));
      }
    }
    const std::int64_t parameters = std::max<std::int64_t>(1, model_size(model, families_).parameters);
    choose_length(count, parameters);
    std::int64_t longest = 1, tokens = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      longest = std::max(longest, all.tokens(i));
      tokens += all.kept(i, filled.trainer->seq_length + 1);
    }
    if (config::generates_answers(c)) longest += c.max_completion_length;
    const double passes = usual_passes(count);
    choose_batch(filled, passes * static_cast<double>(count), passes * static_cast<double>(tokens), longest);
    if (is_open("lr")) {
      constexpr double kOfPreferences = 0.1;
      const double rate = usual_learning_rate(parameters, bool{model.lora}, compares(c) ? kOfPreferences : 1);
      set("lr", c.lr, std::max(rate, c.min_lr));
      if (c.min_lr > rate && config::is_said(e_, "min_lr")) {
        plan_.facts.push_back(fmt::format(
            "min_lr ({}) is above the usual peak of such a model, {:.2g}: the rate stays at min_lr; "
            "set lr, or lower min_lr",
            c.min_lr, rate));
      }
    }
    c.sft_fit_to_data = false;    // the planned settings are now ordinary settings
    if (chosen_.empty()) return;  // the user set everything
    plan_.facts.push_back(fmt::format("chosen for {} and {} parameters: {}", counted(count, all.noun()),
                                      human_count(static_cast<double>(parameters)),
                                      fmt::join(chosen_, ", ")));
  }

 private:
  static constexpr std::int64_t kFew = 1000;  // a data set with fewer conversations counts as small

  // Returns the number of epochs after which models of 100 million parameters or more have learned the
  // conversations.
  static double usual_passes(std::int64_t conversations) {
    constexpr std::int64_t kSeen = 1000, kMax = 25, kFewest = 3, kLarge = 5000;
    if (conversations >= kLarge) return 1;
    return static_cast<double>(std::clamp((kSeen + conversations - 1) / conversations, kFewest, kMax));
  }

  // Chooses the number of steps. Small models get more epochs, because they need them and have faster steps.
  void choose_length(std::int64_t conversations, std::int64_t parameters) {
    for (const char* key : {"train_iters", "train_epochs", "train_tokens", "train_minutes"}) {
      if (!is_open(key)) return;
    }
    constexpr double kParameters = 1e8, kMaxTimes = 12;
    const double times =
        conversations < kFew
            ? std::clamp(std::sqrt(kParameters / static_cast<double>(parameters)), 1.0, kMaxTimes)
            : 1;
    e_.trainer->train_iters = 0;  // train_iters follows from the number of epochs
    e_.trainer->train_tokens.reset();
    e_.trainer->train_minutes.reset();
    set("train_epochs", e_.trainer->train_epochs, std::round(usual_passes(conversations) * times));
  }

  // Chooses the batch size. `conversations`, `tokens`: their numbers in all epochs.
  void choose_batch(const config::Experiment& filled, double conversations, double tokens,
                    std::int64_t longest) {
    constexpr double kSteps = 200;
    constexpr std::int64_t kMultiple = 64, kMaxSequences = 8;
    config::TrainerConfig& c = e_.trainer;
    const auto up_to = [](std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit * unit; };
    const auto of_step = std::max<std::int64_t>(1, static_cast<std::int64_t>(tokens / kSteps));
    std::int64_t length = filled.trainer->seq_length;
    if (is_open("seq_length") && keep("seq_length", c.seq_length)) {
      length = c.seq_length;
    } else if (is_open("seq_length") && (c.enable_packed_sequences || compares(c)) && world_ == 1) {
      // Skipped for several ranks, because context parallelism restricts sequence lengths.
      length = std::min(length, up_to(std::max(of_step, longest), kMultiple));
      set("seq_length", c.seq_length, length);
    }
    if (!is_open("global_batch_size") || keep("global_batch_size", c.global_batch_size)) return;
    const std::int64_t unit = c.micro_batch_size * mesh_shape_of(filled, world_).data(world_);
    std::int64_t wanted = std::clamp<std::int64_t>(of_step / length, 1, kMaxSequences);
    if (config::generates_answers(c)) {
      // The batch counts conversations. Generation is slow for few of them.
      constexpr std::int64_t kFewest = 8, kMost = 64;
      wanted = std::clamp(static_cast<std::int64_t>(conversations / kSteps), kFewest, kMost);
    }
    set("global_batch_size", c.global_batch_size, up_to(wanted, unit));
  }

  // Returns whether the key may be chosen, because neither the command line nor the user's file sets it.
  bool is_open(std::string_view key) const {
    const config::Provenance said = e_.provenance_of(key);
    if (said.layer < Layer::kOverrides) return true;
    const bool of_command = said.layer == Layer::kOverrides && said.origin.source &&
                            said.origin.source->name == config::kNoExperimentFile;
    return of_command;
  }
  // Returns whether the run was started without evaluation and resumes with another `split`, or with files
  // for evaluation (`has_evaluated`). The user then expects evaluations, as in a new run.
  bool begins_to_evaluate(bool has_evaluated) const {
    if (!recorded_ || recorded_setting(*recorded_, "eval_iters") != "0") return false;
    if (has_evaluated || !e_.trainer->split) return has_evaluated;
    const auto now = settings_of(config::to_yaml(e_));
    const auto split = now.find("split");
    return split != now.end() && split->second != recorded_setting(*recorded_, "split");
  }
  // Sets the key to the value with which the run was started, if the run resumes. The packing of
  // conversations and the position in the data depend on such values. Returns whether the run resumes.
  bool keep(std::string_view key, std::int64_t& field) {
    const std::string recorded = recorded_ ? recorded_setting(*recorded_, std::string(key)) : "";
    std::int64_t value = 0;
    const char* const end = recorded.data() + recorded.size();
    const auto [stop, error] = std::from_chars(recorded.data(), end, value);
    if (recorded.empty() || error != std::errc() || stop != end) return false;
    set(key, field, value);
    chosen_.back() += " (as when the run was started)";
    return true;
  }
  template <class Field, class Value>
  void set(std::string_view key, Field& field, Value value) {
    field = value;
    e_.provenance.insert_or_assign(std::string(key), config::Provenance{Layer::kDerived, {}});
    chosen_.push_back(fmt::format("{}={}", key, value));
  }

  SftPlan& plan_;
  config::Experiment& e_;
  const FamilyRegistry& families_;
  const Tokenizer& tokenizer_;
  const int world_;
  // The state that the run continues from; empty for a new run.
  const std::optional<TrainerState> recorded_ = own_state(e_);
  const CountEpochs& count_;
  std::vector<std::string> chosen_;
};

}  // namespace

data::SftOptions sft_options_of(const config::Experiment& e, const Tokenizer& tokenizer) {
  const config::TrainerConfig& c = e.trainer;
  const bool generates = config::generates_answers(c);
  const bool only_prompts = generates && c.distillation_on_policy_share == 1;
  const data::DataOptions samples = data_options_of(e, tokenizer);
  return {.dataset = c.sft_dataset_name.value_or(""),
          .train_split = c.sft_dataset_split,
          .format = c.sft_conversation_format,
          .skip_bad = c.sft_skip_bad,
          .inline_bos = c.sft_bridge_compat_inline_bos,
          // A step that may generate answers packs its conversations itself.
          .pack = (c.enable_packed_sequences || compares(c)) && !generates,
          .separate = c.use_packed_attention || compares(c),
          .own_answers =
              generates ? std::optional(data::AnswerLimits{.max_completion_length = c.max_completion_length,
                                                           .max_prompt_length = c.max_prompt_length,
                                                           .only_prompts = only_prompts})
                        : std::nullopt,
          .can_evaluate = !only_prompts,
          .shuffle = c.dataloader_type == "cyclic",
          .shares = c.split.value_or(""),
          .seq_length = c.seq_length,
          .seed = c.seed,
          .train_samples = samples.train_samples,
          .valid_samples = samples.valid_samples,
          .test_samples = samples.test_samples,
          .vocab_size = samples.vocab_size};
}

SftPlan plan_fine_tuning(config::Experiment experiment, const FamilyRegistry& families, int world,
                         const CountEpochs& count) {
  SftPlan plan{{.experiment = std::move(experiment)}, nullptr};
  std::unique_ptr<const Tokenizer> tokenizer;
  try {
    tokenizer = tokenizer_of(plan.experiment);
  } catch (const Error&) {
    return plan;  // a run reports this error with its position; a dry run does not need a tokenizer
  }
  choose_format(plan, *tokenizer);
  if (!plan.experiment.trainer->sft_fit_to_data) return plan;
  const SftPlan unfitted = plan;
  try {
    Fitting(plan, families, *tokenizer, world, count).run();
  } catch (const Error& error) {
    plan = unfitted;  // a run reports this error with its position
    plan.facts.push_back(fmt::format("not fitted to the data: {}", error.what()));
  }
  return plan;
}

}  // namespace primus
