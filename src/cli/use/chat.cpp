// primus chat
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "cli/command.h"
#include "cli/options/line_reader.h"
#include "cli/options/model_options.h"
#include "cli/use/prompt.h"
#include "cli/use/template_arguments.h"
#include "lm/generate/conversation.h"
#include "lm/generate/decoder.h"

namespace primus::cli {
namespace {

std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);

// While it lives, Ctrl-C asks for the end of a reply; a second one ends the program, as it would without.
class ReplyInterrupt {
 public:
  ReplyInterrupt() {
    interrupted = false;
    struct sigaction action {};
    action.sa_handler = [](int) { interrupted = true; };
    action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART;
    sigaction(SIGINT, &action, &before_);
  }
  ~ReplyInterrupt() { sigaction(SIGINT, &before_, nullptr); }
  ReplyInterrupt(const ReplyInterrupt&) = delete;
  ReplyInterrupt& operator=(const ReplyInterrupt&) = delete;

 private:
  struct sigaction before_ {};
};

class Chat final : public Command {
 public:
  void declare(Arguments& args) override {
    model_.declare(args);
    template_.declare(
        args, "auto", true,
        "how turns are written; plain is 'User: ...' and 'Assistant: ...', and auto what a model "
        "was fine-tuned on (docs/posttrain.md)");
    template_.declare_system(args);
    args.option("--context", "N", &context_,
                "tokens of conversation to remember (default: up to 4096, as the model has)");
    sampling_.declare(args, 256);
    device_.declare(args);
  }

  int run(Console& console) override {
    const FamilyRegistry families = builtin_families();
    const ModelFolder folder = model_.folder();
    const ModelConfig config = ModelArguments::config(folder, families, console);
    const auto tokenizer = model_.tokenizer(folder, config);
    const std::optional<ConversationStyle> tuned = template_.style(folder);
    if (template_.is_auto() && !tuned && !tokenizer->chat_template().empty()) {
      throw unsupported("this model has a chat template of its own (Jinja), which Primus does not run yet",
                        "--template chatml, alpaca or squad writes turns so, and plain as 'User:' and "
                        "'Assistant:' lines: choose "
                        "the format this model was trained on");
    }
    const GenerateSettings settings = sampling_.settings(folder, config, *tokenizer);
    constexpr std::int64_t kUsualContext = 4096;
    const std::int64_t capacity = context_.value_or(std::min(config.max_positions, kUsualContext));
    Decoder decoder(device_.make(console), config, families,
                    {.compute = device_.compute(), .capacity = capacity});
    load_model_weights(folder, decoder.store(), decoder.rank());
    std::optional<data::ConversationWriter> writer;
    if (tuned) writer.emplace(writer_of({tuned->format}, *tokenizer));
    Conversation conversation(decoder, *tokenizer, settings, writer ? &*writer : nullptr, template_.system());

    const bool person = isatty(STDIN_FILENO) == 1;
    const bool edits = Prompt::works(console.out);
    if (person) {
      console.note(
          "Type a line and Enter. Ctrl-C stops a reply; /clear starts over; /quit, Ctrl-D or Ctrl-C on an "
          "empty line ends.");
      if (!tuned && tokenizer->chat_template().empty()) {
        console.note(
            "This model has no chat template: it goes on with the conversation as a text, and may not have "
            "learnt "
            "to answer.");
      }
    }
    Prompt prompt(console.out);
    LineReader input(STDIN_FILENO, "<standard input>");
    std::string line;
    auto next_line = [&] {
      if (edits) return prompt.read("User: ", line);
      if (person) console.print(Color::kBold, "User: ");
      std::string_view next;
      const bool more = input.next(next);
      line = next;
      if (person && !more) console.print("\n");
      return more;
    };
    while (next_line()) {
      if (line.empty()) continue;
      if (line == "/quit") break;
      if (line == "/clear") {
        conversation.clear();
        continue;
      }
      const std::size_t forgotten = reply(conversation, line, person, console);
      if (forgotten > 0) {
        console.note(
            forgotten == 1
                ? fmt::format("note: the conversation is longer than {} tokens; the oldest turn was dropped",
                              capacity)
                : fmt::format(
                      "note: the conversation is longer than {} tokens; the {} oldest turns were dropped",
                      capacity, forgotten));
      }
    }
    return 0;
  }

 private:
  // Writes the reply as it comes. Returns how many turns were forgotten to make room for it.
  static std::size_t reply(Conversation& conversation, const std::string& line, bool person,
                           Console& console) {
    std::optional<ReplyInterrupt> listening;
    if (person) {
      listening.emplace();  // first: Ctrl-C may come as soon as the reply is announced
      console.print(Color::kBold, "Assistant: ");
    }
    const Conversation::Reply reply = conversation.say(line, [&](std::string_view piece) {
      if (person && interrupted) return false;
      console.write(piece);
      return true;
    });
    if (person && interrupted) console.print(Color::kDim, " [stopped]");
    console.print("\n");
    return reply.forgotten_turns;
  }

  ModelArguments model_;
  TemplateArguments template_;
  std::optional<std::int64_t> context_;
  SamplingArguments sampling_;
  DeviceOptions device_;
};

}  // namespace

extern const CommandEntry kChat{
    "chat",
    "Talks with a trained model",
    "Reads a line, writes the reply, and keeps the conversation. A run of 'train posttrain' is asked in the "
    "format\n"
    "it was fine-tuned on. For other models turns are plain lines 'User: ...' and 'Assistant: ...', unless\n"
    "--template says how. A model that was only pre-trained continues the conversation as a text; it has\n"
    "not learnt to answer.\n\n"
    "On a terminal lines can be edited: arrows, Home and End, Ctrl-A/E/K/U/W/Y, and the lines before with "
    "the\n"
    "arrows up and down. Pasted text may have several lines. Ctrl-C stops a reply, drops what is typed, and "
    "on\n"
    "an empty line ends, as Ctrl-D does.",
    "primus chat output/primus/root/quickstart\n"
    "primus chat DIR --template chatml --system 'You answer in one word.'\n"
    "echo 'Who are you?' | primus chat DIR -t 0",
    make_command<Chat>,
    {Section::kUse, 2}};

}  // namespace primus::cli
