// primus generate
#include "lm/generate/generate.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "base/files/file.h"
#include "base/text/counted.h"
#include "base/text/json_text.h"
#include "cli/command.h"
#include "cli/options/model_options.h"
#include "cli/use/adapters.h"
#include "cli/use/answerer.h"
#include "cli/use/prompts.h"
#include "cli/use/template_arguments.h"
#include "lm/data/text_check.h"
#include "lm/decode/adapter_decoder.h"
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

bool is_result_key(std::string_view key) {
  return std::ranges::find(kResultKeys, key) != std::end(kResultKeys);
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
                "file with many prompts, one JSON value per line: \"TEXT\" or a record as training reads it: "
                "{\"prompt\": \"TEXT\", \"id\": ..., \"seed\": N, \"max_tokens\": N, \"adapter\": \"NAME\"}, "
                "where results repeat further columns; '-' reads standard input");
    args.option("--batch", "N", &batch_, "with --prompts: texts that are generated together")
        .between(1, 4096)
        .default_note(kTogether);
    adapters_.declare(args);
    adapters_.declare_choice(
        args,
        "with --adapters: model that answers, NAME or base; may be repeated (default: the "
        "base and then each model with adapters)");
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
    const std::vector<PromptLine> lines = prompts_ ? read_prompts(console) : std::vector<PromptLine>();
    std::vector<Answerer> answerers = answerers_of(families, lines, console);
    const UsedModel& first = answerers.front().model();
    if (!template_.given() && is_fine_tuned(first.folder) &&
        load_conversation_style(first.folder, *first.tokenizer)) {
      console.note(
          "note: this model was trained on conversations, but the prompt is continued as plain text; "
          "--template auto writes it as a user's turn in the format of the training");
    }
    if (prompts_) return run_batch(console, families, answerers, lines);
    if (batch_) throw invalid("--batch needs --prompts", "name a file of prompts with --prompts FILE");
    const std::string prompt = prompt_text(console);
    std::vector<std::vector<std::int32_t>> kept(answerers.size());
    std::vector<ReaderSettings> readers(answerers.size(),
                                        {.compute = device_.compute(), .capacity = 1, .pass_tokens = 1});
    for (const std::size_t i : answering(answerers.size())) {
      const Answerer& answerer = answerers[i];
      kept[i] = answerer.prompt_ids({.messages = {{std::string(data::kUser), prompt, {}}}},
                                    answerer.settings(), "the prompt's", console);
      readers[i].capacity =
          std::min(answerer.model().config.max_positions,
                   static_cast<std::int64_t>(kept[i].size()) + answerer.settings().max_tokens);
      readers[i].pass_tokens = std::ssize(kept[i]);
    }
    const std::unique_ptr<AdapterDecoder> decoder = decoder_of(answerers, families, readers, {}, console);
    for (const std::size_t i : answering(answerers.size()))
      answer(answerers[i], prompt, kept[i], decoder->use(i), console);
    return 0;
  }

 private:
  std::vector<PromptLine> read_prompts(const Console& console) const {
    if (prompt_ || prompt_file_) throw invalid("--prompts excludes --prompt and --prompt-file");
    const bool standard_input = *prompts_ == "-";
    std::vector<PromptLine> lines =
        parse_prompts(standard_input ? read_standard_input() : read_file(*prompts_),
                      standard_input ? "<standard input>" : *prompts_);
    std::set<std::string> repeated, replaced;
    for (const PromptLine& line : lines)
      for (const auto& [key, value] : line.columns)
        if (key != "prompt") (is_result_key(key) ? replaced : repeated).insert(key);
    if (!repeated.empty())
      console.note(fmt::format("note: the results repeat the columns {}", fmt::join(repeated, ", ")));
    if (!replaced.empty()) {
      console.note(
          fmt::format("warning: the results lack the prompts' columns {}, because they have keys of "
                      "their own with these names; rename the columns to keep them",
                      fmt::join(replaced, ", ")));
    }
    return lines;
  }

  // Returns whether a model answers at least one prompt. `lines`: empty without --prompts.
  bool answers(std::size_t model, const std::vector<std::string>& names,
               const std::vector<PromptLine>& lines) const {
    const std::vector<std::size_t> usual = answering(names.size());
    const bool is_usual = std::ranges::find(usual, model) != usual.end();
    if (lines.empty()) return is_usual;
    return std::ranges::any_of(lines, [&](const PromptLine& line) {
      return line.adapter ? *line.adapter == names[model] : is_usual;
    });
  }

  // Returns the base model and the models with adapters. The models that answer have their formats: the base
  // of fine-tuned adapters may have none.
  std::vector<Answerer> answerers_of(const FamilyRegistry& families, const std::vector<PromptLine>& lines,
                                     Console& console) const {
    std::vector<Answerer> answerers;
    std::vector<UsedModel> models = adapters_.models(model_, families, console);
    std::vector<std::string> names;
    for (const UsedModel& model : models) names.push_back(model.name);
    for (UsedModel& model : models) {
      if (device_.batch_invariant())
        check_batch_invariant(model.config, device_.spec(console).kind, device_.compute());
      GenerateSettings settings = sampling_.settings(model.folder, model.config, *model.tokenizer, console);
      answerers.emplace_back(std::move(model), std::move(settings),
                             answers(answerers.size(), names, lines) ? template_ : TemplateArguments());
    }
    return answerers;
  }

  // Returns the numbers of the models that answer a prompt that names none.
  std::vector<std::size_t> answering(std::size_t models) const {
    std::vector<std::size_t> numbers = adapters_.chosen();
    if (!numbers.empty()) return numbers;
    numbers.resize(models);
    std::iota(numbers.begin(), numbers.end(), std::size_t{0});
    return numbers;
  }

  // Returns a decoder whose models have their weights.
  std::unique_ptr<AdapterDecoder> decoder_of(const std::vector<Answerer>& answerers,
                                             const FamilyRegistry& families,
                                             const std::vector<ReaderSettings>& readers,
                                             std::optional<AdapterBatch> batch, Console& console) const {
    std::vector<UsedModel> models;
    for (const Answerer& answerer : answerers) models.push_back(answerer.model());
    auto decoder = std::make_unique<AdapterDecoder>(device_.make(console), configs_of(models), families,
                                                    readers, std::move(batch));
    load_weights_of(
        models, [&](std::size_t i) -> engine::ParameterStore& { return decoder->store(i); }, decoder->rank());
    return decoder;
  }

  // Prints the text of one model.
  void answer(const Answerer& answerer, const std::string& prompt, const std::vector<std::int32_t>& kept,
              DecodeScheduler& decoder, Console& console) const {
    if (adapters_.given() && !json_)
      console.print(Color::kBold, fmt::format("[{}]\n", answerer.model().name));
    std::string text;
    StreamDecoder stream(answerer.tokenizer());
    answerer.push_prompt(prompt.empty(), kept, stream);
    auto show = [&](std::string piece) {
      if (text.empty()) piece = answerer.without_prefix(std::move(piece));
      text += piece;
      if (!json_) console.write(piece);
    };
    const bool shows_prompt = !json_ && !answerer.has_turns();
    if (shows_prompt) console.write(prompt);
    const auto generate = [&] {
      try {
        return primus::generate(decoder, kept, answerer.settings(), [&](std::int32_t id) {
          show(stream.push(id));
          return true;
        });
      } catch (...) {
        // Moves the error message to a new line, because the output may end within a line.
        if (!json_ && (!text.empty() || (shows_prompt && !prompt.empty()))) console.print("\n");
        throw;
      }
    };
    const Generation result = generate();
    show(stream.finish());
    if (json_) {
      nlohmann::json json{{"prompt", prompt},
                          {"text", text},
                          {"prompt_tokens", kept.size()},
                          {"ids", result.ids},
                          {"stop_reason", name_of(result.reason)},
                          {"prompt_seconds", result.prompt_seconds},
                          {"seconds", result.seconds}};
      if (adapters_.given()) json["adapter"] = answerer.model().name;
      // Several models write one line each.
      console.write((adapters_.given() ? json_text(json, -1) : json_text(json)) + "\n");
    } else {
      console.print("\n");
    }
    if (result.reason == StopReason::kContextFull) {
      console.note(fmt::format("note: stopped after {} tokens: the model's context ({}) is full",
                               result.ids.size(), answerer.model().config.max_positions));
    }
  }

  // The prompts of each model, and the line of each prompt in the order of the models.
  struct ModelPrompts {
    std::vector<std::vector<BatchPrompt>> prompts;
    std::vector<std::pair<std::size_t, std::size_t>> lines;  // the model, and the line
  };

  // Divides the prompts among the models. Each model's prompts keep their order.
  ModelPrompts prompts_of(const std::vector<PromptLine>& lines, const std::vector<Answerer>& answerers,
                          const Console& console) const {
    ModelPrompts result;
    result.prompts.resize(answerers.size());
    const std::vector<std::size_t> usual = answering(answerers.size());
    for (std::size_t i = 0; i < lines.size(); ++i) {
      const PromptLine& line = lines[i];
      for (const std::size_t model :
           line.adapter ? std::vector{adapters_.find(*line.adapter, line.place)} : usual) {
        const Answerer& answerer = answerers[model];
        GenerateSettings own = answerer.settings();
        // The generated text does not depend on the batch, because every line has its own seed.
        own.sampling.seed = line.seed.value_or(own.sampling.seed + i);
        own.max_tokens = line.max_tokens.value_or(own.max_tokens);
        std::vector<std::int32_t> ids = ids_of(line, i, answerer, own, console);
        result.prompts[model].push_back({std::move(ids), std::move(own)});
        result.lines.emplace_back(model, i);
      }
    }
    std::ranges::stable_sort(result.lines, {}, &std::pair<std::size_t, std::size_t>::first);
    return result;
  }

  // Returns the tokens of a prompt. An error has the place of the line.
  static std::vector<std::int32_t> ids_of(const PromptLine& line, std::size_t number,
                                          const Answerer& answerer, const GenerateSettings& settings,
                                          const Console& console) {
    try {
      return answerer.prompt_ids(line.conversation(answerer.members()), settings,
                                 fmt::format("prompt {}'s", number), console);
    } catch (Error& error) {
      if (error.location().empty()) error.at(line.place);
      throw;
    }
  }

  // Returns the models that generate in one batch, if there are several. Prompts that are continued one at a
  // time need no batch.
  std::optional<AdapterBatch> batch_of(const ModelPrompts& given, const std::vector<Answerer>& answerers,
                                       const FamilyRegistry& families) const {
    const std::int64_t together = batch_.value_or(kTogether);
    AdapterBatch batch;
    std::vector<BatchPrompt> prompts;
    std::vector<ModelConfig> configs;
    for (const Answerer& answerer : answerers) configs.push_back(answerer.model().config);
    for (const std::size_t model : models_of_one_batch(configs, families)) {
      const std::vector<BatchPrompt>& own = given.prompts[model];
      if (own.empty()) continue;
      batch.models.push_back(model);
      prompts.insert(prompts.end(), own.begin(), own.end());
    }
    if (batch.models.size() < 2 || together == 1) return {};
    batch.settings = reader_for(prompts, together, device_.compute(), configs.front().max_positions);
    return batch;
  }

  int run_batch(Console& console, const FamilyRegistry& families, const std::vector<Answerer>& answerers,
                const std::vector<PromptLine>& lines) {
    const ModelPrompts given = prompts_of(lines, answerers, console);
    std::vector<ReaderSettings> readers;
    for (std::size_t model = 0; model < answerers.size(); ++model)
      readers.push_back(reader_for(given.prompts[model], batch_.value_or(kTogether), device_.compute(),
                                   answerers[model].model().config.max_positions));
    const std::optional<AdapterBatch> batch = batch_of(given, answerers, families);
    const std::unique_ptr<AdapterDecoder> decoder = decoder_of(answerers, families, readers, batch, console);
    if (batch && decoder->batched().empty())
      console.note(
          "note: the models generate one after another, because their common batch needs more memory");

    const std::size_t total = given.lines.size();
    std::size_t done = 0, full = 0;
    std::vector<std::size_t> reported(answerers.size(), 0);
    std::optional<ProgressLine> progress(
        std::in_place, console.err,
        ProgressOptions{
            .label = "writing", .unit = noun_for(static_cast<std::int64_t>(total), "text"), .total = total});
    const double began = steady_seconds();
    generate_by_models(
        *decoder, given.prompts,
        {.done =
             [&](std::size_t i, Generation&& text) {
               ++done;
               full += text.reason == StopReason::kContextFull;
               const auto [model, line] = given.lines[i];
               console.write(result_line(line, lines[line], given.prompts[model][reported[model]++], text,
                                         answerers[model]));
             },
         .progress =
             [&](std::int64_t tokens) {
               const double now = steady_seconds();
               progress->update(done, now,
                                fmt::format("{} tokens, {:.0f} tokens/s", tokens,
                                            static_cast<double>(tokens) / std::max(now - began, 1e-3)));
             }});
    progress->finish(steady_seconds());
    if (full > 0) {
      const std::string context =
          answerers.size() > 1
              ? "its model's context"
              : fmt::format("the model's context ({})", answerers.front().model().config.max_positions);
      console.note(fmt::format("note: {} of {} stopped because {} is full", full,
                               counted(static_cast<std::int64_t>(total), "text"), context));
    }
    return 0;
  }

  std::string result_line(std::size_t index, const PromptLine& line, const BatchPrompt& prompt,
                          const Generation& text, const Answerer& answerer) const {
    StreamDecoder stream(answerer.tokenizer());
    answerer.push_prompt(line.text == "", prompt.tokens, stream);
    std::string written;
    for (const std::int32_t id : text.ids) written += stream.push(id);
    written += stream.finish();
    written = answerer.without_prefix(std::move(written));
    nlohmann::ordered_json json{{"index", index}};
    if (!line.id.empty()) json["id"] = nlohmann::ordered_json::parse(line.id);
    if (adapters_.given()) json["adapter"] = answerer.model().name;
    if (line.text) json["prompt"] = *line.text;
    // Reward functions read the other columns: 'primus data score' reads the results.
    for (const auto& [key, value] : line.columns)
      if (!is_result_key(key)) json[key] = nlohmann::ordered_json::parse(value);
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
  AdapterArguments adapters_;
  std::optional<std::string> prompt_, prompt_file_, prompts_;
  static constexpr std::int64_t kTogether = 8;
  std::optional<std::int64_t> batch_;
  TemplateArguments template_;
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
    "--prompt and --seed; in bf16, rounding may choose another token.\n\n"
    "--adapters loads adapters next to one copy of MODEL, and answers each prompt by MODEL and by MODEL with "
    "each of the adapters. --adapter, or \"adapter\" of a prompt, chooses the model that answers. The text "
    "is the same as without the other adapters. With --prompts, texts of several models are generated "
    "together, where rounding may choose another token, and all results of one model come before those of "
    "the next one (docs/posttrain.md).",
    "primus generate output/primus/root/quickstart --prompt 'In the beginning'\n"
    "primus generate Llama-3.2-1B -p 'The moon is' -n 64 -t 0 --dtype bf16\n"
    "printf 'And God said' | primus generate DIR --json\n"
    "primus generate DIR --template auto -p 'Name a prime.'\n"
    "primus generate DIR --prompts prompts.jsonl --batch 16 > texts.jsonl\n"
    "primus generate DIR --adapters legal=lora-legal code=lora-code --template auto -p 'Name a prime.'",
    make_command<Generate>,
    {Section::kUse, 1}};

}  // namespace primus::cli
