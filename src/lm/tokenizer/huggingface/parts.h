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
#include "lm/tokenizer/tokenizer.h"

namespace primus::huggingface {

// Rewrites the text before anything is cut. Thread-safe.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // Whether apply() might change this text: a quick test that spares a copy.
  virtual bool may_change(std::string_view text) const = 0;
  virtual void apply(std::string& text) const = 0;
};

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
  virtual std::unique_ptr<Decoding> start(std::function<std::string_view(int32_t)> text_of) const = 0;
};
std::unique_ptr<Decoder> parse_decoder(const nlohmann::json& json);

// Checked access, for all of the above: Error(kInvalid) naming the key that is missing or of the wrong type.
std::string get_string(const nlohmann::json& json, const char* key);
bool get_bool(const nlohmann::json& json, const char* key, bool fallback);
// Every occurrence of `from`, left to right; an empty one never occurs.
std::string replace_all(std::string_view text, std::string_view from, std::string_view to);

}  // namespace primus::huggingface
