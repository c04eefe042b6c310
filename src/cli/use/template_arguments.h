// How turns of a conversation are written for a model, shared by the commands that ask one: --template,
// --system and --system-file.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "cli/command.h"
#include "lm/data/conversation_format.h"
#include "lm/generate/model_folder.h"
#include "lm/tokenizer/tokenizer.h"

namespace primus::cli {

class TemplateArguments {
 public:
  // `preset`: the value of --template where nobody gives one; empty: no format. `plain`: whether that is a
  // choice.
  void declare(Arguments& arguments, std::string preset, bool plain, const std::string& help);
  void declare_system(Arguments& arguments);

  // Whether a format was asked for.
  bool given() const { return !template_.empty(); }
  // The chosen format: "auto" is what the model was fine-tuned on, or its chat template. Nothing: none is
  // wanted, or the model has neither. Error(kUnsupported) where its template is of a format that Primus does
  // not know.
  std::optional<data::ConversationStyle> style(const ModelFolder& folder, const Tokenizer& tokenizer) const;
  // The same, where there must be one: Error(kInvalid) says how to name it.
  data::ConversationStyle required_style(const ModelFolder& folder, const Tokenizer& tokenizer) const;
  // Writes turns in that format; hints name --template.
  static data::ConversationWriter writer(data::ConversationStyle style, const Tokenizer& tokenizer) {
    return {std::move(style), tokenizer, "--template "};
  }
  bool is_auto() const { return template_ == "auto"; }
  // What stands before the first turn; empty: nothing. Errors of read_file, and kInvalid for both options.
  std::string system() const;

 private:
  std::string template_;
  std::optional<std::string> system_, system_file_;
};

}  // namespace primus::cli
