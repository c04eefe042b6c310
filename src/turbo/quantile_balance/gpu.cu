#include "turbo/gpu/reduce.h"
#include "turbo/gpu/register.h"
#include "turbo/quantile_balance/formula.h"
#include "turbo/quantile_balance/quantile_balance.h"
#include "turbo/router/router.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

// Maps floats to integers in the same order.
PRIMUS_DEVICE std::uint32_t ordered(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return bits >> 31 ? ~bits : bits | 0x80000000U;
}
PRIMUS_DEVICE float from_ordered(std::uint32_t x) {
  return std::bit_cast<float>(x >> 31 ? x & 0x7fffffffU : ~x);
}

// A block processes one token.
struct Histogram {
  static constexpr int kThreads = 256;
  const float *logits, *bias;
  std::int32_t* counts;
  std::int64_t experts;
  std::int32_t rank;  // rank of the cutoff, counted from 0
  MarginRange range;

  PRIMUS_DEVICE void operator()() const {
    const float* row = logits + block() * experts;
    // Finds the largest number c such that more than `rank` of the numbers are >= c. Determines c bit by bit.
    std::uint32_t cutoff = 0;
    for (int bit = 31; bit >= 0; --bit) {
      const std::uint32_t candidate = cutoff | 1U << bit;
      std::int32_t reach = 0;
      for (std::int64_t e = thread(); e < experts; e += kThreads)
        reach += ordered(sigmoid(row[e]) + bias[e]) >= candidate ? 1 : 0;
      if (block_reduce<kThreads>(reach) > rank) cutoff = candidate;
    }
    const float tau = from_ordered(cutoff);
    for (std::int64_t e = thread(); e < experts; e += kThreads)
      atomic_add(counts + e * range.bins + range.bin_of(sigmoid(row[e]) - tau), 1);
  }
};

// Runs in one block.
struct Update {
  static constexpr int kThreads = 256;
  const std::int32_t* counts;
  float* bias;
  std::int64_t experts;
  double share;
  MarginRange range;
  float kept;
  bool centred;

  PRIMUS_DEVICE void operator()() const {
    struct Biases {
      double of[RouterRule::kMaxExperts];
      double mean;
    };
    Biases& biases = shared<Biases>();
    std::int32_t counted = 0;
    for (std::int64_t i = thread(); i < range.bins; i += kThreads) counted += counts[i];
    if (block_reduce<kThreads>(counted) == 0) return;
    for (std::int64_t e = thread(); e < experts; e += kThreads)
      biases.of[e] = range.balanced(counts + e * range.bins, share);
    barrier();
    if (thread() == 0) {
      double sum = 0;
      for (std::int64_t e = 0; e < experts; ++e) sum += biases.of[e];
      biases.mean = centred ? sum / static_cast<double>(experts) : 0.0;
    }
    barrier();
    for (std::int64_t e = thread(); e < experts; e += kThreads)
      bias[e] = averaged_bias(bias[e], kept, biases.of[e] - biases.mean);
  }
};

std::int64_t histogram_workspace(Context&, const MarginHistogram&) { return 0; }

void histogram(Context& context, const MarginHistogram& a) {
  const std::int64_t experts = a.counts.rows();
  launch(context, a.logits.rows(),
         Histogram{context.data<float>(a.logits),
                   context.data<float>(a.bias),
                   context.data<std::int32_t>(a.counts),
                   experts,
                   static_cast<std::int32_t>(std::min<std::int64_t>(a.top_k, experts - 1)),
                   {a.bins.low, a.bins.high, a.counts.cols()}});
}

void update(Context& context, const QuantileBiasUpdate& a) {
  const std::int64_t experts = a.counts.rows();
  launch(context, 1,
         Update{context.data<std::int32_t>(a.counts),
                context.data<float>(a.bias),
                experts,
                1 - static_cast<double>(a.top_k) / static_cast<double>(experts),
                {a.bins.low, a.bins.high, a.counts.cols()},
                a.kept,
                a.centred});
}

}  // namespace

void register_quantile_balance(KernelTable& table) {
  table.add<MarginHistogram, Context, &histogram, &histogram_workspace>();
  table.add<QuantileBiasUpdate, Context, &update>();
}

}  // namespace primus::turbo::PRIMUS_GPU
