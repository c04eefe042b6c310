// The linear layer's products on the CPU: a translation to turbo/gemm, which chooses its own instruction set.
#include "device/cpu/cpu_device.h"
#include "turbo/cpu/register.h"
#include "turbo/gemm/gemm.h"
#include "turbo/linear/linear.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

GemmArgs gemm_args(const cpu::CpuContext& context, const Gemm& call) {
  GemmArgs args;
  args.ab_dtype = call.a.dtype;
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

void gemm(cpu::CpuContext& context, const Gemm& call) {
  GemmArgs args = gemm_args(context, call);
  args.workspace = context.data<std::byte>(call.workspace);
  args.workspace_bytes = static_cast<std::size_t>(call.workspace.bytes());
  cpu_gemm(context.pool(), args);
}

std::int64_t gemm_workspace(cpu::CpuContext& context, const Gemm& call) {
  return static_cast<std::int64_t>(cpu_gemm_workspace_bytes(gemm_args(context, call), context.pool().size()));
}

}  // namespace

void register_linear(KernelTable& table) { table.add<Gemm, cpu::CpuContext, &gemm, &gemm_workspace>(); }

}  // namespace primus::turbo::PRIMUS_CPU_ISA
