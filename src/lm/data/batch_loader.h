// Feeds a training loop: reads samples ahead on its own threads, in an order given by the consumed-sample
// count alone.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "lm/data/batch.h"
#include "lm/data/dataset.h"

namespace primus::data {

struct BatchLoaderOptions {
  std::int64_t micro_batch_size = 1;  // B
  int dp_rank = 0, dp_size = 1;       // data-parallel place of this rank
  std::int64_t consumed_samples = 0;  // where to start; a multiple of micro_batch_size * dp_size
  int prefetch = 4;                   // microbatches read ahead; 0 reads in next() itself
  int threads = 1;
  // As Megatron's options of these names: batches with Batch::positions, and with Batch::document_starts. A
  // document ends with the token `eod`, which either needs.
  bool reset_position_ids = false;
  bool reset_attention_mask = false;
  std::optional<std::int32_t> eod;
  // With N > 0, Batch::loss_divisor makes the loss one mean over the learned labels of each N samples of all
  // ranks, counted from consumed_samples on: those of a step. A multiple of micro_batch_size * dp_size. 0:
  // each microbatch has a mean of its own.
  std::int64_t samples_per_mean = 0;
};

// Microbatch i (counted from the start of the run, over all steps) of rank r holds samples
//   consumed + i * B * dp_size + r * B + m,  m in [0, B)
// which is Megatron's sequential sampler: sample of (step k, micro j, rank r, row m) = k*GBS + j*B*DP + r*B +
// m.
//
// One consumer thread calls next(). An error while reading ahead is thrown by the next() that would have
// returned that microbatch. The destructor stops the threads.
class BatchLoader {
 public:
  // `dataset` must outlive the loader.
  BatchLoader(const Dataset& dataset, const BatchLoaderOptions& options);
  ~BatchLoader();
  BatchLoader(const BatchLoader&) = delete;
  BatchLoader& operator=(const BatchLoader&) = delete;

  // The next microbatch; the reference is valid until the following call. Error(kInvalid) past the data set's
  // end.
  const Batch& next();

  // Samples of all ranks consumed by the microbatches returned so far, the start value included.
  std::int64_t consumed_samples() const;
  // Total time next() has waited for data.
  double wait_seconds() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace primus::data
