// How fast a model writes: tokens a second with one text and with many at a time, over a paged cache, and how
// much of the memory's rate that takes. Weights are random, so a shape is all that is needed. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "bench/report.h"
#include "device/device.h"
#include "lm/model/family.h"
#include "lm/model/model_config.h"
#include "tensor/dtype.h"

namespace primus {

constexpr std::int64_t kMostDecodedTokens = 1 << 20;  // of a prompt, to time, and before

struct DecodeBenchmarkOptions {
  std::vector<std::int64_t> batches = {1, 64};  // texts that are written together, a case each
  std::int64_t context = 512;                   // tokens of each text's prompt, which is read and timed, too
  std::int64_t tokens = 64;                     // that are then written; each step is a sample
  std::int64_t warmup = 4;                      // steps before, not counted
  DType dtype = DType::kBF16;
  double copy_seconds = 0.5;  // in which the memory's rate is measured
  // Called with the present phase ("weights", "batch 64") and its progress in tokens, or 0 of 0 for a phase
  // whose length is not known. May be empty.
  std::function<void(std::string_view what, std::int64_t done, std::int64_t total)> progress = {};
};

// Bytes that a step has to read: every weight that a token meets, once for all texts, of experts as many as
// can be met at the most, and the keys and values of every text, `length` tokens each.
double bytes_of_decoding(const ModelConfig& config, const FamilyRegistry& families, DType dtype,
                         std::int64_t batch, std::int64_t length);

// Greedy, as `primus generate` does it: a step ends when the host has the tokens. Takes the device.
// Throws Error(kInvalid) for sizes that the model does not have.
BenchmarkReport benchmark_decoding(std::unique_ptr<Device> device, const ModelConfig& config,
                                   const FamilyRegistry& families, const DecodeBenchmarkOptions& options);

}  // namespace primus
