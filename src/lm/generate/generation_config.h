// generation_config.json tells transformers and model servers how to sample from a model, and at which tokens
// to stop. The file takes precedence over config.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lm/model/model_config.h"

namespace primus {

// Returns the JSON text with `ids` added to its eos_token_id. If the value has only one id, it stays a
// number. Everything else is unchanged. If `text` is empty, returns a new file. Throws Error(kInvalid), which
// names `name`, if `text` is not a JSON object, or if its eos_token_id is not a token id or a list of token
// ids.
std::string with_stop_ids(std::string_view text, const std::string& name,
                          const std::vector<std::int64_t>& ids);

// Returns the JSON text with the bos, pad and eos token ids of `config` instead of its own. An id that
// `config` lacks is removed. Throws Error(kInvalid), which names `name`, if `text` is not a JSON object.
std::string with_special_ids(std::string_view text, const std::string& name, const ModelConfig& config);

// Sampling settings that the model's publisher recommends. A member is empty if the file does not have the
// setting.
struct SamplingDefaults {
  std::optional<double> temperature;  // 0 if do_sample is false; 1 if do_sample is true and the file has no
                                      // temperature
  std::optional<std::int64_t> top_k;
  std::optional<double> top_p;
  // Keys that would change the generated text but are not supported or have a value out of range:
  // "repetition_penalty 1.1".
  std::vector<std::string> unused = {};
};

// Reads the sampling keys of a generation_config.json. As in serving engines, temperature, top_k and top_p
// count even if do_sample is absent. Throws Error(kInvalid), which names `name`, if `text` is not a JSON
// object.
SamplingDefaults read_sampling_defaults(std::string_view text, const std::string& name);

}  // namespace primus
