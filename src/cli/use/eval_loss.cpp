// primus eval loss
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/text/json_text.h"
#include "cli/command.h"
#include "cli/options/model_options.h"
#include "lm/generate/evaluate.h"

namespace primus::cli {
namespace {

class EvalLoss final : public Command {
 public:
  void declare(Arguments& args) override {
    model_.declare(args);
    args.option("--data,-d", "PATH", &options_.inputs,
                "text or JSON lines (files, folders, globs), or a .bin/.idx prefix; may be repeated")
        .required = true;
    args.option("--json-key", "KEY", &options_.json_key, "of JSON lines: where the text is");
    args.option("--max-tokens,-n", "N", &options_.max_tokens, "stop after so many tokens; 0: all");
    args.option("--seq-length", "N", &sequence_, "tokens of context (default: up to 1024, as the model has)");
    args.option("--batch", "N", &batch_, "sequences at a time");
    device_.declare(args);
    args.flag("--json", json_, "print the result as JSON");
  }

  int run(Console& console) override {
    const FamilyRegistry families = builtin_families();
    const ModelFolder folder = model_.folder();
    const ModelConfig config = ModelArguments::config(folder, families, console);
    const auto tokenizer = model_.tokenizer(folder, config);
    constexpr std::int64_t kLargestBatch = 65536;
    if (batch_ < 1 || batch_ > kLargestBatch)
      throw invalid(fmt::format("--batch must be from 1 to {}, not {}", kLargestBatch, batch_));
    if (options_.max_tokens < 0)
      throw invalid(fmt::format("--max-tokens must be 0 or more, not {}", options_.max_tokens));
    constexpr std::int64_t kUsualSequence = 1024;
    const EvaluatorSettings settings{
        .compute = device_.compute(),
        .sequence = sequence_.value_or(std::min(config.max_positions, kUsualSequence)),
        .batch = batch_};
    LossEvaluator evaluator(device_.make(console), config, families, settings);
    load_model_weights(folder, evaluator.store(), evaluator.rank());

    const double start = steady_seconds();
    ProgressLine progress(json_ ? Terminal{} : console.err, {.label = "evaluating", .unit = "tokens"});
    options_.progress = [&](std::int64_t tokens, double loss) {
      progress.update(static_cast<std::uint64_t>(tokens), steady_seconds(), fmt::format("loss {:.4f}", loss));
    };
    const LossReport report = evaluate_loss(evaluator, tokenizer.get(), options_);
    progress.finish(steady_seconds(), fmt::format("loss {:.4f}", report.loss));
    const double seconds = steady_seconds() - start;
    if (json_) {
      nlohmann::json json{{"loss", report.loss},     {"perplexity", report.perplexity},
                          {"tokens", report.tokens}, {"documents", report.documents},
                          {"bytes", report.bytes},   {"seconds", seconds}};
      json["bits_per_byte"] =
          report.bits_per_byte ? nlohmann::json(*report.bits_per_byte) : nlohmann::json(nullptr);
      console.write(json_text(json) + "\n");
      return 0;
    }
    std::string text =
        fmt::format("loss           {:.6f}\nperplexity     {:.4f}\n", report.loss, report.perplexity);
    if (report.bits_per_byte) text += fmt::format("bits per byte  {:.4f}\n", *report.bits_per_byte);
    text += fmt::format("tokens         {}\ndocuments      {}\n", report.tokens, report.documents);
    console.print(text);
    return 0;
  }

 private:
  ModelArguments model_;
  EvaluateOptions options_;
  std::optional<std::int64_t> sequence_;
  std::int64_t batch_ = 4;
  DeviceOptions device_;
  bool json_ = false;
};

}  // namespace

extern const CommandEntry kEvalLoss{
    "eval loss",
    "Measures how well a model predicts a text",
    "Prints the mean loss per token, perplexity, and bits per byte, which compares models with different\n"
    "tokenizers. Windows of --seq-length tokens follow each other; each token is predicted once.",
    "primus eval loss output/primus/root/quickstart --data book.txt\n"
    "primus eval loss Llama-3.2-1B -d corpus/valid.jsonl --json-key text --dtype bf16 --json",
    make_command<EvalLoss>,
    {Section::kUse, 3}};

}  // namespace primus::cli
