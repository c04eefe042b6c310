// primus generate
#include "lm/generate/generate.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/json_text.h"
#include "cli/commands.h"
#include "cli/options/model_options.h"
#include "lm/generate/decoder.h"

namespace primus::cli {
namespace {

std::string_view name_of(StopReason reason) {
  switch (reason) {
    case StopReason::kStopToken:
      return "end_of_text";
    case StopReason::kMaxTokens:
      return "max_tokens";
    case StopReason::kContextFull:
      return "context_full";
    case StopReason::kCallback:
      return "stopped";
  }
  return "";
}

std::string read_standard_input() {
  std::string text;
  char buffer[4096];
  while (true) {
    const ssize_t count = read(STDIN_FILENO, buffer, sizeof(buffer));
    if (count < 0) throw io_error("cannot read standard input", errno);
    if (count == 0) return text;
    text.append(buffer, static_cast<std::size_t>(count));
  }
}

class Generate final : public Command {
 public:
  void declare(Arguments& args) override {
    model_.declare(args);
    args.option("--prompt,-p", "TEXT", &prompt_,
                "the beginning of the text; '-' reads it from standard input");
    args.option("--prompt-file", "FILE", &prompt_file_, "the beginning of the text, from a file");
    sampling_.declare(args, 128);
    device_.declare(args);
    args.flag("--json", json_, "print text, tokens and times as JSON when done");
  }

  int run(Console& console) override {
    const FamilyRegistry families = builtin_families();
    const ModelFolder folder = model_.folder();
    const ModelConfig config = ModelArguments::config(folder, families, console);
    const auto tokenizer = model_.tokenizer(folder, config);
    const GenerateSettings settings = sampling_.settings(folder, config, *tokenizer);
    const std::string prompt = prompt_text();
    std::vector<std::int32_t> ids = tokenizer->encode(prompt);
    if (ids.empty()) {
      // A text that begins from nothing begins where the training texts did.
      const SpecialIds& special = tokenizer->special_ids();
      const auto start = special.bos ? special.bos : special.eod;
      if (!start)
        throw invalid("there is no prompt, and the tokenizer has no token that begins a text",
                      "give one with --prompt");
      ids.push_back(*start);
    }
    const std::int64_t capacity =
        std::min(config.max_positions, static_cast<std::int64_t>(ids.size()) + settings.max_tokens);
    const auto kept = fit_prompt(ids, capacity, settings.max_tokens);
    if (kept.size() < ids.size()) {
      console.note(
          fmt::format("note: of the prompt's {} tokens only the last {} fit the model's {} positions",
                      ids.size(), kept.size(), config.max_positions));
    }
    Decoder decoder(device_.make(console), config, families,
                    {.compute = device_.compute(), .capacity = capacity});
    load_model_weights(folder, decoder.store(), decoder.rank());

    std::string text;
    // What it writes goes on where the prompt ends: with the space that some tokenizers leave out at the
    // beginning of a text.
    StreamDecoder stream(*tokenizer);
    if (!prompt.empty()) {
      for (const std::int32_t id : kept) stream.push(id);
    }
    auto show = [&](const std::string& piece) {
      text += piece;
      if (!json_) console.write(piece);
    };
    if (!json_) console.write(prompt);
    const Generation result = primus::generate(decoder, kept, settings, [&](std::int32_t id) {
      show(stream.push(id));
      return true;
    });
    show(stream.finish());
    if (json_) {
      const nlohmann::json json{{"prompt", prompt},
                                {"text", text},
                                {"prompt_tokens", kept.size()},
                                {"ids", result.ids},
                                {"stop_reason", name_of(result.reason)},
                                {"prompt_seconds", result.prompt_seconds},
                                {"seconds", result.seconds}};
      console.write(json_text(json) + "\n");
    } else {
      console.print("\n");
    }
    return 0;
  }

 private:
  std::string prompt_text() const {
    if (prompt_ && prompt_file_) throw invalid("--prompt and --prompt-file exclude each other");
    if (prompt_file_) return read_file(*prompt_file_);
    if (prompt_ == "-") return read_standard_input();
    return prompt_.value_or("");
  }

  ModelArguments model_;
  std::optional<std::string> prompt_, prompt_file_;
  SamplingArguments sampling_;
  DeviceOptions device_;
  bool json_ = false;
};

}  // namespace

const CommandEntry kGenerate{
    "generate", "Writes on from a prompt with a trained model",
    "The text streams to standard output, prompt included. It is a function of model, prompt, settings and\n"
    "seed: the same command writes the same text.",
    "primus generate output/primus/root/quickstart --prompt 'In the beginning'\n"
    "primus generate Llama-3.2-1B -p 'The moon is' -n 64 -t 0 --dtype bf16\n"
    "primus generate DIR --prompt - --json < prompt.txt",
    make_command<Generate>};

}  // namespace primus::cli
