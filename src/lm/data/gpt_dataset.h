// The data sets that open_datasets returns: packed samples of one token source, blends of several, and mock
// data.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lm/data/dataset.h"
#include "lm/data/indexed_dataset.h"
#include "lm/data/sample_order.h"

namespace primus::data {

// Properties of the tokenizer that samples depend on.
struct TokenRules {
  std::int64_t vocab_size = 0;  // ids >= vocab_size are an error; 0: ids are not checked
  // Padding id: labels with this id have no loss; the model reads id 0 instead.
  std::optional<std::int32_t> pad;
  std::optional<std::int32_t> loss_end;  // labels whose input token is loss_end have no loss (eod, if
                                         // eod_mask_loss is set)
};

// Megatron's GPTDataset: samples of L + 1 tokens that continue across sequence borders, in the order of
// sample_order.h. The order is stored in the folder `cache`; if `cache` is empty, the order is not stored.
class GptDataset final : public Dataset {
 public:
  GptDataset(std::shared_ptr<const TokenSource> source, const OrderOptions& order, TokenRules rules,
             std::string_view split, const Path& cache = {});

  std::int64_t size() const override { return order_.samples(); }
  std::int64_t seq_length() const override { return seq_length_; }
  void sample(std::int64_t index, std::span<std::int32_t> tokens, std::span<float> loss_mask) const override;
  double learned_tokens(std::int64_t index) const override;
  std::string description() const override { return description_; }
  const SampleOrder& order() const { return order_; }

 private:
  void read(std::int64_t index, std::span<std::int32_t> tokens) const;
  // Throws Error(kInvalid) if a file of the data set was truncated or overwritten since it was opened.
  void check_unchanged() const;

  std::shared_ptr<const TokenSource> source_;
  std::string description_;
  SampleOrder order_;
  TokenRules rules_;
  std::int64_t seq_length_;
};

// For each sample of a blend: its data set, and its number within that data set. Each sample comes from the
// data set whose number of previous samples is furthest below its share. If several data sets are
// equally far below their shares, the first of these is chosen (Megatron's build_blending_indices).
struct BlendOrder {
  std::vector<std::uint16_t> dataset;
  std::vector<std::uint32_t> sample;
};
// Returns the order of `size` samples. The sum of `weights` must be 1.
BlendOrder build_blend_order(const std::vector<double>& weights, std::int64_t size);
// Returns an order with exactly sizes[d] samples from each data set d, evenly spread
// (build_exhaustive_blending_indices).
BlendOrder build_exhaustive_blend_order(const std::vector<std::int64_t>& sizes);

// Megatron's BlendedDataset: samples of several data sets in a given order.
class BlendedDataset final : public Dataset {
 public:
  // Throws Error(kInvalid) if the order needs more samples than a data set has.
  BlendedDataset(std::vector<std::unique_ptr<const Dataset>> datasets, BlendOrder order);

  std::int64_t size() const override { return static_cast<std::int64_t>(order_.sample.size()); }
  std::int64_t seq_length() const override { return datasets_.front()->seq_length(); }
  void sample(std::int64_t index, std::span<std::int32_t> tokens, std::span<float> loss_mask) const override;
  double learned_tokens(std::int64_t index) const override;
  std::string description() const override;

 private:
  std::vector<std::unique_ptr<const Dataset>> datasets_;
  BlendOrder order_;
};

// Returns Megatron's MockGPTLowLevelDataset: 100000 sequences of 1 to 4095 tokens. A sequence of n tokens is
// 1, 2, ..., n - 1 (modulo the vocabulary size), then `eod`.
std::shared_ptr<const TokenSource> make_mock_source(std::int64_t vocab_size, std::int32_t eod);

// A range [first, last) of sequences; empty for a share of zero. split_sequences() returns the ranges for
// train, valid and test. `split` has up to three numbers: "969,30,1". Throws Error(kInvalid) for any other
// text.
struct Share {
  std::int64_t first = 0, last = 0;
  bool operator==(const Share&) const = default;
};
std::vector<Share> split_sequences(std::string_view split, std::int64_t sequences);

}  // namespace primus::data
