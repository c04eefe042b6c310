// primus benchmark gemm, gemm-dense, gemm-deepseek, attention, grouped-gemm
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "bench/model_shapes.h"
#include "bench/operator_benchmark.h"
#include "cli/benchmark/output.h"
#include "cli/commands.h"
#include "cli/options/device.h"
#include "cli/options/preset_model.h"
#include "lm/generate/model_folder.h"

namespace primus::cli {
namespace {

class BenchmarkOperator : public Command {
 public:
  void declare(Arguments& args) final {
    declare_case(args);
    args.option("--seconds,--duration", "S", &seconds_, "time for each measurement");
    device_.declare(args);
    output_.declare(args);
  }

  int run(Console& console) final {
    output_.check();
    check_case();
    const std::unique_ptr<Device> device = device_.make(console);
    return output_.finish(measure(*device, {.dtype = device_.compute(), .seconds = seconds_}), console);
  }

 private:
  virtual void declare_case(Arguments& args) = 0;
  virtual void check_case() {}
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

// The products of a model's layers, by its preset, folder or sizes.
class BenchmarkModelGemm : public BenchmarkOperator {
 public:
  BenchmarkModelGemm(const char* suite, std::string model) : suite_(suite), model_(std::move(model)) {}

 private:
  void declare_case(Arguments& args) final {
    args.option("--model", "MODEL", &model_,
                "a preset (llama3.1_8B; Primus's names too), a Hugging Face folder, or a run's folder");
    args.option("--mbs,--micro-batch-size", "N", &batch_, "sequences of a microbatch");
    args.option("--seqlen,--seq-length", "N", &sequence_,
                "tokens of a sequence (default: what the model takes, up to 4096)");
    declare_sizes(args);
  }
  void check_case() final {
    const FamilyRegistry families = builtin_families();
    ModelConfig config = names_a_preset(model_) ? preset_model(preset_of(model_), families, vocabulary())
                                                : load_model_config(find_model_folder(model_), families);
    change_sizes(config);
    const std::int64_t length = sequence_.value_or(std::min<std::int64_t>(config.max_positions, 4096));
    constexpr std::int64_t kMost = 1 << 20;
    if (batch_ < 1 || batch_ > kMost || length < 1 || length > kMost || batch_ * length > kMost)
      throw invalid(
          fmt::format("{} sequences of {} tokens: not from 1 to {} tokens together", batch_, length, kMost));
    products_ = products_of(config, batch_ * length);
  }
  BenchmarkReport measure(Device& device, const OperatorBenchmarkOptions& options) final {
    return benchmark_model_gemm(device, suite_, products_, options);
  }
  // Sizes in place of the model's.
  virtual void declare_sizes(Arguments&) {}
  virtual void change_sizes(ModelConfig&) {}
  virtual std::optional<std::int64_t> vocabulary() const { return std::nullopt; }

  // Primus's name of a model as our preset's: "Llama3.1_8B", "Mistral_8x7B", "V2_Lite".
  static std::string preset_of(std::string name) {
    constexpr std::pair<const char*, const char*> kNames[] = {{"V2_Lite", "deepseek_v2_lite"},
                                                              {"V2", "deepseek_v2"},
                                                              {"V3", "deepseek_v3"},
                                                              {"Mistral_8x7B", "mixtral_8x7B"},
                                                              {"Mistral_8x22B", "mixtral_8x22B"}};
    for (const auto& [theirs, ours] : kNames)
      if (name == theirs) return ours;
    if (name.starts_with("Llama")) name[0] = 'l';
    return name;
  }

  std::string suite_, model_;
  std::int64_t batch_ = 1;
  std::optional<std::int64_t> sequence_;
  std::vector<ModelProduct> products_;
};

class BenchmarkGemmDense final : public BenchmarkModelGemm {
 public:
  BenchmarkGemmDense() : BenchmarkModelGemm("gemm-dense", "llama3.1_8B") {}

 private:
  void declare_sizes(Arguments& args) override {
    args.option("--hidden-size,--hidden_size", "N", &hidden_, "in place of the model's");
    args.option("--intermediate-size,--intermediate_size", "N", &ffn_, "of the feed-forward, likewise");
    args.option("--num-attention-heads,--num_attention_heads", "N", &heads_, "likewise");
    args.option("--num-key-value-heads,--num_key_value_heads", "N", &kv_heads_, "likewise");
    args.option("--head-dim,--head_dim", "N", &head_dim_, "likewise");
    args.option("--vocab-size,--vocab_size", "N", &vocab_, "likewise");
  }
  void change_sizes(ModelConfig& c) override {
    constexpr std::int64_t kMost = 1 << 20;
    const std::tuple<const char*, std::optional<std::int64_t>, std::int64_t*> sizes[] = {
        {"--hidden-size", hidden_, &c.hidden},       {"--intermediate-size", ffn_, &c.ffn},
        {"--num-attention-heads", heads_, &c.heads}, {"--num-key-value-heads", kv_heads_, &c.kv_heads},
        {"--head-dim", head_dim_, &c.head_dim},      {"--vocab-size", vocab_, &c.vocab}};
    for (const auto& [name, value, place] : sizes) {
      if (!value) continue;
      if (*value < 1 || *value > kMost) throw invalid(fmt::format("{} must be from 1 to {}", name, kMost));
      *place = *value;
    }
  }

  std::optional<std::int64_t> vocabulary() const override { return vocab_; }

  std::optional<std::int64_t> hidden_, ffn_, heads_, kv_heads_, head_dim_, vocab_;
};

class BenchmarkGemmDeepseek final : public BenchmarkModelGemm {
 public:
  BenchmarkGemmDeepseek() : BenchmarkModelGemm("gemm-deepseek", "deepseek_v2_lite") {}
};

class BenchmarkAttention final : public BenchmarkOperator {
  void declare_case(Arguments& args) override {
    args.option("--batch", "N", &which_.batch, "sequences");
    args.option("--seq-length", "N", &which_.sequence, "tokens of a sequence");
    args.option("--heads", "N", &which_.heads, "query heads");
    args.option("--kv-heads", "N", &which_.kv_heads, "key/value heads");
    args.option("--head-dim", "N", &which_.head_dim, "elements of a head");
    args.option("--window", "N", &which_.window, "keys that a query sees at most; 0: all");
    args.flag("--full", full_, "queries see keys behind them, too");
  }
  BenchmarkReport measure(Device& device, const OperatorBenchmarkOptions& options) override {
    which_.causal = !full_;
    return benchmark_attention(device, which_, options);
  }

  AttentionCase which_;
  bool full_ = false;
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
    if (!skew_) return;
    if (!(*skew_ >= 0 && *skew_ <= 1)) throw invalid("--skew must be from 0 to 1");
    which_.skew = *skew_;
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

}  // namespace

const CommandEntry kBenchmarkGemm{
    "benchmark gemm", "Times the matrix products of linear layers",
    "Each shape is measured as forward product, input gradient and weight gradient, which adds into fp32.\n"
    "\n" PRIMUS_BENCHMARK_DETAILS,
    "primus benchmark gemm --device cuda --dtype bf16\n"
    "primus benchmark gemm --shape 2048x4096x1024 --shape 512x512x512 --json\n"
    "primus benchmark gemm --M 4096 --N 4096 --K 4096 --output gemm.html\n"
    "primus benchmark gemm --baseline save before.json\n"
    "primus benchmark gemm --baseline compare before.json",
    make_command<BenchmarkGemm>};

const CommandEntry kBenchmarkGemmDense{
    "benchmark gemm-dense", "Times the matrix products of a model's layers",
    "Attention's projections, the feed-forward and the head, each as forward product, input gradient and\n"
    "weight gradient; of a mixture of experts the experts' products, too. Sizes replace the model's.\n"
    "\n" PRIMUS_BENCHMARK_DETAILS,
    "primus benchmark gemm-dense --model llama3.1_8B --device cuda --dtype bf16\n"
    "primus benchmark gemm-dense --model qwen2.5_0.5B --mbs 1 --seqlen 512 --output gemm.html\n"
    "primus benchmark gemm-dense --model Llama2_70B --mbs 4 --seqlen 4096 --csv",
    make_command<BenchmarkGemmDense>};

const CommandEntry kBenchmarkGemmDeepseek{
    "benchmark gemm-deepseek", "Times the matrix products of DeepSeek's layers: latent attention, experts",
    "The steps of latent attention, dense, routed and shared experts, and the head, each as forward "
    "product,\n"
    "input gradient and weight gradient. --model takes V2_Lite, V2, V3, and every preset or folder.\n"
    "\n" PRIMUS_BENCHMARK_DETAILS,
    "primus benchmark gemm-deepseek --model V2_Lite --device cuda --dtype bf16\n"
    "primus benchmark gemm-deepseek --model V3 --mbs 1 --seqlen 4096 --output v3.csv --append",
    make_command<BenchmarkGemmDeepseek>};

const CommandEntry kBenchmarkAttention{
    "benchmark attention", "Times attention, forward and backward",
    "Only scores that a query sees count as work.\n\n" PRIMUS_BENCHMARK_DETAILS,
    "primus benchmark attention --device cuda --dtype bf16 --seq-length 8192\n"
    "primus benchmark attention --seq-length 512 --heads 8 --kv-heads 2 --head-dim 64 --csv",
    make_command<BenchmarkAttention>};

const CommandEntry kBenchmarkGroupedGemm{
    "benchmark grouped-gemm", "Times the matrix products of experts, beside dense ones of equal FLOPs",
    PRIMUS_BENCHMARK_DETAILS,
    "primus benchmark grouped-gemm --device cuda --dtype bf16\n"
    "primus benchmark grouped-gemm --experts 8 --top-k 2 --in 4096 --out 28672 --skew 0.5 --markdown",
    make_command<BenchmarkGroupedGemm>};

}  // namespace primus::cli
