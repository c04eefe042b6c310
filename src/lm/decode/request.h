// A request to generate a text, and the tokens that it returns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "lm/decode/batch_reader.h"
#include "lm/decode/sampler.h"

namespace primus {

struct GenerateSettings {
  // Texts of the same prompt differ by their seed. Token n of a text depends only on the seed, n and the
  // logits.
  SamplingSettings sampling = {};
  std::int64_t max_tokens = 128;
  // Only ids below `vocab` are chosen (usually the tokenizer's size); 0: the model's vocabulary size.
  std::int64_t vocab = 0;
  std::vector<std::int32_t> stop_ids = {};  // ids that end the text and do not become part of it
  bool log_probs = false;                   // whether DecodedToken::log_prob is computed

  // Returns which logits a reader must return to choose a token.
  WantedLogits wanted() const {
    return {top_k_needed(sampling), vocab, log_probs, is_drawn_on_device(sampling)};
  }
};

enum class StopReason : std::uint8_t {
  kStopToken,
  kMaxTokens,
  kContextFull,  // the text has reached the decoder's capacity
  kCallback,
};

// A generated token.
struct DecodedToken {
  std::int32_t id = -1;  // id of the token; -1 if max_tokens is 0, so that no token is generated
  // Log probability of the token over the entire vocabulary at temperature 1. Set if
  // GenerateSettings::log_probs is set.
  std::optional<float> log_prob = {};
  // Set if the text ends with this token, or is held after it (DecodeRequest::holds). If the value is
  // kStopToken, this token is part of the text only if the text is held.
  std::optional<StopReason> end = {};
  double began = 0;  // time at which reading of the prompt began (clock: steady_seconds)
};

struct DecodeRequest {
  std::vector<std::int32_t> prompt;  // tokens of the prompt, at least one
  GenerateSettings settings = {};
  // Number of the model that continues the prompt, if the texts of several models are in one batch
  // (BatchReader); 0: the base model.
  std::size_t model = 0;
  // Called for each generated token; returns false to end the text. May call submit() and cancel(). May be
  // empty. If the callback throws, step() rethrows the error, and the other tokens of that step are not
  // reported.
  std::function<bool(const DecodedToken&)> on_token = {};
  // Whether the scheduler holds the text after a stop token, instead of ending it. The stop token then
  // becomes part of the text, and DecodeScheduler::extend() continues the text.
  bool holds = false;
};

}  // namespace primus
