// Measures generation speed: tokens per second for one sequence and for batches, with a paged KV cache, and
// the used share of memory bandwidth. Weights are random, so only the model's sizes are needed.
// Single-threaded.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "bench/device_timer.h"
#include "bench/report.h"
#include "device/device.h"
#include "lm/model/family.h"
#include "lm/model/model_config.h"
#include "tensor/dtype.h"
#include "turbo/devices/trace_recorder.h"

namespace primus {

constexpr std::int64_t kMaxDecodedTokens = 1 << 20;  // limit of prompt, timed and warm-up tokens

struct DecodeBenchmarkOptions {
  std::vector<std::int64_t> batches = {1, 64};  // batch sizes, one case each
  std::int64_t context = 512;                   // prompt length of each sequence; the prefill is timed, too
  std::int64_t tokens = 64;                     // decoded after the prompt; each step is a sample
  std::int64_t warmup = 4;                      // untimed steps before the timed ones
  // Draws tokens at temperature 1 and computes their log probabilities, as reinforcement learning does.
  // False: chooses the most probable token.
  bool sampled = false;
  // Number of models with adapters next to the model. Above 1, the texts of a batch belong to one after
  // another of them, and the model must have adapters.
  std::int64_t adapters = 1;
  DType dtype = DType::kBF16;
  // Maximum number of tokens of a pass that reads prompts. Empty: the number that all commands use
  // (lm/decode/pass_tokens.h).
  std::optional<std::int64_t> pass_tokens = {};
  double copy_seconds = 0.5;  // duration of the memory bandwidth measurement
  // Minimum total size of the operands of consecutive calls in measurements of bandwidth, products and
  // attention.
  std::int64_t rotated_bytes = DeviceTimer::kRotatedBytes;
  // Measuring time, in seconds, of each matrix product and attention of the prompts (composed_time.h). Above
  // 0: each case also has a result for reading its prompts, and a note compares both. 0: not measured.
  double ceiling_seconds = 0;
  // If set, records one more reading of the prompts of each case. The device of benchmark_decoding() must be
  // a tracing device with this recorder (turbo/devices/tracing_device.h).
  std::shared_ptr<turbo::TraceRecorder> trace = {};
  // Called with the current phase ("weights", "batch 64") and its progress in tokens; 0 of 0 for a phase of
  // unknown length. May be empty.
  std::function<void(std::string_view what, std::int64_t done, std::int64_t total)> progress = {};
};

// Returns the bytes that a decode step must read. Counts the keys and values of `length` tokens per sequence.
// Counts the weights once per batch, with the maximum number of experts that the batch can select.
double bytes_of_decoding(const ModelConfig& config, const FamilyRegistry& families, DType dtype,
                         std::int64_t batch, std::int64_t length);

// Decodes like `primus generate`; a step ends when the host has the tokens. Owns the device. Throws
// Error(kInvalid) for sizes that the model does not support.
BenchmarkReport benchmark_decoding(std::unique_ptr<Device> device, const ModelConfig& config,
                                   const FamilyRegistry& families, const DecodeBenchmarkOptions& options);

}  // namespace primus
