#include "turbo/cpu/glu.h"
#include "turbo/cpu/register.h"
#include "turbo/situ/formula.h"
#include "turbo/situ/situ.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

void forward(CpuContext& context, const SituForward& a) {
  with_situ(a.beta, a.linear_beta, [&](auto activation) {
    glu_forward(context, a.gate_up, a.out, [=](std::int64_t) { return activation; });
  });
}

void backward(CpuContext& context, const SituBackward& a) {
  with_situ(a.beta, a.linear_beta,
            [&](auto activation) { glu_backward(context, a.gate_up, a.d_out, a.d_gate_up, activation); });
}

}  // namespace

void register_situ(KernelTable& table) {
  table.add<SituForward, CpuContext, &forward>();
  table.add<SituBackward, CpuContext, &backward>();
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
