// Reads small JSON files that people edit, config.json and its like, and writes JSON for programs.
#pragma once

#include <concepts>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace primus {

// The object that `text` is. Anything else is refused with Error(kInvalid) at "name:line:column": text that
// is no JSON (RFC 8259; a byte-order mark in front is passed over), and what Python's json module would take
// for something its writer may not have meant: a key twice in one object. Nesting is limited.
nlohmann::json parse_json_object(std::string_view text, const std::string& name);

// `value` as text that every reader of JSON takes, without a line end: whatever is not UTF-8 in its strings,
// as names of files and tensors may be, stands there as U+FFFD. On one line where `indent` is -1. Braces
// make a json: json_text({{"rank", 3}}).
std::string json_text(const nlohmann::json& value, int indent = 2);
template <std::same_as<nlohmann::ordered_json> Ordered>
std::string json_text(const Ordered& value, int indent = 2);

}  // namespace primus
