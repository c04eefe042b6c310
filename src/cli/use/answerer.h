// A model that answers the prompts of `primus generate`: its tokenizer, its format of turns, and its sampling
// settings.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/command.h"
#include "cli/use/adapters.h"
#include "cli/use/template_arguments.h"
#include "lm/data/conversation_format.h"
#include "lm/generate/generate.h"

namespace primus::cli {

class Answerer {
 public:
  // Throws Error(kInvalid) if the model has no format, or if its format cannot write the system text or the
  // tools of `format`.
  Answerer(UsedModel model, GenerateSettings settings, const TemplateArguments& format);

  const UsedModel& model() const { return model_; }
  const Tokenizer& tokenizer() const { return *model_.tokenizer; }
  // The settings of a prompt that has no settings.
  const GenerateSettings& settings() const { return settings_; }
  // Whether a prompt is a user's turn, so that only the answer is shown.
  bool has_turns() const { return writer_.has_value(); }

  // The members of a record that the format can write.
  data::Members members() const { return writer_ ? writer_->members() : data::Members::kText; }
  // Returns the prompt's tokens, truncated at the front to leave room for generated tokens. `whose`: names
  // the prompt in a note: "prompt 3's". Throws Error(kInvalid) without a location for a prompt that cannot be
  // written: several turns without a format, two system texts.
  std::vector<std::int32_t> prompt_ids(data::Conversation prompt, const GenerateSettings& settings,
                                       std::string_view whose, const Console& console) const;
  // Passes the prompt through `stream`, before the tokens that follow it. Some tokenizers would otherwise
  // drop the space between the prompt and the generated text. `is_empty`: whether the prompt has no text.
  void push_prompt(bool is_empty, std::span<const std::int32_t> prompt_ids, StreamDecoder& stream) const;
  // Removes the space that the format puts before an answer.
  std::string without_prefix(std::string text) const;

 private:
  std::vector<std::int32_t> encoded(data::Conversation prompt) const;

  UsedModel model_;
  GenerateSettings settings_;
  std::optional<data::ConversationWriter> writer_;  // set if --template is given
  std::vector<data::Message> before_;               // the system turn, if given
};

}  // namespace primus::cli
