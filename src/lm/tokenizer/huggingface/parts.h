// The stages of a Hugging Face tokenizer.json before and after its model, each built from its JSON object.
// Unsupported components throw Error(kUnsupported) with their name. Private to src/lm/tokenizer.
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
  // Whether apply() might change this text: a quick test that avoids a copy.
  virtual bool may_change(std::string_view text) const = 0;
  // Error(kInvalid) if the new text is longer than the rest of `budget`. The caller subtracts the length of
  // the output from `budget`.
  virtual void apply(std::string& text, TextBudget& budget) const = 0;
};

// Maximum length of a chain of normalizers, pre-tokenizers, post-processors or decoders. It is limited
// because each element reads the complete text. Files of real models have up to seven.
inline constexpr std::size_t kMaxSteps = 64;
// Maximum number of ids that a frame adds to one text.
inline constexpr std::size_t kMaxFrameIds = 1024;

// Returns null for a null object, which means no stage.
std::unique_ptr<Normalizer> parse_normalizer(const nlohmann::json& json);

struct PreTokenizerStage {
  std::vector<std::unique_ptr<PreTokenizer>> steps;  // each step splits the pieces of the previous step
  bool byte_level = false;                           // whether the pieces are then treated as bytes
};
PreTokenizerStage parse_pre_tokenizer(const nlohmann::json& json);

// Returns the ids that post-processing adds to a single text.
Tokenizer::Frame parse_post_processor(const nlohmann::json& json);

// Turns tokens back into text.
class Decoder {
 public:
  virtual ~Decoder() = default;
  // `text_of(id)` must outlive the returned object.
  virtual std::unique_ptr<Decoding> start(std::function<std::string_view(std::int32_t)> text_of) const = 0;
};
// The error names `file` if the decoder makes too much text from a token.
std::unique_ptr<Decoder> parse_decoder(const nlohmann::json& json, const std::string& file);

// Checked access for the functions above: Error(kInvalid) naming the key that is missing or of the wrong
// type.
std::string get_string(const nlohmann::json& json, const char* key);
bool get_bool(const nlohmann::json& json, const char* key, bool fallback);
// Returns the list `key` of `object`, by reference.
const nlohmann::json& get_list(const nlohmann::json& object, const char* key);
// Adds 1 to `steps`. Error(kUnsupported) naming `what` ("a normalizer") above kMaxSteps.
void count_step(std::size_t& steps, std::string_view what);
// Replaces every occurrence of `from`, left to right; an empty `from` never occurs. Error(kInvalid), which
// names `stage`, if the result is longer than the rest of `budget`. Does not change `budget`.
std::string replace_all(std::string_view text, std::string_view from, std::string_view to,
                        const TextBudget& budget, std::string_view stage);

}  // namespace primus::huggingface
