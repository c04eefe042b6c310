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
  const SafetensorsFolder weights = SafetensorsFolder::open(folder.path);
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
  arguments.option("--temperature,-t", "X", &temperature_,
                   "0 always chooses the most probable token; higher values vary more");
  arguments.option("--top-k", "K", &top_k_, "sample from the K most probable tokens; 0: from all");
  arguments.option("--top-p", "P", &top_p_,
                   "sample from the most probable tokens whose probabilities sum to P");
  arguments.option("--seed", "N", &seed_, "the same seed gives the same text")
      .between(0, std::numeric_limits<std::int64_t>::max());
}

GenerateSettings SamplingArguments::settings(const ModelFolder& folder, const ModelConfig& config,
                                             const Tokenizer& tokenizer, const Console& console) const {
  std::vector<std::string> notes;
  GenerateSettings settings{.sampling = {.temperature = temperature_,
                                         .top_k = top_k_,
                                         .top_p = top_p_,
                                         .seed = static_cast<std::uint64_t>(seed_)},
                            .max_tokens = max_tokens_,
                            .vocab = tokenizer.vocab_size(),
                            .stop_ids = load_stop_ids(folder, config, tokenizer, &notes)};
  console.notes(notes);
  settings.sampling.check();
  return settings;
}

}  // namespace primus::cli
