#include "lm/train/objectives/rollouts/dynamic_sampling.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "base/error.h"
#include "base/text/counted.h"

namespace primus {
namespace {

constexpr const char* kPosition = "rollouts.next_prompt";  // name of the tensor in a checkpoint
constexpr std::array<std::int64_t, 1> kShape = {1};

}  // namespace

std::int64_t DynamicSampling::undiscarded(std::int64_t done) const {
  return (done + settings_.iterations - 1) / settings_.iterations * settings_.groups;
}

void DynamicSampling::begin(std::int64_t step) {
  step_ = {.number = step};
  next_ = committed_.value_or(undiscarded(step - 1));
}

std::vector<std::int64_t> DynamicSampling::discard(std::span<const std::int64_t> groups,
                                                   const Advantages& attempt, std::int64_t rewarded,
                                                   const std::string& reason) {
  PRIMUS_CHECK("DynamicSampling::discard", groups.size() == attempt.varied.size());
  std::vector<std::int64_t> equal;
  for (std::size_t i = 0; i < groups.size(); ++i)
    if (!attempt.varied[i]) equal.push_back(groups[i]);
  ++step_.attempts;
  step_.generated += std::ssize(groups);
  step_.discarded += std::ssize(equal);
  step_.varied += std::ssize(groups) - std::ssize(equal);
  if (rewarded > 0) {
    step_.rewards += attempt.reward.mean * static_cast<double>(rewarded);
    step_.rewarded += static_cast<double>(rewarded);
  }
  if (step_.attempts < settings_.attempts || equal.empty()) return equal;
  const std::string attempts = counted(step_.attempts, "attempt");
  if (step_.varied == 0) {
    throw invalid(
        fmt::format("step {}: each of the {} groups that were generated in {} has equal rewards{}, "
                    "so the step has nothing to learn from",
                    step_.number, step_.generated, attempts, reason),
        "use prompts that the model answers correctly sometimes, but not always; increase num_generations or "
        "dynamic_sampling_max_batches; or set dynamic_sampling: false");
  }
  if (!warned_ && settings_.warn) {
    settings_.warn(
        fmt::format("step {}: {} of {} groups still have equal rewards after {} "
                    "(dynamic_sampling_max_batches). The step learns nothing from these groups. The metric "
                    "frac_reward_zero_std is the share of such groups in a step",
                    step_.number, equal.size(), settings_.groups, attempts));
  }
  warned_ = true;
  return {};
}

std::vector<std::pair<std::string, double>> DynamicSampling::metrics() const {
  std::vector<std::pair<std::string, double>> all = {
      {"dynamic_sampling/batches", static_cast<double>(step_.attempts)},
      {"dynamic_sampling/discarded", static_cast<double>(step_.discarded) /
                                         static_cast<double>(std::max<std::int64_t>(step_.generated, 1))}};
  if (step_.rewarded > 0) all.emplace_back("dynamic_sampling/reward", step_.rewards / step_.rewarded);
  return all;
}

TensorSource DynamicSampling::state(std::int64_t done) const {
  TensorSource source;
  source.name = kPosition;
  source.dtype = DType::kI64;
  source.shape = {kShape.begin(), kShape.end()};
  source.runs = settings_.writes ? HeldRuns{{.begin = 0, .length = 1}} : HeldRuns{};
  source.fill = [next = committed_.value_or(undiscarded(done))](std::uint64_t offset,
                                                                std::span<std::byte> out) {
    std::memcpy(out.data(), std::as_bytes(std::span(&next, 1)).data() + offset, out.size());
  };
  return source;
}

void DynamicSampling::restore(const CheckpointReader& checkpoint) {
  committed_ = undiscarded(checkpoint.iteration());
  if (!checkpoint.find(TensorPart::kOptimizer, kPosition)) return;
  std::int64_t next = 0;
  checkpoint.read(TensorPart::kOptimizer, kPosition, DType::kI64, kShape,
                  std::as_writable_bytes(std::span(&next, 1)));
  if (next < 0) {
    throw invalid(fmt::format("{}: the number of the next prompt is {}", checkpoint.folder().string(), next),
                  "remove this checkpoint to continue from the one before it");
  }
  committed_ = next;
}

}  // namespace primus
