// The linear layer's products on the CPU, by turbo/gemm. turbo/gemm chooses its own instruction set, and
// multiplies operands of one type, fp32 or bf16. fp16 products are computed in fp32 from copies.
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
  const bool fp16 = call.a.dtype == DType::kF16;
  args.ab_dtype = call.a.dtype == call.b.dtype && !fp16 ? call.a.dtype : DType::kF32;
  args.c_dtype = fp16 ? DType::kF32 : call.c.dtype;
  args.accumulate = call.accumulate;
  args.row_invariant = context.batch_invariant();
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

// Returns whether the product is computed by SplitGemm. The choice depends on the number of rows, so a
// batch-invariant forward pass never makes it.
bool is_split(const CpuContext& context, const Gemm& call) {
  return SplitGemm::suits(call) && !(context.batch_invariant() && call.role == GemmRole::kForward);
}

// Returns the bf16 operand of a product whose other operand is fp32, or null if there is none.
const Tensor* narrow_operand(const Gemm& call) {
  if (call.a.dtype == call.b.dtype) return nullptr;
  return call.a.dtype == DType::kBF16 ? &call.a : &call.b;
}

// Returns the bytes of the fp32 copy of this operand, which is at the start of the workspace.
std::int64_t widened_bytes(const Tensor* narrow) {
  return narrow ? narrow->elements() * size_of(DType::kF32) : 0;
}

template <class T>
void widen(const CpuContext& context, const Tensor& narrow, float* out) {
  const T* x = context.data<T>(narrow);
  parallel_ranges(context, narrow.elements(), sizeof(T) + sizeof(float),
                  [=](std::int64_t begin, std::int64_t end) {
                    PRIMUS_SIMD()
                    for (std::int64_t i = begin; i < end; ++i) out[i] = to_float(x[i]);
                  });
}

// fp32 copies of fp16 tensors, concatenated: both operands, and the result if it is fp16.
struct WideCopies {
  explicit WideCopies(const Gemm& call)
      : b(call.a.elements()),
        c(b + call.b.elements()),
        end(c + (call.c.dtype == DType::kF16 ? call.c.elements() : 0)) {}
  std::int64_t bytes() const { return end * size_of(DType::kF32); }

  std::int64_t b, c, end;  // in elements: where the copies of b and of c begin, and where the copies end
};

bool is_fp16(const Gemm& call) { return call.a.dtype == DType::kF16; }

void gemm_fp16(CpuContext& context, const Gemm& call, GemmArgs args) {
  const WideCopies at(call);
  const bool narrow_result = call.c.dtype == DType::kF16;
  auto* const a = context.data<float>(call.workspace);
  float* const c = a + at.c;
  widen<Float16>(context, call.a, a);
  widen<Float16>(context, call.b, a + at.b);
  if (narrow_result && call.accumulate) widen<Float16>(context, call.c, c);
  args.a = a;
  args.b = a + at.b;
  if (narrow_result) {
    args.c = c;
    args.c_past_caches = false;  // because c is read again at once
  }
  args.workspace = context.data<std::byte>(call.workspace) + at.bytes();
  args.workspace_bytes = static_cast<std::size_t>(call.workspace.bytes() - at.bytes());
  cpu_gemm(context.pool(), args);
  if (!narrow_result) return;
  Float16* const out = context.data<Float16>(call.c);
  parallel_ranges(context, call.c.elements(), sizeof(Float16) + sizeof(float),
                  [=](std::int64_t begin, std::int64_t end) {
                    PRIMUS_SIMD()
                    for (std::int64_t i = begin; i < end; ++i) out[i] = from_float<Float16>(c[i]);
                  });
}

void gemm(CpuContext& context, const Gemm& call) {
  PRIMUS_CHECK(Gemm::kId, call.around.absent());  // because is_taken() returns false for such calls
  GemmArgs args = gemm_args(context, call);
  if (is_fp16(call)) return gemm_fp16(context, call, args);
  if (is_split(context, call)) return SplitGemm(context, call, args).run();
  const Tensor* narrow = narrow_operand(call);
  args.workspace = context.data<std::byte>(call.workspace) + widened_bytes(narrow);
  args.workspace_bytes = static_cast<std::size_t>(call.workspace.bytes() - widened_bytes(narrow));
  if (narrow) {
    auto* wide = context.data<float>(call.workspace);
    widen<BFloat16>(context, *narrow, wide);
    (narrow == &call.a ? args.a : args.b) = wide;
  }
  cpu_gemm(context.pool(), args);
}

std::int64_t gemm_workspace(CpuContext& context, const Gemm& call) {
  if (!call.around.absent()) return Gemm::kNotTaken;  // fusing does not make a CPU faster
  const GemmArgs args = gemm_args(context, call);
  if (is_fp16(call)) {
    return WideCopies(call).bytes() +
           static_cast<std::int64_t>(cpu_gemm_workspace_bytes(args, context.threads()));
  }
  if (is_split(context, call)) return SplitGemm(context, call, args).workspace_bytes();
  return widened_bytes(narrow_operand(call)) +
         static_cast<std::int64_t>(cpu_gemm_workspace_bytes(args, context.threads()));
}

}  // namespace

void register_linear(KernelTable& table) { table.add<Gemm, CpuContext, &gemm, &gemm_workspace>(); }

}  // namespace primus::turbo::PRIMUS_CPU_ISA
