#include "lm/data/chat_template.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"
#include "lm/data/model_template.h"

namespace primus::data {
namespace {

bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

// Returns whether the template contains `text` in a string literal. The literal may spell line ends as "\n".
bool has_literal(std::string_view jinja, std::string_view text) {
  std::string escaped;
  for (const char c : text) c == '\n' ? escaped += "\\n" : escaped += c;
  return has(jinja, text) || has(jinja, escaped);
}

// Quotes `text` as a Jinja string literal.
std::string literal_of(std::string_view text) {
  std::string literal = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') literal += '\\';
    c == '\n' ? literal += "\\n" : literal += c;
  }
  return literal + "'";
}

std::string without_escapes(std::string_view literal) {
  std::string text;
  for (std::size_t i = 0; i < literal.size(); ++i) {
    if (literal[i] == '\\' && i + 1 < literal.size()) {
      ++i;
      text += literal[i] == 'n' ? '\n' : literal[i];
    } else {
      text += literal[i];
    }
  }
  return text;
}

// Returns the TEXT of a literal "<|im_start|>system\nTEXT<|im_end|>"; "" if the template has no such literal.
std::string default_system_of(std::string_view jinja, const TurnMarks& marks, std::string_view end) {
  // Max length of a system text including its end. The limit bounds the time spent on a malicious template.
  constexpr std::size_t kLongest = 16384;
  std::string plain = fmt::format("{}{}{}", marks.open, kSystem, marks.middle), escaped;
  for (const char c : plain) c == '\n' ? escaped += "\\n" : escaped += c;
  for (const std::string& front : {plain, escaped}) {
    for (std::size_t at = jinja.find(front); at != std::string_view::npos; at = jinja.find(front, at + 1)) {
      const std::string_view rest = jinja.substr(at + front.size(), kLongest);
      const std::string_view text = rest.substr(0, rest.find(end));
      // Accepts only a fixed text: a quote, a brace or a plus sign at its start means that template code
      // follows.
      const bool is_text = text.size() < rest.size() && !text.empty() && text.front() != '\'' &&
                           text.front() != '"' && !has(text, "{") && !has(text, "}}") && !has(text, "+ ");
      if (is_text) return without_escapes(text);
    }
  }
  return "";
}

// `end_of_text`: text of the EOS token; empty if the tokenizer has none.
std::optional<ConversationFormat> format_of(std::string_view jinja, std::string_view end_of_text) {
  const bool ends_by_assistant = has_literal(jinja, "<|assistant|>\n");
  if (has(jinja, "<|start_header_id|>") && has(jinja, "<|eot_id|>")) return ConversationFormat::kLlama3;
  if (has(jinja, "<|im_start|>") && has(jinja, "<|im_sep|>")) return ConversationFormat::kPhi4;
  if (has(jinja, "<|im_start|>") && has(jinja, "<|im_end|>")) return ConversationFormat::kChatMl;
  if (has(jinja, "<start_of_turn>") && has(jinja, "<end_of_turn>")) return ConversationFormat::kGemma;
  if (has(jinja, "[INST]") && !has(jinja, "<<SYS>>") && !has(jinja, "[SYSTEM_PROMPT]"))
    return ConversationFormat::kMistral;
  if (has(jinja, "[gMASK]")) return std::nullopt;
  if (ends_by_assistant && has(jinja, "<|end|>")) return ConversationFormat::kPhi3;
  if (ends_by_assistant && (has(jinja, "eos_token") || (!end_of_text.empty() && has(jinja, end_of_text))))
    return ConversationFormat::kZephyr;
  if (has_literal(jinja, "### Instruction:\n") && has(jinja, kAlpacaPreamble))
    return ConversationFormat::kAlpaca;
  if (has(jinja, "'Context:  Question: '")) return ConversationFormat::kSquad;
  return std::nullopt;
}

// Writes templates. A template is one line, because text between tags is rendered literally.
class TemplateWriter {
 public:
  TemplateWriter(const ConversationStyle& style, const Tokenizer& tokenizer)
      : style_(style), eos_(text_of_end(tokenizer)) {
    for (const std::int32_t id : beginning_of(style, tokenizer)) beginning_ += tokenizer.token_text(id);
  }

  std::string write() const {
    const std::string front = beginning_.empty() ? "" : fmt::format("{{{{ {} }}}}", literal_of(beginning_));
    if (const TurnMarks* const marks = turn_marks(style_.format))
      return front + (marks->system_turn ? turns(*marks) : joined_turns(*marks));
    if (style_.format == ConversationFormat::kMistral) return front + mistral();
    return front + (style_.format == ConversationFormat::kSquad ? squad() : alpaca());
  }

 private:
  static std::string text_of_end(const Tokenizer& tokenizer) {
    const std::optional<std::int32_t> end = end_of_text(tokenizer);
    return end ? tokenizer.token_text(*end) : "";
  }

  static std::string refuse_if(std::string_view condition, std::string_view what) {
    return fmt::format("{{% if {} %}}{{{{ raise_exception({}) }}}}{{% endif %}}", condition,
                       literal_of(what));
  }

  // Renders each turn separately.
  std::string turns(const TurnMarks& marks) const {
    const std::string end = (marks.end.empty() ? eos_ : std::string(marks.end)) + std::string(marks.after);
    const std::string content = marks.trimmed ? "(message['content'] | trim)" : "message['content']";
    std::string text;
    if (!style_.default_system.empty()) {
      text += fmt::format("{{% if messages[0]['role'] != 'system' %}}{{{{ {} }}}}{{% endif %}}",
                          literal_of(fmt::format("{}{}{}{}{}", marks.open, kSystem, marks.middle,
                                                 style_.default_system, end)));
    }
    text += fmt::format(
        "{{% for message in messages %}}{{% if message['role'] != 'system' or message['content'] %}}"
        "{{{{ {} + message['role'] + {} + {} + {} }}}}{{% endif %}}{{% endfor %}}",
        literal_of(marks.open), literal_of(marks.middle), content, literal_of(end));
    text += fmt::format("{{% if add_generation_prompt %}}{{{{ {} }}}}{{% endif %}}",
                        literal_of(fmt::format("{}{}{}", marks.open, marks.assistant, marks.middle)));
    return text;
  }

  // Writes template code that sets `turns` to all messages except the system turn, and `first` to the system
  // text, which precedes the first turn.
  std::string joined(std::string_view filter) const {
    return fmt::format(
        "{{% set first = {} %}}{{% set turns = messages %}}{{% if messages[0]['role'] == 'system' %}}"
        "{{% set first = (messages[0]['content']{}) + '\\n\\n' if messages[0]['content']{} else '' %}}"
        "{{% set turns = messages[1:] %}}{{% endif %}}",
        literal_of(style_.default_system.empty() ? "" : style_.default_system + "\n\n"), filter, filter);
  }
  static constexpr const char* kOnlyTwoRoles = "message['role'] not in ['user', 'assistant']";

  std::string joined_turns(const TurnMarks& marks) const {
    return joined(" | trim") +
           fmt::format(
               "{{% for message in turns %}}{}{{{{ {} + ({} if message['role'] == 'assistant' else "
               "message['role']) + {} + (first if loop.first else '') + (message['content'] | trim) + {} "
               "}}}}{{% endfor %}}{{% if add_generation_prompt %}}{{{{ {} }}}}{{% endif %}}",
               refuse_if(kOnlyTwoRoles, "only user and assistant take turns"), literal_of(marks.open),
               literal_of(marks.assistant), literal_of(marks.middle),
               literal_of(fmt::format("{}{}", marks.end, marks.after)),
               literal_of(fmt::format("{}{}{}", marks.open, marks.assistant, marks.middle)));
  }

  std::string mistral() const {
    return joined("") +
           fmt::format(
               "{{% for message in turns %}}{}{{% if message['role'] == 'assistant' %}}{{{{ {} + "
               "message['content'] + {} }}}}{{% else %}}{{{{ {} + (first if loop.first else '') + "
               "message['content'] + {} }}}}{{% endif %}}{{% endfor %}}",
               refuse_if(kOnlyTwoRoles, "only user and assistant take turns"),
               literal_of(style_.space_in ? " " : ""), literal_of(eos_),
               literal_of(style_.space_in ? "[INST] " : "[INST]"),
               literal_of(style_.space_out ? " [/INST]" : "[/INST]"));
  }

  std::string alpaca() const {
    const std::string preamble =
        style_.default_system.empty() ? std::string(kAlpacaPreamble) : style_.default_system;
    return fmt::format(
        "{{% if messages[0]['role'] == 'system' and messages[0]['content'] %}}{{{{ messages[0]['content'] "
        "}}}}"
        "{{% else %}}{{{{ {} }}}}{{% endif %}}"
        "{{% for message in messages %}}{}{{% if message['role'] != 'system' %}}"
        "{{% if loop.first or loop.previtem['role'] != 'user' %}}{{{{ '\\n\\n' }}}}{{% endif %}}"
        "{{% if message['role'] == 'user' %}}{{{{ '### Instruction:\\n' + message['content'] + '\\n\\n' }}}}"
        "{{% else %}}{{{{ '### Response:\\n' + message['content'] + {} }}}}{{% endif %}}{{% endif %}}"
        "{{% endfor %}}{{% if add_generation_prompt %}}{{% if messages[-1]['role'] != 'user' %}}{{{{ "
        "'\\n\\n' "
        "}}}}{{% endif %}}{{{{ '### Response:\\n' }}}}{{% endif %}}",
        literal_of(preamble),
        refuse_if("message['role'] not in ['user', 'assistant'] and not (loop.first and message['role'] == "
                  "'system')",
                  "only user and assistant take turns, after one system message"),
        literal_of(eos_));
  }

  std::string squad() const {
    return refuse_if("messages | length > 2 or messages[0]['role'] != 'user'",
                     "this model was trained on one question and one answer") +
           fmt::format(
               "{{{{ 'Context:  Question: ' + messages[0]['content'].strip(' ') + ' Answer:' }}}}"
               "{{% if messages | length > 1 %}}{{{{ ' ' + messages[1]['content'].strip(' ') + {} }}}}"
               "{{% endif %}}",
               literal_of(eos_));
  }

  const ConversationStyle& style_;
  std::string eos_, beginning_;
};

}  // namespace

std::optional<ConversationStyle> style_of_template(std::string_view jinja, const Tokenizer& tokenizer) {
  const std::optional<std::int32_t> eos = end_of_text(tokenizer);
  const std::string end_text = eos ? tokenizer.token_text(*eos) : "";
  const std::optional<ConversationFormat> format = format_of(jinja, end_text);
  if (!format) return std::nullopt;
  ConversationStyle style{.format = *format};
  const std::optional<std::int32_t> bos = tokenizer.special_ids().bos;
  if (bos) {
    // Some templates contain the text of the BOS token as a literal at their start.
    const std::string front = fmt::format("{{{{ {} }}}}", literal_of(tokenizer.token_text(*bos)));
    style.begins_with_bos =
        has(jinja, "bos_token") || jinja.starts_with(front) || has(jinja, "<|begin_of_text|>");
  }
  if (const TurnMarks* const marks = turn_marks(*format); marks && marks->system_turn) {
    style.default_system =
        default_system_of(jinja, *marks, marks->end.empty() ? std::string_view(end_text) : marks->end);
  }
  if (*format == ConversationFormat::kMistral) {
    style.space_in = has(jinja, "[INST] ");
    style.space_out = has(jinja, " [/INST]");
  }
  return style;
}

std::string template_of(const ConversationStyle& style, const Tokenizer& tokenizer) {
  return style.own ? std::string(tokenizer.chat_template()) : TemplateWriter(style, tokenizer).write();
}

std::string left_out_of(std::string_view jinja) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kParts = {
      {{"tools", "tools"},
       {"Today Date", "the date"},
       {"currentDate", "the date"},
       {"<think>", "reasoning"}}};
  std::vector<std::string_view> parts;
  for (const auto& [mark, part] : kParts) {
    const bool is_new = parts.empty() || parts.back() != part;
    if (has(jinja, mark) && is_new) parts.push_back(part);
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

ChosenStyle choose_style(std::string_view wanted, const Tokenizer& tokenizer) {
  const std::string_view jinja = tokenizer.chat_template();
  const std::optional<ConversationStyle> own =
      jinja.empty() ? std::nullopt : style_of_template(jinja, tokenizer);
  if (wanted != "auto") {
    const std::optional<ConversationFormat> format = conversation_format(wanted);
    if (!format) {
      throw invalid(fmt::format("unknown conversation format '{}'", wanted),
                    fmt::format("choose one of auto, {}", kConversationFormats));
    }
    if (own && own->format == *format) return {*own, "as chosen, which is also the model's own"};
    return {{.format = *format}, "chosen"};
  }
  if (own && template_of(*own, tokenizer) == jinja) return {*own, "the model's chat template"};
  if (!jinja.empty()) {
    const ChatTemplates& templates = tokenizer.chat_templates();
    std::string why = "the model's own, 'default'";
    if (!templates.file.empty()) why += " in " + templates.file;
    if (!templates.source(ModelTemplate::kToolUse).empty())
      why += ", and 'tool_use' for conversations with tools";
    return {
        {.format = ConversationFormat::kTemplate, .own = std::make_shared<const ModelTemplate>(templates)},
        std::move(why)};
  }
  if (can_write(ConversationFormat::kChatMl, tokenizer))
    return {{.format = ConversationFormat::kChatMl}, "the tokenizer has <|im_start|> and <|im_end|>"};
  return {{.format = ConversationFormat::kAlpaca}, "the model has no chat template"};
}

std::optional<ChosenStyle> choose_prompt_style(std::string_view wanted, const Tokenizer& tokenizer) {
  const bool plain = wanted == kPlainPrompts || (wanted == "auto" && tokenizer.chat_template().empty());
  return plain ? std::nullopt : std::optional(choose_style(wanted, tokenizer));
}

}  // namespace primus::data
