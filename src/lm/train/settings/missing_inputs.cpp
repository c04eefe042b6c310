#include "lm/train/settings/missing_inputs.h"

#include "base/files/file.h"
#include "config/trainer_config.h"
#include "lm/train/objectives/objective.h"
#include "lm/train/settings/training_settings.h"

namespace primus {

std::vector<MissingInput> missing_inputs(const config::Experiment& experiment) {
  const config::TrainerConfig& c = experiment.trainer;
  Env& env = Env::posix();
  std::vector<MissingInput> missing;
  const auto look = [&](const std::string& key, const std::string& path) {
    if (!env.status(path)) missing.push_back({key, path});
  };
  if (c.load) look(experiment.name_of("load").c_str(), *c.load);
  const bool has_file = c.tokenizer_type != "ByteTokenizer" && c.tokenizer_type != "NullTokenizer";
  // Mock data does not need a preset's tokenizer.
  const bool reads_tokenizer = !c.mock_data || !c.vocab_size ||
                               experiment.provenance_of("tokenizer_model").layer >= config::Layer::kOverrides;
  const bool needs_tokenizer = reads_tokenizer && !kept_tokenizer(experiment);
  if (needs_tokenizer && c.tokenizer_model && has_file) look("tokenizer_model", *c.tokenizer_model);
  if (needs_tokenizer && c.vocab_file) look("vocab_file", *c.vocab_file);
  if (needs_tokenizer && c.merge_file) look("merge_file", *c.merge_file);
  objective_of(c).find_missing(experiment, missing);
  return missing;
}

}  // namespace primus
