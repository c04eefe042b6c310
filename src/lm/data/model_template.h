// A model's own chat template (Jinja): renders conversations as transformers' apply_chat_template does, and
// finds the texts of answers that training learns.
//
// The learned texts are the template's generation blocks ({% generation %}), if it has any. Otherwise an
// answer's text is the difference of two renderings: the turns before the answer with the beginning of an
// answer (add_generation_prompt), and the same turns with the answer. Some templates write an answer
// differently once further turns follow it, for example without its reasoning. With such a template, each
// answer of the conversation becomes a separate text that ends with this answer, as in generation.
//
// A template that reads the clock (strftime_now) gets the local time in prompts. In training, it gets a fixed
// day, so that the training data do not depend on the day of the run.
//
// A template may ignore tools, documents, tool calls and reasoning: its text is then the same without them.
// In training, a model would learn something else than the record says, so such a conversation is refused.
//
// Errors: Error(kInvalid), without a file position, for conversations that the template refuses (with the
// template's own message) or does not write completely, and for values that are not JSON of the right kind.
// Thread-safety: const methods may be called from any number of threads at once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lm/data/conversation.h"
#include "lm/template/template.h"
#include "lm/tokenizer/tokenizer.h"

namespace primus::data {

// The day that templates read in training: 26 July 2024, the default of Llama's templates.
inline constexpr std::string_view kTrainingDay = "2024-07-26";

// A text for training, with the ranges of bytes that are learned: [begin, end), in order.
struct LearnedText {
  std::string text;
  std::vector<std::pair<std::size_t, std::size_t>> learned;
  // Whether the ranges come from the template. Otherwise a range ends with the token that ends the answer,
  // and white space after that token is not learned.
  bool marked_by_template = false;
};

class ModelTemplate {
 public:
  static constexpr std::string_view kToolUse =
      "tool_use";  // name of the template for conversations with tools

  // Compiles the tokenizer's templates. Throws Error(kInvalid) at the template's file for a broken template.
  explicit ModelTemplate(const ChatTemplates& templates);

  // Returns the texts for training on `conversation`, which must have messages. Throws Error(kInvalid) if the
  // learned texts cannot be determined.
  std::vector<LearnedText> texts(const Conversation& conversation) const;
  // Returns the text that asks for an answer to the messages of `conversation`.
  std::string prompt(const Conversation& conversation) const;
  // Like prompt(), but for training data: a template that reads the clock gets kTrainingDay.
  std::string training_prompt(const Conversation& conversation) const;
  // Returns the text of the whole conversation, for training data.
  std::string training_text(const Conversation& conversation) const;

  // Returns the text that follows the answer messages[answer], which has been generated, up to the beginning
  // of the next answer. The text begins with the end of the answer's turn, and contains the later messages,
  // of which none is an answer. It does not depend on the generated text. Throws Error(kInvalid) if the
  // template does not write the answer's text exactly once.
  std::string continuation(const Conversation& conversation, std::size_t answer) const;

  // The texts around the answer of a conversation of one turn: between the prompt and the answer, and after
  // the answer. Returns nullopt if the template refuses such a conversation or changes the answer.
  struct AroundAnswer {
    std::string before, after;
  };
  std::optional<AroundAnswer> around_answer() const;

 private:
  class Rendering;
  struct Named {
    std::string name;
    jinja::Template compiled;
  };
  // Returns the template "tool_use" for conversations with tools, if there is one; else returns the default
  // template.
  const jinja::Template& choose(bool has_tools) const;
  // Returns whether the first `count` messages are rendered as `text`; false if the template refuses them.
  bool renders_as(const Conversation& conversation, std::size_t count, bool asks,
                  const std::string& text) const;
  // Throws Error(kInvalid) if `text`, the rendered conversation, lacks tools, documents, tool
  // calls or reasoning of the conversation. `asks`: whether the text ends with the beginning of an answer.
  void require_written(const Conversation& conversation, const std::string& text, bool asks) const;
  // Like require_written() above, for the members of one message.
  void require_members(const Conversation& conversation, std::size_t message, const std::string& text,
                       bool asks) const;

  std::vector<Named> templates_;
  std::vector<std::pair<std::string, std::string>> tokens_;
};

}  // namespace primus::data
