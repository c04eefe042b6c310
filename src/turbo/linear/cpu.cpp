// The linear layer's products on the CPU: a translation to turbo/gemm, which chooses its own instruction set,
// and multiplies numbers of one type.
#include "turbo/bias/bias.h"
#include "turbo/cpu/register.h"
#include "turbo/cpu/simd.h"
#include "turbo/gemm/gemm.h"
#include "turbo/linear/cpu_split.h"
#include "turbo/linear/linear.h"
#include "turbo/rms_norm/rms_norm.h"
#include "turbo/rope/rope.h"
#include "turbo/swiglu/swiglu.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

GemmArgs gemm_args(const CpuContext& context, const Gemm& call) {
  GemmArgs args;
  args.ab_dtype = call.a.dtype == call.b.dtype ? call.a.dtype : DType::kF32;
  args.c_dtype = call.c.dtype;
  args.accumulate = call.accumulate;
  args.m = call.c.rows();
  args.n = call.c.cols();
  switch (call.role) {
    case GemmRole::kForward:
      args.layout = GemmLayout::kNT, args.k = call.a.cols();
      break;
    case GemmRole::kInputGradient:
      args.layout = GemmLayout::kNN, args.k = call.a.cols();
      break;
    case GemmRole::kWeightGradient:
      args.layout = GemmLayout::kTN, args.k = call.a.rows();
      break;
  }
  args.a = context.data<const std::byte>(call.a);
  args.b = context.data<const std::byte>(call.b);
  args.c = context.data<std::byte>(call.c);
  args.c_past_caches = call.role == GemmRole::kWeightGradient && call.c.bytes() > kGemmPastCaches;
  args.lda = call.a.cols();
  args.ldb = call.b.cols();
  args.ldc = call.c.cols();
  return args;
}

// The bf16 operand of a product with an fp32 one, or null.
const Tensor* narrow_operand(const Gemm& call) {
  if (call.a.dtype == call.b.dtype) return nullptr;
  return call.a.dtype == DType::kBF16 ? &call.a : &call.b;
}

// Bytes of its copy in fp32, at the start of the workspace.
std::int64_t widened_bytes(const Tensor* narrow) {
  return narrow ? narrow->elements() * size_of(DType::kF32) : 0;
}

void widen(const CpuContext& context, const Tensor& narrow, float* out) {
  const BFloat16* x = context.data<BFloat16>(narrow);
  parallel_ranges(context, narrow.elements(), sizeof(BFloat16) + sizeof(float),
                  [=](std::int64_t begin, std::int64_t end) {
                    PRIMUS_SIMD()
                    for (std::int64_t i = begin; i < end; ++i) out[i] = to_float(x[i]);
                  });
}

void product(CpuContext& context, const Gemm& call) {
  GemmArgs args = gemm_args(context, call);
  if (SplitGemm::suits(call)) return SplitGemm(context, call, args).run();
  const Tensor* narrow = narrow_operand(call);
  args.workspace = context.data<std::byte>(call.workspace) + widened_bytes(narrow);
  args.workspace_bytes = static_cast<std::size_t>(call.workspace.bytes() - widened_bytes(narrow));
  if (narrow) {
    auto* wide = context.data<float>(call.workspace);
    widen(context, *narrow, wide);
    (narrow == &call.a ? args.a : args.b) = wide;
  }
  cpu_gemm(context.pool(), args);
}

std::int64_t product_workspace(CpuContext& context, const Gemm& call) {
  const GemmArgs args = gemm_args(context, call);
  if (SplitGemm::suits(call)) return SplitGemm(context, call, args).workspace_bytes();
  return widened_bytes(narrow_operand(call)) +
         static_cast<std::int64_t>(cpu_gemm_workspace_bytes(args, context.threads()));
}

// ---- What is around a product: nothing is gained here by doing it on the way ---------------------

// The product of what is normed, and what the steps around it need, one after the other in the workspace.
class AroundSteps {
 public:
  explicit AroundSteps(const Gemm& call)
      : call_(call),
        memory_(static_cast<std::byte*>(call.workspace.data)),
        normed_(take(DType::kBF16, call.a.shape)),
        rstd_(take(DType::kF32, {call.a.rows()})),
        plain_(call) {
    plain_.around = {};
    plain_.a = normed_;
    if (call.around.end == AroundProduct::End::kSwiglu)
      plain_.c = take(DType::kBF16, {call.a.rows(), call.b.rows()});
    plain_.workspace = {};
  }

  std::int64_t workspace(CpuContext& context) const { return used_ + product_workspace(context, plain_); }

  void run(CpuContext& context) {
    const AroundProduct& p = call_.around;
    step(context, RmsNormForward{.x = call_.a,
                                 .delta = p.delta,
                                 .weight = p.norm,
                                 .sum = p.sum,
                                 .y = normed_,
                                 .rstd = rstd_,
                                 .eps = p.eps});
    plain_.workspace = Tensor(memory_ + used_, DType::kU8, {call_.workspace.bytes() - used_});
    product(context, plain_);
    const Tensor& c = plain_.c;
    if (!p.bias.absent()) step(context, AddBias{.x = c, .bias = p.bias, .y = c});
    if (p.end == AroundProduct::End::kRope) {
      step(context, Rope{.x = c,
                         .y = c,
                         .positions = p.positions,
                         .table = p.table,
                         .heads = p.heads,
                         .head_dim = p.head_dim,
                         .rotary_dim = p.head_dim,
                         .inverse = false});
    } else if (p.end == AroundProduct::End::kSwiglu) {
      step(context, SwigluForward{.gate_up = c, .out = call_.c});
    }
  }

 private:
  Tensor take(DType dtype, const Shape& shape) {
    constexpr std::int64_t kLine = 64;
    Tensor tensor(memory_ ? memory_ + used_ : nullptr, dtype, shape);  // null: only the sizes matter
    used_ += (tensor.bytes() + kLine - 1) / kLine * kLine;
    return tensor;
  }

  template <class Arguments>
  static void step(CpuContext& context, const Arguments& arguments) {
    static const KernelTable table = [] {
      KernelTable steps;
      register_rms_norm(steps), register_bias(steps), register_rope(steps), register_swiglu(steps);
      return steps;
    }();
    table[Arguments::kId].run(context, &arguments);
  }

  const Gemm& call_;
  std::byte* memory_;
  std::int64_t used_ = 0;
  Tensor normed_, rstd_;
  Gemm plain_;
};

void gemm(CpuContext& context, const Gemm& call) {
  if (call.around.absent()) return product(context, call);
  AroundSteps(call).run(context);
}

std::int64_t gemm_workspace(CpuContext& context, const Gemm& call) {
  return call.around.absent() ? product_workspace(context, call) : AroundSteps(call).workspace(context);
}

}  // namespace

void register_linear(KernelTable& table) { table.add<Gemm, CpuContext, &gemm, &gemm_workspace>(); }

}  // namespace primus::turbo::PRIMUS_CPU_ISA
