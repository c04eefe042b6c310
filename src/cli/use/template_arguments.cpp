#include "cli/use/template_arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/files/file.h"
#include "base/text/json_reader.h"
#include "lm/data/chat_template.h"

namespace primus::cli {

namespace {

// Returns the formats whose special tokens the tokenizer has.
std::string writable(const Tokenizer& tokenizer) {
  std::vector<std::string_view> names;
  for (std::string_view left = data::kConversationFormats; !left.empty();) {
    const std::string_view name = left.substr(0, left.find(','));
    if (data::can_write(*data::conversation_format(name), tokenizer)) names.push_back(name);
    left.remove_prefix(std::min(name.size() + 2, left.size()));  // ", "
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

void TemplateArguments::declare(Arguments& arguments, std::string preset, bool plain,
                                const std::string& help) {
  template_ = std::move(preset);
  Argument& option = arguments.option("--template", "NAME", &template_, help);
  option.choices = {"auto",    "alpaca", "squad", "chatml", "llama3",
                    "mistral", "gemma",  "phi3",  "phi4",   "zephyr"};
  if (plain) option.choices.insert(option.choices.begin() + 1, "plain");
}

void TemplateArguments::declare_system(Arguments& arguments) {
  arguments.option("--system", "TEXT", &system_,
                   "system text before the first turn (squad does not support one)");
  arguments.option("--system-file", "FILE", &system_file_, "file with the system text").reads = all_of_them;
  arguments
      .option("--tools", "FILE", &tools_,
              "file with a JSON list of tools that the model's chat template offers to the model")
      .reads = all_of_them;
}

std::optional<data::ConversationStyle> TemplateArguments::style(const ModelFolder& folder,
                                                                const Tokenizer& tokenizer) const {
  if (template_.empty() || template_ == "plain") return std::nullopt;
  if (template_ != "auto") return data::choose_style(template_, tokenizer).style;
  return load_automatic_style(folder, tokenizer);
}

std::optional<data::ConversationStyle> TemplateArguments::load_automatic_style(const ModelFolder& folder,
                                                                               const Tokenizer& tokenizer) {
  try {
    return load_conversation_style(folder, tokenizer);
  } catch (Error& error) {
    if (!error.location().empty() && error.location() == tokenizer.chat_templates().file)
      error.add_hint(fmt::format("--template NAME, with one of {}", writable(tokenizer)));
    throw;
  }
}

data::ConversationStyle TemplateArguments::required_style(const ModelFolder& folder,
                                                          const Tokenizer& tokenizer) const {
  const auto chosen = template_.empty() ? load_automatic_style(folder, tokenizer) : style(folder, tokenizer);
  if (chosen) return *chosen;
  if (is_fine_tuned(folder)) {
    throw invalid(fmt::format("'{}' was trained on plain texts (sft_conversation_format: none), so it has no "
                              "format of turns",
                              folder.path.string()),
                  "leave out --template: the model then continues the prompt as in its training");
  }
  throw invalid(fmt::format("'{}' has no chat template, and does not name its fine-tuning format",
                            folder.path.string()),
                fmt::format("choose the format: --template {}, the default of 'train posttrain' for this "
                            "model, or another one of {}",
                            data::name_of(data::choose_style("auto", tokenizer).style.format),
                            data::kConversationFormats));
}

std::string TemplateArguments::system() const {
  if (system_ && system_file_)
    throw invalid("--system and --system-file exclude each other", "remove one of them");
  if (!system_file_) return system_.value_or("");
  std::string text = read_file(*system_file_);
  // The final newline that editors add is not part of the text.
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  return text;
}

std::string TemplateArguments::tools() const {
  if (!tools_) return "";
  std::string text = read_file(*tools_);
  JsonReader json(text, *tools_, {.python = true});
  json.require(JsonReader::Kind::kArray, "the file");
  json.skip();
  json.finish();
  return text;
}

}  // namespace primus::cli
