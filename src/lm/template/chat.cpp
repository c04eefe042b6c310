#include "lm/template/chat.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "lm/template/python_text.h"

namespace primus::jinja {
namespace {

constexpr std::string_view kTag = "CONTINUE_FINAL_MESSAGE_TAG ";
constexpr std::string_view kReasoningFields[] = {"reasoning_content", "thinking", "reasoning"};

const Value* member(const Value& message, std::string_view key) {
  return message.as<MappingObject>().find("s" + std::string(key));
}

// Returns the message without null members (unless `keep_null`), and with its reasoning under every name that
// templates use.
Value prepared_message(Budget& budget, const Value& message, bool keep_null) {
  if (!message.is(Type::kDict)) {
    throw Failure("TypeError",
                  fmt::format("Chat messages should be dicts, dataclasses or pydantic models, but got {}.",
                              repr_of(budget, message)));
  }
  const Value* reasoning = nullptr;
  for (const std::string_view field : kReasoningFields) {
    const Value* const found = member(message, field);
    if (reasoning == nullptr && found != nullptr && !found->is(Type::kNone)) reasoning = found;
  }
  const auto made = make_mapping();
  const auto set = [&](std::string_view key, const Value& value) {
    put(budget, *made, make_text(budget, std::string(key)), value);
  };
  if (reasoning != nullptr) set("thinking", *reasoning);
  for (const auto& [key, value] : message.as<MappingObject>().items)
    if (keep_null || !value.is(Type::kNone)) put(budget, *made, key, value);
  if (reasoning != nullptr) set("reasoning_content", *reasoning);
  return dict_of(made);
}

// Appends kTag to the last text of the message's content, to mark where the rendered text must end. Returns
// the text without the tag.
std::string tag_content(Budget& budget, Value& message) {
  const Value* const content = member(message, "content");
  if (content == nullptr) {
    throw Failure("ValueError",
                  "continue_final_message is set but the final message has no \"content\" to continue!");
  }
  const auto tagged = [&](const Value& text) { return make_text(budget, text.text() + std::string(kTag)); };
  const auto changed = [&](const Value& mapping, std::string_view key, Value value) {
    const auto copy = std::make_shared<MappingObject>(mapping.as<MappingObject>());
    put(budget, *copy, make_text(budget, std::string(key)), std::move(value));
    return dict_of(copy);
  };
  if (content->is(Type::kString)) {
    std::string text = content->text();
    message = changed(message, "content", tagged(*content));
    return text;
  }
  std::vector<Value> blocks = content->is_sequence() ? content->items() : std::vector<Value>{};
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
    const Value* const text = block->is(Type::kDict) ? member(*block, "text") : nullptr;
    if (text == nullptr || !text->is(Type::kString)) continue;
    std::string last = text->text();
    *block = changed(*block, "text", tagged(*text));
    message = changed(message, "content", make_list(budget, blocks));
    return last;
  }
  throw Failure(
      "ValueError",
      "continue_final_message is set but we could not find any text to continue in the final message!");
}

// Cuts the rendered text at kTag, which tag_content() has added.
void cut_at_tag(Rendered& rendered, const std::string& last) {
  const std::string_view bare = strip(kTag, false, true);
  const std::size_t at = rendered.text.rfind(bare);
  if (at == std::string::npos || rendered.text.find(strip(last, true, true)) == std::string::npos) {
    throw Failure(
        "ValueError",
        "continue_final_message is set but the final message does not appear in the chat after applying "
        "the chat template! This can happen if the chat template deletes portions of the final message.");
  }
  const bool keeps_spaces = rendered.text.compare(at, kTag.size(), kTag) == 0;
  rendered.text.resize(at);
  if (!keeps_spaces) rendered.text = std::string(strip(rendered.text, false, true));
}

void set_variable(Variables& variables, std::string_view name, Value value) {
  const auto found =
      std::ranges::find(variables, name, [](const auto& item) { return std::string_view(item.first); });
  if (found == variables.end())
    variables.emplace_back(name, std::move(value));
  else
    found->second = std::move(value);
}

}  // namespace

Rendered render_chat(const Template& chat_template, const ChatRequest& request, const std::tm& now,
                     const Limits& limits) {
  // Sets no limits here, because the caller's data is trusted. The template has separate limits.
  Budget budget(
      {.steps = std::numeric_limits<std::int64_t>::max(), .bytes = std::numeric_limits<std::int64_t>::max()});
  if (!request.messages.is_sequence() || request.messages.items().empty()) {
    throw Failure("ValueError",
                  "Cannot apply chat template to an empty conversation. Provide at least one message.");
  }
  if (request.continue_final_message && request.add_generation_prompt)
    throw Failure("ValueError", "continue_final_message and add_generation_prompt are not compatible.");
  if (request.documents.is_sequence()) {
    for (const Value& document : request.documents.items())
      if (!document.is(Type::kDict))
        throw Failure("TypeError", "Documents should be a list of dicts with 'title' and 'text' keys!");
  }
  std::vector<Value> messages;
  for (const Value& message : request.messages.items())
    messages.push_back(prepared_message(budget, message, request.keep_null));
  std::string last;
  if (request.continue_final_message) {
    last = tag_content(budget, messages.back());
    if (chat_template.source().find("content") == std::string::npos)
      throw Failure("ValueError",
                    "continue_final_message is set, but the chat template does not use \"content\"");
  }
  Variables variables;
  for (const auto& [name, value] : request.variables) set_variable(variables, name, value);
  set_variable(variables, "messages", make_list(budget, std::move(messages)));
  set_variable(variables, "tools", request.tools);
  set_variable(variables, "documents", request.documents);
  set_variable(variables, "add_generation_prompt", Value::boolean(request.add_generation_prompt));
  Rendered rendered = chat_template.render(std::move(variables), now, limits);
  if (request.continue_final_message) cut_at_tag(rendered, last);
  return rendered;
}

}  // namespace primus::jinja
