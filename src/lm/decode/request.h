// A request for a text, and its tokens as they come.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "lm/decode/batch_reader.h"
#include "lm/decode/sampler.h"

namespace primus {

struct GenerateSettings {
  // The seed is what tells texts of one prompt apart: token n of a text is a function of seed, n and logits.
  SamplingSettings sampling = {};
  std::int64_t max_tokens = 128;
  std::int64_t vocab = 0;                   // ids that may be chosen: the tokenizer's size; 0: the model's
  std::vector<std::int32_t> stop_ids = {};  // end the text; not part of it
  bool log_probs = false;                   // DecodedToken::log_prob is wanted

  // The logits that a reader has to tell so that a token can be chosen.
  WantedLogits wanted() const { return {likeliest_needed(sampling), vocab, log_probs}; }
};

enum class StopReason : std::uint8_t {
  kStopToken,
  kMaxTokens,
  kContextFull,  // the decoder's capacity is used up
  kCallback,
};

// A token as soon as it is chosen.
struct DecodedToken {
  std::int32_t id = -1;  // -1: no token was wanted (max_tokens 0)
  // Logarithm of its probability in the whole vocabulary, at temperature 1; with GenerateSettings::log_probs.
  std::optional<float> log_prob = {};
  std::optional<StopReason> end = {};  // the text is over; with kStopToken the token is not part of it
  double began = 0;                    // when reading the prompt did (steady_seconds)
};

struct DecodeRequest {
  std::vector<std::int32_t> prompt;  // at least one token
  GenerateSettings settings = {};
  // Sees each token; false ends the text. May submit and cancel. May be empty. One that throws leaves step()
  // with the error, and other tokens of that step are not shown.
  std::function<bool(const DecodedToken&)> on_token = {};
};

}  // namespace primus
