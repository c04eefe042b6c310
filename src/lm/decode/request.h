// A request to generate a text, and the tokens that it returns.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "lm/decode/batch_reader.h"
#include "lm/decode/sampler.h"

namespace primus {

struct GenerateSettings {
  // The seed distinguishes texts of one prompt: token n of a text is a function of seed, n and logits.
  SamplingSettings sampling = {};
  std::int64_t max_tokens = 128;
  // Only ids below this number are chosen (usually the tokenizer's size); 0: the model's vocabulary size.
  std::int64_t vocab = 0;
  std::vector<std::int32_t> stop_ids = {};  // ids that end the text and are not part of the text
  bool log_probs = false;                   // whether DecodedToken::log_prob is computed

  // Returns which logits a reader must return to choose a token.
  WantedLogits wanted() const { return {top_k_needed(sampling), vocab, log_probs}; }
};

enum class StopReason : std::uint8_t {
  kStopToken,
  kMaxTokens,
  kContextFull,  // the decoder's capacity is exhausted
  kCallback,
};

// A generated token.
struct DecodedToken {
  std::int32_t id = -1;  // id of the token; -1: no token was requested (max_tokens 0)
  // Log probability over the entire vocabulary at temperature 1, if GenerateSettings::log_probs is set.
  std::optional<float> log_prob = {};
  // Set if the text has ended; with kStopToken this token is not part of the text.
  std::optional<StopReason> end = {};
  double began = 0;  // time at which reading of the prompt began (steady_seconds)
};

struct DecodeRequest {
  std::vector<std::int32_t> prompt;  // tokens of the prompt, at least one
  GenerateSettings settings = {};
  // Called for each token; returning false ends the text. May call submit() and cancel(). May be empty. If
  // the callback throws, step() rethrows and does not report the other tokens of that step.
  std::function<bool(const DecodedToken&)> on_token = {};
};

}  // namespace primus
