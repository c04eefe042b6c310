#include "turbo/gpu/glu.h"
#include "turbo/gpu/register.h"
#include "turbo/situ/formula.h"
#include "turbo/situ/situ.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

void forward(Context& context, const SituForward& a) {
  with_situ(a.beta, a.linear_beta,
            [&](auto activation) { glu_forward(context, a.gate_up, a.out, activation); });
}

void backward(Context& context, const SituBackward& a) {
  with_situ(a.beta, a.linear_beta,
            [&](auto activation) { glu_backward(context, a.gate_up, a.d_out, a.d_gate_up, activation); });
}

}  // namespace

void register_situ(KernelTable& table) {
  table.add<SituForward, Context, &forward>();
  table.add<SituBackward, Context, &backward>();
}

}  // namespace primus::turbo::PRIMUS_GPU
