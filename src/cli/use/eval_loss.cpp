// primus eval loss
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/text/json_text.h"
#include "cli/command.h"
#include "cli/options/model_options.h"
#include "cli/use/adapters.h"
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
    adapters_.declare(args);
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
    const std::vector<UsedModel> models = adapters_.models(model_, families, console);
    for (const UsedModel& model : models) {
      if (device_.batch_invariant())
        check_batch_invariant(model.config, device_.spec(console).kind, device_.compute());
    }
    if (options_.max_tokens < 0)
      throw invalid(fmt::format("--max-tokens must be 0 or more, not {}", options_.max_tokens));
    if (json_key_) options_.json_key = *json_key_;
    if (conversations_) return evaluate_answers(console, families, models);
    constexpr std::int64_t kUsualSequence = 1024;
    const EvaluatorSettings settings{
        .compute = device_.compute(), .sequence = context(models.front(), kUsualSequence), .batch = batch_};
    const std::unique_ptr<LossEvaluator> evaluator = evaluator_of(models, families, settings, console);

    note_plain_text(console);
    for (std::size_t i = 0; i < models.size(); ++i) {
      evaluator->select(i);
      const double start = steady_seconds();
      Progress progress(json_ ? Terminal{} : console.err);
      options_.progress = [&](const EvaluateProgress& now) { progress.show(now); };
      const LossReport report = evaluate_loss(*evaluator, models[i].tokenizer.get(), options_);
      progress.show_end(report.tokens, report.loss);
      nlohmann::json json{{"loss", report.loss},
                          {"perplexity", report.perplexity},
                          {"tokens", report.tokens},
                          {"documents", report.documents},
                          {"bytes", report.bytes},
                          {"context", settings.sequence},
                          {"seconds", steady_seconds() - start}};
      json["bits_per_byte"] =
          report.bits_per_byte ? nlohmann::json(*report.bits_per_byte) : nlohmann::json(nullptr);
      std::string text =
          fmt::format("loss           {:.6f}\nperplexity     {:.4f}\n", report.loss, report.perplexity);
      if (report.bits_per_byte) text += fmt::format("bits per byte  {:.4f}\n", *report.bits_per_byte);
      text += fmt::format("tokens         {}\ndocuments      {}\ncontext        {} tokens\n", report.tokens,
                          report.documents, settings.sequence);
      print(json, text, models, i, console);
    }
    return 0;
  }

 private:
  // Prints the result of model `i`, as soon as it is known, so that an error of a later model loses no
  // result.
  void print(nlohmann::json json, const std::string& text, const std::vector<UsedModel>& models,
             std::size_t i, const Console& console) const {
    const bool several = adapters_.given();
    if (json_) {
      if (several) json["adapter"] = models[i].name;
      // Several models write one line each.
      console.write((several ? json_text(json, -1) : json_text(json)) + "\n");
    } else if (several) {
      console.print(fmt::format("{}[{}]\n{}", i > 0 ? "\n" : "", models[i].name, text));
    } else {
      console.print(text);
    }
  }

  // Returns an evaluator whose models have their weights.
  std::unique_ptr<LossEvaluator> evaluator_of(const std::vector<UsedModel>& models,
                                              const FamilyRegistry& families,
                                              const EvaluatorSettings& settings,
                                              const Console& console) const {
    const std::vector<ModelConfig> configs = configs_of(models);
    auto evaluator = std::make_unique<LossEvaluator>(device_.make(console), configs, families, settings);
    load_weights_of(
        models, [&](std::size_t i) -> engine::ParameterStore& { return evaluator->store(i); },
        evaluator->rank());
    return evaluator;
  }

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
  std::int64_t context(const UsedModel& model, std::int64_t usual) const {
    if (sequence_) return *sequence_;
    return std::min(model.config.max_positions, trained_sequence(model.folder).value_or(usual));
  }

  // Reads the conversations in the format of a model.
  data::TokenizedConversations read(const data::ConversationFiles& files, const UsedModel& model,
                                    const data::ConversationStyle& style, const Console& console,
                                    bool notes) const {
    const data::ConversationWriter writer = TemplateArguments::writer(style, *model.tokenizer);
    data::TokenizedConversations conversations =
        data::read_conversations(files.divided ? files.valid : files.train, writer,
                                 {.vocab_size = model.config.vocab, .skip_bad = skip_bad_});
    for (const std::string& note : {data::note_on_skipped(conversations, *conversations_),
                                    data::note_on_unused(conversations, *conversations_)}) {
      if (notes && !note.empty()) console.note("note: " + note);
    }
    return conversations;
  }

  int evaluate_answers(Console& console, const FamilyRegistry& families,
                       const std::vector<UsedModel>& models) const {
    if (options_.max_tokens > 0)
      throw invalid("--max-tokens is for --data", "name a file with fewer conversations");
    const data::ConversationFiles files = data::find_conversations(*conversations_);
    if (files.divided && files.valid.empty())
      throw invalid(fmt::format("'{}' has no validation file", *conversations_), "name a file");
    std::vector<data::TokenizedConversations> conversations;
    std::vector<std::string_view> formats;
    std::int64_t longest = 2;
    for (const UsedModel& model : models) {
      const data::ConversationStyle style = template_.required_style(model.folder, *model.tokenizer);
      formats.push_back(data::name_of(style.format));
      conversations.push_back(read(files, model, style, console, conversations.empty()));
      const data::TokenizedConversations& own = conversations.back();
      for (std::size_t i = 0; i < own.size(); ++i) longest = std::max(longest, own.tokens(i));
    }
    const std::int64_t sequence =
        sequence_.value_or(std::min(context(models.front(), longest - 1), longest - 1));
    const std::unique_ptr<LossEvaluator> evaluator = evaluator_of(
        models, families, {.compute = device_.compute(), .sequence = sequence, .batch = batch_}, console);

    for (std::size_t i = 0; i < models.size(); ++i) {
      evaluator->select(i);
      const double start = steady_seconds();
      Progress progress(json_ ? Terminal{} : console.err);
      const ConversationReport report = evaluate_conversations(
          *evaluator, conversations[i], sequence, [&](const EvaluateProgress& now) { progress.show(now); });
      progress.show_end(report.tokens, report.loss);
      const nlohmann::json json{{"loss", report.loss},
                                {"perplexity", report.perplexity},
                                {"tokens", report.tokens},
                                {"conversations", report.conversations},
                                {"truncated", report.truncated},
                                {"without_answer", report.without_answer},
                                {"context", sequence},
                                {"format", formats[i]},
                                {"seconds", steady_seconds() - start}};
      std::string text = fmt::format(
          "loss           {:.6f}\nperplexity     {:.4f}\nanswers        {} tokens\n"
          "conversations  {}\nformat         {}\ncontext        {} tokens\n",
          report.loss, report.perplexity, report.tokens, report.conversations, formats[i], sequence);
      if (report.truncated > 0) text += fmt::format("cut short      {}\n", report.truncated);
      if (report.without_answer > 0)
        text += fmt::format("left out       {}, without an answer within {} tokens (--seq-length)\n",
                            report.without_answer, sequence);
      print(json, text, models, i, console);
    }
    return 0;
  }

  ModelArguments model_;
  AdapterArguments adapters_;
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
    "With --adapters, the result has a part for MODEL, named base, and a part for each of the adapters. All "
    "have the same --seq-length, whose default is that of MODEL; conversations have the format of each "
    "model, which the result names as format.\n\n"
    "If the loss is not a number, the exit code is 3, and the error names the operator that computed the "
    "first such value.",
    "primus eval loss output/primus/root/quickstart --data book.txt\n"
    "primus eval loss output/primus/root/tuned --conversations held_out.jsonl\n"
    "primus eval loss DIR --adapters legal=lora-legal code=lora-code --conversations held_out.jsonl\n"
    "primus eval loss Llama-3.2-1B -d corpus/valid.jsonl --json-key text --dtype bf16 --json",
    make_command<EvalLoss>,
    {Section::kUse, 3}};

}  // namespace primus::cli
