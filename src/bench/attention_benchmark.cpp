// Times attention with the functions of operator_benchmark.h. Cases come from given sizes, presets, or tables
// in AMD Primus's format.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>

#include "base/error.h"
#include "base/files/file.h"
#include "base/text/suggest.h"
#include "bench/attention_shapes.h"
#include "bench/benchmark_entry.h"
#include "bench/model_shapes.h"
#include "bench/operator_benchmark.h"
#include "lm/generate/preset_model.h"
#include "turbo/devices/devices.h"

namespace primus {
namespace {

// Splits "a,b" into words at commas; skips empty words.
std::vector<std::string> words_of(const std::string& list) {
  std::vector<std::string> words;
  for (std::size_t at = 0; at <= list.size();) {
    const std::size_t end = std::min(list.find(',', at), list.size());
    if (end > at) words.push_back(list.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

// Parses "1,2,4" as batch sizes.
std::vector<std::int64_t> parse_batches(const std::string& list) {
  constexpr std::int64_t kMaxSequences = 1 << 12;
  std::vector<std::int64_t> batches;
  for (std::size_t at = 0; at <= list.size();) {
    const std::size_t end = std::min(list.find(',', at), list.size());
    const std::string word = list.substr(at, end - at);
    at = end + 1;
    std::int64_t value = 0;
    const auto [rest, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || rest != word.data() + word.size() || value < 1 || value > kMaxSequences)
      throw invalid(fmt::format("--mbs-list {}: '{}' is not a number of sequences from 1 to {}", list, word,
                                kMaxSequences),
                    "write whole numbers with commas between: 1,2,4");
    batches.push_back(value);
  }
  return batches;
}

class AttentionBenchmark final : public Benchmark {
  std::vector<BenchmarkOption> options() override {
    const AttentionCase usual;
    const auto number = [](std::string_view name, const char* help, std::optional<std::int64_t>& target,
                           std::string shown_default = {}) {
      return BenchmarkOption{name, "N", help, &target, std::move(shown_default)};
    };
    return {
        number("--batch", "sequences", batch_, std::to_string(usual.batch)),
        {"--mbs-list", "LIST", "several numbers of sequences, each measured: 1,2,4", &batches_},
        number("--seq-length", "tokens of a sequence", sequence_, std::to_string(usual.sequence)),
        number("--heads", "query heads", heads_, std::to_string(usual.heads)),
        number("--kv-heads", "key/value heads", kv_heads_, std::to_string(usual.kv_heads)),
        number("--head-dim", "elements of a head", head_dim_, std::to_string(usual.head_dim)),
        number("--window", "maximum number of keys that a query attends to; 0: all (the default)", window_),
        {"--full", {}, "queries also attend to later keys", &full_},
        {"--models", "LIST",
         "measure the sizes of these models instead: names of AMD Primus's table, presets, or models in the "
         "file of --shapes-json-path; all: every model of that table or file",
         &models_},
        {"--skip-models", "LIST", "models to leave out", &skipped_},
        {.names = "--shapes-json-path",
         .value = "FILE",
         .help = "file with shapes, in AMD Primus's form",
         .target = &shapes_file_,
         .reads = [](const std::vector<std::string>& files) { return files; }},
        {.names = "--backend",
         .value = "NAME",
         .help = "kernels to measure (auto: cudnn where it supports the case, otherwise own; flash: own, as "
                 "AMD Primus names it; all: each of them in turn)",
         .target = &backend_,
         .choices = {"auto", "own", "flash", "cudnn", "all"},
         .refused = {{"ck",
                      "it needs the example programs of Composable Kernel, which are not part of Primus",
                      "set --backend own or auto"}}}};
  }

  std::string input() const override { return shapes_file_; }

  void prepare() override {
    const bool named = !models_.empty() || !shapes_file_.empty();
    const bool sized = sequence_ || heads_ || kv_heads_ || head_dim_ || window_ || full_;
    if (named && sized)
      throw invalid("--models and --shapes-json-path give the sizes themselves",
                    "leave out --seq-length, --heads, --kv-heads, --head-dim, --window and --full");
    if (!skipped_.empty() && !named)
      throw invalid("--skip-models has no effect without a list of models",
                    "add --models or --shapes-json-path");
    if (batch_ && !batches_.empty())
      throw invalid("--batch and --mbs-list exclude each other", "leave out one of them");
    std::vector<std::int64_t> batches{batch_.value_or(1)};
    if (!batches_.empty()) batches = parse_batches(batches_);
    const std::vector<AttentionCase> shapes = named ? named_shapes() : std::vector{sized_shape()};
    for (const AttentionCase& shape : shapes) {
      for (const std::int64_t batch : batches) {
        cases_.push_back(shape);
        cases_.back().batch = batch;
        check_case(cases_.back());
      }
    }
  }

  AttentionCase sized_shape() const {
    AttentionCase which;
    which.sequence = sequence_.value_or(which.sequence);
    which.heads = heads_.value_or(which.heads);
    which.kv_heads = kv_heads_.value_or(which.kv_heads);
    which.head_dim = which.value_dim = head_dim_.value_or(which.head_dim);
    which.window = window_.value_or(0);
    which.causal = !full_;
    return which;
  }

  std::vector<AttentionCase> named_shapes() {
    constexpr std::uint64_t kMaxFileBytes = 16 << 20;
    const std::vector<AttentionCase> known =
        shapes_file_.empty()
            ? usual_attention_shapes()
            : read_attention_shapes(read_file(shapes_file_, kMaxFileBytes), shapes_file_, left_out_);
    if (known.empty())
      throw invalid(fmt::format("'{}' has no shape to measure", shapes_file_),
                    left_out_.empty()
                        ? "the list in the file is empty: docs/benchmarks.md has an example of such a file"
                        : left_out_.front().why);
    std::vector<AttentionCase> chosen;
    if (models_.empty() || models_ == "all") {
      chosen = known;
    } else {
      for (const std::string& name : words_of(models_)) {
        const std::size_t before = chosen.size();
        for (const AttentionCase& shape : known)
          if (shape.model == name) chosen.push_back(shape);
        if (chosen.size() > before) continue;
        if (!shapes_file_.empty())
          throw invalid(fmt::format("--models: '{}' does not have the model '{}'", shapes_file_, name),
                        why_not(name, known));
        const ModelConfig config = preset_model(preset_of(name), builtin_families(), kAnyVocabulary);
        chosen.push_back(attention_of(config, name, std::min<std::int64_t>(config.max_positions, 4096)));
      }
    }
    const std::vector<std::string> skipped = words_of(skipped_);
    for (const std::string& name : skipped) {
      const auto is_it = [&](const auto& shape) { return shape.model == name; };
      if (std::any_of(known.begin(), known.end(), is_it) ||
          std::any_of(chosen.begin(), chosen.end(), is_it) ||
          std::any_of(left_out_.begin(), left_out_.end(), is_it))
        continue;
      std::vector<AttentionCase> all = known;
      all.insert(all.end(), chosen.begin(), chosen.end());
      throw invalid(fmt::format("--skip-models: the list does not have the model '{}'", name),
                    why_not(name, all));
    }
    std::erase_if(chosen, [&](const AttentionCase& shape) {
      return std::find(skipped.begin(), skipped.end(), shape.model) != skipped.end();
    });
    if (chosen.empty())
      throw invalid("the options leave no shape to measure", "see --models and --skip-models");
    return chosen;
  }

  // Returns the hint for a name that `shapes` does not contain.
  std::string why_not(const std::string& name, const std::vector<AttentionCase>& shapes) const {
    for (const LeftOutShape& shape : left_out_)
      if (shape.model == name) return shape.why;
    std::vector<std::string_view> names;
    for (const AttentionCase& shape : shapes)
      if (!shape.model.empty() && std::find(names.begin(), names.end(), shape.model) == names.end())
        names.push_back(shape.model);
    const std::string near = did_you_mean(name, names);
    return near.empty() ? fmt::format("there are: {}", fmt::join(names, ", ")) : near;
  }

  BenchmarkReport measure(const BenchmarkRun& run) override {
    DeviceSpec spec = run.device;
    const OperatorBenchmarkOptions options = operator_options(run);
    const bool has_library = spec.kind == "cuda";
    if (backend_ == "cudnn" && !has_library)
      throw invalid(fmt::format("--backend cudnn: the device '{}' has no cuDNN", spec.kind),
                    "set --backend own, or --device cuda");
    const bool own = backend_ == "own" || backend_ == "flash";
    spec.attention_library = !own;
    BenchmarkReport all = measure_on(*turbo::open_device(spec), options);
    if (backend_ == "all" && has_library) {
      spec.attention_library = false;
      prefix_ = "own, ";
      BenchmarkReport other = measure_on(*turbo::open_device(spec), options);
      for (BenchmarkResult& result : all.results) result.name = "cudnn, " + result.name;
      std::move(other.results.begin(), other.results.end(), std::back_inserter(all.results));
      std::move(other.notes.begin(), other.notes.end(), std::back_inserter(all.notes));
    }
    for (std::size_t i = 0; i < left_out_.size(); ++i)
      all.notes.insert(all.notes.begin() + static_cast<std::ptrdiff_t>(i), left_out_[i].why);
    return all;
  }

  BenchmarkReport measure_on(Device& device, const OperatorBenchmarkOptions& options) const {
    BenchmarkReport report = benchmark_attention(device, cases_, options, prefix_);
    // Refuses to report a library's speed if the library does not support a case, which our own kernels then
    // compute.
    if (backend_ == "cudnn" || (backend_ == "all" && prefix_.empty())) {
      for (const KernelChoice& choice : device.choices())
        if (choice.what.starts_with("attention") && choice.what.find("own kernel") != std::string::npos)
          throw invalid(fmt::format("--backend {}: {}", backend_, choice.what), "set --backend own or auto");
    }
    return report;
  }

  static constexpr std::int64_t kAnyVocabulary = 1024;  // the vocabulary does not affect attention
  std::optional<std::int64_t> batch_, sequence_, heads_, kv_heads_, head_dim_, window_;
  bool full_ = false;
  std::string batches_, models_, skipped_, shapes_file_, backend_ = "auto", prefix_;
  std::vector<AttentionCase> cases_;
  std::vector<LeftOutShape> left_out_;
};

}  // namespace

extern const BenchmarkEntry kAttentionEntry{.name = "attention",
                                            .make = make_benchmark<AttentionBenchmark>,
                                            .subject = BenchmarkSubject::kDevice,
                                            .seconds = 0.5,
                                            .types = MeasuredTypes{.fp16 = true},
                                            .output_names = "--output,--output-file,--report-csv-path"};

}  // namespace primus
