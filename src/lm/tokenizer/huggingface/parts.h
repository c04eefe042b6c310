// The stages of a Hugging Face tokenizer.json around its model, each built from its JSON object. Whatever is
// not supported throws Error(kUnsupported) with the component's name. Private to src/lm/tokenizer.
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

// Rewrites the text before anything is cut. Thread-safe.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // Whether apply() might change this text: a quick test that spares a copy.
  virtual bool may_change(std::string_view text) const = 0;
  // Error(kInvalid) where the new text is longer than what `budget` has left; takes nothing of its output.
  virtual void apply(std::string& text, TextBudget& budget) const = 0;
};

// Normalizers, pre-tokenizers, post-processors or decoders one behind the other, at most: each reads the
// whole text. Files of real models have up to seven.
inline constexpr std::size_t kMaxSteps = 64;
// Ids around one text, at most.
inline constexpr std::size_t kMaxFrameIds = 1024;

// A null object, or null for no stage.
std::unique_ptr<Normalizer> parse_normalizer(const nlohmann::json& json);

struct PreTokenizerStage {
  std::vector<std::unique_ptr<PreTokenizer>> steps;  // each cuts the pieces of the one before
  bool byte_level = false;                           // the pieces are then read as bytes
};
PreTokenizerStage parse_pre_tokenizer(const nlohmann::json& json);

// What post-processing puts around a single text.
Tokenizer::Frame parse_post_processor(const nlohmann::json& json);

// How tokens become text again.
class Decoder {
 public:
  virtual ~Decoder() = default;
  // `text_of(id)` must outlive the decoding.
  virtual std::unique_ptr<Decoding> start(std::function<std::string_view(std::int32_t)> text_of) const = 0;
};
// `file` is named where the decoder makes too much of a token.
std::unique_ptr<Decoder> parse_decoder(const nlohmann::json& json, const std::string& file);

// Checked access, for all of the above: Error(kInvalid) naming the key that is missing or of the wrong type.
std::string get_string(const nlohmann::json& json, const char* key);
bool get_bool(const nlohmann::json& json, const char* key, bool fallback);
// The list behind `key`; it is part of `object`.
const nlohmann::json& get_list(const nlohmann::json& object, const char* key);
// Counts one more step; Error(kUnsupported) naming `what` ("a normalizer") beyond kMaxSteps.
void count_step(std::size_t& steps, std::string_view what);
// Every occurrence of `from`, left to right; an empty one never occurs. Error(kInvalid) naming `stage` where
// the result is longer than what `budget` has left; takes nothing.
std::string replace_all(std::string_view text, std::string_view from, std::string_view to,
                        const TextBudget& budget, std::string_view stage);

}  // namespace primus::huggingface
