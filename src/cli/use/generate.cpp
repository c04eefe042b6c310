// primus generate
#include "lm/generate/generate.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/files/file.h"
#include "base/text/json_text.h"
#include "cli/command.h"
#include "cli/options/model_options.h"
#include "cli/use/prompts.h"
#include "cli/use/template_arguments.h"
#include "lm/data/text_check.h"
#include "lm/decode/decoder.h"
#include "lm/generate/batch_generate.h"
#include "lm/model/batch_invariance.h"

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

// Returns whether standard input provides a text: a pipe or a file, but no terminal and not /dev/null.
bool input_is_handed_over() {
  struct stat input {};
  return fstat(STDIN_FILENO, &input) == 0 && (S_ISFIFO(input.st_mode) || S_ISREG(input.st_mode));
}

class Generate final : public Command {
 public:
  void declare(Arguments& args) override {
    model_.declare(args);
    args.option("--prompt,-p", "TEXT", &prompt_,
                "beginning of the text; '-' reads it from standard input (the default if that is a pipe or a "
                "file)")
        .if_repeated =
        "write the prompts into a file, one \"TEXT\" per line, and name it with --prompts FILE";
    args.option("--prompt-file", "FILE", &prompt_file_, "file with the beginning of the text").reads =
        all_of_them;
    args.option("--prompts", "FILE", &prompts_,
                "file with many prompts, one JSON value per line: \"TEXT\" or {\"prompt\": \"TEXT\", \"id\": "
                "..., \"seed\": N, \"max_tokens\": N}; '-' reads standard input");
    args.option("--batch", "N", &batch_, "with --prompts: texts that are generated together")
        .between(1, 4096)
        .default_note(kTogether);
    template_.declare(args, "", false,
                      "treat each prompt as a user's turn in this format, and show only the answer (auto: "
                      "the model's fine-tuning format, or its chat template)");
    template_.declare_system(args);
    sampling_.declare(args, 128);
    device_.declare(args);
    device_.declare_batch_invariant(args);
    args.flag("--json", json_, "print text, tokens and times as JSON at the end");
    args.refuse("--num-samples,--num-return-sequences", "a prompt has one answer",
                "repeat the prompt in a file for --prompts, each line with its own \"seed\"");
    args.refuse("--stop", "a text ends at the model's end tokens, or after -n tokens",
                "end tokens are in generation_config.json (eos_token_id)");
  }

  int run(Console& console) override {
    const FamilyRegistry families = builtin_families();
    const ModelFolder folder = model_.folder();
    const ModelConfig config = ModelArguments::config(folder, families, console);
    if (device_.batch_invariant())
      check_batch_invariant(config, device_.spec(console).kind, device_.compute());
    const auto tokenizer = model_.tokenizer(folder, config, console);
    GenerateSettings settings = sampling_.settings(folder, config, *tokenizer, console);
    choose_format(folder, *tokenizer, settings);
    if (!template_.given() && is_fine_tuned(folder)) {
      console.note(
          "note: this model was trained on conversations, but the prompt is continued as plain text; "
          "--template auto writes it as a user's turn in the format of the training");
    }
    if (prompts_) return run_batch(console, families, folder, config, *tokenizer, settings);
    if (batch_) throw invalid("--batch needs --prompts", "name a file of prompts with --prompts FILE");
    const std::string prompt = prompt_text(console);
    const std::vector<std::int32_t> kept =
        prompt_ids(*tokenizer, prompt, config, settings, "the prompt's", console);
    const std::int64_t capacity =
        std::min(config.max_positions, static_cast<std::int64_t>(kept.size()) + settings.max_tokens);
    Decoder decoder(device_.make(console), config, families,
                    {.compute = device_.compute(), .capacity = capacity});
    load_model_weights(folder, decoder.store(), decoder.rank());

    std::string text;
    // Passes the prompt through the decoder first. Otherwise, some tokenizers would drop the space between
    // the prompt and the generated text.
    StreamDecoder stream(*tokenizer);
    if (!prompt.empty() || writer_) {
      for (const std::int32_t id : kept) stream.push(id);
    }
    auto show = [&](std::string piece) {
      if (text.empty()) piece = without_prefix(std::move(piece));
      text += piece;
      if (!json_) console.write(piece);
    };
    if (!json_ && !writer_) console.write(prompt);
    const auto generate = [&] {
      try {
        return primus::generate(decoder, kept, settings, [&](std::int32_t id) {
          show(stream.push(id));
          return true;
        });
      } catch (...) {
        // Moves the error message to a new line, because the output may end within a line.
        if (!json_ && (!text.empty() || (!writer_ && !prompt.empty()))) console.print("\n");
        throw;
      }
    };
    const Generation result = generate();
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
    if (result.reason == StopReason::kContextFull) {
      console.note(fmt::format("note: stopped after {} tokens: the model's context ({}) is full",
                               result.ids.size(), config.max_positions));
    }
    return 0;
  }

 private:
  void choose_format(const ModelFolder& folder, const Tokenizer& tokenizer, GenerateSettings& settings) {
    const std::string system = template_.system();
    std::string tools = template_.tools();
    if (!template_.given()) {
      if (!tools.empty())
        throw invalid("tools need a format of turns", "--template auto uses the model's chat template");
      if (!system.empty())
        throw invalid("a system text needs a format of turns",
                      "choose the format: --template auto, chatml or alpaca");
      return;
    }
    data::ConversationStyle style = template_.required_style(folder, tokenizer);
    style.inline_bos = false;  // a question is a single text
    writer_.emplace(TemplateArguments::writer(style, tokenizer));
    if (!system.empty() && !writer_->has_system())
      throw invalid(
          fmt::format("the format {} does not support a system message", data::name_of(style.format)),
          "remove --system");
    if (!tools.empty()) writer_->offer_tools(std::move(tools));
    before_ = data::with_system(system);
    settings.stop_ids.push_back(writer_->end_id());
  }

  // Removes the space that the format puts before an answer.
  std::string without_prefix(std::string text) const {
    const std::string_view prefix = writer_ ? writer_->answer_prefix() : std::string_view();
    if (!prefix.empty() && text.starts_with(prefix)) text.erase(0, prefix.size());
    return text;
  }

  std::vector<std::int32_t> encoded(const Tokenizer& tokenizer, const std::string& prompt) const {
    if (!writer_) return tokenizer.encode(prompt);
    std::vector<data::Message> messages = before_;
    messages.push_back({std::string(data::kUser), prompt, {}});
    return writer_->prompt(messages);
  }

  // Returns the prompt's tokens, truncated at the front to leave room for generated tokens.
  std::vector<std::int32_t> prompt_ids(const Tokenizer& tokenizer, const std::string& prompt,
                                       const ModelConfig& config, const GenerateSettings& settings,
                                       std::string_view whose, const Console& console) const {
    std::vector<std::int32_t> ids = encoded(tokenizer, prompt);
    if (ids.empty()) {
      // If the prompt is empty, generation starts with the token with which training texts started.
      const SpecialIds& special = tokenizer.special_ids();
      const auto start = special.bos ? special.bos : special.eod;
      if (!start)
        throw invalid("there is no prompt, and the tokenizer has no begin-of-text token",
                      "write a prompt with --prompt");
      ids.push_back(*start);
    }
    const std::int64_t capacity =
        std::min(config.max_positions, static_cast<std::int64_t>(ids.size()) + settings.max_tokens);
    const auto kept = fit_prompt(ids, capacity, settings.max_tokens);
    if (kept.size() < ids.size()) {
      console.note(fmt::format("note: of {} {} tokens only the last {} fit the model's {} positions", whose,
                               ids.size(), kept.size(), config.max_positions));
    }
    return {kept.begin(), kept.end()};
  }

  int run_batch(Console& console, const FamilyRegistry& families, const ModelFolder& folder,
                const ModelConfig& config, const Tokenizer& tokenizer, const GenerateSettings& settings) {
    if (prompt_ || prompt_file_) throw invalid("--prompts excludes --prompt and --prompt-file");
    const std::int64_t together = batch_.value_or(kTogether);
    const bool standard_input = *prompts_ == "-";
    const std::vector<PromptLine> lines =
        parse_prompts(standard_input ? read_standard_input() : read_file(*prompts_),
                      standard_input ? "<standard input>" : *prompts_);
    std::vector<BatchPrompt> prompts;
    ReaderSettings reader{.compute = device_.compute(),
                          .sequences = std::min<std::int64_t>(together, lines.size())};
    for (std::size_t i = 0; i < lines.size(); ++i) {
      GenerateSettings own = settings;
      // The generated text does not depend on the batch, because every line has its own seed.
      own.sampling.seed = lines[i].seed.value_or(settings.sampling.seed + i);
      own.max_tokens = lines[i].max_tokens.value_or(settings.max_tokens);
      std::vector<std::int32_t> ids =
          prompt_ids(tokenizer, lines[i].prompt, config, own, fmt::format("prompt {}'s", i), console);
      prompts.push_back({std::move(ids), std::move(own)});
      reader.capacity = std::max(reader.capacity, room_for(prompts.back(), config.max_positions));
    }
    // The number of cache pages that each sequence needs. Memory is allocated for the longest sequences that
    // may be decoded together.
    std::vector<std::int64_t> pages;
    for (const BatchPrompt& prompt : prompts)
      pages.push_back(reader.pages_for(room_for(prompt, reader.capacity)));
    std::sort(pages.begin(), pages.end(), std::greater<>());
    reader.pages = std::accumulate(pages.begin(), pages.begin() + reader.sequences, std::int64_t{0});
    Decoder decoder(device_.make(console), config, families, reader);
    load_model_weights(folder, decoder.store(), decoder.rank());

    std::map<std::size_t, std::string> finished;  // results that wait for earlier lines
    std::size_t printed = 0, done = 0, full = 0;
    std::optional<ProgressLine> progress(
        std::in_place, console.err,
        ProgressOptions{.label = "writing", .unit = "texts", .total = prompts.size()});
    const double began = steady_seconds();
    generate_batch(decoder, prompts,
                   {.done =
                        [&](std::size_t index, Generation&& text) {
                          ++done;
                          full += text.reason == StopReason::kContextFull;
                          finished[index] = result_line(index, lines[index], prompts[index], text, tokenizer);
                          for (auto next = finished.find(printed); next != finished.end();
                               next = finished.find(++printed)) {
                            console.write(next->second);
                            finished.erase(next);
                          }
                        },
                    .progress =
                        [&](std::int64_t tokens) {
                          const double now = steady_seconds();
                          progress->update(
                              done, now,
                              fmt::format("{} tokens, {:.0f} tokens/s", tokens,
                                          static_cast<double>(tokens) / std::max(now - began, 1e-3)));
                        }});
    progress->finish(steady_seconds());
    if (full > 0) {
      console.note(fmt::format("note: {} of {} texts stopped because the model's context ({}) is full", full,
                               prompts.size(), config.max_positions));
    }
    return 0;
  }

  std::string result_line(std::size_t index, const PromptLine& line, const BatchPrompt& prompt,
                          const Generation& text, const Tokenizer& tokenizer) const {
    StreamDecoder stream(tokenizer);
    if (!line.prompt.empty() || writer_) {
      for (const std::int32_t id : prompt.tokens) stream.push(id);
    }
    std::string written;
    for (const std::int32_t id : text.ids) written += stream.push(id);
    written += stream.finish();
    written = without_prefix(std::move(written));
    nlohmann::ordered_json json{{"index", index}};
    if (!line.id.empty()) json["id"] = nlohmann::ordered_json::parse(line.id);
    json["prompt"] = line.prompt;
    json["text"] = written;
    json["prompt_tokens"] = prompt.tokens.size();
    json["ids"] = text.ids;
    json["seed"] = prompt.settings.sampling.seed;
    json["stop_reason"] = name_of(text.reason);
    json["prompt_seconds"] = text.prompt_seconds;
    json["seconds"] = text.seconds;
    return json_text(json, -1) + "\n";
  }

  std::string prompt_text(const Console& console) const {
    if (prompt_ && prompt_file_) throw invalid("--prompt and --prompt-file exclude each other");
    if (prompt_file_) {
      std::string text = read_file(*prompt_file_);
      data::refuse_other_content(text, *prompt_file_, 1, true);
      return text;
    }
    if (prompt_ == "-") return read_standard_input();
    if (prompt_ || !input_is_handed_over()) return prompt_.value_or("");
    // Shows a note after this time, because standard input may be a pipe that stays open without a writer.
    constexpr int kPatienceMilliseconds = 1000;
    pollfd input{STDIN_FILENO, POLLIN, 0};
    if (poll(&input, 1, kPatienceMilliseconds) == 0)
      console.note("note: waiting for the prompt on standard input; --prompt '' starts without a prompt");
    return read_standard_input();
  }

  ModelArguments model_;
  std::optional<std::string> prompt_, prompt_file_, prompts_;
  static constexpr std::int64_t kTogether = 8;
  std::optional<std::int64_t> batch_;
  TemplateArguments template_;
  std::optional<data::ConversationWriter> writer_;  // set if --template is given
  std::vector<data::Message> before_;               // the system turn, if given
  SamplingArguments sampling_;
  DeviceOptions device_;
  bool json_ = false;
};

}  // namespace

extern const CommandEntry kGenerate{
    "generate",
    "Continues a prompt with a trained model",
    "Prints the prompt and its continuation to standard output as it is generated. The text depends only on "
    "model, prompt, settings and seed: the same command gives the same text. Without a prompt, the text "
    "starts with the begin-of-text token. A prompt from a pipe or a file is read whole, with its final "
    "newline.\n\n"
    "--prompts generates many texts together and prints one JSON object per line, in the order of the "
    "prompts. Prompt i, counted from 0, uses seed N+i unless it sets one, and gives the same text as "
    "--prompt and --seed; in bf16, rounding may choose another token.",
    "primus generate output/primus/root/quickstart --prompt 'In the beginning'\n"
    "primus generate Llama-3.2-1B -p 'The moon is' -n 64 -t 0 --dtype bf16\n"
    "printf 'And God said' | primus generate DIR --json\n"
    "primus generate DIR --template auto -p 'Name a prime.'\n"
    "primus generate DIR --prompts prompts.jsonl --batch 16 > texts.jsonl",
    make_command<Generate>,
    {Section::kUse, 1}};

}  // namespace primus::cli
