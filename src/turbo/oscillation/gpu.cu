#include "turbo/gpu/master_weights.h"
#include "turbo/gpu/reduce.h"
#include "turbo/gpu/register.h"
#include "turbo/oscillation/formula.h"
#include "turbo/oscillation/oscillation.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

struct Before {
  const Tensor &param, &working, &remainder;
};

template <int kCount>
struct Track {
  static constexpr int kThreads = 256;
  Masters before, masters;
  const BFloat16 *before_rounded, *rounded;
  float *moved, *jumped;
  const float* grad_scale;
  std::int32_t* snapped;  // may be null
  std::int64_t packs;
  float ratio;
  bool ends;

  PRIMUS_DEVICE void operator()() const {
    if (grad_scale[0] < 0) return;
    const std::int64_t pack = block() * kThreads + thread(), i = pack * kCount;
    std::int32_t count = 0;
    if (pack < packs) {
      float old[kCount], now[kCount], old_q[kCount], q[kCount], way[kCount], jumps[kCount];
      before.get(i, old);
      masters.get(i, now);
      load<kCount>(before_rounded + i, old_q);
      load<kCount>(rounded + i, q);
      load<kCount>(moved + i, way);
      load<kCount>(jumped + i, jumps);
      PRIMUS_UNROLL
      for (int k = 0; k < kCount; ++k) {
        Travel travel{way[k], jumps[k]};
        travel.add(old[k], now[k], old_q[k], q[k]);
        if (ends && travel.oscillates(ratio)) now[k] = q[k], ++count;
        way[k] = ends ? 0.0F : travel.moved;
        jumps[k] = ends ? 0.0F : travel.jumped;
      }
      store<kCount>(moved + i, way);
      store<kCount>(jumped + i, jumps);
      if (ends) masters.put(i, now);
    }
    if (!ends || !snapped) return;
    count = block_reduce<kThreads>(count);
    if (thread() == 0 && count > 0) atomic_add(snapped, count);
  }
};

void track(Context& context, const TrackOscillation& call) {
  const Before before_tensors{call.before_param, call.before_working, call.before_remainder};
  const Masters before = masters_of(context, before_tensors), masters = masters_of(context, call);
  const auto* before_rounded = context.data<BFloat16>(call.before_rounded);
  const auto* rounded = context.data<BFloat16>(call.rounded);
  float *const moved = context.data<float>(call.moved), *const jumped = context.data<float>(call.jumped);
  const std::int64_t n = call.moved.elements();
  const bool vectors =
      masters_of_vectors(n, masters, before_rounded, rounded, moved, jumped) && masters_of_vectors(n, before);
  with_vector<float>(vectors, [&](auto count) {
    using Kernel = Track<count>;
    launch(
        context, blocks_for(n / count, Kernel::kThreads),
        Kernel{before, masters, before_rounded, rounded, moved, jumped, context.data<float>(call.grad_scale),
               optional<std::int32_t>(context, call.snapped), n / count, call.ratio, call.ends});
  });
}

}  // namespace

void register_oscillation(KernelTable& table) { table.add<TrackOscillation, Context, &track>(); }

}  // namespace primus::turbo::PRIMUS_GPU
