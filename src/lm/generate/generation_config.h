// generation_config.json: how transformers and servers sample a model, and where they stop. This file takes
// precedence over config.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace primus {

// Returns `text` with `ids` added to its eos_token_id, which stays a number if that suffices; everything else
// is unchanged. An empty text starts a new file. Throws Error(kInvalid), which names `name`, if `text` is not
// a JSON object or its eos_token_id does not hold token ids.
std::string with_stop_ids(std::string_view text, const std::string& name,
                          const std::vector<std::int64_t>& ids);

// How a model's publisher wants it to be sampled. A value that the file does not have is absent.
struct SamplingDefaults {
  std::optional<double> temperature;  // 0 if do_sample is false; 1 if it is true and the file has none
  std::optional<std::int64_t> top_k;
  std::optional<double> top_p;
  // Keys that change the text and are not supported, or have a value out of range: "repetition_penalty 1.1".
  std::vector<std::string> unused = {};
};

// Reads the sampling keys of a generation_config.json. As in serving engines, temperature, top_k and top_p
// count even if do_sample is absent. Throws Error(kInvalid), which names `name`, if `text` is not a JSON
// object.
SamplingDefaults read_sampling_defaults(std::string_view text, const std::string& name);

}  // namespace primus
