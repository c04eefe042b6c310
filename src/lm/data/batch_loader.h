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
  int dp_rank = 0, dp_size = 1;       // this rank's number among the data-parallel ranks, and the number of
                                      // these ranks
  std::int64_t consumed_samples = 0;  // number of the first sample; a multiple of micro_batch_size * dp_size
  int prefetch = 4;  // number of microbatches read ahead by threads; 0: next() reads each microbatch itself
  int threads = 1;
  // Megatron's options with these names. reset_position_ids fills Batch::positions, and the option for the
  // attention mask fills Batch::document_starts. These options need `eod`, the token that ends a document.
  bool reset_position_ids = false;
  bool reset_attention_mask = false;
  std::optional<std::int32_t> eod;
  // If N = samples_per_mean > 0, the loss is a mean over the learned labels of N consecutive samples of all
  // ranks. Batch::loss_divisor is set accordingly. Samples are counted from consumed_samples. N is the global
  // batch size and a multiple of micro_batch_size * dp_size. If 0, each microbatch has its own mean.
  std::int64_t samples_per_mean = 0;
};

// Row m of microbatch i of rank r is sample
//   consumed_samples + i * B * dp_size + r * B + m.
// Here i counts all microbatches of this loader, over all steps. Megatron's sequential sampler has the same
// order.
//
// One thread calls next(). If a thread fails to read a microbatch ahead, the call of next() that would return
// this microbatch throws the error. The destructor stops the threads.
class BatchLoader {
 public:
  // `dataset` must outlive the loader.
  BatchLoader(const Dataset& dataset, const BatchLoaderOptions& options);
  ~BatchLoader();
  BatchLoader(const BatchLoader&) = delete;
  BatchLoader& operator=(const BatchLoader&) = delete;

  // Returns the next microbatch. The reference is valid until the next call. Throws Error(kInvalid) after the
  // last sample of the data set.
  const Batch& next();

  // Returns the start value plus the number of samples in all microbatches that next() has returned, over all
  // ranks.
  std::int64_t consumed_samples() const;
  // Returns the total time that next() has waited for data.
  double wait_seconds() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace primus::data
