// generation_config.json: how transformers and servers sample a model, and where they stop. This file takes
// precedence over config.json.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace primus {

// Returns `text` with `ids` added to its eos_token_id, which stays a number if that suffices; everything else
// is unchanged. An empty text starts a new file. Throws Error(kInvalid), which names `name`, if `text` is not
// a JSON object or its eos_token_id does not hold token ids.
std::string with_stop_ids(std::string_view text, const std::string& name,
                          const std::vector<std::int64_t>& ids);

}  // namespace primus
