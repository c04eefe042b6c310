#include "lm/data/prompt.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/text/unique_keys.h"
#include "lm/data/json_lines.h"

namespace primus::data {
namespace {

using Kind = JsonReader::Kind;

// The keys of prompts, in the order of precedence.
constexpr std::array<std::string_view, 5> kPromptKeys = {"prompt", "messages", "conversations", "question",
                                                         "instruction"};
constexpr std::array<std::string_view, 3> kQuestionKeys = {"input", "context", "history"};
// Keys of the whole record that belong to the prompt. read_conversation() checks their values.
constexpr std::array<std::string_view, 10> kRecordKeys = {
    "system", "tools", "functions", "documents", "chat_template_kwargs",
    "images", "image", "videos",    "audio",     "audios"};
// The file name in errors about the prompt, which is read separately. Messages do not show positions in it.
constexpr std::string_view kInnerRecord = "record";

bool holds_messages(std::string_view key) { return key == "messages" || key == "conversations"; }

// The JSON text of a value, with the value's kind. A view into the record.
struct PromptValue {
  std::string_view text;
  Kind kind = Kind::kNull;
};

class PromptRecordReader {
 public:
  PromptRecordReader(JsonReader& json, Prompt& out, Members members)
      : json_(json), members_(members), out_(out) {}

  void read() {
    json_.require(Kind::kObject, "a record");
    out_.columns.clear();
    json_.begin_object();
    for (std::string key; json_.next_key(key);) {
      keys_.add(json_, key);
      member(key);
    }
    const auto first = std::ranges::find_if(prompts_, [](const auto& value) { return value.has_value(); });
    if (first == prompts_.end()) {
      refuse_missing_key(
          json_, "the record has no prompt: it has no key 'prompt', 'messages', 'question' or 'instruction'",
          keys_, kPromptKeys);
    }
    const std::string_view key = kPromptKeys[static_cast<std::size_t>(first - prompts_.begin())];
    for (auto other = first + 1; other != prompts_.end(); ++other) {
      if (*other) out_.columns.emplace_back(kPromptKeys[static_cast<std::size_t>(other - prompts_.begin())]);
    }
    const bool asks = key == "question" || key == "instruction";
    const Kind kind = (*first)->kind;
    const bool fits = kind == Kind::kString ? !holds_messages(key)
                                            : !asks && (kind == Kind::kArray || !holds_messages(key)) &&
                                                  (kind == Kind::kArray || kind == Kind::kObject);
    if (!fits) {
      json_.refuse(fmt::format("the value of '{}' must be {}", key,
                               holds_messages(key) ? "a list of messages"
                               : asks              ? "a text"
                                                   : "a text, a message or a list of messages"));
    }
    if (!asks) {
      for (const auto& [name, value] : of_question_) out_.columns.push_back(name);
    }
    read_turns(key, **first, asks);
  }

 private:
  void member(const std::string& key) {
    if (const auto prompt = std::ranges::find(kPromptKeys, key); prompt != kPromptKeys.end()) {
      prompts_[static_cast<std::size_t>(prompt - kPromptKeys.begin())] = value_or_null();
    } else if (std::ranges::find(kRecordKeys, key) != kRecordKeys.end()) {
      shared_ += fmt::format(R"(, "{}": {})", key, json_.skip());
    } else if (const std::string_view value = json_.skip(); value != "null") {
      const bool of_question = std::ranges::find(kQuestionKeys, key) != kQuestionKeys.end();
      of_question ? void(of_question_.emplace_back(key, value)) : void(out_.columns.push_back(key));
    }
  }

  std::optional<PromptValue> value_or_null() {
    if (json_.read_null()) return std::nullopt;
    const Kind kind = json_.peek();
    return PromptValue{json_.skip(), kind};
  }

  void read_turns(std::string_view key, const PromptValue& prompt, bool asks) {
    std::string text;
    if (prompt.kind == Kind::kString) {
      // The empty answer is removed below.
      text = fmt::format(R"({{"question": {}, "answer": "")", prompt.text);
      for (const auto& [name, value] : of_question_)
        if (asks) text += fmt::format(R"(, "{}": {})", name, value);
    } else {
      const bool one = prompt.kind == Kind::kObject;
      text = fmt::format(R"({{"messages": {}{}{})", one ? "[" : "", prompt.text, one ? "]" : "");
    }
    text += shared_ + "}";
    try {
      JsonReader json(text, kInnerRecord, {.python = true});
      read_conversation(json, out_.conversation, members_);
      json.finish();
      finish(key, prompt.kind == Kind::kString || holds_messages(key));
    } catch (const Error& error) {
      // Omits the position, which refers to `text`. The caller adds the position of the record.
      throw Error(error.kind(), fmt::format("'{}': {}", key, error.what()), error.hint());
    }
  }

  // Removes the answer. `may_answer`: whether the record may have an answer after the prompt.
  void finish(std::string_view key, bool may_answer) {
    std::vector<Message>& messages = out_.conversation.messages;
    if (messages.back().role == kAssistant) {
      if (!may_answer) {
        throw invalid("the last message is an answer, but the model must write the answer",
                      fmt::format("end '{}' with a question, or rename it to 'messages', whose last answer "
                                  "is left out",
                                  key));
      }
      messages.pop_back();
    }
    const bool is_empty = std::ranges::all_of(
        messages, [](const Message& turn) { return is_blank(turn.text) && turn.members.empty(); });
    if (is_empty) throw invalid("the prompt is empty", "write a question, or remove the record");
  }

  JsonReader& json_;
  const Members members_;
  Prompt& out_;
  std::array<std::optional<PromptValue>, kPromptKeys.size()> prompts_;
  std::vector<std::pair<std::string, std::string_view>> of_question_;
  std::string shared_;  // JSON members of the whole record
  UniqueKeys keys_;
};

}  // namespace

void read_prompt(JsonReader& json, Prompt& out, Members members) {
  PromptRecordReader(json, out, members).read();
}

}  // namespace primus::data
