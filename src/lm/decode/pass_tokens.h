// The rule for the number of tokens that a pass of a reader has (ReaderSettings::pass_tokens). Commands,
// benchmarks and training use this rule.
//
// A pass reads all weights once, so a large pass spends less time per token of a prompt. The rule therefore
// takes the first of these limits: the largest pass that is faster than a smaller one on this kind of device,
// the tokens of the prompts, and the free memory. If memory is short, passes become smaller, down to
// kSmallestPass tokens. They cause no error before that.
//
// A pass that also generates tokens of other texts is smaller, because these texts wait for it.
#pragma once

#include <cstdint>
#include <span>

#include "device/device.h"
#include "engine/operators/row_adapters.h"
#include "engine/runtime/rank.h"
#include "lm/decode/reader_settings.h"
#include "lm/model/language_model.h"

namespace primus {

inline constexpr std::int64_t kSmallestPass = 128;

// Max tokens of a pass, and of a pass that also generates tokens.
struct PassLimits {
  std::int64_t tokens = 0, generating = 0;
};
// Returns the limits of a kind of device. docs/performance-log.md has the measurements.
PassLimits pass_limits(const DeviceProperties& device);

// Sets the maximum pass sizes in `settings` for a device. `prompts`: max number of tokens of all prompts that
// are read concurrently.
void limit_passes(ReaderSettings& settings, const DeviceProperties& device, std::int64_t prompts);

// Returns the memory in bytes that a reader and its model may use if nothing else uses the device. This is
// the free memory without a reserve for libraries and other programs: a twentieth of the memory, at most 1
// GiB. 0: unknown.
std::int64_t memory_for_reading(const Device& device);

// A reader that will be created: its model, on a measuring rank, its settings, and the models with adapters
// whose texts it reads, too (BatchReader).
struct PlannedReader {
  const LanguageModel* model = nullptr;
  ReaderSettings* settings = nullptr;
  const engine::RowAdapters* adapters = nullptr;
};

// Measures readers on a measuring rank, which will exist one after another. Reduces their
// ReaderSettings::pass_tokens, but not below `smallest`, so that the rank needs at most `available` bytes (0:
// unlimited). Returns the memory that the rank then needs, together with all that was measured before.
engine::MemoryPlan measure_readers(engine::Rank& rank, std::span<const PlannedReader> readers,
                                   std::int64_t available, std::int64_t smallest = kSmallestPass);

}  // namespace primus
