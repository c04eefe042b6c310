// primus chat
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <deque>

#include "cli/command.h"
#include "cli/options/line_reader.h"
#include "cli/options/model_options.h"
#include "cli/use/adapters.h"
#include "cli/use/prompt.h"
#include "cli/use/template_arguments.h"
#include "lm/decode/adapter_decoder.h"
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
    adapters_.declare(args);
    adapters_.declare_choice(args,
                             "with --adapters: model that answers at first, NAME or base (default: base)");
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
    load(families, console);
    Conversation conversation(decoder_->use(current_), *speaker().model.tokenizer, speaker().settings,
                              speaker().turns(), template_.system());
    const bool person = isatty(STDIN_FILENO) == 1;
    if (person) {
      console.note(
          "Type a line and Enter. Ctrl-C stops a reply; /help lists commands; exit, Ctrl-D or Ctrl-C on an "
          "empty line ends.");
      if (speaker().writer) console.note(fmt::format("The format of turns is {}.", speaker().format));
      if (adapters_.given()) console.note(models_line());
    }
    // Explains plain turns if the user did not choose them.
    if (!speaker().writer && template_.is_auto()) {
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
  // A model, and how it answers.
  struct Speaker {
    UsedModel model;
    GenerateSettings settings;
    std::optional<data::ConversationWriter> writer;
    std::string format;  // name of the format of turns

    const data::ConversationWriter* turns() const { return writer ? &*writer : nullptr; }
  };
  const Speaker& speaker() const { return speakers_[current_]; }

  // Loads all models.
  void load(const FamilyRegistry& families, Console& console) {
    if (adapters_.chosen().size() > 1)
      throw invalid("--adapter names several models", "/adapter NAME changes the model in the chat");
    const std::vector<UsedModel> models = adapters_.models(model_, families, console);
    if (!adapters_.chosen().empty()) current_ = adapters_.chosen().front();
    const std::string tools = template_.tools();
    constexpr std::int64_t kUsualContext = 4096;
    capacity_ = context_.value_or(std::min(models.front().config.max_positions, kUsualContext));
    std::vector<ReaderSettings> readers;
    for (const UsedModel& model : models) {
      Speaker& own = speakers_.emplace_back();
      own.model = model;
      const Tokenizer& tokenizer = *own.model.tokenizer;
      own.settings = sampling_.settings(model.folder, model.config, tokenizer, console);
      if (std::optional<data::ConversationStyle> style = template_.style(model.folder, tokenizer)) {
        style->inline_bos = false;  // a prompt is a single text
        own.format = style->own ? "the model's chat template" : data::name_of(style->format);
        own.writer.emplace(TemplateArguments::writer(*style, tokenizer));
      }
      if (!template_.system().empty() && !(own.writer && own.writer->has_system())) {
        throw invalid(
            fmt::format("the format of turns of '{}' does not support a system message", model.name),
            "omit --system, or choose a format that supports it: --template chatml or alpaca");
      }
      if (!tools.empty()) {
        if (!own.writer) throw invalid("--tools needs a format of turns", "use a model with a chat template");
        own.writer->offer_tools(tools);
      }
      readers.push_back({.compute = device_.compute(), .capacity = capacity_, .pass_tokens = capacity_});
    }
    decoder_.emplace(device_.make(console), configs_of(models), families, readers);
    load_weights_of(
        models, [&](std::size_t i) -> engine::ParameterStore& { return decoder_->store(i); },
        decoder_->rank());
  }

  // Returns the line that names the models.
  std::string models_line() const {
    return fmt::format("{} answers; /adapter NAME changes the model: {}", speaker().model.name,
                       fmt::join(adapters_.names(), ", "));
  }

  // Runs "/adapter" and "/adapter NAME".
  void change_model(std::string_view name, Conversation& conversation, const Console& console) {
    if (!adapters_.given()) {
      console.note("there is one model; 'primus chat MODEL --adapters NAME=FOLDER' loads adapters");
      return;
    }
    if (name.empty()) return console.note(models_line());
    std::size_t chosen = 0;
    try {
      chosen = adapters_.find(name);
    } catch (const Error& error) {
      console.note(fmt::format("{}; {}", error.what(), error.hint()));
      return;
    }
    if (chosen == current_) return console.note(models_line());
    current_ = chosen;
    const bool goes_on = conversation.use(decoder_->use(current_), *speaker().model.tokenizer,
                                          speaker().settings, speaker().turns());
    console.note(
        fmt::format("{} answers{}", speaker().model.name,
                    goes_on ? "" : "; a new conversation begins, because its format is another one"));
  }

  void talk(Conversation& conversation, bool person, Console& console) {
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

  void command(std::string_view line, Conversation& conversation, const Console& console) {
    if (line == "/clear") return conversation.clear();
    const std::string_view word = word_of(line);
    if (word == "/adapter") {
      std::string_view name = line.substr(word.size());
      name.remove_prefix(std::min(name.find_first_not_of(' '), name.size()));
      return change_model(name, conversation, console);
    }
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
        "/clear         starts a new conversation\n"
        "/adapter NAME  changes the model that answers; without NAME, lists the models of --adapters\n"
        "/help          shows this\n"
        "/quit          ends; also exit, quit, Ctrl-D, and Ctrl-C on an empty line\n"
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
  AdapterArguments adapters_;
  TemplateArguments template_;
  std::optional<std::int64_t> context_;
  std::int64_t capacity_ = 0;  // context in tokens
  SamplingArguments sampling_;
  DeviceOptions device_;
  std::deque<Speaker> speakers_;  // writers refer to their tokenizers
  std::size_t current_ = 0;       // number of the model that answers
  std::optional<AdapterDecoder> decoder_;
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
    "--adapters loads adapters next to one copy of MODEL. /adapter NAME changes the model that answers, "
    "which "
    "then reads the conversation again.\n\n"
    "A terminal has line editing: arrows, Home and End, Ctrl-A/E/K/U/W/Y, and earlier lines with the arrows "
    "up and down. Pasted text may have several lines. Ctrl-C stops a reply or clears the line; on an empty "
    "line it ends the chat, as Ctrl-D does.",
    "primus chat output/primus/root/quickstart\n"
    "primus chat DIR --template chatml --system 'You answer in one word.'\n"
    "primus chat DIR --adapters legal=lora-legal code=lora-code --adapter legal\n"
    "echo 'Who are you?' | primus chat DIR -t 0",
    make_command<Chat>,
    {Section::kUse, 2}};

}  // namespace primus::cli
