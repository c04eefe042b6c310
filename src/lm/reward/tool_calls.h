// Finds calls of tools in the text that a model has generated. Two formats are read:
//
//   <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>
//   {"name": "add", "parameters": {"a": 1}}
//
// Hermes and Qwen write the first format, any number of times in a text. Llama 3 writes the second one as the
// whole text, or after <|python_tag|>.
//
// "arguments" and "parameters" mean the same in both formats, and may be missing. Thread-safe.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace primus {

struct ToolCalls {
  static constexpr std::size_t kMaxCalls = 64;  // of a text; later calls are invalid

  // A text that is marked as a call, but that cannot be read.
  struct Invalid {
    std::string text;
    std::string problem;  // why, as a sentence without a period
  };
  // {"id": "call00000", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
  std::vector<nlohmann::ordered_json> calls;
  std::vector<Invalid> invalid;
};

// `first`: number of the first call in its id. `offered`: whether the model has tools. Without tools, a text
// that is JSON is not a call.
ToolCalls find_tool_calls(std::string_view text, std::int64_t first, bool offered);

}  // namespace primus
