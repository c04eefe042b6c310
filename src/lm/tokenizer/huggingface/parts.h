// The stages of a Hugging Face tokenizer.json before and after the model. Each stage is built from its JSON
// object. If a stage is not supported, throws Error(kUnsupported), which names the stage. Private to
// src/lm/tokenizer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lm/tokenizer/decoding.h"
#include "lm/tokenizer/text/pretokenize.h"
#include "lm/tokenizer/text/text_budget.h"
#include "lm/tokenizer/tokenizer.h"

namespace primus::huggingface {

// Rewrites the text before it is split. Thread-safe.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // Returns whether apply() might change this text. A quick test that avoids a copy.
  virtual bool may_change(std::string_view text) const = 0;
  // Rewrites the text. Throws Error(kInvalid) if the new text is longer than the remaining `budget`. The
  // length of the output is subtracted from `budget` by the caller.
  virtual void apply(std::string& text, TextBudget& budget) const = 0;
};

// Maximum number of normalizers, pre-tokenizers, post-processors or decoders in a sequence. The number is
// limited because each step reads the complete text. Files of real models have up to seven steps.
inline constexpr std::size_t kMaxSteps = 64;
// Maximum number of ids that post-processing adds to one text.
inline constexpr std::size_t kMaxFrameIds = 1024;

// Returns null for a JSON null, which means that the stage is absent.
std::unique_ptr<Normalizer> parse_normalizer(const nlohmann::json& json);

struct PreTokenizerStage {
  std::vector<std::unique_ptr<PreTokenizer>> steps;  // each step splits the parts that the previous step
                                                     // returned
  bool byte_level = false;                           // whether the parts are then converted to bytes
};
PreTokenizerStage parse_pre_tokenizer(const nlohmann::json& json);

// Returns the ids that post-processing adds to a single text.
Tokenizer::Frame parse_post_processor(const nlohmann::json& json);

// Turns tokens back into text.
class Decoder {
 public:
  virtual ~Decoder() = default;
  // Starts decoding a stream of tokens. `text_of(id)` must outlive the returned object.
  virtual std::unique_ptr<Decoding> start(std::function<std::string_view(std::int32_t)> text_of) const = 0;
};
// Returns the decoder. If decoding makes too much text from a token, the error names `file`.
std::unique_ptr<Decoder> parse_decoder(const nlohmann::json& json, const std::string& file);

// Read JSON values for the functions above. Throws Error(kInvalid), which names the key, if the key is
// missing or its value has the wrong type.
std::string get_string(const nlohmann::json& json, const char* key);
bool get_bool(const nlohmann::json& json, const char* key, bool fallback);
// Returns the list `key` of `object`, by reference.
const nlohmann::json& get_list(const nlohmann::json& object, const char* key);
// Adds 1 to `steps`. Throws Error(kUnsupported), which names `what` ("a normalizer"), if the result exceeds
// kMaxSteps.
void count_step(std::size_t& steps, std::string_view what);
// Replaces every occurrence of `from`, left to right; if `from` is empty, replaces nothing. Throws
// Error(kInvalid), which names `stage`, if the result is longer than the remaining `budget`. Does not change
// `budget`.
std::string replace_all(std::string_view text, std::string_view from, std::string_view to,
                        const TextBudget& budget, std::string_view stage);

}  // namespace primus::huggingface
