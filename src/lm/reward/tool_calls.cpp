#include "lm/reward/tool_calls.h"

#include <fmt/format.h>

#include <utility>

#include "base/terminal/terminal.h"
#include "base/text/excerpt.h"
#include "lm/reward/reward_json.h"

namespace primus {
namespace {

constexpr std::string_view kBegin = "<tool_call>", kEnd = "</tool_call>", kPythonTag = "<|python_tag|>";

std::string_view stripped(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\n") + 1 - begin);
}

class Finder {
 public:
  explicit Finder(std::int64_t first) : next_(first) {}

  void add(std::string_view text) {
    std::string problem;
    if (found_.calls.size() == ToolCalls::kMaxCalls) {
      problem = fmt::format("the text has more than {} calls", ToolCalls::kMaxCalls);
    } else if (nlohmann::ordered_json call = read(text, problem); problem.empty()) {
      found_.calls.push_back(std::move(call));
      ++next_;
      return;
    }
    refuse(text, std::move(problem));
  }
  void refuse(std::string_view text, std::string problem) {
    // Further invalid calls of the text tell no more than the first ones.
    if (found_.invalid.size() < ToolCalls::kMaxCalls)
      found_.invalid.push_back({std::string(text), std::move(problem)});
  }
  ToolCalls take() { return std::move(found_); }

 private:
  nlohmann::ordered_json read(std::string_view text, std::string& problem) const {
    bool is_json = false;
    const nlohmann::json value = bounded_json(text, is_json);
    if (!is_json) {
      problem = fmt::format("the call is no JSON: {}", printable(excerpt(text)));
      return {};
    }
    const auto name = value.is_object() ? value.find("name") : value.end();
    if (!value.is_object() || name == value.end() || !name->is_string()) {
      problem = "the call has no name";
      return {};
    }
    nlohmann::json arguments = nlohmann::json::object();
    for (const char* key : {"arguments", "parameters"})
      if (const auto found = value.find(key); found != value.end() && !found->is_null()) arguments = *found;
    if (arguments.is_string()) arguments = bounded_json(arguments.get<std::string>(), is_json);
    if (!is_json || !arguments.is_object()) {
      problem = "the arguments of the call are no JSON object";
      return {};
    }
    return {{"id", fmt::format("call{:05}", next_)},
            {"type", "function"},
            {"function", {{"name", *name}, {"arguments", std::move(arguments)}}}};
  }

  ToolCalls found_;
  std::int64_t next_;
};

}  // namespace

ToolCalls find_tool_calls(std::string_view text, std::int64_t first, bool offered) {
  Finder finder(first);
  std::size_t at = text.find(kBegin);
  if (at == std::string_view::npos) {
    std::string_view whole = stripped(text);
    const bool marked = whole.starts_with(kPythonTag);
    if (marked) whole = stripped(whole.substr(kPythonTag.size()));
    if (marked || (offered && whole.starts_with('{') && whole.find("\"name\"") != std::string_view::npos))
      finder.add(whole);
    return finder.take();
  }
  while (at != std::string_view::npos) {
    const std::size_t begin = at + kBegin.size(), end = text.find(kEnd, begin);
    if (end == std::string_view::npos) {
      finder.refuse(text.substr(begin), fmt::format("{} is missing at the end of the call", kEnd));
      break;
    }
    finder.add(stripped(text.substr(begin, end - begin)));
    at = text.find(kBegin, end + kEnd.size());
  }
  return finder.take();
}

}  // namespace primus
