// The linear layer's products on the CPU: a translation to turbo/gemm, which chooses its own instruction set,
// and multiplies numbers of one type.
#include "turbo/check.h"
#include "turbo/cpu/register.h"
#include "turbo/cpu/simd.h"
#include "turbo/gemm/gemm.h"
#include "turbo/linear/cpu_split.h"
#include "turbo/linear/linear.h"

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

void gemm(CpuContext& context, const Gemm& call) {
  PRIMUS_CHECK(Gemm::kId, call.around.absent());  // is_taken() said so
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

std::int64_t gemm_workspace(CpuContext& context, const Gemm& call) {
  if (!call.around.absent()) return Gemm::kNotTaken;  // nothing would be gained by it
  const GemmArgs args = gemm_args(context, call);
  if (SplitGemm::suits(call)) return SplitGemm(context, call, args).workspace_bytes();
  return widened_bytes(narrow_operand(call)) +
         static_cast<std::int64_t>(cpu_gemm_workspace_bytes(args, context.threads()));
}

}  // namespace

void register_linear(KernelTable& table) { table.add<Gemm, CpuContext, &gemm, &gemm_workspace>(); }

}  // namespace primus::turbo::PRIMUS_CPU_ISA
