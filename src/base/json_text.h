// Reads small JSON files that people edit: config.json and its like.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace primus {

// The object that `text` is. Anything else is refused with Error(kInvalid) at "name:line:column": text that
// is no JSON (RFC 8259; a byte-order mark in front is passed over), and what Python's json module would take
// for something its writer may not have meant: a key twice in one object. Nesting is limited.
nlohmann::json parse_json_object(std::string_view text, const std::string& name);

}  // namespace primus
