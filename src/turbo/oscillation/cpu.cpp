#include <atomic>
#include <cmath>

#include "turbo/cpu/master_weights.h"
#include "turbo/cpu/register.h"
#include "turbo/cpu/simd.h"
#include "turbo/oscillation/oscillation.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

struct Before {
  const Tensor &param, &working, &remainder;
};

void track(CpuContext& context, const TrackOscillation& call) {
  if (context.data<float>(call.grad_scale)[0] < 0) return;
  constexpr std::int64_t kBytes = 28;
  const auto* before_rounded = context.data<const BFloat16>(call.before_rounded);
  const auto* rounded = context.data<const BFloat16>(call.rounded);
  float *const moved = context.data<float>(call.moved), *const jumped = context.data<float>(call.jumped);
  std::atomic<std::int32_t> snapped = 0;
  const auto run = [&](auto before, auto masters) {
    parallel_ranges(context, call.moved.elements(), kBytes, [&](std::int64_t begin, std::int64_t end) {
      PRIMUS_SIMD()
      for (std::int64_t i = begin; i < end; ++i) {
        moved[i] += std::abs(masters.get(i) - before.get(i));
        jumped[i] += std::abs(to_float(rounded[i]) - to_float(before_rounded[i]));
      }
      if (!call.ends) return;
      std::int32_t count = 0;
      for (std::int64_t i = begin; i < end; ++i) {
        if (moved[i] > 0 && jumped[i] >= call.ratio * moved[i]) {
          masters.put(i, to_float(rounded[i]));
          ++count;
        }
        moved[i] = jumped[i] = 0;
      }
      snapped += count;
    });
  };
  const Before before{call.before_param, call.before_working, call.before_remainder};
  with_masters(context, before,
               [&](auto from) { with_masters(context, call, [&](auto to) { run(from, to); }); });
  if (!call.snapped.absent()) *context.data<std::int32_t>(call.snapped) += snapped.load();
}

}  // namespace

void register_oscillation(KernelTable& table) { table.add<TrackOscillation, CpuContext, &track>(); }

}  // namespace primus::turbo::PRIMUS_CPU_ISA
