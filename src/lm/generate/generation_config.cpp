#include "lm/generate/generation_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text/json_text.h"

namespace primus {

std::string with_stop_ids(std::string_view text, const std::string& name,
                          const std::vector<std::int64_t>& ids) {
  nlohmann::json config = text.empty() ? nlohmann::json::object() : parse_json_object(text, name);
  const nlohmann::json listed = config.value("eos_token_id", nlohmann::json());
  std::vector<std::int64_t> all;
  for (const nlohmann::json& id : listed.is_array() ? listed : nlohmann::json::array({listed})) {
    if (id.is_null()) continue;
    if (!id.is_number_integer()) throw invalid("'eos_token_id' must be token ids").at(name);
    all.push_back(id.get<std::int64_t>());
  }
  for (const std::int64_t id : ids) {
    if (std::ranges::find(all, id) == all.end()) all.push_back(id);
  }
  if (all.empty()) return std::string(text);
  config["eos_token_id"] = all.size() == 1 ? nlohmann::json(all.front()) : nlohmann::json(all);
  return json_text(config) + "\n";
}

}  // namespace primus
