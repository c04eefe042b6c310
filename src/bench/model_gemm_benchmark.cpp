// The benchmarks gemm-dense and gemm-deepseek, which time the matrix products of a model's layers
// (operator_benchmark.h). Options can override the model's sizes.
#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "base/error.h"
#include "bench/benchmark_entry.h"
#include "bench/model_shapes.h"
#include "bench/operator_benchmark.h"
#include "lm/generate/model_folder.h"
#include "lm/generate/preset_model.h"
#include "lm/model/blocks/layers.h"
#include "lm/model/blocks/mixture_of_experts.h"

namespace primus {
namespace {

// Times the matrix products of a model's layers. The user gives a preset, a folder, or sizes.
class ModelGemmBenchmark : public DeviceBenchmark {
 public:
  // A size option that can replace the model's size.
  struct Size {
    const char *names, *help;
    void (*set)(ModelConfig& config, std::int64_t value);
    std::int64_t minimum = 1;
  };

  ModelGemmBenchmark(const char* suite, std::string model, std::span<const Size> sizes)
      : suite_(suite), model_(std::move(model)), sizes_(sizes), given_(sizes.size()) {}

 private:
  static constexpr std::int64_t kMax = 1 << 20;

  std::vector<BenchmarkOption> options() final {
    std::vector<BenchmarkOption> all = {
        {.names = "--model",
         .value = "MODEL",
         .help = "a preset (llama3.1_8B, or AMD Primus's name of it), a Hugging Face folder, or the folder "
                 "of a run",
         .target = &model_,
         .reads = folders_among},
        {"--mbs,--micro-batch-size", "N", "sequences of a microbatch", &batch_},
        {"--seqlen,--seq-length", "N", "tokens per sequence (default: the model's maximum, up to 4096)",
         &sequence_}};
    for (std::size_t i = 0; i < sizes_.size(); ++i)
      all.push_back({sizes_[i].names, "N", sizes_[i].help, &given_[i]});
    return all;
  }
  std::string input() const final { return names_a_preset(model_) ? "" : model_; }
  void prepare() final {
    const FamilyRegistry families = builtin_families();
    std::optional<std::int64_t> vocabulary;  // the vocabulary size, which presets may leave to the tokenizer
    for (std::size_t i = 0; i < sizes_.size(); ++i)
      if (name_of(sizes_[i]) == "--vocab-size") vocabulary = given_[i];
    ModelConfig config = names_a_preset(model_) ? preset_model(preset_of(model_), families, vocabulary)
                                                : load_model_config(find_model_folder(model_), families);
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      if (!given_[i]) continue;
      if (*given_[i] < sizes_[i].minimum || *given_[i] > kMax)
        throw invalid(fmt::format("{} must be from {} to {}", name_of(sizes_[i]), sizes_[i].minimum, kMax));
      sizes_[i].set(config, *given_[i]);
    }
    const std::int64_t length = sequence_.value_or(std::min<std::int64_t>(config.max_positions, 4096));
    if (batch_ < 1 || batch_ > kMax || length < 1 || length > kMax || batch_ * length > kMax)
      throw invalid(fmt::format("{} sequences of {} tokens: their total must be from 1 to {} tokens", batch_,
                                length, kMax));
    check_experts(config);
    products_ = products_of(config, batch_ * length);
    // Refuses to override a size that no product uses: the model has no layer with this size.
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      if (!given_[i]) continue;
      ModelConfig other = config;
      sizes_[i].set(other, *given_[i] + 1);
      if (products_of(other, batch_ * length) == products_)
        throw invalid(fmt::format("{}: '{}' has no product of that size", name_of(sizes_[i]), model_),
                      "remove the option, or choose another --model");
    }
  }
  BenchmarkReport measure_on(Device& device, const OperatorBenchmarkOptions& options) final {
    return benchmark_model_gemm(device, suite_, products_, options);
  }

  // Checks sizes of experts, because options may set the number of experts without the other sizes.
  static void check_experts(const ModelConfig& config) {
    if (config.moe.experts < 1) return;
    if (config.moe.ffn < 1)
      throw invalid(fmt::format("the model has {} routed experts, but no size for them", config.moe.experts),
                    "set --moe-intermediate-size");
    const std::int64_t top_k = config.moe.router.top_k;
    if (top_k < 1 || top_k > config.moe.experts)
      throw invalid(fmt::format("a token cannot use {} of {} experts", top_k, config.moe.experts),
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

constexpr ModelGemmBenchmark::Size kDenseSizes[] = {
    {"--hidden-size,--hidden_size", "hidden size, instead of the model's",
     [](ModelConfig& c, std::int64_t n) { c.hidden = n; }},
    {"--intermediate-size,--intermediate_size", "width of the feed-forward, instead of the model's",
     [](ModelConfig& c, std::int64_t n) { c.ffn = n; }},
    {"--num-attention-heads,--num_attention_heads", "query heads, instead of the model's",
     [](ModelConfig& c, std::int64_t n) { c.heads = n; }},
    {"--num-key-value-heads,--num_key_value_heads", "key heads, instead of the model's",
     [](ModelConfig& c, std::int64_t n) { c.kv_heads = n; }},
    {"--head-dim,--head_dim", "width of a head, instead of the model's",
     [](ModelConfig& c, std::int64_t n) { c.head_dim = n; }},
    {"--vocab-size,--vocab_size", "vocabulary, instead of the model's",
     [](ModelConfig& c, std::int64_t n) { c.vocab = n; }}};

class GemmDenseBenchmark final : public ModelGemmBenchmark {
 public:
  GemmDenseBenchmark() : ModelGemmBenchmark("gemm-dense", "llama3.1_8B", kDenseSizes) {}
};

constexpr ModelGemmBenchmark::Size kDeepseekSizes[] = {
    {"--hidden-size,--hidden_size", "hidden size, instead of the model's",
     [](ModelConfig& c, std::int64_t n) { c.hidden = n; }},
    {"--intermediate-size,--intermediate_size",
     "width of the feed-forward in dense layers, instead of the model's",
     [](ModelConfig& c, std::int64_t n) { c.ffn = n; }},
    {"--moe-intermediate-size,--moe_intermediate_size", "width of an expert, routed or shared",
     [](ModelConfig& c, std::int64_t n) {
       if (c.moe.ffn > 0) c.moe.shared_ffn = c.moe.shared_ffn / c.moe.ffn * n;
       c.moe.ffn = n;
     }},
    {"--n-routed-experts,--n_routed_experts", "routed experts per layer",
     [](ModelConfig& c, std::int64_t n) {
       if (c.moe.experts == 0) c.set_layers(&LayerSpec::feed_forward, &kMixture);
       c.moe.experts = n;
     }},
    {"--num-experts-per-tok,--num_experts_per_tok", "routed experts per token",
     [](ModelConfig& c, std::int64_t n) { c.moe.router.top_k = static_cast<std::int32_t>(n); }},
    {"--n-shared-experts,--n_shared_experts", "experts that process every token; 0: none",
     [](ModelConfig& c, std::int64_t n) { c.moe.shared_ffn = n * c.moe.ffn; }, 0},
    {"--num-attention-heads,--num_attention_heads", "heads",
     [](ModelConfig& c, std::int64_t n) { c.heads = n; }},
    {"--kv-lora-rank,--kv_lora_rank", "width of the latent of keys and values",
     [](ModelConfig& c, std::int64_t n) {
       if (!c.any_keeps(Keeps::kLatents)) c.set_layers(&LayerSpec::attention, &kLatentAttention);
       c.attention.latent.kv_rank = n;
     }},
    {"--q-lora-rank,--q_lora_rank", "width of the queries' latent; 0: no latent",
     [](ModelConfig& c, std::int64_t n) { c.attention.latent.q_rank = n; }, 0},
    {"--qk-nope-head-dim,--qk_nope_head_dim", "columns of queries and keys per head without positions",
     [](ModelConfig& c, std::int64_t n) { c.attention.latent.nope_dim = n; }},
    {"--qk-rope-head-dim,--qk_rope_head_dim", "columns of queries and keys per head with positions",
     [](ModelConfig& c, std::int64_t n) { c.attention.latent.rope_dim = n; }},
    {"--v-head-dim,--v_head_dim", "columns of values per head",
     [](ModelConfig& c, std::int64_t n) { c.attention.latent.value_dim = n; }},
    {"--vocab-size,--vocab_size", "rows of the head", [](ModelConfig& c, std::int64_t n) { c.vocab = n; }}};

class GemmDeepseekBenchmark final : public ModelGemmBenchmark {
 public:
  GemmDeepseekBenchmark() : ModelGemmBenchmark("gemm-deepseek", "deepseek_v2_lite", kDeepseekSizes) {}
};

}  // namespace

// `appended` is the file name that AMD Primus's suite uses.
extern const BenchmarkEntry kGemmDenseEntry{.name = "gemm-dense",
                                            .make = make_benchmark<GemmDenseBenchmark>,
                                            .subject = BenchmarkSubject::kDevice,
                                            .seconds = 0.5,
                                            .types = MeasuredTypes{.fp16 = true, .fp8 = true, .fp4 = true},
                                            .appended = "gemm-dense_report.md"};

// `appended` is the file name that AMD Primus's suite uses.
extern const BenchmarkEntry kGemmDeepseekEntry{.name = "gemm-deepseek",
                                               .make = make_benchmark<GemmDeepseekBenchmark>,
                                               .subject = BenchmarkSubject::kDevice,
                                               .seconds = 0.5,
                                               .types = MeasuredTypes{.fp16 = true, .fp8 = true, .fp4 = true},
                                               .appended = "gemm-deepseek_report.md"};

}  // namespace primus
