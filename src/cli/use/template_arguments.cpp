#include "cli/use/template_arguments.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/files/file.h"

namespace primus::cli {

void TemplateArguments::declare(Arguments& arguments, std::string preset, bool plain,
                                const std::string& help) {
  template_ = std::move(preset);
  Argument& option = arguments.option("--template", "NAME", &template_, help);
  option.choices = {"auto", "alpaca", "squad", "chatml"};
  if (plain) option.choices.insert(option.choices.begin() + 1, "plain");
}

void TemplateArguments::declare_system(Arguments& arguments) {
  arguments.option("--system", "TEXT", &system_, "a system's text, before the first turn (alpaca, chatml)");
  arguments.option("--system-file", "FILE", &system_file_, "the same, from a file").reads = all_of_them;
}

std::optional<ConversationStyle> TemplateArguments::style(const ModelFolder& folder) const {
  if (template_ == "auto") return load_conversation_style(folder);
  if (template_.empty() || template_ == "plain") return std::nullopt;
  return ConversationStyle{template_};
}

ConversationStyle TemplateArguments::required_style(const ModelFolder& folder) const {
  const std::optional<ConversationStyle> chosen = style(folder);
  if (chosen) return *chosen;
  throw invalid(
      fmt::format("'{}' does not say in which format the model was fine-tuned", folder.path.string()),
      "name it: --template alpaca, squad or chatml");
}

std::string TemplateArguments::system() const {
  if (system_ && system_file_)
    throw invalid("--system and --system-file exclude each other", "leave one out");
  if (!system_file_) return system_.value_or("");
  std::string text = read_file(*system_file_);
  // An editor's line end is not the system's.
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  return text;
}

data::ConversationWriter writer_of(const ConversationStyle& style, const Tokenizer& tokenizer) {
  const std::optional<data::ConversationFormat> format = data::conversation_format(style.format);
  if (!format)
    throw invalid(fmt::format("there is no format of conversations '{}'", style.format),
                  "one of " + std::string(data::kConversationFormats));
  return {*format, tokenizer, style.inline_bos};
}

}  // namespace primus::cli
