#include "cli/use/answerer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace primus::cli {

Answerer::Answerer(UsedModel model, GenerateSettings settings, const TemplateArguments& format)
    : model_(std::move(model)), settings_(std::move(settings)) {
  const std::string system = format.system();
  std::string tools = format.tools();
  if (!format.given()) {
    if (!tools.empty())
      throw invalid("tools need a format of turns", "--template auto uses the model's chat template");
    if (!system.empty())
      throw invalid("a system text needs a format of turns",
                    "choose the format: --template auto, chatml or alpaca");
    return;
  }
  data::ConversationStyle style = format.required_style(model_.folder, tokenizer());
  style.inline_bos = false;  // a question is a single text
  writer_.emplace(TemplateArguments::writer(style, tokenizer()));
  if (!system.empty() && !writer_->has_system())
    throw invalid(fmt::format("the format {} does not support a system message", data::name_of(style.format)),
                  "remove --system");
  if (!tools.empty()) writer_->offer_tools(std::move(tools));
  before_ = data::with_system(system);
  settings_.stop_ids.push_back(writer_->end_id());
}

std::string Answerer::without_prefix(std::string text) const {
  const std::string_view prefix = writer_ ? writer_->answer_prefix() : std::string_view();
  if (!prefix.empty() && text.starts_with(prefix)) text.erase(0, prefix.size());
  return text;
}

std::vector<std::int32_t> Answerer::encoded(data::Conversation prompt) const {
  std::vector<data::Message>& messages = prompt.messages;
  if (!writer_) {
    if (messages.size() != 1 || messages.front().role != data::kUser) {
      throw invalid("the prompt has several messages, but without a format the model continues one text",
                    "--template auto writes the messages in the model's format");
    }
    const data::Message& one = messages.front();
    return tokenizer().encode(one.context.empty() ? one.text : one.text + "\n\n" + one.context);
  }
  if (!before_.empty() && messages.front().role == data::kSystem) {
    throw invalid("the prompt has a system text, and --system gives another one",
                  "remove --system, or the system text of the record");
  }
  messages.insert(messages.begin(), before_.begin(), before_.end());
  return writer_->prompt_of(std::move(prompt));
}

std::vector<std::int32_t> Answerer::prompt_ids(data::Conversation prompt, const GenerateSettings& settings,
                                               std::string_view whose, const Console& console) const {
  std::vector<std::int32_t> ids = encoded(std::move(prompt));
  if (ids.empty()) {
    // If the prompt is empty, generation starts with the token with which training texts started.
    const SpecialIds& special = tokenizer().special_ids();
    const auto start = special.bos ? special.bos : special.eod;
    if (!start)
      throw invalid("there is no prompt, and the tokenizer has no begin-of-text token",
                    "write a prompt with --prompt");
    ids.push_back(*start);
  }
  const std::int64_t positions = model_.config.max_positions;
  const std::int64_t capacity =
      std::min(positions, static_cast<std::int64_t>(ids.size()) + settings.max_tokens);
  const auto kept = fit_prompt(ids, capacity, settings.max_tokens);
  if (kept.size() < ids.size()) {
    console.note(fmt::format("note: of {} {} tokens only the last {} fit the model's {} positions", whose,
                             ids.size(), kept.size(), positions));
  }
  return {kept.begin(), kept.end()};
}

void Answerer::push_prompt(bool is_empty, std::span<const std::int32_t> prompt_ids,
                           StreamDecoder& stream) const {
  if (is_empty && !writer_) return;
  for (const std::int32_t id : prompt_ids) stream.push(id);
}

}  // namespace primus::cli
