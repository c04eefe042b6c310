// primus benchmark decode
#include <fmt/format.h>

#include "base/error.h"
#include "base/text/sizes.h"
#include "bench/decode_benchmark.h"
#include "cli/benchmark/output.h"
#include "cli/command.h"
#include "cli/options/device.h"
#include "cli/options/preset_model.h"
#include "lm/generate/model_folder.h"

namespace primus::cli {
namespace {

class BenchmarkDecode final : public Command {
 public:
  void declare(Arguments& args) override {
    args.option("--model", "MODEL", &model_,
                "a preset (llama3.1_8B), a Hugging Face folder, or the folder of a run; only the model's "
                "shape is used")
        .reads = folders_among;
    args.option("--vocab-size", "N", &vocabulary_, "vocabulary size, for a preset that has none")
        .between(1, kMaxDecodedTokens);
    args.option("--batch", "LIST", &batches_, "texts that are generated together");
    args.option(
            "--context", "N", &context_,
            fmt::format("tokens in the prompt of each text (default: {}, or as many as the model supports)",
                        options_.context))
        .between(1, kMaxDecodedTokens);
    args.option("--tokens,-n", "N", &options_.tokens, "timed tokens of each text")
        .between(1, kMaxDecodedTokens);
    args.option("--warmup", "N", &options_.warmup, "untimed tokens before those")
        .between(0, kMaxDecodedTokens);
    device_.declare(args, "bf16");
    output_.declare(args);
  }

  void check_job(int, int, const std::map<std::string, std::string>&) override {
    check_words();
    if (names_a_preset(model_)) preset(builtin_families());
  }

  int run(Console& console) override {
    check_words();
    output_.check();
    const FamilyRegistry families = builtin_families();
    const ModelConfig config =
        names_a_preset(model_) ? preset(families) : load_model_config(find_model_folder(model_), families);
    options_.dtype = device_.compute();
    std::string shortened;
    const std::int64_t fits = config.max_positions - options_.warmup - options_.tokens;
    if (!context_ && fits >= 1 && fits < options_.context) {
      shortened =
          fmt::format("prompts have {} tokens instead of the default {}, because the model has {} positions",
                      fits, options_.context, config.max_positions);
      options_.context = fits;
    }
    std::optional<PhaseProgress> shown(std::in_place, console);
    options_.progress = [&](std::string_view what, std::int64_t done, std::int64_t total) {
      shown->show(what, done, total);
    };
    BenchmarkReport report = benchmark_decoding(device_.make(console), config, families, options_);
    shown.reset();  // erases its line on the terminal
    report.device += " | " + model_;
    if (!shortened.empty()) report.notes.insert(report.notes.begin(), shortened);
    return output_.finish(report, console);
  }

 private:
  ModelConfig preset(const FamilyRegistry& families) const {
    ModelConfig config = preset_model(model_, families, vocabulary_);
    constexpr std::int64_t kMorePadded = 1 << 16;
    if (vocabulary_ && preset_model(model_, families, *vocabulary_ + kMorePadded).vocab == config.vocab)
      throw invalid(fmt::format("--vocab-size: the preset '{}' already sets a vocabulary of {} tokens",
                                model_, config.vocab),
                    "remove --vocab-size");
    return config;
  }

  // Errors that do not depend on the machine.
  void check_words() {
    device_.check_words();
    output_.check_words();
    if (vocabulary_ && !names_a_preset(model_))
      throw invalid(fmt::format("--vocab-size: the folder '{}' already sets the vocabulary size", model_),
                    "remove --vocab-size; it is only for presets without a vocabulary size");
    if (context_) options_.context = *context_;
    options_.batches = parse_sizes("--batch", batches_, 1 << 12);
  }

  std::string model_ = "llama3.1_8B", batches_ = "1,64";
  std::optional<std::int64_t> vocabulary_, context_;
  DecodeBenchmarkOptions options_;
  DeviceOptions device_;
  BenchmarkOutput output_;
};

}  // namespace

extern const CommandEntry kBenchmarkDecode{
    "benchmark decode",
    "Times text generation: one text, and many at a time",
    "Weights are random, and nothing is read from disk. A step processes one token of every text and chooses "
    "the next one greedily; it ends when the host has the tokens. GB/s count every weight once, and the keys "
    "and values of every text. 'copy' compares this rate with that of a large copy, measured in the same "
    "run.\n\n" PRIMUS_BASELINE_HELP,
    "primus benchmark decode --model llama3.1_8B --device cuda\n"
    "primus benchmark decode --model qwen3_0.6B --batch 1,8,64 --context 2048 --json",
    make_command<BenchmarkDecode>,
    {Section::kBenchmark, 13}};

}  // namespace primus::cli
