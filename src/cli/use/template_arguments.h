// The options for the conversation format, shared by the commands that send turns to a model: --template,
// --system, --system-file and --tools.
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
  // `preset`: default of --template; empty: no format. `plain`: whether --template accepts `plain`, which
  // means no format.
  void declare(Arguments& arguments, std::string preset, bool plain, const std::string& help);
  void declare_system(Arguments& arguments);

  // Returns whether a format was requested.
  bool given() const { return !template_.empty(); }
  // Returns the chosen format. "auto" is the format of the model's fine-tuning, or its chat template. Returns
  // nullopt if no format was requested, or if "auto" finds no format. Throws Error(kInvalid) if the chat
  // template is broken.
  std::optional<data::ConversationStyle> style(const ModelFolder& folder, const Tokenizer& tokenizer) const;
  // Like style(), but a format is required: without --template, it is "auto". Throws Error(kInvalid) with a
  // hint if the model has no format.
  data::ConversationStyle required_style(const ModelFolder& folder, const Tokenizer& tokenizer) const;
  // Returns a writer for turns in that format; its hints name --template.
  static data::ConversationWriter writer(data::ConversationStyle style, const Tokenizer& tokenizer) {
    return {std::move(style), tokenizer, "--template "};
  }
  bool is_auto() const { return template_ == "auto"; }
  // Returns the text of the system turn before the first turn; empty: none. Throws errors of read_file, and
  // Error(kInvalid) if both options are given.
  std::string system() const;
  // Returns the tools that prompts offer to the model, as JSON; empty: none. Throws errors of read_file, and
  // Error(kInvalid) at the file's position if it is not a JSON list.
  std::string tools() const;

 private:
  static std::optional<data::ConversationStyle> load_automatic_style(const ModelFolder& folder,
                                                                     const Tokenizer& tokenizer);

  std::string template_;
  std::optional<std::string> system_, system_file_, tools_;
};

}  // namespace primus::cli
