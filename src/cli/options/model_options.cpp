#include "cli/options/model_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>

#include "lm/model/weights.h"

namespace primus::cli {

void ModelArguments::declare(Arguments& arguments) {
  arguments.positional("MODEL", &folder_, "a Hugging Face folder, a checkpoint, or the folder of a run")
      .reads = all_of_them;
  arguments.option("--tokenizer", "FILE", &tokenizer_,
                   "tokenizer file or folder, instead of the model's own");
  arguments.option("--tokenizer-type", "TYPE", &tokenizer_type_, "kind of the tokenizer, e.g. ByteTokenizer");
}

ModelConfig ModelArguments::config(const ModelFolder& folder, const FamilyRegistry& families,
                                   const Console& console) {
  std::vector<std::string> notes;
  ModelConfig config = load_model_config(folder, families, &notes);
  const SafetensorsFolder weights = open_weights(folder);
  std::ranges::copy(weights.warnings(), std::back_inserter(notes));
  console.notes(notes);
  check_weight_shapes(weights, config, families);
  return config;
}

std::unique_ptr<const Tokenizer> ModelArguments::tokenizer(const ModelFolder& folder,
                                                           const ModelConfig& config,
                                                           const Console& console) const {
  std::vector<std::string> notes;
  auto tokenizer = load_model_tokenizer(folder, config, tokenizer_type_, tokenizer_, &notes);
  console.notes(notes);
  return tokenizer;
}

void SamplingArguments::declare(Arguments& arguments, std::int64_t max_tokens) {
  max_tokens_ = max_tokens;
  arguments.option("--max-tokens,-n", "N", &max_tokens_, "maximum number of tokens to generate")
      .between(0, std::numeric_limits<std::int32_t>::max());
  const SamplingSettings usual;
  const auto otherwise = [](auto value) {
    return fmt::format("the model's generation_config.json, or {}", value);
  };
  arguments
      .option("--temperature,-t", "X", &temperature_,
              "0 always chooses the most probable token; higher values vary more")
      .default_note(otherwise(usual.temperature));
  arguments.option("--top-k", "K", &top_k_, "sample from the K most probable tokens; 0: from all")
      .default_note(otherwise(usual.top_k));
  arguments
      .option("--top-p", "P", &top_p_, "sample from the most probable tokens whose probabilities sum to P")
      .default_note(otherwise(usual.top_p));
  arguments.option("--seed", "N", &seed_, "the same seed gives the same text")
      .between(0, std::numeric_limits<std::int64_t>::max())
      .default_note(std::to_string(kUsualSeed));
}

SamplingSettings SamplingArguments::sampling(const SamplingDefaults& of_model,
                                             std::vector<std::string>& notes) const {
  SamplingSettings settings{.seed = static_cast<std::uint64_t>(seed_.value_or(kUsualSeed))};
  std::vector<std::string> taken;
  const auto choose = [&](const char* key, auto& setting, const auto& given, const auto& theirs,
                          bool counts) {
    if (given) {
      setting = *given;
    } else if (theirs) {
      setting = *theirs;
      if (counts) taken.push_back(fmt::format("{} {}", key, setting));
    }
  };
  choose("temperature", settings.temperature, temperature_, of_model.temperature, true);
  const bool samples = settings.temperature != 0;
  choose("top_k", settings.top_k, top_k_, of_model.top_k, samples);
  choose("top_p", settings.top_p, top_p_, of_model.top_p, samples);
  std::vector<std::string_view> unused;
  if (top_k_) unused.emplace_back("--top-k");
  if (top_p_) unused.emplace_back("--top-p");
  if (seed_) unused.emplace_back("--seed");
  if (!samples && !unused.empty()) {
    notes.push_back(
        fmt::format("{} {} no effect with temperature 0, which always chooses the most probable token",
                    fmt::join(unused, ", "), unused.size() == 1 ? "has" : "have"));
  }
  if (!taken.empty())
    notes.push_back(fmt::format("sampling follows generation_config.json: {}", fmt::join(taken, ", ")));
  if (!of_model.unused.empty()) {
    notes.push_back(fmt::format("generation_config.json has settings that have no effect here: {}",
                                fmt::join(of_model.unused, ", ")));
  }
  return settings;
}

GenerateSettings SamplingArguments::settings(const ModelFolder& folder, const ModelConfig& config,
                                             const Tokenizer& tokenizer, const Console& console) const {
  std::vector<std::string> notes;
  GenerateSettings settings{.sampling = sampling(load_sampling_defaults(folder), notes),
                            .max_tokens = max_tokens_,
                            .vocab = tokenizer.vocab_size(),
                            .stop_ids = load_stop_ids(folder, config, tokenizer, &notes)};
  console.notes(notes);
  settings.sampling.check();
  return settings;
}

}  // namespace primus::cli
