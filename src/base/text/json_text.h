// Reads small hand-edited JSON files such as config.json, and writes JSON for programs.
#pragma once

#include <concepts>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace primus {

// Parses `text` as a JSON object. Throws Error(kInvalid) at "name:line:column" for invalid JSON (RFC 8259)
// and for a duplicate key in an object. A leading byte-order mark is skipped. Python's json module accepts
// duplicate keys, which are probably mistakes. Nesting is limited.
nlohmann::json parse_json_object(std::string_view text, const std::string& name);

// Returns `value` as valid JSON text without a final line end. Bytes in strings that are not UTF-8, as in
// names of files or tensors, become U+FFFD. `indent` -1 writes a single line. Braces convert to json:
// json_text({{"rank", 3}}).
std::string json_text(const nlohmann::json& value, int indent = 2);
template <std::same_as<nlohmann::ordered_json> Ordered>
std::string json_text(const Ordered& value, int indent = 2);

}  // namespace primus
