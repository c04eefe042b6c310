#include "lm/decode/pass_tokens.h"

#include <algorithm>
#include <vector>

#include "base/system/host_memory.h"
#include "lm/decode/batch_reader.h"

namespace primus {

PassLimits pass_limits(const DeviceProperties& device) {
  constexpr PassLimits kHost{.tokens = 512, .generating = 128}, kGpu{.tokens = 4096, .generating = 512};
  return device.host_memory ? kHost : kGpu;
}

void limit_passes(ReaderSettings& settings, const DeviceProperties& device, std::int64_t prompts) {
  const PassLimits limits = pass_limits(device);
  settings.pass_tokens = std::clamp<std::int64_t>(prompts, 1, limits.tokens);
  settings.generating_pass_tokens = limits.generating;
}

std::int64_t memory_for_reading(const Device& device) {
  constexpr std::int64_t kMaxReserve = std::int64_t{1} << 30;
  std::int64_t total = 0, available = 0;
  if (device.properties().host_memory) {
    const HostMemory memory = host_memory();
    total = memory.total, available = memory.available;
  } else {
    const DeviceMemoryUse use = device.memory_use();
    total = use.total, available = use.total - use.used;
  }
  if (total == 0) return 0;
  return std::max<std::int64_t>(available - std::min(total / 20, kMaxReserve), 1);
}

engine::MemoryPlan measure_readers(engine::Rank& rank, std::span<const PlannedReader> readers,
                                   std::int64_t available, std::int64_t smallest) {
  std::vector<std::int64_t> wanted;
  for (const PlannedReader& reader : readers) wanted.push_back(reader.settings->pass_tokens);
  const auto measure = [&](std::int64_t tokens, bool first) {
    for (std::size_t i = 0; i < readers.size(); ++i) {
      ReaderSettings& settings = *readers[i].settings;
      const std::int64_t before = first ? 0 : settings.pass_tokens, next = std::min(tokens, wanted[i]);
      if (next <= before) continue;
      settings.pass_tokens = next;
      BatchReader reader(rank, *readers[i].model, settings, readers[i].adapters);
      if (first || reader.settings().pass_tokens > before) reader.measure(before);
      settings.pass_tokens = reader.settings().pass_tokens;
    }
  };
  // Passes are measured in ascending order, because an arena records only the maximum.
  const std::int64_t largest = wanted.empty() ? 0 : *std::ranges::max_element(wanted);
  std::int64_t tokens = smallest;
  measure(tokens, true);
  while (tokens < largest) {
    const engine::MemoryPlan fits = rank.high_water();
    if (available > 0 && fits.total() > available) break;
    std::vector<std::int64_t> before;
    for (const PlannedReader& reader : readers) before.push_back(reader.settings->pass_tokens);
    tokens *= 2;
    measure(tokens, false);
    if (available == 0 || rank.high_water().total() <= available) continue;
    for (std::size_t i = 0; i < readers.size(); ++i) readers[i].settings->pass_tokens = before[i];
    return fits;
  }
  return rank.high_water();
}

}  // namespace primus
