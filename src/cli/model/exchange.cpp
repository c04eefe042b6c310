// primus model import and export: both use one verified copy routine
#include "lm/exchange/exchange.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/text/json_text.h"
#include "cli/command.h"
#include "lm/model/stated_adapters.h"

namespace primus::cli {
namespace {

// Parses sizes such as "5GB" with Hugging Face's units: GB is a power of 1000; KiB, MiB and GiB are powers of
// 1024.
std::uint64_t bytes_of(const std::string& text) {
  constexpr std::pair<std::string_view, double> kUnits[] = {
      {"KB", 1e3},        {"MB", 1e6},           {"GB", 1e9}, {"KiB", 1024.0},
      {"MiB", 1048576.0}, {"GiB", 1073741824.0}, {"B", 1}};
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  for (const auto& [unit, size] : kUnits) {
    const double bytes = number * size;
    if (error == std::errc() && std::string_view(stop, end) == unit && bytes >= 1 && bytes <= 1e18) {
      return static_cast<std::uint64_t>(std::llround(bytes));
    }
  }
  throw invalid(fmt::format("--max-shard-size is '{}'", text), "write a size such as 5GB or 500MB");
}

class ModelExchange : public Command {
 public:
  explicit ModelExchange(bool importing) : importing_(importing) {}

  void declare(Arguments& args) override {
    args.positional("FROM", &from_,
                    importing_ ? "a Hugging Face folder (config.json and safetensors), or a PEFT folder"
                               : "a checkpoint, the folder of a run, a model folder, or a PEFT folder");
    args.positional("TO", &to_, "the folder to write");
    args.option("--dtype", "TYPE", &dtype_, "type of the weights (default: each tensor as it is)").choices = {
        "fp32", "bf16", "fp16"};
    args.option("--max-shard-size", "SIZE", &shard_size_, "largest file, e.g. 5GB");
    if (!importing_)
      args.flag("--adapters", adapters_,
                "write the LoRA adapters as a PEFT folder, instead of the merged model");
    overwrite_.declare(args);
    args.flag("--quiet,-q", quiet_, "no progress");
    args.flag("--json", json_, "print the result as JSON");
  }

  int run(Console& console) override {
    const FamilyRegistry families = builtin_families();
    const ModelFolder from = find_model_folder(from_);
    if (importing_ && from.iteration) {
      throw invalid(fmt::format("'{}' is a Primus checkpoint", from.path.string()),
                    "'primus model export' converts it for other programs");
    }
    if (adapters_) {
      if (dtype_)
        throw invalid("--dtype has no effect with --adapters: adapters are written in fp32", "omit --dtype");
      if (overwrite_.existing() == Existing::kReplace)
        throw invalid("--overwrite does not replace PEFT folders", "name a folder that does not exist");
      const std::string base = base_model_of(from);
      ExchangeReport report = write_adapters(from, to_, base, families);
      if (std::string note = note_on_base(base); !note.empty()) report.notes.push_back(std::move(note));
      show(console, report);
      return 0;
    }
    ExchangeOptions options{
        .dtype = {}, .max_shard_bytes = bytes_of(shard_size_), .existing = overwrite_.existing()};
    if (dtype_)
      options.dtype = *dtype_ == "fp32" ? DType::kF32 : *dtype_ == "bf16" ? DType::kBF16 : DType::kF16;
    std::optional<ProgressLine> line;  // created once the size is known
    const ExchangeReport report =
        copy_model(from, to_, options, families, [&](std::uint64_t done, std::uint64_t total) {
          if (quiet_ || json_) return;
          if (!line)
            line.emplace(console.err, ProgressOptions{.label = "writing", .unit = "bytes", .total = total});
          line->update(done, steady_seconds());
        });
    if (line) line->finish(steady_seconds());
    show(console, report);
    return 0;
  }

 private:
  void show(Console& console, const ExchangeReport& report) const {
    console.notes(report.notes);
    json_ ? console.write(json(report)) : console.print(text(report));
  }
  std::string text(const ExchangeReport& r) const {
    return fmt::format("{}: {}, {} parameters in {} tensors, {} in {} file{}{}\n", to_, r.config.family,
                       human_count(static_cast<double>(r.parameters)), r.tensors,
                       human_bytes(static_cast<double>(r.bytes)), r.files, r.files == 1 ? "" : "s",
                       r.copied.empty() ? "" : fmt::format("; with {}", fmt::join(r.copied, ", ")));
  }
  std::string json(const ExchangeReport& r) const {
    const nlohmann::json report{
        {"folder", to_},        {"family", r.config.family}, {"parameters", r.parameters},
        {"tensors", r.tensors}, {"bytes", r.bytes},          {"files", r.files},
        {"notes", r.notes},     {"companions", r.copied}};
    return json_text(report) + "\n";
  }

  bool importing_;
  std::string from_, to_, shard_size_ = "5GB";
  std::optional<std::string> dtype_;
  OverwriteFlag overwrite_;
  bool quiet_ = false, json_ = false, adapters_ = false;
};

class ModelImport final : public ModelExchange {
 public:
  ModelImport() : ModelExchange(true) {}
};
class ModelExport final : public ModelExchange {
 public:
  ModelExport() : ModelExchange(false) {}
};

}  // namespace

extern const CommandEntry kModelImport{
    "model import",
    "Checks a Hugging Face model and writes it in a form that Primus can train",
    "Training reads Hugging Face folders directly (load: FOLDER). Import is for weights that training cannot "
    "read, which are quantised to fp8 (DeepSeek-V3), mxfp4 (gpt-oss), or nf4 and fp4 (bitsandbytes), for "
    "merging the adapters of a PEFT folder, and for changing the type of weights. Every tensor is checked "
    "against config.json before anything is written.",
    "primus model import gpt-oss-20b gpt-oss-20b-bf16\n"
    "primus model import Llama-3.2-1B llama-fp32 --dtype fp32",
    make_command<ModelImport>,
    {Section::kModel, 2}};

extern const CommandEntry kModelExport{
    "model export",
    "Writes a trained model as a Hugging Face folder",
    "Checkpoints are Hugging Face folders already. Export leaves out the files that only training needs, "
    "merges LoRA adapters into the weights, and can change the type of the weights. With --adapters, it "
    "writes "
    "a PEFT folder with only the adapters, which names the model from which the run started. fp32 exports "
    "the "
    "master weights of a bf16 run. A fine-tuned model gets the chat template of its training format, and its "
    "end-of-answer token in the generation settings. Primus does not write GGUF: llama.cpp's "
    "convert_hf_to_gguf.py converts the folder.",
    "primus model export my-run my-model\n"
    "primus model export my-run/checkpoints/iter_0001000 my-model --dtype bf16\n"
    "primus model export my-lora-run my-adapters --adapters",
    make_command<ModelExport>,
    {Section::kModel, 3}};

}  // namespace primus::cli
