// Feeds a training loop: reads samples ahead on its own threads, in an order that depends only on the number
// of consumed samples.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "lm/data/batch.h"
#include "lm/data/dataset.h"

namespace primus::data {

struct BatchLoaderOptions {
  std::int64_t micro_batch_size = 1;  // B, the sequences per microbatch
  int dp_rank = 0, dp_size = 1;       // data-parallel rank and group size
  std::int64_t consumed_samples = 0;  // number of the first sample; a multiple of micro_batch_size * dp_size
  int prefetch = 4;  // number of microbatches read ahead; 0: next() reads each microbatch itself
  int threads = 1;
  // Megatron's options of these names: they fill Batch::positions and Batch::document_starts. Both need
  // `eod`, the token that ends a document.
  bool reset_position_ids = false;
  bool reset_attention_mask = false;
  std::optional<std::int32_t> eod;
  // With N > 0, Batch::loss_divisor makes the loss the mean over the learned labels of each N samples of all
  // ranks, beginning with sample consumed_samples. N is the global batch size and a multiple of
  // micro_batch_size * dp_size. 0: each microbatch has its own mean.
  std::int64_t samples_per_mean = 0;
};

// Row m of microbatch i of rank r is sample
//   consumed_samples + i * B * dp_size + r * B + m.
// The loader counts i over all steps, from its first microbatch. This is the order of Megatron's sequential
// sampler.
//
// One consumer thread calls next(). If reading ahead fails, the next() that would have returned that
// microbatch throws the error. The destructor stops the threads.
class BatchLoader {
 public:
  // `dataset` must outlive the loader.
  BatchLoader(const Dataset& dataset, const BatchLoaderOptions& options);
  ~BatchLoader();
  BatchLoader(const BatchLoader&) = delete;
  BatchLoader& operator=(const BatchLoader&) = delete;

  // Returns the next microbatch; the reference is valid until the following call. Error(kInvalid) past the
  // data set's end.
  const Batch& next();

  // Number of samples of all ranks that the microbatches returned so far consumed, plus the start value.
  std::int64_t consumed_samples() const;
  // Total time that next() has waited for data.
  double wait_seconds() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace primus::data
