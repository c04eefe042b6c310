#include "lm/data/cyclic_dataset.h"

#include <fmt/format.h>

#include <limits>
#include <mutex>
#include <numeric>
#include <random>
#include <utility>

#include "base/error.h"

namespace primus::data {
namespace {

constexpr std::int64_t kMaxSamples = std::numeric_limits<std::uint32_t>::max() / 20;

class CyclicDataset final : public Dataset {
 public:
  CyclicDataset(std::unique_ptr<const Dataset> dataset, const CyclicOptions& options)
      : dataset_(std::move(dataset)),
        options_(options),
        step_(options.micro_batch_size * options.dp_size),
        epoch_size_(dataset_->size() / step_ * step_),
        permuted_(options.sharded ? dataset_->size() / step_ * options.micro_batch_size
                                  : dataset_->size() / options.micro_batch_size * options.micro_batch_size) {}

  std::int64_t size() const override { return std::numeric_limits<std::int64_t>::max(); }
  std::int64_t seq_length() const override { return dataset_->seq_length(); }
  std::string description() const override { return dataset_->description(); }

  void sample(std::int64_t draw, std::span<std::int32_t> tokens, std::span<float> loss_mask) const override {
    dataset_->sample(index_of(draw), tokens, loss_mask);
  }
  double learned_tokens(std::int64_t draw) const override { return dataset_->learned_tokens(index_of(draw)); }

 private:
  std::int64_t index_of(std::int64_t draw) const {
    const std::int64_t within = draw % epoch_size_, batch = options_.micro_batch_size;
    const std::int64_t rank = within % step_ / batch, row = within / step_ * batch + within % batch;
    const std::shared_ptr<const Permutation> order = permutation(draw / epoch_size_);
    const auto at = [&](std::int64_t i) {
      return static_cast<std::int64_t>(order->entries[static_cast<std::size_t>(i)]);
    };
    return options_.sharded ? rank * permuted_ + at(row) : at(row * options_.dp_size + rank);
  }

  struct Permutation {
    std::int64_t epoch = -1;
    std::vector<std::uint32_t> entries;
  };

  // Returns the permutation of this epoch. Threads that read ahead use at most two adjacent epochs at a time.
  std::shared_ptr<const Permutation> permutation(std::int64_t epoch) const {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<const Permutation>& kept = kept_[epoch % 2];
    if (!kept || kept->epoch != epoch) {
      kept = std::make_shared<const Permutation>(
          Permutation{epoch, torch_permutation(permuted_, static_cast<std::uint64_t>(epoch))});
    }
    return kept;
  }

  std::unique_ptr<const Dataset> dataset_;
  CyclicOptions options_;
  std::int64_t step_;        // number of samples in one microbatch of all ranks
  std::int64_t epoch_size_;  // number of draws per epoch
  std::int64_t permuted_;    // number of samples that are permuted together: all samples, or if sharded those
                             // of one rank
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const Permutation> kept_[2];
};

}  // namespace

std::vector<std::uint32_t> torch_permutation(std::int64_t n, std::uint64_t seed) {
  std::vector<std::uint32_t> entries(static_cast<std::size_t>(n));
  std::iota(entries.begin(), entries.end(), 0u);
  std::mt19937 engine(static_cast<std::uint32_t>(seed));
  for (std::size_t i = 0; i + 1 < entries.size(); ++i) {
    std::swap(entries[i], entries[i + engine() % (entries.size() - i)]);
  }
  return entries;
}

std::unique_ptr<const Dataset> make_cyclic(std::unique_ptr<const Dataset> dataset,
                                           const CyclicOptions& options) {
  const std::int64_t size = dataset->size(), needed = options.micro_batch_size * options.dp_size;
  if (size < needed) {
    throw invalid(fmt::format("{} has {} samples, but one microbatch on all ranks needs {}",
                              dataset->description(), size, needed),
                  "set a smaller micro_batch_size, or dataloader_type: single");
  }
  if (size >= kMaxSamples) {
    throw unsupported(fmt::format("{} has {} samples, but dataloader_type: cyclic supports fewer than {}",
                                  dataset->description(), size, kMaxSamples),
                      "set dataloader_type: single");
  }
  return std::make_unique<CyclicDataset>(std::move(dataset), options);
}

}  // namespace primus::data
