#include "lm/train/missing_inputs.h"

#include <charconv>

#include "base/files/file.h"

namespace primus {

std::vector<MissingInput> missing_inputs(const config::Experiment& experiment) {
  const config::TrainerConfig& c = experiment.trainer;
  Env& env = Env::posix();
  std::vector<MissingInput> missing;
  auto look = [&](const std::string& key, const std::string& path) {
    if (!env.status(path)) missing.push_back({key, path});
  };
  if (c.load) look(experiment.name_of("load").c_str(), *c.load);
  const bool has_file = c.tokenizer_type != "ByteTokenizer" && c.tokenizer_type != "NullTokenizer";
  // Mock data does without a preset's.
  const bool needs_tokenizer = !c.mock_data || !c.vocab_size ||
                               experiment.provenance_of("tokenizer_model").layer >= config::Layer::kOverrides;
  if (needs_tokenizer && c.tokenizer_model && has_file) look("tokenizer_model", *c.tokenizer_model);
  if (needs_tokenizer && c.vocab_file) look("vocab_file", *c.vocab_file);
  if (needs_tokenizer && c.merge_file) look("merge_file", *c.merge_file);
  if (c.stage == "sft") {
    const std::string& conversations = c.sft_dataset_name.value_or("");
    if (conversations.find_first_of("*?[") == std::string::npos) look("sft_dataset_name", conversations);
    return missing;
  }
  if (c.mock_data) return missing;
  for (const auto& [key, paths] :
       {std::pair("data_path", &c.data_path), std::pair("train_data_path", &c.train_data_path),
        std::pair("valid_data_path", &c.valid_data_path), std::pair("test_data_path", &c.test_data_path)}) {
    for (const std::string& path : *paths) {
      double weight = 0;
      const char* end = path.data() + path.size();
      const bool is_weight = std::from_chars(path.data(), end, weight).ptr == end;
      const bool is_glob = path.find_first_of("*?[") != std::string::npos;
      if (!is_weight && !is_glob && !env.status(path + ".idx")) look(key, path);
    }
  }
  return missing;
}

}  // namespace primus
