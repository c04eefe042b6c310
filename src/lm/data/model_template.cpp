#include "lm/data/model_template.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>

#include "base/error.h"
#include "lm/template/chat.h"
#include "lm/template/json.h"

namespace primus::data {
namespace {

using jinja::Value;

// Returns whether training learns a turn. A blank answer is learned only if it has members, such as tool
// calls.
bool is_taught(const Message& message) {
  const bool says_something = !is_blank(message.text) || !message.members.empty();
  return message.role == kAssistant && message.learned && says_something;
}

// Returns kTrainingDay at 0:00.
std::tm training_day() {
  std::tm day{};
  day.tm_year = 2024 - 1900;
  day.tm_mon = 6;
  day.tm_mday = 26;
  day.tm_wday = 5;
  day.tm_yday = 207;
  return day;
}

// Returns the number of bytes of the first `count` characters of `text`, beginning at the byte `from`.
std::size_t skip_characters(std::string_view text, std::size_t from, std::int64_t count) {
  std::size_t at = from;
  for (; count > 0 && at < text.size(); --count) {
    ++at;
    while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) ++at;
  }
  return at;
}

// Returns a message that shows where two texts begin to differ.
std::string difference(std::string_view wanted, std::string_view found) {
  constexpr std::size_t kShown = 40;
  const auto [a, b] = std::ranges::mismatch(wanted, found);
  auto at = static_cast<std::size_t>(a - wanted.begin());
  while (at > 0 && at < wanted.size() && (static_cast<unsigned char>(wanted[at]) & 0xC0) == 0x80) --at;
  const auto shown = [&](std::string_view text) {
    const std::size_t begin = std::min(at, text.size());
    const std::string_view part = text.substr(begin, skip_characters(text, begin, kShown) - begin);
    return part.empty() ? std::string("its end") : jinja::repr_of_text(part);
  };
  return fmt::format("{} instead of {}", shown(found), shown(wanted));
}

// The members of a message that change its meaning, in groups of synonyms: a template writes one of them.
constexpr std::array<std::string_view, 2> kCallKeys = {"tool_calls", "function_call"};
constexpr std::array<std::string_view, 3> kReasoningKeys = {"reasoning_content", "reasoning", "thinking"};
constexpr std::array<std::span<const std::string_view>, 2> kMemberGroups = {kCallKeys, kReasoningKeys};

// Returns whether a JSON value has no content: null, false, a blank text, or an empty list or object.
bool has_no_content(std::string_view text) {
  const nlohmann::json value = nlohmann::json::parse(text, nullptr, false);
  if (value.is_string()) return is_blank(value.get_ref<const std::string&>());
  return value.is_null() || value == false || (value.is_structured() && value.empty());
}

// Removes the members with these names. Returns the first one with content; empty if there is none.
std::string remove_members(Message& message, std::span<const std::string_view> names) {
  std::string removed;
  std::erase_if(message.members, [&](const auto& member) {
    if (std::ranges::find(names, member.first) == names.end()) return false;
    if (removed.empty() && !has_no_content(member.second)) removed = member.first;
    return true;
  });
  return removed;
}

// Returns whether the text names every function of a JSON list of tools or calls, as in records that repeat
// in a key what their messages already say.
bool names_functions(std::string_view list, const std::string& text) {
  const nlohmann::json value = nlohmann::json::parse(list, nullptr, false);
  if (!value.is_array() || value.empty()) return false;
  return std::ranges::all_of(value, [&](const nlohmann::json& one) {
    const nlohmann::json& function = one.is_object() && one.contains("function") ? one["function"] : one;
    if (!function.is_object() || !function.contains("name") || !function["name"].is_string()) return false;
    const auto& name = function["name"].get_ref<const std::string&>();
    return !name.empty() && text.find(name) != std::string::npos;
  });
}

// Returns whether the text already has the content of a message's member: the reasoning itself, or the names
// of the called functions.
bool is_written(const Message& message, std::string_view key, const std::string& text) {
  const auto member = std::ranges::find(message.members, key, &decltype(message.members)::value_type::first);
  if (member == message.members.end()) return false;
  const nlohmann::json value = nlohmann::json::parse(member->second, nullptr, false);
  if (!value.is_string()) return names_functions(member->second, text);
  const auto& words = value.get_ref<const std::string&>();
  const std::size_t begin = words.find_first_not_of(" \n\t\r"), end = words.find_last_not_of(" \n\t\r");
  return begin != std::string::npos && text.find(words.substr(begin, end - begin + 1)) != std::string::npos;
}

[[noreturn]] void refuse_unwritten(std::string_view where, std::string_view key) {
  throw invalid(
      fmt::format("{} '{}', which the model's chat template does not write: the text is the same without it",
                  where, key),
      fmt::format(
          "use a model whose chat template writes it, write it into 'content', remove '{}', or leave such "
          "records out",
          key));
}

}  // namespace

// Renders prefixes (the first n messages) of one conversation. A Jinja value belongs to one thread, so each
// call of a ModelTemplate method makes its own Rendering.
class ModelTemplate::Rendering {
 public:
  Rendering(const ModelTemplate& owner, const Conversation& conversation, const std::tm& now)
      : template_(owner.choose(!conversation.tools.empty())),
        now_(now),
        budget_({.steps = std::numeric_limits<std::int64_t>::max(),
                 .bytes = std::numeric_limits<std::int64_t>::max()}) {
    for (const auto& [name, text] : owner.tokens_) variables_.emplace_back(name, text_value(text));
    if (!conversation.template_arguments.empty()) {
      const Value arguments = json(conversation.template_arguments, "chat_template_kwargs");
      if (!arguments.is(jinja::Type::kDict)) throw invalid("chat_template_kwargs is not an object");
      for (const auto& [key, value] : arguments.as<jinja::MappingObject>().items)
        variables_.emplace_back(key.text(), value);
    }
    tools_ = list(conversation.tools, "tools");
    documents_ = list(conversation.documents, "documents");
    for (const Message& message : conversation.messages) messages_.push_back(value_of(message));
  }

  const jinja::Template& chosen() const { return template_; }

  // Renders the first `count` messages.
  jinja::Rendered render(std::size_t count, bool asks) {
    jinja::ChatRequest request;
    request.messages =
        make_list(budget_, {messages_.begin(), messages_.begin() + static_cast<std::ptrdiff_t>(count)});
    request.tools = tools_;
    request.documents = documents_;
    request.add_generation_prompt = asks;
    request.variables = variables_;
    try {
      return render_chat(template_, request, now_);
    } catch (const jinja::Failure& failure) {
      throw invalid(fmt::format("the model's chat template refuses the conversation: {}", failure.what()),
                    "change the conversation, or choose a format that can write it");
    }
  }

 private:
  Value text_value(std::string_view text) { return make_text(budget_, std::string(text)); }

  Value json(std::string_view text, std::string_view name) {
    try {
      return jinja::parse_json(budget_, text, name);
    } catch (const Error& error) {
      throw invalid(fmt::format("'{}' is not JSON: {}", name, error.what()));
    }
  }
  Value list(const std::string& text, std::string_view name) {
    if (text.empty()) return Value::none();
    Value value = json(text, name);
    if (!value.is(jinja::Type::kList))
      throw invalid(fmt::format("'{}' is not a list", name), "write a JSON list of objects");
    return value;
  }

  Value value_of(const Message& message) {
    const auto made = jinja::make_mapping();
    const auto set = [&](std::string_view key, Value value) {
      put(budget_, *made, text_value(key), std::move(value));
    };
    set("role", text_value(message.role));
    if (!message.no_text) {
      set("content",
          text_value(message.context.empty() ? message.text : message.text + "\n\n" + message.context));
    }
    for (const auto& [key, value] : message.members) set(key, json(value, key));
    return dict_of(made);
  }

  const jinja::Template& template_;
  const std::tm now_;
  jinja::Budget budget_;
  jinja::Variables variables_;
  Value tools_, documents_;
  std::vector<Value> messages_;
};

ModelTemplate::ModelTemplate(const ChatTemplates& templates) : tokens_(templates.tokens) {
  for (const ChatTemplates::Named& one : templates.all) {
    if (one.name != "default" && one.name != kToolUse) continue;
    try {
      templates_.push_back({one.name, jinja::Template(one.source)});
    } catch (const jinja::Failure& failure) {
      Error error = invalid(fmt::format("the chat template '{}' is broken: {}", one.name, failure.what()),
                            "get the file again from the model's source, or name a format instead");
      if (!templates.file.empty()) error.at(templates.file);
      throw error;
    }
  }
}

const jinja::Template& ModelTemplate::choose(bool has_tools) const {
  const auto find = [this](std::string_view name) {
    return std::ranges::find(templates_, name, &Named::name);
  };
  auto found = has_tools ? find(kToolUse) : templates_.end();
  if (found == templates_.end()) found = find("default");
  if (found == templates_.end())
    throw invalid("the model has no chat template 'default'", "name a format instead");
  return found->compiled;
}

std::string ModelTemplate::prompt(const Conversation& conversation) const {
  Rendering rendering(*this, conversation, jinja::local_time());
  return rendering.render(conversation.messages.size(), true).text;
}

std::string ModelTemplate::training_prompt(const Conversation& conversation) const {
  Rendering rendering(*this, conversation, training_day());
  std::string text = rendering.render(conversation.messages.size(), true).text;
  require_written(conversation, text, true);
  return text;
}

std::string ModelTemplate::training_text(const Conversation& conversation) const {
  Rendering rendering(*this, conversation, training_day());
  std::string text = rendering.render(conversation.messages.size(), false).text;
  require_written(conversation, text, false);
  return text;
}

bool ModelTemplate::renders_as(const Conversation& conversation, std::size_t count, bool asks,
                               const std::string& text) const {
  try {
    return Rendering(*this, conversation, training_day()).render(count, asks).text == text;
  } catch (const Error&) {
    return false;
  }
}

void ModelTemplate::require_written(const Conversation& conversation, const std::string& text,
                                    bool asks) const {
  const auto require = [&](std::string_view key, std::string Conversation::*list) {
    if ((conversation.*list).empty() || has_no_content(conversation.*list)) return;
    if (names_functions(conversation.*list, text)) return;
    Conversation without = conversation;
    (without.*list).clear();
    if (renders_as(without, without.messages.size(), asks, text))
      refuse_unwritten("the conversation has", key);
  };
  require("tools", &Conversation::tools);
  require("documents", &Conversation::documents);
  for (std::size_t i = 0; i < conversation.messages.size(); ++i)
    if (!conversation.messages[i].members.empty()) require_members(conversation, i, text, asks);
}

void ModelTemplate::require_members(const Conversation& conversation, std::size_t message,
                                    const std::string& text, bool asks) const {
  for (const std::span<const std::string_view> names : kMemberGroups) {
    Conversation without = conversation;
    const std::string key = remove_members(without.messages[message], names);
    if (key.empty() || is_written(conversation.messages[message], key, text)) continue;
    const std::size_t all = conversation.messages.size(), until = message + 1;
    if (!renders_as(without, all, asks, text)) continue;
    // Many templates leave out the reasoning of earlier turns, so the turn is also compared as the last one.
    if (until < all) {
      std::string last;
      try {
        last = Rendering(*this, conversation, training_day()).render(until, false).text;
      } catch (const Error&) {
        continue;  // the template refuses a conversation that ends here, so this comparison is impossible
      }
      if (!renders_as(without, until, false, last)) continue;
    }
    refuse_unwritten(fmt::format("message {} has", until), key);
  }
}

std::vector<LearnedText> ModelTemplate::texts(const Conversation& conversation) const {
  const std::vector<Message>& messages = conversation.messages;
  Rendering rendering(*this, conversation, training_day());
  jinja::Rendered whole = rendering.render(messages.size(), false);
  require_written(conversation, whole.text, false);
  std::vector<LearnedText> texts(1);
  texts[0].text = std::move(whole.text);
  const std::string& text = texts[0].text;

  if (rendering.chosen().has_generation()) {
    texts[0].marked_by_template = true;
    std::vector<bool> learned;  // for each answer: whether it is learned
    for (const Message& message : messages)
      if (message.role == kAssistant) learned.push_back(is_taught(message));
    const bool some = std::ranges::find(learned, false) != learned.end();
    if (some && learned.size() != whole.generated.size()) {
      throw invalid(
          fmt::format(
              "some of the {} answers are not learned, but the chat template marks {} texts as answers, "
              "so it is unclear which of them these are",
              learned.size(), whole.generated.size()),
          "learn all answers of the conversation, or name a format instead");
    }
    std::int64_t character = 0;
    std::size_t byte = 0;
    for (std::size_t i = 0; i < whole.generated.size(); ++i) {
      const jinja::Span& span = whole.generated[i];
      const std::size_t begin = skip_characters(text, byte, span.begin - character);
      byte = skip_characters(text, begin, span.end - span.begin);
      character = span.end;
      if (!some || learned[i]) texts[0].learned.emplace_back(begin, byte);
    }
    return texts;
  }

  std::vector<LearnedText> separate;  // one text for each answer
  bool is_one_text = true;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (!is_taught(messages[i])) continue;
    const std::string asking = i == 0 ? std::string() : rendering.render(i, true).text;
    const bool is_last = i + 1 == messages.size();
    std::string answered = is_last ? text : rendering.render(i + 1, false).text;
    if (!answered.starts_with(asking)) {
      throw invalid(
          fmt::format(
              "the model's chat template does not write message {} after the beginning of an answer: {}",
              i + 1, difference(asking, answered)),
          "training would not fit generation: write the answer as the template expects it (for example with "
          "its reasoning), use a template that marks answers by {% generation %}, or choose a format by "
          "name");
    }
    is_one_text = is_one_text && text.starts_with(answered);
    texts[0].learned.emplace_back(asking.size(), answered.size());
    separate.push_back({std::move(answered), {texts[0].learned.back()}, false});
  }
  return is_one_text ? texts : separate;
}

std::string ModelTemplate::continuation(const Conversation& conversation, std::size_t answer) const {
  Conversation marked = conversation;
  Message& generated = marked.messages.at(answer);
  generated = {.role = generated.role, .text = {}, .context = {}};
  // A text that none of the messages contains takes the place of the generated text. Templates that change
  // the answers of earlier turns, for example by leaving out their reasoning, leave this text as it is.
  const std::string all = Rendering(*this, marked, training_day()).render(marked.messages.size(), true).text;
  for (int i = 0; generated.text.empty() || all.find(generated.text) != std::string::npos; ++i)
    generated.text = fmt::format("answer{}", i);
  std::string text = Rendering(*this, marked, training_day()).render(marked.messages.size(), true).text;
  const std::size_t at = text.find(generated.text);
  if (at == std::string::npos || text.find(generated.text, at + 1) != std::string::npos) {
    throw invalid(
        "the model's chat template does not write an answer exactly once if messages follow it, so the "
        "tokens "
        "that follow a generated answer are unknown",
        "use a template that writes earlier answers, or choose a format by name (sft_conversation_format)");
  }
  return text.substr(at + generated.text.size());
}

std::optional<ModelTemplate::AroundAnswer> ModelTemplate::around_answer() const {
  constexpr std::string_view kAnswer = "Yes, indeed.";
  const Conversation one{.messages = {{std::string(kUser), "Is this a question?", {}},
                                      {std::string(kAssistant), std::string(kAnswer), {}}}};
  try {
    Rendering rendering(*this, one, training_day());
    const std::string asking = rendering.render(1, true).text, answered = rendering.render(2, false).text;
    const std::size_t at = answered.rfind(kAnswer);
    if (at == std::string::npos) return std::nullopt;
    const bool fits = answered.starts_with(asking) && at >= asking.size();
    return AroundAnswer{fits ? answered.substr(asking.size(), at - asking.size()) : "",
                        answered.substr(at + kAnswer.size())};
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace primus::data
