#include <atomic>

#include "turbo/cpu/master_weights.h"
#include "turbo/cpu/register.h"
#include "turbo/cpu/simd.h"
#include "turbo/oscillation/formula.h"
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
        Travel travel{moved[i], jumped[i]};
        travel.add(before.get(i), masters.get(i), to_float(before_rounded[i]), to_float(rounded[i]));
        moved[i] = travel.moved;
        jumped[i] = travel.jumped;
      }
      if (!call.ends) return;
      std::int32_t count = 0;
      for (std::int64_t i = begin; i < end; ++i) {
        if (Travel{moved[i], jumped[i]}.oscillates(call.ratio)) {
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
