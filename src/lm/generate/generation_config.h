// generation_config.json: how transformers and servers sample a model, and where they stop. It goes before
// config.json.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace primus {

// `text` with `ids` among its eos_token_id, which stays a number where it is one; everything else is kept. An
// empty text begins a file. Error(kInvalid) at `name` where it is no object, or its eos_token_id no token
// ids.
std::string with_stop_ids(std::string_view text, const std::string& name,
                          const std::vector<std::int64_t>& ids);

}  // namespace primus
