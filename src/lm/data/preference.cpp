#include "lm/data/preference.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/text/excerpt.h"
#include "base/text/json_text.h"
#include "base/text/unique_keys.h"
#include "lm/data/json_lines.h"

namespace primus::data {
namespace {

using Kind = JsonReader::Kind;

constexpr std::array<std::string_view, 3> kPrompts = {"prompt", "question", "instruction"};
// Keys of a record that belong to each of its texts. read_conversation() checks their values.
constexpr std::array<std::string_view, 8> kShared = {"system", "tools", "functions", "documents",
                                                     "images", "image", "videos",    "audio"};
constexpr std::array<std::string_view, 2> kPairKeys = {"chosen", "rejected"};
constexpr std::array<std::string_view, 4> kLabelledKeys = {"completion", "label", "chosen", "rejected"};
constexpr std::string_view kHowToRename =
    "rename the keys of the better and of the worse answer to 'chosen' and 'rejected'";
// The file name in errors about a part of a record that is read separately. Messages do not show positions in
// such a part.
constexpr std::string_view kInner = "record";

// The JSON text of a value, with the value's kind. A view into the record.
struct Raw {
  std::string_view text;
  Kind kind = Kind::kNull;

  bool is_text() const { return kind == Kind::kString; }
};

// Messages as JSON texts, in the form that read_conversation() reads.
using Turns = std::vector<std::string>;

std::string turn_of(std::string_view role, std::string_view quoted) {
  return fmt::format(R"({{"role": "{}", "content": {}}})", role, quoted);
}

std::string quoted(const std::string& text) { return json_text(nlohmann::json(text), -1); }

Turns turns_of(const Raw& raw, std::string_view role) {
  if (raw.is_text()) return {turn_of(role, raw.text)};
  if (raw.kind == Kind::kObject) return {std::string(raw.text)};
  Turns turns;
  JsonReader json(raw.text, kInner, {.python = true});
  json.array([&] { turns.emplace_back(json.skip()); });
  return turns;
}

// Returns whether the turns begin with the question of a conversation, and not with an answer.
bool begin_conversation(const Turns& turns) {
  if (turns.empty()) return false;
  JsonReader json(turns.front(), kInner, {.python = true});
  if (json.peek() != Kind::kObject) return false;
  std::string role;
  json.object([&](std::string_view key) {
    const bool names_role = (key == "role" || key == "from") && json.peek() == Kind::kString;
    names_role ? json.read_string(role) : void(json.skip());
  });
  constexpr std::array<std::string_view, 4> kAskers = {kSystem, kUser, "human", "developer"};
  return std::ranges::find(kAskers, role) != kAskers.end();
}

// Compares messages as JSON values: neither white space nor the order of keys matters.
bool same_turn(const std::string& a, const std::string& b) {
  if (a == b) return true;
  const auto of_a = nlohmann::json::parse(a, nullptr, false), of_b = nlohmann::json::parse(b, nullptr, false);
  return !of_a.is_discarded() && of_a == of_b;
}

// Returns the number of equal turns at the beginning of both lists. If one list is the beginning of the
// other, the last turn of the shorter list counts as its answer, as in TRL.
std::size_t common_turns(const Turns& a, const Turns& b) {
  const std::size_t shorter = std::min(a.size(), b.size());
  std::size_t n = 0;
  while (n < shorter && same_turn(a[n], b[n])) ++n;
  return n == shorter && n > 0 ? n - 1 : n;
}

// Returns the length of the common beginning of two texts in bytes. As in TRL, a blank before the first
// difference belongs to the answers.
std::size_t common_bytes(const std::string& a, const std::string& b) {
  const std::size_t shorter = std::min(a.size(), b.size());
  std::size_t n = 0;
  while (n < shorter && a[n] == b[n]) ++n;
  if (n == shorter && n > 0) {
    --n;
  } else if (n > 0 && a[n - 1] == ' ') {
    --n;
  }
  // Does not cut a UTF-8 character.
  while (n > 0 && n < a.size() && (static_cast<unsigned char>(a[n]) & 0xC0) == 0x80) --n;
  return n;
}

std::string text_of(const Raw& raw) {
  JsonReader json(raw.text, kInner, {.python = true});
  return json.read_string();
}

class Reader {
 public:
  Reader(JsonReader& json, PreferenceKind kind, Preference& out, Members members)
      : json_(json), kind_(kind), members_(members), out_(out) {}

  void read() {
    json_.require(Kind::kObject, "a record");
    out_.unused.clear();
    out_.texts.clear();
    out_.margin = 0;
    json_.begin_object();
    for (std::string key; json_.next_key(key);) {
      keys_.add(json_, key);
      member(key);
    }
    if (chosen_ || rejected_) return finish_pair();
    if (kind_ != PreferenceKind::kLabelled) refuse_no_pair();
    finish_labelled();
  }

 private:
  void member(const std::string& key) {
    if (const auto prompt = std::ranges::find(kPrompts, key); prompt != kPrompts.end()) {
      prompts_[static_cast<std::size_t>(prompt - kPrompts.begin())] = messages(key);
    } else if (key == "chosen") {
      chosen_ = messages(key);
    } else if (key == "rejected") {
      rejected_ = messages(key);
    } else if (key == "completion") {
      completion_ = messages(key);
    } else if (key == "label") {
      read_label();
    } else if (key == "margin") {
      read_margin();
    } else if ((key == "input" || key == "context") && json_.peek() == Kind::kString) {
      if (const std::string text = json_.read_string(); !text.empty()) {
        if (!context_.empty()) note_unused(key);
        if (context_.empty()) context_key_ = key, context_ = text;
      }
    } else if (std::ranges::find(kShared, key) != kShared.end()) {
      shared_ += fmt::format(R"(, "{}": {})", key, json_.skip());
    } else {
      const std::string_view value = json_.skip();
      if (value != "null" && value != "\"\"") note_unused(key);
    }
  }

  void note_unused(std::string_view name) {
    if (std::ranges::find(out_.unused, name) == out_.unused.end()) out_.unused.emplace_back(name);
  }

  // Returns the value of `key`, which must be a text, a message or a list of messages; nullopt for null.
  std::optional<Raw> messages(const std::string& key) {
    const Kind kind = json_.peek();
    if (kind == Kind::kNull) {
      json_.skip();
      return std::nullopt;
    }
    if (kind == Kind::kObject || kind == Kind::kArray) {
      const std::string_view text = json_.skip();
      if (text.substr(1).find_first_not_of(" \t\r\n") == text.size() - 2)
        json_.refuse(fmt::format("'{}' has no messages", key));
      return Raw{text, kind};
    }
    json_.require(Kind::kString, "the value of", key);
    return Raw{json_.skip(), kind};
  }

  void read_label() {
    if (json_.read_null()) return;
    if (json_.peek() == Kind::kBool) {
      label_ = json_.read_bool();
      return;
    }
    const bool number = json_.peek() == Kind::kNumber;
    const std::string_view text = json_.skip();
    const double value = number ? std::strtod(std::string(text).c_str(), nullptr) : -1;
    if (value != 0 && value != 1) {
      json_.refuse(
          fmt::format("label is {}; it must be true or 1 (good), or false or 0 (bad)", excerpt(text)));
    }
    label_ = value == 1;
  }

  void read_margin() {
    if (json_.read_null()) return;
    json_.require(Kind::kNumber, "the value of", "margin");
    const double value = json_.read_double();
    if (!(std::abs(value) <= static_cast<double>(std::numeric_limits<float>::max())))
      json_.refuse(fmt::format("margin is {}, which is not a finite fp32 number", value));
    out_.margin = static_cast<float>(value);
    has_margin_ = true;
  }

  [[noreturn]] void refuse_no_pair() const {
    if (completion_ && label_) {
      json_.refuse(
          "the record has one answer ('completion') and a label, but this objective compares pairs of "
          "'chosen' and 'rejected': train on labelled answers with 'primus train kto'");
    }
    refuse_missing_key(json_, "the record has no key 'chosen' and no key 'rejected'", keys_, kPairKeys,
                       next_command());
  }

  // Returns a hint for records without pairs: the command that reads them, or how to rename their keys.
  std::string next_command() const {
    constexpr std::array<std::string_view, 4> kSingle = {"output", "response", "answer", "completion"};
    const std::span<const std::string> keys = keys_.first();
    const auto has = [keys](std::string_view key) { return std::ranges::find(keys, key) != keys.end(); };
    if (has("messages") || has("conversations") || std::ranges::any_of(kSingle, has))
      return "to train on conversations with one answer, use 'primus train posttrain' (stage: sft)";
    if (has("text")) return "to train on plain text, use 'primus train pretrain'";
    return std::string(kHowToRename);
  }

  // Returns the prompt that takes precedence, and lists the other prompts as unused.
  std::optional<Raw> take_prompt() {
    std::optional<Raw> first;
    for (std::size_t i = 0; i < kPrompts.size(); ++i) {
      if (!prompts_[i]) continue;
      first ? note_unused(kPrompts[i]) : void(first = prompts_[i]);
    }
    return first;
  }

  void finish_pair() {
    for (const auto& [value, name] : {std::pair(&chosen_, "chosen"), std::pair(&rejected_, "rejected")}) {
      if (!*value) {
        const std::string_view key[] = {name};
        const bool null = !null_keys(keys_, key).empty();
        const std::string what = null ? fmt::format("the value of '{}' is null", name)
                                      : fmt::format("the record has no key '{}'", name);
        refuse_missing_key(json_, what, keys_, kPairKeys, null ? "" : std::string(kHowToRename));
      }
    }
    if (completion_) note_unused("completion");
    if (label_) note_unused("label");
    if (has_margin_ && kind_ != PreferenceKind::kScored) note_unused("margin");
    const std::optional<Raw> prompt = take_prompt();
    if (!prompt && chosen_->is_text() && rejected_->is_text()) {
      use_context_if(false);
      return split_texts();
    }
    Turns of_chosen = turns_of(*chosen_, kAssistant), of_rejected = turns_of(*rejected_, kAssistant);
    const bool whole = begin_conversation(of_chosen) && begin_conversation(of_rejected);
    Turns before = prompt ? turns_of(*prompt, kUser) : Turns();
    if (!prompt && !whole) {
      json_.refuse(
          "the record has no prompt: neither a key 'prompt', nor conversations in 'chosen' and 'rejected' "
          "that begin with the same question");
    }
    // If both conversations already begin with the prompt, it is not added to them again.
    const auto repeats = [&before](const Turns& turns) {
      return turns.size() > before.size() &&
             std::equal(before.begin(), before.end(), turns.begin(), same_turn);
    };
    if (whole && prompt && (prompt->is_text() || (repeats(of_chosen) && repeats(of_rejected))))
      before.clear();
    use_context_if(prompt && prompt->is_text() && !before.empty());
    const std::size_t common = whole ? common_turns(of_chosen, of_rejected) : 0;
    if (before.empty() && common == 0) {
      json_.refuse(
          "'chosen' and 'rejected' begin with different messages, so their common prompt is empty: write the "
          "prompt into the key 'prompt'");
    }
    const auto joined = [&before](const Turns& turns) {
      Turns all = before;
      all.insert(all.end(), turns.begin(), turns.end());
      return all;
    };
    add("chosen", joined(of_chosen), of_chosen.size() - common, true);
    add("rejected", joined(of_rejected), of_rejected.size() - common, false);
  }

  // `used`: whether the record has a question as text, to which the context then belongs.
  void use_context_if(bool used) {
    if (used || context_.empty()) return;
    note_unused(context_key_);
    context_.clear();
  }

  // Splits two texts of a record without a prompt: their common beginning becomes the prompt.
  void split_texts() {
    const std::string a = text_of(*chosen_), b = text_of(*rejected_);
    const std::size_t common = common_bytes(a, b);
    if (common == 0) {
      json_.refuse(
          "'chosen' and 'rejected' have no common beginning, and the record has no prompt: write the prompt "
          "into the key 'prompt'");
    }
    const std::string question = turn_of(kUser, quoted(a.substr(0, common)));
    add("chosen", {question, turn_of(kAssistant, quoted(a.substr(common)))}, 1, true);
    add("rejected", {question, turn_of(kAssistant, quoted(b.substr(common)))}, 1, false);
  }

  void finish_labelled() {
    if (!completion_) {
      refuse_missing_key(json_,
                         "the record has no answer: neither 'completion', nor 'chosen' and 'rejected'" +
                             null_keys(keys_, std::span(kLabelledKeys).first<1>()),
                         keys_, kLabelledKeys);
    }
    if (!label_) {
      refuse_missing_key(json_,
                         "the record has no label: true for a good answer, false for a bad one" +
                             null_keys(keys_, std::span(kLabelledKeys).subspan<1, 1>()),
                         keys_, kLabelledKeys);
    }
    if (has_margin_) note_unused("margin");
    const std::optional<Raw> prompt = take_prompt();
    use_context_if(prompt && prompt->is_text());
    Turns turns = prompt ? turns_of(*prompt, kUser) : Turns();
    const Turns answer = turns_of(*completion_, kAssistant);
    if (!prompt && (!begin_conversation(answer) || answer.size() < 2)) {
      json_.refuse(
          "the record has no prompt: neither a key 'prompt', nor a conversation in 'completion' that begins "
          "with a question");
    }
    turns.insert(turns.end(), answer.begin(), answer.end());
    add("completion", turns, prompt ? answer.size() : 1, *label_);
  }

  // Adds a text. The last `learned` turns are the answer.
  void add(std::string_view key, const Turns& turns, std::size_t learned, bool preferred) {
    Preference::Text& text = out_.texts.emplace_back();
    text.preferred = preferred;
    const std::string conversation =
        fmt::format(R"({{"messages": [{}]{}}})", fmt::join(turns, ", "), shared_);
    try {
      JsonReader json(conversation, kInner, {.python = true});
      read_conversation(json, text.conversation, members_);
      json.finish();
    } catch (const Error& error) {
      // Omits the position, which refers to `conversation`. The caller adds the position of the record.
      throw Error(error.kind(), fmt::format("'{}': {}", key, error.what()), error.hint());
    }
    std::vector<Message>& messages = text.conversation.messages;
    for (std::size_t i = 0; i + learned < messages.size(); ++i) messages[i].learned = false;
    const std::size_t answer = messages.size() - learned;
    if (learned > 0 && answer > 0 && messages[answer - 1].role == kAssistant &&
        messages[answer].role == kAssistant)
      json_.refuse(fmt::format("'{}': {}", key, kTwoAnswers));
    if (!context_.empty() && answer > 0 && messages[answer - 1].role == kUser)
      messages[answer - 1].context = context_;
    for (const std::string& name : text.conversation.unused) note_unused(name);
  }

  JsonReader& json_;
  const PreferenceKind kind_;
  const Members members_;
  Preference& out_;
  std::array<std::optional<Raw>, kPrompts.size()> prompts_;
  std::optional<Raw> chosen_, rejected_, completion_;
  std::optional<bool> label_;
  bool has_margin_ = false;
  std::string shared_;                 // JSON members of every text
  std::string context_, context_key_;  // text to which the question refers, and its key
  UniqueKeys keys_;
};

}  // namespace

void read_preference(JsonReader& json, PreferenceKind kind, Preference& out, Members members) {
  Reader(json, kind, out, members).read();
}

}  // namespace primus::data
