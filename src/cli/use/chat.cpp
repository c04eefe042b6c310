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
#include "lm/decode/decoder.h"
#include "lm/generate/conversation.h"
#include "lm/tokenizer/text/unicode.h"

namespace primus::cli {
namespace {

std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);

// While this object exists, the first Ctrl-C stops the reply. A second Ctrl-C ends the program as usual.
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
    template_.declare(args, "auto", true,
                      "format of turns (auto: the model's fine-tuning format, or its chat template, as "
                      "docs/posttrain.md describes; plain: 'User: ...' and 'Assistant: ...')");
    template_.declare_system(args);
    args.option("--context", "N", &context_,
                "tokens of the conversation to keep (default: the model's context, up to 4096)");
    sampling_.declare(args, 256);
    device_.declare(args);
  }

  int run(Console& console) override {
    const FamilyRegistry families = builtin_families();
    const ModelFolder folder = model_.folder();
    const ModelConfig config = ModelArguments::config(folder, families, console);
    const auto tokenizer = model_.tokenizer(folder, config, console);
    std::optional<data::ConversationStyle> style = template_.style(folder, *tokenizer);
    const GenerateSettings settings = sampling_.settings(folder, config, *tokenizer, console);
    constexpr std::int64_t kUsualContext = 4096;
    capacity_ = context_.value_or(std::min(config.max_positions, kUsualContext));
    Decoder decoder(device_.make(console), config, families,
                    {.compute = device_.compute(), .capacity = capacity_});
    load_model_weights(folder, decoder.store(), decoder.rank());
    std::optional<data::ConversationWriter> writer;
    if (style) {
      style->inline_bos = false;  // a prompt is a single text
      writer.emplace(TemplateArguments::writer(*style, *tokenizer));
    }
    if (std::string tools = template_.tools(); !tools.empty()) {
      if (!writer) throw invalid("--tools needs a format of turns", "use a model with a chat template");
      writer->offer_tools(std::move(tools));
    }
    Conversation conversation(decoder, *tokenizer, settings, writer ? &*writer : nullptr, template_.system());

    const bool person = isatty(STDIN_FILENO) == 1;
    if (person) {
      console.note(
          "Type a line and Enter. Ctrl-C stops a reply; /help lists commands; exit, Ctrl-D or Ctrl-C on an "
          "empty line ends.");
      if (style) {
        console.note(fmt::format("The format of turns is {}.",
                                 style->own ? "the model's chat template" : data::name_of(style->format)));
      }
    }
    // Explains plain turns if the user did not choose them.
    if (!style && template_.is_auto()) {
      console.note(
          "Turns are plain text ('User: ...'), because the model has no chat template and records no format. "
          "A "
          "model that was only pre-trained continues the text; for a model that was trained to answer, name "
          "its format with --template.");
    }
    talk(conversation, person, console);
    return 0;
  }

 private:
  void talk(Conversation& conversation, bool person, Console& console) const {
    const bool edits = Prompt::works(console.out);
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
      if (ends(line)) break;
      if (is_command(line)) {
        command(line, conversation, console);
        continue;
      }
      std::string repaired;
      if (unicode::valid_or_repaired(line, repaired) != line)
        console.note("note: the line has bytes that are not UTF-8");
      const Conversation::Reply reported = reply(conversation, line, person, console);
      const std::size_t forgotten = reported.forgotten_turns;
      if (reported.lost_tokens > 0) {
        console.note(fmt::format("note: of the question's {} tokens only the last {} fit the context of {}",
                                 reported.prompt_tokens, reported.prompt_tokens - reported.lost_tokens,
                                 capacity_));
      }
      if (forgotten > 0) {
        console.note(fmt::format("note: the conversation is longer than {} tokens; the oldest {} dropped",
                                 capacity_,
                                 forgotten == 1 ? "turn was" : fmt::format("{} turns were", forgotten)));
      }
    }
  }

  static bool ends(std::string_view line) {
    return line == "/quit" || line == "/exit" || line == "/bye" || line == "exit" || line == "quit";
  }

  // Returns the first word of a line.
  static std::string_view word_of(std::string_view line) { return line.substr(0, line.find(' ')); }

  // Returns whether the line begins with a slash and a word of letters.
  static bool is_command(std::string_view line) {
    const std::string_view word = word_of(line);
    return word.starts_with('/') && word.size() > 1 &&
           std::ranges::all_of(word.substr(1), [](char c) { return (c >= 'a' && c <= 'z') || c == '?'; });
  }

  static void command(std::string_view line, Conversation& conversation, const Console& console) {
    if (line == "/clear") return conversation.clear();
    const std::string_view word = word_of(line);
    const bool known = ends(word) || word == "/clear" || word == "/help" || word == "/?";
    if (!known || word != line) {
      console.note(fmt::format(
          "{}; /help lists them; a line that begins with a space goes to the model",
          known ? fmt::format("the command {} has no words after it", word)
          : word == "/system"
              ? std::string("there is no command /system: 'primus chat --system TEXT' sets that message")
              : fmt::format("there is no command {}", word)));
      return;
    }
    console.note(
        "/clear   starts a new conversation\n"
        "/help    shows this\n"
        "/quit    ends; also exit, quit, Ctrl-D, and Ctrl-C on an empty line\n"
        "Everything else goes to the model. 'primus chat --help' has the options.");
  }

  // Prints the reply as it is generated.
  static Conversation::Reply reply(Conversation& conversation, const std::string& line, bool person,
                                   Console& console) {
    std::optional<ReplyInterrupt> listening;
    if (person) {
      listening.emplace();  // created before the reply begins, because Ctrl-C may be pressed immediately
      console.print(Color::kBold, "Assistant: ");
    }
    Conversation::Reply reply = conversation.say(line, [&](std::string_view piece) {
      if (person && interrupted) return false;
      console.write(piece);
      return true;
    });
    if (person && interrupted) console.print(Color::kDim, " [stopped]");
    console.print("\n");
    return reply;
  }

  ModelArguments model_;
  TemplateArguments template_;
  std::optional<std::int64_t> context_;
  std::int64_t capacity_ = 0;  // context in tokens
  SamplingArguments sampling_;
  DeviceOptions device_;
};

}  // namespace

extern const CommandEntry kChat{
    "chat",
    "Chats with a trained model",
    "Reads a line, prints the reply, and keeps the conversation. For a run of 'train posttrain', turns have "
    "the format of its fine-tuning. For another model, its chat template writes them. Without a template, "
    "turns are plain lines 'User: ...' and 'Assistant: ...'. A model that "
    "was only pre-trained continues the conversation as a text; it has not learned to answer. /help lists "
    "the commands.\n\n"
    "A terminal has line editing: arrows, Home and End, Ctrl-A/E/K/U/W/Y, and earlier lines with the arrows "
    "up and down. Pasted text may have several lines. Ctrl-C stops a reply or clears the line; on an empty "
    "line it ends the chat, as Ctrl-D does.",
    "primus chat output/primus/root/quickstart\n"
    "primus chat DIR --template chatml --system 'You answer in one word.'\n"
    "echo 'Who are you?' | primus chat DIR -t 0",
    make_command<Chat>,
    {Section::kUse, 2}};

}  // namespace primus::cli
