// The arguments that name a trained model, shared by the commands that use a trained model.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/options/device.h"
#include "lm/decode/decoder.h"
#include "lm/generate/generate.h"
#include "lm/generate/model_folder.h"

namespace primus::cli {

// A model folder, and a tokenizer if the folder has none.
class ModelArguments {
 public:
  void declare(Arguments& arguments);
  ModelFolder folder() const { return find_model_folder(folder_); }
  // Reads the config; writes warnings to the console.
  static ModelConfig config(const ModelFolder& folder, const FamilyRegistry& families,
                            const Console& console);
  // Loads the tokenizer; writes a warning to the console if this is not the model's own tokenizer.
  std::unique_ptr<const Tokenizer> tokenizer(const ModelFolder& folder, const ModelConfig& config,
                                             const Console& console) const;

 private:
  std::string folder_, tokenizer_, tokenizer_type_;
};

// Sampling and stopping options. An option that is not given takes its value from the model's
// generation_config.json, if the file has a value; a note lists these values and those that are not
// supported.
class SamplingArguments {
 public:
  void declare(Arguments& arguments, std::int64_t max_tokens);
  GenerateSettings settings(const ModelFolder& folder, const ModelConfig& config, const Tokenizer& tokenizer,
                            const Console& console) const;
  std::int64_t max_tokens() const { return max_tokens_; }

 private:
  SamplingSettings sampling(const SamplingDefaults& of_model, std::vector<std::string>& notes) const;

  static constexpr std::int64_t kUsualSeed = 1234;
  std::int64_t max_tokens_ = 0;
  std::optional<std::int64_t> seed_, top_k_;
  std::optional<double> temperature_, top_p_;
};

}  // namespace primus::cli
