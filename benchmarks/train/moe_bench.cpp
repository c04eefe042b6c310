// Compares the cost of a training step of two models with equal active FLOPs: a mixture of experts and a
// dense model. Tokens, attention and head are equal. The mixture has top_k experts of width f per token, the
// dense model one feed-forward layer of width top_k · f. Steps of both models alternate, so that disturbances
// affect both. Times are CPU seconds of all threads. The ratio uses the shortest steps, because disturbances
// only make a step longer.
//
//   moe_bench [--threads N] [--pairs N] [--batch N] [--microbatches N] [--width N] [--dtype fp32|bf16]
//             [--kernels] [--limit PERCENT]
//
// Expert widths are for a model of width 512, and scale with --width. With a limit, exits 1 if a step costs
// more than that many percent above the dense step, even after three times the number of pairs.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <string_view>
#include <vector>

#include "base/random/random.h"
#include "lm/train/step/session.h"
#include "turbo/cpu/cpu_kernels.h"

namespace primus {
namespace {

constexpr int kUsualWidth = 512, kHeadDim = 64;

struct Options {
  int threads = 1, pairs = 5, batch = 4, microbatches = 4, width = kUsualWidth, limit = 0;
  bool kernels = false;
  std::string_view dtype;  // empty: both
};

struct Mixture {
  std::int64_t experts;
  std::int32_t top_k;
  std::int64_t ffn;
};

constexpr std::int64_t kSequence = 512;

ModelConfig dense_model(std::int64_t width, std::int64_t ffn) {
  ModelConfig c;
  c.layers = 4;
  c.hidden = width;
  c.ffn = ffn;
  c.heads = c.kv_heads = width / kHeadDim;
  c.head_dim = kHeadDim;
  c.vocab = 4096;
  c.max_positions = kSequence;
  return c;
}

ModelConfig mixture(std::int64_t width, const Mixture& m) {
  ModelConfig c = dense_model(width, m.ffn);
  c.family = "mixtral";
  c.moe.experts = m.experts;
  c.moe.ffn = m.ffn;
  c.moe.router.top_k = m.top_k;
  c.moe.training.balance_loss = 0.01;
  return c;
}

double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// CPU seconds of a step, and of a step without the optimizer.
struct Times {
  double gradients = 0, step = 0;

  void keep_less(const Times& other) {
    gradients = std::min(gradients, other.gradients);
    step = std::min(step, other.step);
  }
};

class Model {
 public:
  Model(const ModelConfig& config, DType compute, const Options& options)
      : rank_(turbo::make_cpu_device(options.threads)),
        session_(open_session(rank_,
                              {.model = config,
                               .compute = compute,
                               .step = {.micro_batch = options.batch,
                                        .sequence = kSequence,
                                        .microbatches = options.microbatches},
                               .optimizer = {}},
                              builtin_families())) {
    session_->store().initialize(rank_.context(), 1);
    const RandomStream random(2, RandomPurpose::kTest);
    for (std::int64_t i = 0; i <= options.batch * kSequence; ++i) {
      tokens_.push_back(static_cast<std::int32_t>(
          random.below(static_cast<std::uint64_t>(i), static_cast<std::uint32_t>(config.vocab))));
    }
    mask_.assign(tokens_.size() - 1, 1.0F);
  }

  Times step() {
    TrainingStep& step = session_->step();
    const double begin = cpu_seconds();
    step.begin(++number_);
    const std::span<const std::int32_t> all(tokens_);
    for (std::int64_t i = 0; i < step.settings().microbatches; ++i)
      step.microbatch(i, {all.first(mask_.size()), all.subspan(1), mask_});
    step.finish_gradients();
    step.result();
    const double middle = cpu_seconds();
    step.update(number_, 1e-4, 0.1);
    rank_.compute().synchronize();
    return {middle - begin, cpu_seconds() - begin};
  }

  void time_kernels() {
    rank_.meter().reset();
    rank_.meter().timed = true;
  }
  void print_kernels(int steps) {
    for (std::size_t id = 0; id < rank_.meter().lines.size(); ++id) {
      const auto& line = rank_.meter().lines[id];
      if (line.seconds == 0) continue;
      fmt::print("  {:<24}{:>10.2f} ms{:>10.1f} GFLOP/s\n", turbo::name_of(static_cast<turbo::KernelId>(id)),
                 1e3 * line.seconds / steps, line.flops / line.seconds / 1e9);
    }
  }

 private:
  engine::Rank rank_;
  std::unique_ptr<TrainingSession> session_;
  std::vector<std::int32_t> tokens_;
  std::vector<float> mask_;
  std::int64_t number_ = 0;
};

// Times both models and prints a row. Returns the time of the mixture's step divided by the dense model's.
double compare(const Mixture& m, DType compute, const Options& options) {
  Model dense(dense_model(options.width, m.top_k * m.ffn), compute, options),
      moe(mixture(options.width, m), compute, options);
  dense.step();
  moe.step();
  if (options.kernels) {
    dense.time_kernels();
    moe.time_kernels();
  }
  Times min_dense = dense.step(), min_moe = moe.step();
  int pairs = 1;
  const auto over_limit = [&] {
    return options.limit > 0 && 100 * min_moe.step > options.limit * min_dense.step;
  };
  // If the result is over the limit, up to three times as many pairs run: other load may have disturbed the
  // machine.
  for (; pairs < options.pairs || (pairs < 3 * options.pairs && over_limit()); ++pairs) {
    min_dense.keep_less(dense.step());
    min_moe.keep_less(moe.step());
  }
  const double ratio = min_moe.step / min_dense.step;
  fmt::print("{:>8}{:>7}{:>6}{:>6}{:>12.3f}{:>12.2f}{:>12.2f}\n", m.experts, m.top_k, m.ffn, name_of(compute),
             min_dense.step, min_moe.gradients / min_dense.gradients, ratio);
  std::fflush(stdout);
  if (!options.kernels) return ratio;
  fmt::print(" dense\n");
  dense.print_kernels(pairs);
  fmt::print(" mixture\n");
  moe.print_kernels(pairs);
  return ratio;
}

int run(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    int* const value = word == "--threads"        ? &options.threads
                       : word == "--pairs"        ? &options.pairs
                       : word == "--batch"        ? &options.batch
                       : word == "--microbatches" ? &options.microbatches
                       : word == "--width"        ? &options.width
                       : word == "--limit"        ? &options.limit
                                                  : nullptr;
    if (word == "--kernels") {
      options.kernels = true;
    } else if (word == "--dtype" && i + 1 < argc) {
      options.dtype = argv[++i];
    } else if (!value || ++i == argc ||
               std::from_chars(argv[i], argv[i] + std::strlen(argv[i]), *value).ec != std::errc() ||
               *value < 1 || options.width % kUsualWidth != 0) {
      fmt::print(
          stderr,
          "usage: moe_bench [--threads N] [--pairs N] [--batch N] [--microbatches N] [--width N, of 512s] "
          "[--dtype fp32|bf16] [--kernels] [--limit PERCENT]\n");
      return 2;
    }
  }
  fmt::print("4 layers, {} wide, {} tokens in {} microbatches, {} thread(s)\n", options.width,
             options.batch * kSequence * options.microbatches, options.microbatches, options.threads);
  fmt::print("{:>8}{:>7}{:>6}{:>6}{:>12}{:>12}{:>12}\n", "experts", "top k", "ffn", "type", "dense, s",
             "gradients", "whole step");
  double worst = 0;
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    if (!options.dtype.empty() && options.dtype != name_of(compute)) continue;
    for (Mixture m : {Mixture{8, 2, 1024}, Mixture{32, 4, 512}, Mixture{64, 8, 256}}) {
      m.ffn *= options.width / kUsualWidth;
      worst = std::max(worst, compare(m, compute, options));
    }
  }
  if (options.limit == 0 || 100 * worst <= options.limit) return 0;
  fmt::print(stderr, "a step costs {:.2f} times the dense one, more than {} %\n", worst, options.limit);
  return 1;
}

}  // namespace
}  // namespace primus

int main(int argc, char** argv) { return primus::run(argc, argv); }
