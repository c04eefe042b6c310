// primus benchmark gemm, gemm-dense, gemm-deepseek, attention, grouped-gemm
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <iterator>
#include <span>

#include "base/error.h"
#include "base/files/file.h"
#include "base/text/suggest.h"
#include "bench/attention_shapes.h"
#include "bench/device_timer.h"
#include "bench/model_shapes.h"
#include "bench/operator_benchmark.h"
#include "cli/benchmark/output.h"
#include "cli/command.h"
#include "cli/options/device.h"
#include "cli/options/preset_model.h"
#include "cli/options/sizes.h"
#include "lm/generate/model_folder.h"
#include "turbo/devices/devices.h"

namespace primus::cli {
namespace {

class BenchmarkOperator : public Command {
 public:
  void declare(Arguments& args) final {
    declare_case(args);
    args.option("--seconds,--duration", "S", &seconds_, "time for each measurement");
    device_.declare(args, "fp32", types());
    declare_output(args, output_);
  }

  void check_job(int, int, const std::map<std::string, std::string>&) final {
    check_words();
    const std::string file = file_of_case();  // which only the job's nodes may have
    if (file.empty() || Env::posix().status(file)) check_case();
  }

  int run(Console& console) final {
    check_words();
    output_.check();
    check_case();
    OperatorBenchmarkOptions options{
        .dtype = device_.compute(), .fp8 = device_.fp8(), .fp4 = device_.fp4(), .seconds = seconds_};
    const DeviceSpec spec = device_.spec(console);
    const BenchmarkReport result = measured(console, [&](const DeviceTimer::Progress& progress) {
      options.progress = progress;
      return report(spec, options);
    });
    return output_.finish(result, console);
  }

 private:
  // Mistakes that are ones on every machine.
  void check_words() {
    device_.check_words();
    output_.check_words();
    check_seconds(seconds_);
  }

  virtual void declare_case(Arguments& args) = 0;
  virtual void declare_output(Arguments& args, BenchmarkOutput& output) { output.declare(args); }
  virtual void check_case() {}
  virtual std::string file_of_case() const { return {}; }  // that check_case() reads; empty: none
  virtual MeasuredTypes types() const { return {}; }
  virtual BenchmarkReport report(const DeviceSpec& spec, const OperatorBenchmarkOptions& options) {
    return measure(*turbo::open_device(spec), options);
  }
  virtual BenchmarkReport measure(Device& device, const OperatorBenchmarkOptions& options) = 0;

  DeviceOptions device_;
  double seconds_ = 0.5;
  BenchmarkOutput output_;
};

class BenchmarkGemm final : public BenchmarkOperator {
  void declare_case(Arguments& args) override {
    args.option("--shape", "MxNxK", &shapes_, "rows, outputs and inputs of a layer; may be given again");
    args.option("--M,-M", "N", &m_, "rows: with --N and --K another way to give one shape");
    args.option("--N,-N", "N", &n_, "outputs");
    args.option("--K,-K", "N", &k_, "inputs");
    args.refuse("--trans_a,--trans_b",
                "every layout that a layer needs is measured: its forward product and both gradients",
                "leave it out, and read the line of the layout that you want");
  }
  void check_case() override {
    if (m_ || n_ || k_) {
      constexpr std::int64_t kUsual = 4096;  // Primus's default of each
      shapes_.push_back(
          fmt::format("{}x{}x{}", m_.value_or(kUsual), n_.value_or(kUsual), k_.value_or(kUsual)));
    }
    for (const std::string& shape : shapes_) cases_.push_back(parse_gemm_case(shape));
  }
  MeasuredTypes types() const override { return {.fp16 = true, .fp8 = true, .fp4 = true}; }
  BenchmarkReport measure(Device& device, const OperatorBenchmarkOptions& options) override {
    if (cases_.empty() && device.synchronous()) cases_ = {{512, 768, 768}, {2048, 2048, 2048}};
    // A Llama of 8B: fused projections, output, gate and up, down.
    if (cases_.empty())
      cases_ = {{8192, 6144, 4096}, {8192, 4096, 4096}, {8192, 28672, 4096}, {8192, 4096, 14336}};
    return benchmark_gemm(device, cases_, options);
  }

  std::vector<std::string> shapes_;
  std::optional<std::int64_t> m_, n_, k_;
  std::vector<GemmCase> cases_;
};

// Primus's name of a model as our preset's: "Llama3.1_8B", "mistral_8x7B", "Deepseek_V2_Lite".
std::string preset_of(const std::string& name) {
  constexpr std::pair<const char*, const char*> kNames[] = {{"v2_lite", "deepseek_v2_lite"},
                                                            {"v2", "deepseek_v2"},
                                                            {"v3", "deepseek_v3"},
                                                            {"mistral_8x7b", "mixtral_8x7B"},
                                                            {"mistral_8x22b", "mixtral_8x22B"},
                                                            {"llama2_7b", "llama2_7B"},
                                                            {"llama2_70b", "llama2_70B"},
                                                            {"llama3_8b", "llama3_8B"},
                                                            {"llama3_70b", "llama3_70B"},
                                                            {"llama3.1_8b", "llama3.1_8B"},
                                                            {"llama3.1_70b", "llama3.1_70B"},
                                                            {"llama3.1_405b", "llama3.1_405B"},
                                                            {"deepseek_v2_lite", "deepseek_v2_lite"},
                                                            {"deepseek_v2", "deepseek_v2"},
                                                            {"deepseek_v3", "deepseek_v3"}};
  std::string small = name;
  std::transform(small.begin(), small.end(), small.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const auto& [theirs, ours] : kNames)
    if (small == theirs) return ours;
  return name;
}

// "a,b" as its words; empty ones are left out.
std::vector<std::string> words_of(const std::string& list) {
  std::vector<std::string> words;
  for (std::size_t at = 0; at <= list.size();) {
    const std::size_t end = std::min(list.find(',', at), list.size());
    if (end > at) words.push_back(list.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

// "1,2,4": numbers of sequences.
std::vector<std::int64_t> parse_batches(const std::string& list) {
  constexpr std::int64_t kMostSequences = 1 << 12;
  std::vector<std::int64_t> batches;
  for (std::size_t at = 0; at <= list.size();) {
    const std::size_t end = std::min(list.find(',', at), list.size());
    const std::string word = list.substr(at, end - at);
    at = end + 1;
    std::int64_t value = 0;
    const auto [rest, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || rest != word.data() + word.size() || value < 1 || value > kMostSequences)
      throw invalid(fmt::format("--mbs-list {}: '{}' is no number of sequences from 1 to {}", list, word,
                                kMostSequences),
                    "write whole numbers with commas between: 1,2,4");
    batches.push_back(value);
  }
  return batches;
}

// The products of a model's layers, by its preset, folder or sizes.
class BenchmarkModelGemm : public BenchmarkOperator {
 public:
  // One size that may stand in place of the model's.
  struct Size {
    const char *names, *help;
    void (*set)(ModelConfig& config, std::int64_t value);
    std::int64_t least = 1;
  };

  BenchmarkModelGemm(const char* suite, std::string model, std::span<const Size> sizes)
      : suite_(suite), model_(std::move(model)), sizes_(sizes), given_(sizes.size()) {}

 private:
  static constexpr std::int64_t kMost = 1 << 20;

  void declare_case(Arguments& args) final {
    args.option("--model", "MODEL", &model_,
                "a preset (llama3.1_8B; Primus's names too), a Hugging Face folder, or a run's folder")
        .reads = folders_among;
    args.option("--mbs,--micro-batch-size", "N", &batch_, "sequences of a microbatch");
    args.option("--seqlen,--seq-length", "N", &sequence_,
                "tokens of a sequence (default: what the model takes, up to 4096)");
    for (std::size_t i = 0; i < sizes_.size(); ++i)
      args.option(sizes_[i].names, "N", &given_[i], sizes_[i].help);
  }
  // As Primus's suites name their reports.
  void declare_output(Arguments& args, BenchmarkOutput& output) final {
    output.declare(args, "--output,--output-file", suite_ + "_report.md");
  }
  std::string file_of_case() const final { return names_a_preset(model_) ? "" : model_; }
  void check_case() final {
    const FamilyRegistry families = builtin_families();
    std::optional<std::int64_t> vocabulary;  // presets may leave it to a tokenizer
    for (std::size_t i = 0; i < sizes_.size(); ++i)
      if (name_of(sizes_[i]) == "--vocab-size") vocabulary = given_[i];
    ModelConfig config = names_a_preset(model_) ? preset_model(preset_of(model_), families, vocabulary)
                                                : load_model_config(find_model_folder(model_), families);
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      if (!given_[i]) continue;
      if (*given_[i] < sizes_[i].least || *given_[i] > kMost)
        throw invalid(fmt::format("{} must be from {} to {}", name_of(sizes_[i]), sizes_[i].least, kMost));
      sizes_[i].set(config, *given_[i]);
    }
    const std::int64_t length = sequence_.value_or(std::min<std::int64_t>(config.max_positions, 4096));
    if (batch_ < 1 || batch_ > kMost || length < 1 || length > kMost || batch_ * length > kMost)
      throw invalid(
          fmt::format("{} sequences of {} tokens: not from 1 to {} tokens together", batch_, length, kMost));
    check_experts(config);
    products_ = products_of(config, batch_ * length);
    // A size that decides no product is a mistake: the model has no such layers.
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      if (!given_[i]) continue;
      ModelConfig other = config;
      sizes_[i].set(other, *given_[i] + 1);
      if (products_of(other, batch_ * length) == products_)
        throw invalid(fmt::format("{}: '{}' has no product of that size", name_of(sizes_[i]), model_),
                      "leave it out, or choose another --model");
    }
  }
  MeasuredTypes types() const final { return {.fp16 = true, .fp8 = true, .fp4 = true}; }
  BenchmarkReport measure(Device& device, const OperatorBenchmarkOptions& options) final {
    return benchmark_model_gemm(device, suite_, products_, options);
  }

  // Sizes that stand in place of a model's may leave its experts without others.
  static void check_experts(const ModelConfig& config) {
    if (config.moe.experts < 1) return;
    if (config.moe.ffn < 1)
      throw invalid(
          fmt::format("there are {} experts for a token to go to, without a size", config.moe.experts),
          "give --moe-intermediate-size, too");
    const std::int64_t top_k = config.moe.router.top_k;
    if (top_k < 1 || top_k > config.moe.experts)
      throw invalid(fmt::format("a token cannot go to {} of {} experts", top_k, config.moe.experts),
                    "choose --num-experts-per-tok from 1 to --n-routed-experts");
  }

  static std::string_view name_of(const Size& size) {
    const std::string_view names = size.names;
    return names.substr(0, names.find(','));
  }

  std::string suite_, model_;
  std::span<const Size> sizes_;
  std::vector<std::optional<std::int64_t>> given_;
  std::int64_t batch_ = 1;
  std::optional<std::int64_t> sequence_;
  std::vector<ModelProduct> products_;
};

constexpr BenchmarkModelGemm::Size kDenseSizes[] = {
    {"--hidden-size,--hidden_size", "in place of the model's",
     [](ModelConfig& c, std::int64_t n) { c.hidden = n; }},
    {"--intermediate-size,--intermediate_size", "of the feed-forward, likewise",
     [](ModelConfig& c, std::int64_t n) { c.ffn = n; }},
    {"--num-attention-heads,--num_attention_heads", "likewise",
     [](ModelConfig& c, std::int64_t n) { c.heads = n; }},
    {"--num-key-value-heads,--num_key_value_heads", "likewise",
     [](ModelConfig& c, std::int64_t n) { c.kv_heads = n; }},
    {"--head-dim,--head_dim", "likewise", [](ModelConfig& c, std::int64_t n) { c.head_dim = n; }},
    {"--vocab-size,--vocab_size", "likewise", [](ModelConfig& c, std::int64_t n) { c.vocab = n; }}};

class BenchmarkGemmDense final : public BenchmarkModelGemm {
 public:
  BenchmarkGemmDense() : BenchmarkModelGemm("gemm-dense", "llama3.1_8B", kDenseSizes) {}
};

constexpr BenchmarkModelGemm::Size kDeepseekSizes[] = {
    {"--hidden-size,--hidden_size", "in place of the model's",
     [](ModelConfig& c, std::int64_t n) { c.hidden = n; }},
    {"--intermediate-size,--intermediate_size", "of the dense layers' feed-forward, likewise",
     [](ModelConfig& c, std::int64_t n) { c.ffn = n; }},
    {"--moe-intermediate-size,--moe_intermediate_size", "of an expert, routed or shared",
     [](ModelConfig& c, std::int64_t n) {
       if (c.moe.ffn > 0) c.moe.shared_ffn = c.moe.shared_ffn / c.moe.ffn * n;
       c.moe.ffn = n;
     }},
    {"--n-routed-experts,--n_routed_experts", "experts of a layer",
     [](ModelConfig& c, std::int64_t n) { c.moe.experts = n; }},
    {"--num-experts-per-tok,--num_experts_per_tok", "of them, those that a token goes to",
     [](ModelConfig& c, std::int64_t n) { c.moe.router.top_k = static_cast<std::int32_t>(n); }},
    {"--n-shared-experts,--n_shared_experts", "experts that all tokens go to; 0: none",
     [](ModelConfig& c, std::int64_t n) { c.moe.shared_ffn = n * c.moe.ffn; }, 0},
    {"--num-attention-heads,--num_attention_heads", "heads",
     [](ModelConfig& c, std::int64_t n) { c.heads = n; }},
    {"--kv-lora-rank,--kv_lora_rank", "width of the latent of keys and values",
     [](ModelConfig& c, std::int64_t n) { c.attention.latent.kv_rank = n; }},
    {"--q-lora-rank,--q_lora_rank", "width of the queries' latent; 0: there is none",
     [](ModelConfig& c, std::int64_t n) { c.attention.latent.q_rank = n; }, 0},
    {"--qk-nope-head-dim,--qk_nope_head_dim", "of queries and keys per head, without positions",
     [](ModelConfig& c, std::int64_t n) { c.attention.latent.nope_dim = n; }},
    {"--qk-rope-head-dim,--qk_rope_head_dim", "... and with positions",
     [](ModelConfig& c, std::int64_t n) { c.attention.latent.rope_dim = n; }},
    {"--v-head-dim,--v_head_dim", "of values per head",
     [](ModelConfig& c, std::int64_t n) { c.attention.latent.value_dim = n; }},
    {"--vocab-size,--vocab_size", "rows of the head", [](ModelConfig& c, std::int64_t n) { c.vocab = n; }}};

class BenchmarkGemmDeepseek final : public BenchmarkModelGemm {
 public:
  BenchmarkGemmDeepseek() : BenchmarkModelGemm("gemm-deepseek", "deepseek_v2_lite", kDeepseekSizes) {}
};

class BenchmarkAttention final : public BenchmarkOperator {
  void declare_case(Arguments& args) override {
    args.option("--batch", "N", &batch_, "sequences (default: 1)");
    args.option("--mbs-list", "LIST", &batches_, "several numbers of them, each measured: 1,2,4");
    args.option("--seq-length", "N", &sequence_, "tokens of a sequence (default: 4096)");
    args.option("--heads", "N", &heads_, "query heads (default: 32)");
    args.option("--kv-heads", "N", &kv_heads_, "key/value heads (default: 8)");
    args.option("--head-dim", "N", &head_dim_, "elements of a head (default: 128)");
    args.option("--window", "N", &window_, "keys that a query sees at most; 0: all (the default)");
    args.flag("--full", full_, "queries see keys behind them, too");
    args.option("--models", "LIST", &models_,
                "in place of these sizes: those of models, by Primus's names, of presets, or in the file of "
                "--shapes-json-path; all: each of Primus's table or of that file");
    args.option("--skip-models", "LIST", &skipped_, "names to leave out of these");
    args.option("--shapes-json-path", "FILE", &shapes_file_, "shapes, in Primus's form").reads = all_of_them;
    Argument& backend = args.option(
        "--backend", "NAME", &backend_,
        "who computes: own (flash, by Primus's name: our kernels), cudnn, auto (cudnn where it takes the "
        "case) or all, one after the other");
    backend.choices = {"auto", "own", "flash", "cudnn", "all"};
    backend.refused = {{"ck",
                        "Primus runs the programs of Composable Kernel's examples for it, which are not part "
                        "of this program",
                        "take own, or auto"}};
  }

  void declare_output(Arguments& args, BenchmarkOutput& output) override {
    output.declare(args, "--output,--output-file,--report-csv-path");
  }
  MeasuredTypes types() const override { return {.fp16 = true}; }
  std::string file_of_case() const override { return shapes_file_; }

  void check_case() override {
    const bool named = !models_.empty() || !shapes_file_.empty();
    const bool sized = sequence_ || heads_ || kv_heads_ || head_dim_ || window_ || full_;
    if (named && sized)
      throw invalid("--models and --shapes-json-path give the sizes themselves",
                    "leave out --seq-length, --heads, --kv-heads, --head-dim, --window and --full");
    if (!skipped_.empty() && !named)
      throw invalid("--skip-models leaves out models that nobody named",
                    "give --models or --shapes-json-path with it");
    if (batch_ && !batches_.empty())
      throw invalid("--batch and --mbs-list exclude each other", "leave out one of them");
    std::vector<std::int64_t> batches{batch_.value_or(1)};
    if (!batches_.empty()) batches = parse_batches(batches_);
    const std::vector<AttentionCase> shapes = named ? named_shapes() : std::vector{sized_shape()};
    for (const AttentionCase& shape : shapes) {
      for (const std::int64_t batch : batches) {
        cases_.push_back(shape);
        cases_.back().batch = batch;
        primus::check_case(cases_.back());
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
    constexpr std::uint64_t kMostFileBytes = 16 << 20;
    const std::vector<AttentionCase> known =
        shapes_file_.empty()
            ? usual_attention_shapes()
            : read_attention_shapes(read_file(shapes_file_, kMostFileBytes), shapes_file_, left_out_);
    if (known.empty())
      throw invalid(fmt::format("'{}' has no shape to measure", shapes_file_),
                    left_out_.empty() ? "its list is empty: docs/benchmarks.md has an example of such a file"
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
          throw invalid(fmt::format("--models: '{}' has no model '{}' to measure", shapes_file_, name),
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
      throw invalid(fmt::format("--skip-models: there is no model '{}' to leave out", name),
                    why_not(name, all));
    }
    std::erase_if(chosen, [&](const AttentionCase& shape) {
      return std::find(skipped.begin(), skipped.end(), shape.model) != skipped.end();
    });
    if (chosen.empty()) throw invalid("no shape is left to measure", "see --models and --skip-models");
    return chosen;
  }

  // What to do about a name that is not among `shapes`.
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

  BenchmarkReport report(const DeviceSpec& given, const OperatorBenchmarkOptions& options) override {
    DeviceSpec spec = given;
    const bool has_library = spec.kind == "cuda";
    if (backend_ == "cudnn" && !has_library)
      throw invalid(fmt::format("--backend cudnn: the device '{}' has no cuDNN", spec.kind),
                    "take --backend own, or --device cuda");
    const bool own = backend_ == "own" || backend_ == "flash";
    spec.attention_library = !own;
    BenchmarkReport all = measure(*turbo::open_device(spec), options);
    if (backend_ == "all" && has_library) {
      spec.attention_library = false;
      prefix_ = "own, ";
      BenchmarkReport other = measure(*turbo::open_device(spec), options);
      for (BenchmarkResult& result : all.results) result.name = "cudnn, " + result.name;
      std::move(other.results.begin(), other.results.end(), std::back_inserter(all.results));
      std::move(other.notes.begin(), other.notes.end(), std::back_inserter(all.notes));
    }
    for (std::size_t i = 0; i < left_out_.size(); ++i)
      all.notes.insert(all.notes.begin() + static_cast<std::ptrdiff_t>(i), left_out_[i].why);
    return all;
  }

  BenchmarkReport measure(Device& device, const OperatorBenchmarkOptions& options) override {
    BenchmarkReport report = benchmark_attention(device, cases_, options, prefix_);
    // What the library did not take was done by our kernels.
    if (backend_ == "cudnn" || (backend_ == "all" && prefix_.empty())) {
      for (const KernelChoice& choice : device.choices())
        if (choice.what.starts_with("attention") && choice.what.find("own kernel") != std::string::npos)
          throw invalid(fmt::format("--backend {}: {}", backend_, choice.what),
                        "take --backend own, or auto");
    }
    return report;
  }

  static constexpr std::int64_t kAnyVocabulary = 1024;  // which attention does not depend on
  std::optional<std::int64_t> batch_, sequence_, heads_, kv_heads_, head_dim_, window_;
  bool full_ = false;
  std::string batches_, models_, skipped_, shapes_file_, backend_ = "auto", prefix_;
  std::vector<AttentionCase> cases_;
  std::vector<LeftOutShape> left_out_;
};

class BenchmarkGroupedGemm final : public BenchmarkOperator {
  void declare_case(Arguments& args) override {
    args.option("--tokens", "N", &which_.tokens, "tokens");
    args.option("--experts", "N", &which_.experts, "experts");
    args.option("--top-k", "N", &which_.top_k, "experts of each token");
    args.option("--in", "N", &which_.in, "inputs of an expert's layer");
    args.option("--out", "N", &which_.out, "its outputs");
    args.option("--skew", "SHARE", &skew_,
                "share of the rows that the first eighth of the experts gets (default: even)");
  }
  void check_case() override {
    if (skew_ && !(*skew_ >= 0 && *skew_ <= 1)) throw invalid("--skew must be from 0 to 1");
    if (skew_) which_.skew = *skew_;
    primus::check_case(which_);
  }
  BenchmarkReport measure(Device& device, const OperatorBenchmarkOptions& options) override {
    return benchmark_grouped_gemm(device, which_, options);
  }

  GroupedGemmCase which_;
  std::optional<double> skew_;
};

#define PRIMUS_BENCHMARK_DETAILS                                                                          \
  "Operands are random, and those of consecutive calls lie in different memory, more than caches hold.\n" \
  "Rates are compared with a large square product and a copy that are measured in the same run. Bytes\n"  \
  "count every operand and result once. The median of the samples is shown, the fastest, and the 95th\n"  \
  "percentile.\n\n" PRIMUS_BASELINE_HELP
#define PRIMUS_FP8_DETAILS                                                                                 \
  "In fp8 each product is measured twice: from operands in bf16, which are quantised with one scale for\n" \
  "each tensor, and of operands that were quantised before. The large product is one in fp8, too. Sizes\n" \
  "are multiples of 16, and experts are left out, as they are in fp16. In fp4 (MXFP4) each product is\n"   \
  "measured from operands in bf16, and what rounds them by itself, too; it is bf16's of their numbers."

}  // namespace

extern const CommandEntry kBenchmarkGemm{
    "benchmark gemm",
    "Times the matrix products of linear layers",
    "Each shape is measured as forward product, input gradient and weight gradient, which adds into fp32.\n"
    "\n" PRIMUS_BENCHMARK_DETAILS "\n\n" PRIMUS_FP8_DETAILS,
    "primus benchmark gemm --device cuda --dtype bf16\n"
    "primus benchmark gemm --shape 2048x4096x1024 --shape 512x512x512 --json\n"
    "primus benchmark gemm --M 4096 --N 4096 --K 4096 --output gemm.html\n"
    "primus benchmark gemm --device cuda --dtype fp8\n"
    "primus benchmark gemm --device cuda --dtype fp4\n"
    "primus benchmark gemm --baseline save before.json\n"
    "primus benchmark gemm --baseline compare before.json",
    make_command<BenchmarkGemm>,
    {Section::kBenchmark, 2}};

extern const CommandEntry kBenchmarkGemmDense{
    "benchmark gemm-dense",
    "Times the matrix products of a model's layers",
    "Attention's projections, the feed-forward and the head, each as forward product, input gradient and\n"
    "weight gradient; of a mixture of experts the experts' products, too. Sizes replace the model's.\n"
    "\n" PRIMUS_BENCHMARK_DETAILS "\n\n" PRIMUS_FP8_DETAILS,
    "primus benchmark gemm-dense --model llama3.1_8B --device cuda --dtype bf16\n"
    "primus benchmark gemm-dense --model qwen2.5_0.5B --mbs 1 --seqlen 512 --output gemm.html\n"
    "primus benchmark gemm-dense --model Llama2_70B --mbs 4 --seqlen 4096 --csv",
    make_command<BenchmarkGemmDense>,
    {Section::kBenchmark, 3}};

extern const CommandEntry kBenchmarkGemmDeepseek{
    "benchmark gemm-deepseek",
    "Times the matrix products of DeepSeek's layers: latent attention, experts",
    "The steps of latent attention, dense, routed and shared experts, and the head, each as forward "
    "product,\n"
    "input gradient and weight gradient. --model takes V2_Lite, V2, V3, and every preset or folder; sizes\n"
    "replace the model's.\n"
    "\n" PRIMUS_BENCHMARK_DETAILS "\n\n" PRIMUS_FP8_DETAILS,
    "primus benchmark gemm-deepseek --model V2_Lite --device cuda --dtype bf16\n"
    "primus benchmark gemm-deepseek --model V3 --mbs 1 --seqlen 4096 --output v3.csv --append\n"
    "primus benchmark gemm-deepseek --hidden-size 4096 --n-routed-experts 32 --moe-intermediate-size 2048",
    make_command<BenchmarkGemmDeepseek>,
    {Section::kBenchmark, 4}};

extern const CommandEntry kBenchmarkAttention{
    "benchmark attention",
    "Times attention, forward and backward",
    "Only scores that a query sees count as work. --shapes-json-path takes a JSON list of objects with "
    "model,\nseqlen_q, seqlen_kv, num_head_q, num_head_kv, head_dim_qk, head_dim_v and "
    "causal.\n\n" PRIMUS_BENCHMARK_DETAILS,
    "primus benchmark attention --device cuda --dtype bf16 --seq-length 8192\n"
    "primus benchmark attention --seq-length 512 --heads 8 --kv-heads 2 --head-dim 64 --csv\n"
    "primus benchmark attention --device cuda --dtype bf16 --models all --mbs-list 1,2,4 --backend all\n"
    "primus benchmark attention --models Llama3_8B,deepseek_v2_lite --report-csv-path attention.csv",
    make_command<BenchmarkAttention>,
    {Section::kBenchmark, 5}};

extern const CommandEntry kBenchmarkGroupedGemm{
    "benchmark grouped-gemm",
    "Times the matrix products of experts, beside dense ones of equal FLOPs",
    PRIMUS_BENCHMARK_DETAILS,
    "primus benchmark grouped-gemm --device cuda --dtype bf16\n"
    "primus benchmark grouped-gemm --experts 8 --top-k 2 --in 4096 --out 28672 --skew 0.5 --markdown",
    make_command<BenchmarkGroupedGemm>,
    {Section::kBenchmark, 6}};

}  // namespace primus::cli
