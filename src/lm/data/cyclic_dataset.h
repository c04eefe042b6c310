// Megatron-LM's random sampler (dataloader_type: cyclic) as a data set: the samples of another data set,
// permuted differently in each epoch and repeated without end.
//
// With N samples, microbatches of B and D data-parallel ranks, an epoch has E = N - N mod (B D) draws; the
// remaining samples are dropped. Draw p of the run is draw w = p mod E of epoch e = p div E. Draw w belongs
// to microbatch i, rank r and row m of epoch e, where w = i B D + r B + m. The drawn sample is
//   sharded      r n + permutation(n, e)[i B + m],         n = (N div (B D)) B
//   not sharded  permutation(n, e)[(i B + m) D + r],       n = (N div B) B
// where permutation(n, e) is torch.randperm(n) of a CPU generator seeded with e: for k from 0 to n - 2, entry
// k is swapped with entry k + (next 32 bits of the Mersenne Twister) mod (n - k). The order depends neither
// on `seed` nor on other settings of the run. (megatron/legacy/data/data_samplers.py,
// MegatronPretrainingRandomSampler.)
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lm/data/dataset.h"

namespace primus::data {

// Returns torch.randperm(n, generator=torch.Generator().manual_seed(seed)). n must be below 2^32 / 20,
// because torch draws 64-bit numbers for larger n.
std::vector<std::uint32_t> torch_permutation(std::int64_t n, std::uint64_t seed);

struct CyclicOptions {
  std::int64_t micro_batch_size = 1;
  std::int64_t dp_size = 1;
  bool sharded = true;
};

// Throws Error(kInvalid) if the data set has fewer samples than one microbatch of all ranks; kUnsupported if
// the data set has more samples than torch_permutation() supports.
std::unique_ptr<const Dataset> make_cyclic(std::unique_ptr<const Dataset> dataset,
                                           const CyclicOptions& options);

}  // namespace primus::data
