// primus chat
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "cli/commands.h"
#include "cli/options/model_options.h"
#include "lm/generate/conversation.h"

namespace primus::cli {
namespace {

// Lines of standard input, one at a time.
class LineReader {
 public:
  // False at the end of the input.
  bool next(std::string& line) {
    while (true) {
      const std::size_t end = buffer_.find('\n');
      if (end != std::string::npos) {
        line = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        return true;
      }
      char chunk[4096];
      const ssize_t count = read(STDIN_FILENO, chunk, sizeof(chunk));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) throw io_error("cannot read standard input", errno);
      if (count == 0) {
        line = std::exchange(buffer_, {});
        return !line.empty();
      }
      buffer_.append(chunk, static_cast<std::size_t>(count));
    }
  }

 private:
  std::string buffer_;
};

class Chat final : public Command {
 public:
  void declare(Arguments& args) override {
    model_.declare(args);
    args.option("--template", "NAME", &template_,
                "how turns are written; plain is 'User: ...' and 'Assistant: ...'")
        .choices = {"auto", "plain"};
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
    if (template_ == "auto" && !tokenizer->chat_template().empty()) {
      throw unsupported(
          "this model has a chat template of its own (Jinja), which Primus does not run yet",
          "--template plain writes turns as 'User:' and 'Assistant:' lines, which the model may not know");
    }
    const GenerateSettings settings = sampling_.settings(folder, config, *tokenizer);
    constexpr std::int64_t kUsualContext = 4096;
    const std::int64_t capacity = context_.value_or(std::min(config.max_positions, kUsualContext));
    Decoder decoder(device_.make(console), config, families,
                    {.compute = device_.compute(), .capacity = capacity});
    load_model_weights(folder, decoder.store(), decoder.rank());
    Conversation conversation(decoder, *tokenizer, settings);

    const bool person = isatty(STDIN_FILENO) == 1;
    if (person) console.note("Type a line and Enter. /clear starts over, /quit or Ctrl-D ends.");
    LineReader input;
    std::string line;
    while (true) {
      if (person) console.print(Color::kBold, "User: ");
      if (!input.next(line)) break;
      if (line.empty()) continue;
      if (line == "/quit") return 0;
      if (line == "/clear") {
        conversation.clear();
        continue;
      }
      if (person) console.print(Color::kBold, "Assistant: ");
      const Conversation::Reply reply = conversation.say(line, [&](std::string_view piece) {
        console.write(piece);
        return true;
      });
      console.print("\n");
      if (reply.forgotten_turns > 0) {
        console.note(
            fmt::format("note: the conversation is longer than {} tokens; its {} oldest turns are forgotten",
                        capacity, reply.forgotten_turns));
      }
    }
    if (person) console.print("\n");
    return 0;
  }

 private:
  ModelArguments model_;
  std::string template_ = "auto";
  std::optional<std::int64_t> context_;
  SamplingArguments sampling_;
  DeviceOptions device_;
};

}  // namespace

const CommandEntry kChat{
    "chat", "Talks with a trained model",
    "Reads a line, writes the reply, and keeps the conversation. Turns are written as plain lines 'User: "
    "...'\n"
    "and 'Assistant: ...'. A model that was only pre-trained continues the conversation as a text; it has\n"
    "not learnt to answer.",
    "primus chat output/primus/root/quickstart\n"
    "echo 'Who are you?' | primus chat DIR -t 0",
    make_command<Chat>};

}  // namespace primus::cli
