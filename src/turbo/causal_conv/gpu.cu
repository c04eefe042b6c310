// Short causal convolutions on GPUs; the kernels are in the headers of this folder.
#include "turbo/causal_conv/causal_conv.h"
#include "turbo/causal_conv/gpu_backward.h"
#include "turbo/causal_conv/gpu_cached.h"
#include "turbo/causal_conv/gpu_forward.h"
#include "turbo/causal_conv/gpu_weight_gradient.h"
#include "turbo/gpu/loops.h"
#include "turbo/gpu/register.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

using namespace causal_conv;

void forward(Context& context, const CausalConvForward& a) {
  with_type_and_form(a.bcx.dtype, a.shape.form, [&](auto tag, auto silu) {
    using T = decltype(tag);
    const Inputs<T, silu> in(context, a);
    T* y = context.data<T>(a.y);
    const bool wide = vectors<T>(in.channels, in.bcx, in.weight, in.bias, in.before, y);
    with_taps<T>(in.width, wide, [&](auto count, auto taps) {
      for_each_of_runs<count, taps>(context, a.shape, ForwardBody<T, silu, count, taps>{in, y});
    });
  });
}

void backward_input(Context& context, const CausalConvBackwardInput& a) {
  with_type_and_form(a.bcx.dtype, a.shape.form, [&](auto tag, auto silu) {
    using T = decltype(tag);
    const Inputs<T, silu> in(context, a);
    const auto* after = optional<float>(context, a.d_after);
    T* d_bcx = context.data<T>(a.d_bcx);
    const bool wide = vectors<T>(in.channels, in.bcx, in.weight, in.bias, in.before, in.d_y, after, d_bcx);
    with_taps<T>(in.width, wide, [&](auto count, auto taps) {
      for_each_of_runs<count, taps>(context, a.shape, BackwardBody<T, silu, count, taps>{in, after, d_bcx});
    });
  });
}

std::int64_t backward_weight_workspace(Context&, const CausalConvBackwardWeight& a) {
  const CausalConvShape& shape = a.shape;
  if (a.of_bias) return row_sum_workspace(shape.rows(), shape.channels);
  return WeightSlices(shape).count * shape.channels * shape.width * static_cast<std::int64_t>(sizeof(float));
}

void backward_weight(Context& context, const CausalConvBackwardWeight& a) {
  auto* const lines = context.data<float>(a.workspace);
  with_type_and_form(a.bcx.dtype, a.shape.form, [&](auto tag, auto silu) {
    using T = decltype(tag);
    const Inputs<T, silu> in(context, a);
    const bool wide = vectors<T>(in.channels, in.bcx, in.weight, in.bias, in.before, in.d_y, lines);
    if (a.of_bias) {
      return with_vector<T>(wide, [&](auto count) {
        row_sum(context, in.rows, in.channels, lines, a.d_weight, a.accumulate, BiasTerm<T, silu, count>{in});
      });
    }
    const WeightSlices slices(a.shape);
    // With more channels per thread, too few threads would fit on a processor.
    with_taps<T, 4>(in.width, wide, [&](auto count, auto taps) {
      using Kernel = WeightParts<T, silu, count, taps>;
      const std::int64_t tiles = blocks_for(in.channels / count, Kernel::kPacks);
      launch(context, slices.count * tiles, Kernel{in, lines, slices.run, tiles});
    });
    sum_of_lines(context, lines, in.channels * in.width, slices.count, a.d_weight, a.accumulate);
  });
}

void edge(Context& context, const CausalConvEdge& a) {
  with_type_and_form(a.bcx.dtype, a.shape.form, [&](auto tag, auto silu) {
    using T = decltype(tag);
    for_each_of_rows<1>(context, a.edge.shape[0], a.shape.channels,
                        EdgeBody<T, silu>{Inputs<T, silu>(context, a), context.data<float>(a.edge)});
  });
}

void backward_edge(Context& context, const CausalConvBackwardEdge& a) {
  with_type_and_form(a.bcx.dtype, a.shape.form, [&](auto tag, auto silu) {
    using T = decltype(tag);
    for_each_of_rows<1>(
        context, a.d_edge.shape[0], a.shape.channels,
        BackwardEdgeBody<T, silu>{Inputs<T, silu>(context, a), context.data<float>(a.d_edge)});
  });
}

void cached(Context& context, const CachedCausalConv& a) {
  with_type_and_form(a.bcx.dtype, a.form, [&](auto tag, auto silu) {
    using T = decltype(tag);
    const Cached<T, silu> all{Pages(context, a.sequences),
                              context.data<T>(a.bcx),
                              context.data<T>(a.weight),
                              optional<float>(context, a.bias),
                              context.data<float>(a.ring),
                              context.data<T>(a.y),
                              a.y.rows(),
                              a.y.cols(),
                              a.width,
                              a.ring.shape[1]};
    const std::int64_t batch = all.pages.batch;
    with_vector<T>(vectors<T>(all.channels, all.bcx, all.bias, all.ring, all.y), [&](auto count) {
      if (all.rows <= batch) return for_few_rows<(count > 1)>(context, all);
      for_each_of_tiles<count>(context, all.rows, all.channels, CachedRows<T, silu, count>{all});
      for_each_of_rows<count>(context, batch * all.ring_rows, all.channels, KeptRows<T, silu, count>{all});
    });
  });
}

}  // namespace

void register_causal_conv(KernelTable& table) {
  table.add<CausalConvForward, Context, &forward>();
  table.add<CausalConvBackwardInput, Context, &backward_input>();
  table.add<CausalConvBackwardWeight, Context, &backward_weight, &backward_weight_workspace>();
  table.add<CausalConvEdge, Context, &edge>();
  table.add<CausalConvBackwardEdge, Context, &backward_edge>();
  table.add<CachedCausalConv, Context, &cached>();
}

}  // namespace primus::turbo::PRIMUS_GPU
