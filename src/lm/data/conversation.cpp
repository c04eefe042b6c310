#include "lm/data/conversation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "base/text/excerpt.h"
#include "base/text/suggest.h"
#include "base/text/unique_keys.h"
#include "lm/data/json_lines.h"

namespace primus::data {
namespace {

using Kind = JsonReader::Kind;

constexpr std::array<std::string_view, 8> kRoles = {kSystem, kUser,       kAssistant, "tool",
                                                    "tools", "developer", "function", "observation"};
// Role names of data sets in ShareGPT's style, and the role that each name means.
constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kOtherRoles = {
    {{"human", kUser}, {"gpt", kAssistant}, {"bot", kAssistant}, {"model", kAssistant}}};

constexpr std::array<std::string_view, 3> kQuestions = {"instruction", "prompt", "question"};
constexpr std::array<std::string_view, 4> kAnswers = {"response", "output", "answer", "completion"};
// Keys by which other tools mark which of the input_ids are learned.
constexpr std::array<std::string_view, 3> kOtherMasks = {"labels", "completion_mask", "assistant_masks"};
// The keys whose values may also be messages: the form of TRL for prompts and their answers.
constexpr std::string_view kPrompt = "prompt", kCompletion = "completion";
constexpr std::array<std::string_view, 2> kContexts = {"input", "context"};

// Keys that change the meaning of a conversation. Some of the keys can be written only by chat templates, the
// others by no format.
struct Unsupported {
  std::string_view key, what, next;
};
constexpr std::string_view kNoTools =
                               "use a model with a chat template and its format (auto), or remove such "
                               "conversations",
                           kThoughts =
                               "write it into content in the way of the model's template "
                               "(<think>...</think>), or use a model with a chat template and its format "
                               "(auto)",
                           kTextOnly = "Primus trains on text only";
constexpr std::array<Unsupported, 9> kUnsupportedOfMessages = {
    {{"tool_calls", "a message has tool calls", kNoTools},
     {"function_call", "a message has a function call", kNoTools},
     {"reasoning_content", "a message has its reasoning in a separate key", kThoughts},
     {"reasoning", "a message has its reasoning in a separate key", kThoughts},
     {"thinking", "a message has its reasoning in a separate key", kThoughts},
     {"images", "a message has images", kTextOnly},
     {"image", "a message has an image", kTextOnly},
     {"audio", "a message has audio", kTextOnly},
     {"videos", "a message has videos", kTextOnly}}};
constexpr std::string_view kPreferences =
    "train on pairs of answers with 'primus train dpo', or keep the chosen answer as 'response'";
constexpr std::array<Unsupported, 11> kUnsupported = {
    {{"tools", "the conversation has tools", kNoTools},
     {"functions", "the conversation has functions", kNoTools},
     {"documents", "the conversation has documents", kNoTools},
     {"images", "the conversation has images", kTextOnly},
     {"image", "the conversation has an image", kTextOnly},
     {"videos", "the conversation has videos", kTextOnly},
     {"audios", "the conversation has audio", kTextOnly},
     {"audio", "the conversation has audio", kTextOnly},
     {"chosen", "the conversation has a chosen answer", kPreferences},
     {"rejected", "the conversation has a rejected answer", kPreferences},
     {"reasoning_content", "the conversation has its reasoning in a separate key", kThoughts}}};

// Keys that exclude an answer from the loss.
constexpr std::array<std::string_view, 4> kMasks = {"weight", "train", "loss", "trainable"};

// The values of keys that are synonyms, in the order of the keys.
template <std::size_t N>
using Texts = std::array<std::optional<std::string>, N>;

template <std::size_t N>
std::optional<std::string>* find(const std::array<std::string_view, N>& names, Texts<N>& texts,
                                 std::string_view key) {
  const auto found = std::find(names.begin(), names.end(), key);
  return found == names.end() ? nullptr : &texts[static_cast<std::size_t>(found - names.begin())];
}

template <std::size_t N>
std::optional<std::string> first_of(Texts<N>& texts) {
  for (std::optional<std::string>& text : texts) {
    if (text) return std::exchange(text, std::nullopt);
  }
  return std::nullopt;
}

class Reader {
 public:
  Reader(JsonReader& json, Conversation& out, Members members)
      : json_(json), out_(out), takes_all_(members == Members::kAll) {}

  void read() {
    json_.require(Kind::kObject, "a conversation");
    out_.unused.clear();
    out_.replaced.clear();
    for (std::string* const text : {&out_.tools, &out_.documents, &out_.template_arguments}) text->clear();
    json_.begin_object();
    for (std::string key; json_.next_key(key);) {
      keys_.add(json_, key);
      member(key);
    }
    if (has_ids_) return finish_tokens();
    // loss_mask and seq_start_id refer to tokens, but messages are not tokenized yet.
    if (has_mask_) note_unused("loss_mask");
    if (!starts_.empty()) note_unused("seq_start_id");
    out_.ids.clear();
    out_.learned.clear();
    out_.starts.clear();
    if (has_messages_) return finish_messages();
    prompt_.empty() && completion_.empty() ? finish_turn() : finish_turns();
  }

 private:
  void member(const std::string& key) {
    if (key == kPrompt || key == kCompletion) {
      read_text_or_turns(key);
    } else if (std::optional<std::string>* text = find(kQuestions, questions_, key)) {
      *text = text_or_null(key);
    } else if (std::optional<std::string>* answer = find(kAnswers, answers_, key)) {
      *answer = text_or_null(key);
    } else if (std::optional<std::string>* context = find(kContexts, contexts_, key)) {
      *context = text_or_null(key);
    } else if (key == "answers") {
      read_answers();
    } else if (key == "system") {
      system_ = text_or_null(key);
    } else if (key == "messages" || key == "conversations") {
      if (!json_.read_null()) read_messages(key);
    } else if (key == "input_ids") {
      read_ids();
    } else if (key == "loss_mask") {
      read_mask();
    } else if (key == "seq_start_id") {
      read_starts();
    } else if (key == "history") {
      read_history();
    } else if (std::string* const kept = takes_all_ ? kept_value(key) : nullptr) {
      *kept = json_value();
    } else if (!refuse_unsupported(kUnsupported, key)) {
      const auto mask = std::ranges::find(kOtherMasks, key);
      if (mask != kOtherMasks.end() && json_.peek() != Kind::kNull) other_mask_ = *mask;
      pass(key);
    }
  }

  // Returns where the JSON value of a key is kept for chat templates; null for other keys.
  std::string* kept_value(std::string_view key) {
    if (key == "tools") return &out_.tools;
    if (key == "documents") return &out_.documents;
    return key == "chat_template_kwargs" ? &out_.template_arguments : nullptr;
  }
  // Returns the next value as JSON; empty for null. Data sets with columns of fixed types keep lists as texts
  // of JSON: the result is then that JSON.
  std::string json_value() {
    if (json_.read_null()) return {};
    if (json_.peek() == Kind::kString) return json_.read_string();
    return std::string(json_.skip());
  }

  // Skips an ignored value. If the value is neither null nor "", records its key in `unused`.
  void pass(const std::string& name) {
    const std::string_view value = json_.skip();
    if (value != "null" && value != "\"\"") note_unused(name);
  }
  void note_unused(std::string_view name) {
    if (std::ranges::find(out_.unused, name) == out_.unused.end()) out_.unused.emplace_back(name);
  }

  // Returns whether `key` is one of `keys` and has an empty value. Throws if it has another value.
  bool refuse_unsupported(std::span<const Unsupported> keys, std::string_view key) {
    const auto found = std::ranges::find(keys, key, &Unsupported::key);
    if (found == keys.end()) return false;
    if (is_empty_value()) return true;
    json_.refuse(fmt::format("{} ('{}'), which is not supported; {}", found->what, key, found->next));
  }

  // Skips null, "", false, [] and {}. For any other value, returns false after reading a part of the value.
  bool is_empty_value() {
    if (json_.read_null()) return true;
    switch (json_.peek()) {
      case Kind::kString:
        return json_.read_string().empty();
      case Kind::kBool:
        return !json_.read_bool();
      case Kind::kArray:
        json_.begin_array();
        return !json_.next_element();
      case Kind::kObject: {
        json_.begin_object();
        std::string key;
        return !json_.next_key(key);
      }
      default:
        return false;
    }
  }

  // Reads earlier turns: [[question, answer], ...].
  void read_history() {
    if (json_.read_null()) return;
    json_.require(Kind::kArray, "the value of", "history");
    json_.begin_array();
    while (json_.next_element()) {
      json_.require(Kind::kArray, "an element of", "history");
      std::vector<std::string> turn;
      json_.begin_array();
      while (json_.next_element()) {
        json_.require(Kind::kString, "a turn of", "history");
        turn.push_back(json_.read_string());
      }
      if (turn.size() != 2)
        json_.refuse(fmt::format("a turn of 'history' must have two texts (question and answer), not {}",
                                 turn.size()));
      history_.push_back({std::string(kUser), std::move(turn[0]), {}});
      history_.push_back({std::string(kAssistant), std::move(turn[1]), {}});
    }
  }

  std::optional<std::string> text_or_null(std::string_view key) {
    if (json_.read_null()) return std::nullopt;
    json_.require(Kind::kString, "the value of", key);
    return json_.read_string();
  }

  // Reads a list of correct answers, of which only the first is used. The value is {"text": ["Paris", "in
  // Paris"], ...}, or only the list.
  void read_answers() {
    if (json_.read_null()) return;
    if (json_.peek() != Kind::kObject) return read_answer_list();
    json_.begin_object();
    for (std::string key; json_.next_key(key);) key == "text" ? read_answer_list() : void(json_.skip());
  }

  void read_answer_list() {
    json_.require(Kind::kArray, "the value of", "answers");
    json_.begin_array();
    for (std::string text; json_.next_element();) {
      json_.require(Kind::kString, "an element of", "answers");
      json_.read_string(text);
      if (!first_answer_) first_answer_ = text;
    }
    if (!first_answer_) first_answer_.emplace();  // a list without answers counts as one empty answer
  }

  // Reads a text, a message or a list of messages.
  void read_text_or_turns(const std::string& key) {
    const bool asks = key == kPrompt;
    std::vector<Message>& turns = asks ? prompt_ : completion_;
    if (json_.peek() == Kind::kObject) return read_message(turns);
    if (json_.peek() != Kind::kArray) {
      (asks ? *find(kQuestions, questions_, key) : *find(kAnswers, answers_, key)) = text_or_null(key);
      return;
    }
    json_.begin_array();
    while (json_.next_element()) read_message(turns);
    if (turns.empty()) json_.refuse(fmt::format("'{}' has no messages", key));
  }

  void read_messages(std::string_view key) {
    json_.require(Kind::kArray, "the value of", key);
    if (has_messages_) json_.refuse("the conversation has two lists of messages");
    has_messages_ = true;
    out_.messages.clear();
    json_.begin_array();
    while (json_.next_element()) read_message(out_.messages);
    if (out_.messages.empty()) json_.refuse("the conversation has no messages");
  }

  // Reads a message, and appends it to `messages`.
  void read_message(std::vector<Message>& messages) {
    json_.require(Kind::kObject, "a message");
    std::optional<std::string> role, text;
    std::optional<bool> learned;
    std::string mask;  // the key that set `learned`
    bool is_null = false;
    std::vector<std::pair<std::string, std::string>> members;
    keys_of_message_.clear();
    json_.begin_object();
    for (std::string key; json_.next_key(key);) {
      keys_of_message_.add(json_, key);
      if (key == "role" || key == "from") {
        json_.require(Kind::kString, "the value of", key);
        role = json_.read_string();
      } else if (key == "content" || key == "value") {
        is_null = json_.read_null();
        text = is_null ? std::string() : read_content(key);
      } else if (std::ranges::find(kMasks, key) != kMasks.end()) {
        if (const auto said = read_learned(key)) {
          if (learned && *learned != *said)
            json_.refuse(fmt::format("'{}' and '{}' of a message contradict each other", mask, key));
          learned = said;
          mask = key;
        }
      } else if (takes_all_ && !is_no_text(key)) {
        if (const std::string_view value = json_.skip(); value != "null")
          members.emplace_back(std::move(key), value);
      } else if (!refuse_unsupported(kUnsupportedOfMessages, key)) {
        pass("messages." + key);
      }
    }
    if (!role) json_.refuse("a message has no role");
    // An answer that only calls tools has no content.
    if (!text && !members.empty() && known_role(*role) == kAssistant) {
      is_null = true;
      text.emplace();
    }
    if (!text) json_.refuse("a message has no content");
    std::string name = known_role(*role);
    // An answer may be null, for example if it only calls a tool; such an answer is not learned.
    if (is_null && name != kAssistant)
      json_.refuse(fmt::format("the content of a '{}' message is null", name));
    if (name != kAssistant && mask != "weight" && learned.value_or(false)) {
      json_.refuse(fmt::format("a '{}' message is marked as learned ('{}'), but only answers can be learned",
                               name, mask));
    }
    messages.push_back({.role = std::move(name),
                        .text = *std::move(text),
                        .context = {},
                        .learned = learned.value_or(true),
                        .no_text = is_null,
                        .members = std::move(members)});
  }

  static bool is_no_text(std::string_view key) {
    const auto found = std::ranges::find(kUnsupportedOfMessages, key, &Unsupported::key);
    return found != kUnsupportedOfMessages.end() && found->next == kTextOnly;
  }

  // Reads whether an answer is learned. Returns nullopt for null.
  std::optional<bool> read_learned(const std::string& key) {
    return json_.read_null() ? std::nullopt : std::optional(read_flag("a message has " + key));
  }

  // Reads true, false, 1 or 0. `what` begins the message about other values.
  bool read_flag(std::string_view what) {
    if (json_.peek() == Kind::kBool) return json_.read_bool();
    const bool number = json_.peek() == Kind::kNumber;
    const std::string_view value = json_.skip();
    const double weight = number ? std::strtod(std::string(value).c_str(), nullptr) : -1;
    if (weight != 0 && weight != 1) {
      json_.refuse(fmt::format("{} {}; it must be true or 1 (learned), or false or 0 (not learned)", what,
                               excerpt(value)));
    }
    return weight == 1;
  }

  std::string read_content(const std::string& key) {
    if (json_.peek() != Kind::kArray) {
      json_.require(Kind::kString, "the value of", key);
      return json_.read_string();
    }
    std::string content;
    json_.begin_array();
    while (json_.next_element()) {
      json_.require(Kind::kObject, "an element of", key);
      std::optional<std::string> type, text;
      UniqueKeys keys;
      json_.begin_object();
      for (std::string inner; json_.next_key(inner);) {
        keys.add(json_, inner);
        if (inner == "type" || inner == "text") {
          json_.require(Kind::kString, "the value of", inner);
          (inner == "type" ? type : text) = json_.read_string();
        } else {
          pass("messages.content." + inner);
        }
      }
      if (type.value_or("text") != "text") {
        json_.refuse(fmt::format("a message has content of type '{}', and Primus trains on text only",
                                 type->substr(0, 40)));
      }
      if (!text) json_.refuse("a part of a message's content has no text");
      content += *text;
    }
    return content;
  }

  std::string known_role(const std::string& given) const {
    std::string role = given;
    for (char& c : role) {
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    }
    for (const auto& [other, name] : kOtherRoles) {
      if (role == other) return std::string(name);
    }
    if (std::ranges::find(kRoles, role) != kRoles.end()) return role;
    const std::string near = did_you_mean(role, kRoles);
    // A chat template may allow further roles. A misspelt role is still an error.
    if (takes_all_ && near.empty()) return given;
    json_.refuse(fmt::format(
        "a message has the role '{}'{}", role.substr(0, 40),
        near.empty() ? fmt::format("; roles are {}, and human, gpt, bot and model", fmt::join(kRoles, ", "))
                     : ": " + near));
  }

  void read_ids() {
    json_.require(Kind::kArray, "the value of", "input_ids");
    has_ids_ = true;
    out_.ids.clear();
    json_.begin_array();
    while (json_.next_element()) {
      json_.require(Kind::kNumber, "an element of", "input_ids");
      const std::int64_t id = json_.read_int();
      if (id < 0 || id > std::numeric_limits<std::int32_t>::max())
        json_.refuse(fmt::format("{} is not a token id", id));
      out_.ids.push_back(static_cast<std::int32_t>(id));
    }
  }

  void read_mask() {
    json_.require(Kind::kArray, "the value of", "loss_mask");
    has_mask_ = true;
    out_.learned.clear();
    json_.begin_array();
    while (json_.next_element()) out_.learned.push_back(read_flag("loss_mask has") ? 1 : 0);
  }

  void read_starts() {
    json_.require(Kind::kArray, "the value of", "seq_start_id");
    starts_.clear();
    json_.begin_array();
    while (json_.next_element()) {
      json_.require(Kind::kNumber, "an element of", "seq_start_id");
      starts_.push_back(json_.read_int());
    }
  }

  void finish_tokens() {
    if (has_messages_ || !history_.empty()) {
      json_.refuse(fmt::format("the conversation has both {} and input_ids; keep one of them",
                               has_messages_ ? "messages" : "history"));
    }
    if (!has_mask_ && !other_mask_.empty()) {
      json_.refuse(fmt::format(
          "'{}' is not supported, and without a loss_mask all of input_ids would be learned: write "
          "loss_mask, 1 for each token that is learned and 0 for the others",
          other_mask_));
    }
    out_.messages.clear();
    for (const std::string_view key : {"tools", "documents", "chat_template_kwargs"}) {
      if (std::string* const value = kept_value(key); !std::exchange(*value, {}).empty()) note_unused(key);
    }
    note_replaced_turns();
    note_replaced_texts(kQuestions, questions_);
    note_replaced_texts(kAnswers, answers_);
    if (!has_mask_) out_.learned.assign(out_.ids.size(), 1);
    if (out_.learned.size() != out_.ids.size()) {
      json_.refuse(fmt::format("loss_mask has {} numbers, but input_ids has {}", out_.learned.size(),
                               out_.ids.size()));
    }
    if (starts_.empty()) starts_ = {0};
    const auto size = static_cast<std::int64_t>(out_.ids.size());
    const bool rise = std::ranges::adjacent_find(starts_, std::greater_equal<>()) == starts_.end();
    if (starts_.front() != 0 || !rise || starts_.back() >= std::max<std::int64_t>(size, 1))
      json_.refuse("seq_start_id must begin with 0, rise, and stay below the number of input_ids");
    out_.starts = starts_;
  }

  // Records the keys of questions or answers that are ignored because the record has messages or token ids. A
  // key is not recorded if a message has the same text.
  template <std::size_t N>
  void note_replaced_texts(const std::array<std::string_view, N>& names, const Texts<N>& texts) {
    for (std::size_t i = 0; i < N; ++i) {
      if (!texts[i] || texts[i]->empty()) continue;
      if (std::ranges::find(out_.messages, *texts[i], &Message::text) == out_.messages.end())
        out_.replaced.emplace_back(names[i]);
    }
  }

  // Records the keys of prompts and answers in messages that are ignored because the record has a whole
  // conversation or token ids.
  void note_replaced_turns() {
    if (!prompt_.empty()) out_.replaced.emplace_back(kPrompt);
    if (!completion_.empty()) out_.replaced.emplace_back(kCompletion);
  }

  // Records the keys of texts that are ignored because another key takes precedence.
  template <std::size_t N>
  void note_unused_texts(const std::array<std::string_view, N>& names, const Texts<N>& texts) {
    for (std::size_t i = 0; i < N; ++i) {
      if (texts[i] && !texts[i]->empty()) note_unused(names[i]);
    }
  }

  void finish_messages() {
    note_replaced_turns();
    note_replaced_texts(kQuestions, questions_);
    note_replaced_texts(kAnswers, answers_);
    finish_list();
  }

  // Joins a prompt and its answer, of which at least one consists of messages. As in TRL, answers in the
  // prompt are not learned.
  void finish_turns() {
    out_.messages = std::move(prompt_);
    if (out_.messages.empty()) {
      const std::optional<std::string> question = first_of(questions_);
      if (!question) refuse_no_question();
      out_.messages.push_back({std::string(kUser), *question, {}});
    }
    for (Message& message : out_.messages) message.learned = false;
    if (completion_.empty()) {
      const std::optional<std::string> answer = first_of(answers_);
      if (!answer) refuse_no_answer();
      completion_.push_back({std::string(kAssistant), *answer, {}});
    }
    if (out_.messages.back().role == kAssistant && completion_.front().role == kAssistant)
      json_.refuse(std::string(kTwoAnswers));
    std::ranges::move(completion_, std::back_inserter(out_.messages));
    note_unused_texts(kQuestions, questions_);
    note_unused_texts(kAnswers, answers_);
    finish_list();
  }

  // Checks the other keys of a record with messages, and adds the system message.
  void finish_list() {
    if (!history_.empty()) json_.refuse("the conversation has both messages and history; keep one of them");
    note_unused_texts(kContexts, contexts_);
    if (first_answer_) note_unused("answers");
    if (system_.value_or("").empty()) return;
    if (out_.messages.front().role == kSystem) {
      if (out_.messages.front().text != *system_) note_unused("system");
      return;
    }
    out_.messages.insert(out_.messages.begin(), {std::string(kSystem), *std::move(system_), {}});
  }

  bool has_key(std::string_view key) const { return std::ranges::count(keys_.first(), key) > 0; }

  [[noreturn]] void refuse_no_question() const {
    refuse_missing_key(
        json_,
        fmt::format("the conversation has no question, which is the value of messages, conversations, {}, {} "
                    "or input_ids{}",
                    fmt::join(kQuestions, ", "), fmt::join(kContexts, ", "), null_keys(keys_, kQuestions)),
        keys_, kQuestions, has_key("text") ? "to train on plain text, use 'primus train pretrain'" : "");
  }
  [[noreturn]] void refuse_no_answer() const {
    refuse_missing_key(json_,
                       fmt::format("the conversation has no answer, which is the value of {} or answers{}",
                                   fmt::join(kAnswers, ", "), null_keys(keys_, kAnswers)),
                       keys_, kAnswers,
                       has_key("prompt")
                           ? "for prompts whose answers the model writes, use 'primus train grpo' "
                             "('primus data conversations --stage grpo' shows them)"
                           : "");
  }

  void finish_turn() {
    std::optional<std::string> question = first_of(questions_), answer = first_of(answers_);
    std::string context = first_of(contexts_).value_or("");
    if (answer && first_answer_) note_unused("answers");
    if (!answer) answer = std::move(first_answer_);
    if (!question && !context.empty()) question = std::exchange(context, {});
    if (!question) refuse_no_question();
    if (!answer) refuse_no_answer();
    note_unused_texts(kQuestions, questions_);
    note_unused_texts(kAnswers, answers_);
    note_unused_texts(kContexts, contexts_);
    out_.messages.clear();
    if (!system_.value_or("").empty())
      out_.messages.push_back({std::string(kSystem), *std::move(system_), {}});
    std::ranges::move(history_, std::back_inserter(out_.messages));
    out_.messages.push_back({std::string(kUser), *std::move(question), std::move(context)});
    out_.messages.push_back({std::string(kAssistant), *std::move(answer), {}});
  }

  JsonReader& json_;
  Conversation& out_;
  const bool takes_all_;
  Texts<kQuestions.size()> questions_;
  Texts<kAnswers.size()> answers_;
  Texts<kContexts.size()> contexts_;
  std::optional<std::string> first_answer_, system_;
  bool has_messages_ = false, has_ids_ = false, has_mask_ = false;
  std::string_view other_mask_;  // the key of kOtherMasks that the record has
  std::vector<std::int64_t> starts_;
  std::vector<Message> history_, prompt_, completion_;
  UniqueKeys keys_, keys_of_message_;
};

}  // namespace

void read_conversation(JsonReader& json, Conversation& out, Members members) {
  Reader(json, out, members).read();
}

}  // namespace primus::data
