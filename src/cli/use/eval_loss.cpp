// primus eval loss
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/text/json_text.h"
#include "cli/command.h"
#include "cli/options/model_options.h"
#include "cli/use/template_arguments.h"
#include "lm/data/corpus.h"
#include "lm/data/indexed_dataset.h"
#include "lm/generate/evaluate.h"
#include "lm/model/batch_invariance.h"

namespace primus::cli {
namespace {

// "evaluating   42%  [########------------]  12.3k tokens, loss 3.2100  ETA 3m 12s".
class Progress {
 public:
  explicit Progress(const Terminal& terminal) : line_(terminal, {.label = "evaluating", .total = kParts}) {}
  void show(const EvaluateProgress& now) {
    line_.update(static_cast<std::uint64_t>(now.share * kParts), steady_seconds(),
                 note(now.tokens, now.loss));
  }
  void show_end(std::int64_t tokens, double loss) {
    line_.update(kParts, steady_seconds(), note(tokens, loss));
    line_.finish(steady_seconds(), note(tokens, loss));
  }

 private:
  static constexpr std::uint64_t kParts = 10000;
  static std::string note(std::int64_t tokens, double loss) {
    return fmt::format("{} tokens, loss {:.4f}", human_count(static_cast<double>(tokens)),
                       drop_nan_sign(loss));
  }
  ProgressLine line_;
};

class EvalLoss final : public Command {
 public:
  void declare(Arguments& args) override {
    model_.declare(args);
    args.option("--data,-d", "PATH", &options_.inputs,
                "text or JSON lines (files, folders, globs), or a .bin/.idx prefix; may be repeated");
    args.option("--conversations", "PATH", &conversations_,
                "conversations instead of text, with the loss on answers only: a file or glob, or a folder's "
                "validation part (docs/posttrain.md)");
    template_.declare(args, "", false,
                      "with --conversations: format of turns (auto, the default: the model's fine-tuning "
                      "format, or its chat template)");
    args.flag("--skip-bad", skip_bad_, "with --conversations: leave broken records out and count them");
    args.option("--json-key", "KEY", &json_key_, "with --data: key of the text in JSON lines")
        .default_note(options_.json_key);
    args.option("--max-tokens,-n", "N", &options_.max_tokens, "maximum number of tokens to read; 0: all");
    args.option("--seq-length", "N", &sequence_,
                "tokens of context (default: the run's seq_length, or the model's context up to 1024; at "
                "most the longest of --conversations)");
    args.option("--batch", "N", &batch_, "sequences at a time").between(1, 65536);
    device_.declare(args);
    device_.declare_batch_invariant(args);
    args.flag("--json", json_, "print the result as JSON");
  }

  // Called before a launcher starts processes.
  void check_job(int, int, const std::map<std::string, std::string>&) override { check_inputs(); }

  int run(Console& console) override {
    check_inputs();
    const FamilyRegistry families = builtin_families();
    const ModelFolder folder = model_.folder();
    const ModelConfig config = ModelArguments::config(folder, families, console);
    if (device_.batch_invariant())
      check_batch_invariant(config, device_.spec(console).kind, device_.compute());
    const auto tokenizer = model_.tokenizer(folder, config, console);
    if (options_.max_tokens < 0)
      throw invalid(fmt::format("--max-tokens must be 0 or more, not {}", options_.max_tokens));
    if (json_key_) options_.json_key = *json_key_;
    if (conversations_) return evaluate_answers(console, families, folder, config, *tokenizer);
    constexpr std::int64_t kUsualSequence = 1024;
    const EvaluatorSettings settings{
        .compute = device_.compute(), .sequence = context(folder, config, kUsualSequence), .batch = batch_};
    LossEvaluator evaluator(device_.make(console), config, families, settings);
    load_model_weights(folder, evaluator.store(), evaluator.rank());

    note_plain_text(console);
    const double start = steady_seconds();
    Progress progress(json_ ? Terminal{} : console.err);
    options_.progress = [&](const EvaluateProgress& now) { progress.show(now); };
    const LossReport report = evaluate_loss(evaluator, tokenizer.get(), options_);
    progress.show_end(report.tokens, report.loss);
    const double seconds = steady_seconds() - start;
    if (json_) {
      nlohmann::json json{{"loss", report.loss},     {"perplexity", report.perplexity},
                          {"tokens", report.tokens}, {"documents", report.documents},
                          {"bytes", report.bytes},   {"context", settings.sequence},
                          {"seconds", seconds}};
      json["bits_per_byte"] =
          report.bits_per_byte ? nlohmann::json(*report.bits_per_byte) : nlohmann::json(nullptr);
      console.write(json_text(json) + "\n");
      return 0;
    }
    std::string text =
        fmt::format("loss           {:.6f}\nperplexity     {:.4f}\n", report.loss, report.perplexity);
    if (report.bits_per_byte) text += fmt::format("bits per byte  {:.4f}\n", *report.bits_per_byte);
    text += fmt::format("tokens         {}\ndocuments      {}\ncontext        {} tokens\n", report.tokens,
                        report.documents, settings.sequence);
    console.print(text);
    return 0;
  }

 private:
  void check_inputs() const {
    if (conversations_ && !options_.inputs.empty())
      throw invalid("--data and --conversations exclude each other",
                    "give either --data PATH or --conversations PATH");
    if (!conversations_ && options_.inputs.empty())
      throw invalid("'eval loss' needs --data PATH or --conversations PATH",
                    "'primus eval loss --help' has examples");
    const auto refuse = [](bool given, const char* option, const char* other) {
      if (given) throw invalid(fmt::format("{} is for {}", option, other), "remove the option");
    };
    refuse(!conversations_ && template_.given(), "--template", "--conversations");
    refuse(!conversations_ && skip_bad_, "--skip-bad", "--conversations");
    refuse(conversations_ && json_key_, "--json-key", "--data");
  }

  void note_plain_text(const Console& console) const {
    std::vector<std::string> texts;
    std::ranges::copy_if(options_.inputs, std::back_inserter(texts),
                         [](const std::string& input) { return !data::IndexedDataset::exists(input); });
    if (!texts.empty()) console.notes(data::remarks_on(texts));
  }

  // Returns the requested context or, by default, the context of training, because the model was not trained
  // on later positions.
  std::int64_t context(const ModelFolder& folder, const ModelConfig& config, std::int64_t usual) const {
    if (sequence_) return *sequence_;
    return std::min(config.max_positions, trained_sequence(folder).value_or(usual));
  }

  int evaluate_answers(Console& console, const FamilyRegistry& families, const ModelFolder& folder,
                       const ModelConfig& config, const Tokenizer& tokenizer) {
    if (options_.max_tokens > 0)
      throw invalid("--max-tokens is for --data", "name a file with fewer conversations");
    const data::ConversationFiles files = data::find_conversations(*conversations_);
    if (files.divided && files.valid.empty())
      throw invalid(fmt::format("'{}' has no validation file", *conversations_), "name a file");
    const data::ConversationWriter writer =
        TemplateArguments::writer(template_.required_style(folder, tokenizer), tokenizer);
    const data::TokenizedConversations conversations =
        data::read_conversations(files.divided ? files.valid : files.train, writer,
                                 {.vocab_size = config.vocab, .skip_bad = skip_bad_});
    for (const std::string& note : {data::note_on_skipped(conversations, *conversations_),
                                    data::note_on_unused(conversations, *conversations_)}) {
      if (!note.empty()) console.note("note: " + note);
    }
    std::int64_t longest = 2;
    for (std::size_t i = 0; i < conversations.size(); ++i)
      longest = std::max(longest, conversations.tokens(i));
    const std::int64_t sequence =
        sequence_.value_or(std::min(context(folder, config, longest - 1), longest - 1));
    LossEvaluator evaluator(device_.make(console), config, families,
                            {.compute = device_.compute(), .sequence = sequence, .batch = batch_});
    load_model_weights(folder, evaluator.store(), evaluator.rank());

    const double start = steady_seconds();
    Progress progress(json_ ? Terminal{} : console.err);
    const ConversationReport report = evaluate_conversations(
        evaluator, conversations, sequence, [&](const EvaluateProgress& now) { progress.show(now); });
    progress.show_end(report.tokens, report.loss);
    if (json_) {
      console.write(json_text({{"loss", report.loss},
                               {"perplexity", report.perplexity},
                               {"tokens", report.tokens},
                               {"conversations", report.conversations},
                               {"truncated", report.truncated},
                               {"without_answer", report.without_answer},
                               {"context", sequence},
                               {"seconds", steady_seconds() - start}}) +
                    "\n");
      return 0;
    }
    std::string text = fmt::format(
        "loss           {:.6f}\nperplexity     {:.4f}\nanswers        {} tokens\n"
        "conversations  {}\ncontext        {} tokens\n",
        report.loss, report.perplexity, report.tokens, report.conversations, sequence);
    if (report.truncated > 0) text += fmt::format("cut short      {}\n", report.truncated);
    if (report.without_answer > 0)
      text += fmt::format("left out       {}, without an answer within {} tokens\n", report.without_answer,
                          sequence);
    console.print(text);
    return 0;
  }

  ModelArguments model_;
  EvaluateOptions options_;
  std::optional<std::string> conversations_, json_key_;
  TemplateArguments template_;
  std::optional<std::int64_t> sequence_;
  std::int64_t batch_ = 4;
  DeviceOptions device_;
  bool json_ = false, skip_bad_ = false;
};

}  // namespace

extern const CommandEntry kEvalLoss{
    "eval loss",
    "Measures how well a model predicts a text, or the answers of conversations",
    "Prints the mean loss per token, perplexity, and bits per byte, which is comparable between models with "
    "different tokenizers. The text is read in consecutive windows of --seq-length tokens; each token is "
    "predicted once.\n\n"
    "With --conversations each conversation is a separate window, and the loss covers the tokens that "
    "fine-tuning learns. This loss equals the validation loss of 'train posttrain' on these "
    "conversations.\n\n"
    "If the loss is not a number, the exit code is 3, and the error names the operator that computed the "
    "first such value.",
    "primus eval loss output/primus/root/quickstart --data book.txt\n"
    "primus eval loss output/primus/root/tuned --conversations held_out.jsonl\n"
    "primus eval loss Llama-3.2-1B -d corpus/valid.jsonl --json-key text --dtype bf16 --json",
    make_command<EvalLoss>,
    {Section::kUse, 3}};

}  // namespace primus::cli
