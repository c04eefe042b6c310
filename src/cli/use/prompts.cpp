#include "cli/use/prompts.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>

#include "base/error.h"
#include "base/text/json_reader.h"
#include "base/text/suggest.h"
#include "lm/data/prompt.h"

namespace primus::cli {
namespace {

constexpr std::string_view kHint =
    "write \"TEXT\", or {\"prompt\": \"TEXT\"} and optionally \"id\", \"seed\", \"max_tokens\", \"adapter\" "
    "and further columns, on each line";

// Refuses a column whose name is nearly that of an option. Short options ('id', 'seed') are too close to
// words that name columns.
void refuse_misspelt(const JsonReader& json, std::string_view key) {
  constexpr std::string_view kOptions[] = {"max_tokens", "adapter"};
  const std::string_view near = key == "max_new_tokens" ? kOptions[0] : closest(key, kOptions);
  if (near.empty()) return;
  try {
    json.refuse(fmt::format("unknown key '{}'", key));
  } catch (Error& error) {
    error.add_hint(fmt::format("'{}' may mean '{}'; rename it if the results shall repeat it", key, near));
    throw;
  }
}

PromptLine parse_line(std::string_view line, const std::string& name, std::int64_t number) {
  JsonReader json(line, name, {.first_line = number, .python = false, .hint = kHint});
  PromptLine result;
  result.place = fmt::format("{}:{}", name, number);
  if (json.peek() == JsonReader::Kind::kString) {
    json.read_string(result.text.emplace());
    json.finish();
    return result;
  }
  json.require(JsonReader::Kind::kObject, "a prompt");
  std::set<std::string, std::less<>> seen;
  json.object([&](std::string_view key) {
    if (!seen.emplace(key).second) json.refuse(fmt::format("'{}' is given twice", key));
    if (key == "id") {
      result.id = json.skip();
    } else if (key == "seed") {
      result.seed = json.read_unsigned();
    } else if (key == "max_tokens") {
      constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();
      result.max_tokens = json.read_size();
      if (*result.max_tokens > kMax) json.refuse(fmt::format("max_tokens is above {}", kMax));
    } else if (key == "adapter") {
      json.require(JsonReader::Kind::kString, "the value of", key);
      json.read_string(result.adapter.emplace());
    } else {
      refuse_misspelt(json, key);
      result.columns.emplace_back(key, json.skip());
    }
  });
  json.finish();
  const auto prompt =
      std::ranges::find(result.columns, "prompt", &std::pair<std::string, std::string>::first);
  if (prompt != result.columns.end() && prompt->second == "\"\"") {
    result.text.emplace();
  } else {
    result.record = line;
    result.conversation(data::Members::kAll);  // so that a record without a prompt is refused at once
  }
  return result;
}

}  // namespace

data::Conversation PromptLine::conversation(data::Members members) const {
  if (text) return {.messages = {{std::string(data::kUser), *text, {}}}};
  data::Prompt prompt;
  try {
    JsonReader json(record, place, {.python = false, .hint = kHint});
    data::read_prompt(json, prompt, members);
  } catch (Error& error) {
    throw Error(error.kind(), error.what(), error.hint()).at(place);
  }
  return std::move(prompt.conversation);
}

std::vector<PromptLine> parse_prompts(std::string_view text, const std::string& name) {
  std::vector<PromptLine> prompts;
  std::int64_t number = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (line.find_first_not_of(" \t\r") != std::string_view::npos) {
      prompts.push_back(parse_line(line, name, number));
    }
  }
  if (prompts.empty()) throw invalid("the file has no prompt", std::string(kHint)).at(name);
  return prompts;
}

}  // namespace primus::cli
