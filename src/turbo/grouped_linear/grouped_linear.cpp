#include "turbo/grouped_linear/grouped_linear.h"

#include "turbo/check.h"

namespace primus::turbo {
namespace {

bool are_offsets(const Tensor& offsets, std::int64_t experts) {
  return offsets.dtype == DType::kI32 && offsets.elements() == experts + 1;
}

void check_shared(const GroupedGemm& g) {
  constexpr KernelId kId = GroupedGemm::kId;
  const ChosenExperts::Shared& s = g.chosen.shared;
  const bool gated = g.chosen.end == ChosenExperts::End::kGated;
  if (s.absent()) {
    PRIMUS_CHECK(kId, s.rows.absent() && s.gate.absent() && s.gates.absent());
    return;
  }
  const std::int64_t tokens = g.chosen.experts.shape[0];
  PRIMUS_CHECK(kId,
               g.chosen.previous.absent() && s.weights.dtype == DType::kBF16 && s.rows.dtype == DType::kBF16);
  PRIMUS_CHECK(kId, s.weights.shape.rank() == 2 && s.rows.shape.rank() == 2 && s.rows.rows() == tokens);
  PRIMUS_CHECK(kId, gated ? s.weights.shape == Shape({2 * s.rows.cols(), g.a.cols()})
                          : s.weights.shape == Shape({g.c.cols(), s.rows.cols()}));
  PRIMUS_CHECK(kId, s.gates.absent() || (s.gates.dtype == DType::kF32 && s.gates.elements() == tokens));
  PRIMUS_CHECK(kId, s.gate.absent() ? !gated || s.gates.absent()
                                    : gated && !s.gates.absent() && s.gate.dtype == DType::kF32 &&
                                          s.gate.elements() == g.a.cols());
}

void check_chosen(const GroupedGemm& g) {
  constexpr KernelId kId = GroupedGemm::kId;
  const ChosenExperts& p = g.chosen;
  PRIMUS_CHECK(kId, g.role == GemmRole::kForward && !g.accumulate && g.offsets.absent());
  PRIMUS_CHECK(kId, g.a_rows.absent() && g.b_rows.absent());
  for (const Tensor* t : {&g.a, &g.b, &g.c}) PRIMUS_CHECK(kId, t->dtype == DType::kBF16);
  PRIMUS_CHECK(kId, p.experts.dtype == DType::kI32 && p.experts.shape.rank() == 2 && g.b.shape.rank() == 3);
  const bool gated = p.end == ChosenExperts::End::kGated;
  const std::int64_t tokens = p.experts.shape[0], slots = p.experts.elements(), out = g.b.shape[1];
  PRIMUS_CHECK(kId, g.a.rows() == (gated ? tokens : slots) && g.a.cols() == g.b.shape[2]);
  PRIMUS_CHECK(kId, g.c.rows() == (gated ? slots : tokens));
  PRIMUS_CHECK(kId, gated ? out % 2 == 0 && g.c.cols() == out / 2 : g.c.cols() == out);
  PRIMUS_CHECK(kId,
               p.weights.absent() || (p.weights.dtype == DType::kF32 && p.weights.shape == p.experts.shape));
  PRIMUS_CHECK(kId, p.bias.absent() || (p.bias.dtype == DType::kBF16 && p.bias.shape.rank() == 2 &&
                                        p.bias.rows() == g.b.shape[0] && p.bias.cols() == out));
  PRIMUS_CHECK(kId, p.previous.absent() || (!gated && same(p.previous, g.c)));
  PRIMUS_CHECK(kId, p.limit == 0 || (gated && p.limit > 0 && p.weights.absent()));
  check_shared(g);
}

}  // namespace

void GroupedGemm::check() const {
  if (!chosen.absent()) return check_chosen(*this);
  const Tensor& weights = role == GemmRole::kWeightGradient ? c : b;
  PRIMUS_CHECK(kId, is_float(a) && b.dtype == a.dtype && weights.shape.rank() == 3);
  PRIMUS_CHECK(kId, are_offsets(offsets, weights.shape[0]));
  PRIMUS_CHECK(kId, a_rows.absent() || a_rows.dtype == DType::kI32);
  PRIMUS_CHECK(kId, b_rows.absent() || (b_rows.dtype == DType::kI32 && role == GemmRole::kWeightGradient));
  switch (role) {
    case GemmRole::kForward:
      PRIMUS_CHECK(kId, !accumulate && is_float(c) && c.rows() == rows());
      PRIMUS_CHECK(kId, a.cols() == b.shape[2] && c.cols() == b.shape[1]);
      break;
    case GemmRole::kInputGradient:
      PRIMUS_CHECK(kId, !accumulate && is_float(c) && c.rows() == rows());
      PRIMUS_CHECK(kId, a.cols() == b.shape[1] && c.cols() == b.shape[2]);
      break;
    case GemmRole::kWeightGradient:
      PRIMUS_CHECK(kId, is_float(c) && rows() == (b_rows.absent() ? b.rows() : b_rows.elements()));
      PRIMUS_CHECK(kId, c.shape[1] == a.cols() && c.shape[2] == b.cols());
      break;
  }
}

bool is_taken(Device& device, const GroupedGemm& call) {
  const KernelTable::Entry& entry = device.kernels()[GroupedGemm::kId];
  return entry.workspace_bytes &&
         entry.workspace_bytes(device.kernel_context(), &call) != GroupedGemm::kNotTaken;
}

double GroupedGemm::flops() const {
  const Tensor& weights = role == GemmRole::kWeightGradient ? c : b;
  return 2 * static_cast<double>(rows()) * static_cast<double>(weights.shape[1]) *
         static_cast<double>(weights.shape[2]);
}

void GroupedBias::check() const {
  PRIMUS_CHECK(kId, is_float(x) && same(y, x));
  PRIMUS_CHECK(kId, bias.dtype == x.dtype && bias.shape.rank() == 2 && bias.cols() == x.cols());
  PRIMUS_CHECK(kId, are_offsets(offsets, bias.rows()));
}

void GroupedBiasBackward::check() const {
  PRIMUS_CHECK(kId, is_float(d_y) && d_bias.dtype == DType::kF32);
  PRIMUS_CHECK(
      kId, d_bias.shape.rank() == 2 && d_bias.cols() == d_y.cols() && are_offsets(offsets, d_bias.rows()));
}

}  // namespace primus::turbo
