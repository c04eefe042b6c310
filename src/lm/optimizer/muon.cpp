// Muon (turbo/muon) updates hidden matrices. Muon needs complete matrices, but a rank's shard of a unit may
// begin and end within a matrix. Therefore the update direction of the unit is gathered. Then each rank
// orthogonalises the matrices that its shard overlaps (Liu et al. 2025, arXiv:2502.16982, section 2.3). If
// shards ended at matrix boundaries, no gather would be needed. But a block has only about seven matrices of
// different sizes. So such shards would be uneven in memory and work, and ranks beyond the number of matrices
// would be idle. Equal shards give all update rules the same layout, so checkpoints and the other sharding
// levels do not depend on Muon. The costs: 4 bytes of traffic per element and step, and a matrix in two
// shards is computed twice.
#include "turbo/muon/muon.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "config/trainer_config.h"
#include "lm/optimizer/muon.h"
#include "lm/optimizer/update_rule.h"
#include "turbo/adamw/adamw.h"
#include "turbo/elementwise/elementwise.h"
#include "turbo/linear/linear.h"

namespace primus {
namespace {

using engine::Buffer;
using engine::FlatRange;
using engine::Parameter;
using turbo::Gemm;
using turbo::GemmRole;

constexpr const char* kMomentum = "momentum_buffer";

struct Polynomial {
  double a, b, c;
};

// From Jordan et al. 2024: has the largest slope at 0 with which singular values still end in about [0.7,
// 1.2].
constexpr std::array<Polynomial, 1> kSimple = {{{3.4445, -4.7750, 2.0315}}};
// From Cesista 2025, "Squeezing 1-2% efficiency gains out of Muon": one polynomial for each of five steps.
constexpr std::array<Polynomial, 5> kQuintic = {{{4.0848, -6.8946, 2.9270},
                                                 {3.9505, -6.3029, 2.6377},
                                                 {3.7418, -5.5913, 2.3037},
                                                 {2.8769, -3.1427, 1.2046},
                                                 {2.8366, -3.0525, 1.2012}}};

struct MuonSettings {
  // The factor of the orthogonal update of a matrix [out, in].
  enum class Scale : std::uint8_t {
    kSpectral,      // factor sqrt(max(out, in)); with extra_scale 0.2, updates are as large as AdamW's
    kUnitRmsNorm,   // factor sqrt(out / in)
    kShapeScaling,  // factor sqrt(max(1, out / in))
  };

  double momentum;
  bool nesterov;
  Scale scale;
  double extra_scale;
  std::int64_t steps;                       // number of Newton-Schulz iterations
  std::span<const Polynomial> polynomials;  // iteration i uses polynomial i % polynomials.size()
  bool fp32_products;                       // whether operands of the iterations are fp32; false: bf16
  bool split_qkv;  // whether the projections of queries, keys and values are separate matrices
};

class MuonRule final : public UpdateRule {
 public:
  explicit MuonRule(const MuonSettings& settings) : settings_(settings) {}

  std::string_view name() const override { return "muon"; }
  std::vector<engine::StateSpec> states() const override { return {{kMomentum}}; }
  // Excludes biases of experts: their shape is [experts, n], but they are not matrices and are not decayed.
  // Also excludes convolution kernels.
  bool takes(const Parameter& p) const override {
    return p.shape.rank() > 1 && p.decayed() && !p.vocabulary && !p.kernel;
  }

  void update(const UnitUpdate& u) const override;

 private:
  // Orthogonalises `direction`, [rows, cols] fp32. The result is in `buffer`, in the operand type of the
  // matrix products.
  Tensor orthogonalise(const UnitUpdate& u, const Tensor& direction, Buffer& buffer) const;
  void update_matrix(const UnitUpdate& u, const FlatRange& matrix, std::int64_t cols,
                     const Tensor& direction) const;
  double scale_of(double rows, double cols) const;

  MuonSettings settings_;
};

double MuonRule::scale_of(double rows, double cols) const {
  switch (settings_.scale) {
    case MuonSettings::Scale::kUnitRmsNorm:
      return settings_.extra_scale * std::sqrt(rows / cols);
    case MuonSettings::Scale::kShapeScaling:
      return settings_.extra_scale * std::sqrt(std::max(1.0, rows / cols));
    case MuonSettings::Scale::kSpectral:
      break;
  }
  return settings_.extra_scale * std::sqrt(std::max(rows, cols));
}

Tensor MuonRule::orthogonalise(const UnitUpdate& u, const Tensor& direction, Buffer& buffer) const {
  turbo::Context& context = u.rank.context();
  engine::Stash& stash = u.rank.stash();
  const std::int64_t rows = direction.rows(), cols = direction.cols(), k = std::min(rows, cols);
  const DType dtype = settings_.fp32_products ? DType::kF32 : DType::kBF16;
  const auto take = [&](DType type, const Shape& shape, Buffer& in) {
    in = stash.allocate(shape.elements() * size_of(type));
    return in.view(type, shape);
  };
  Buffer buffers[6];
  Tensor x = take(dtype, direction.shape, buffer), next = take(dtype, direction.shape, buffers[0]);
  const Tensor gram = take(DType::kF32, {k, k}, buffers[1]), square = take(DType::kF32, {k, k}, buffers[2]);
  const Tensor polynomial = take(dtype, {k, k}, buffers[3]);
  const Tensor narrow = dtype == DType::kF32 ? gram : take(dtype, {k, k}, buffers[4]);
  const Tensor sum = take(DType::kF64, {1}, buffers[5]);

  turbo::launch(context, turbo::SumOfSquares{.x = direction, .out = sum, .accumulate = false});
  turbo::launch(context, turbo::MuonNormalize{.x = direction, .sum_of_squares = sum, .out = x});
  const auto product = [&](GemmRole role, const Tensor& a, const Tensor& b, const Tensor& c) {
    turbo::launch(context, Gemm{.role = role, .a = a, .b = b, .c = c, .workspace = {}});
  };
  // Uses the smaller of XX' and X'X; both are symmetric, so no operand needs a transpose.
  const bool wide = rows <= cols;
  for (std::int64_t step = 0; step < settings_.steps; ++step) {
    const auto [a, b, c] =
        settings_.polynomials[static_cast<std::size_t>(step) % settings_.polynomials.size()];
    product(wide ? GemmRole::kForward : GemmRole::kWeightGradient, x, x, gram);
    if (dtype != DType::kF32) turbo::launch(context, turbo::Cast{.x = gram, .out = narrow});
    product(GemmRole::kForward, narrow, narrow, square);
    turbo::launch(context, turbo::MuonPolynomial{.gram = gram,
                                                 .square = square,
                                                 .out = polynomial,
                                                 .a = static_cast<float>(a),
                                                 .b = static_cast<float>(b),
                                                 .c = static_cast<float>(c)});
    product(GemmRole::kInputGradient, wide ? polynomial : x, wide ? x : polynomial, next);
    std::swap(x, next);
    std::swap(buffer, buffers[0]);
  }
  return x;
}

void MuonRule::update_matrix(const UnitUpdate& u, const FlatRange& matrix, std::int64_t cols,
                             const Tensor& direction) const {
  const engine::ParameterUnit& unit = u.unit;
  const FlatRange own = matrix.intersect(unit.shard);
  if (own.empty()) return;
  const std::int64_t rows = matrix.size() / cols;
  Buffer buffer;
  const Tensor update = orthogonalise(u, direction.reshaped({rows, cols}), buffer);
  const auto part = [&](const Tensor& of_shard) {
    return of_shard.absent() ? Tensor()
                             : of_shard.slice(own.begin - unit.shard.begin, own.end - unit.shard.begin);
  };
  turbo::launch(
      u.rank.context(),
      turbo::MuonUpdate{
          .param = part(unit.stored.master),
          .direction =
              update.reshaped({matrix.size()}).slice(own.begin - matrix.begin, own.end - matrix.begin),
          .grad_scale = u.gradient_scale,
          .working = unit.dtype == DType::kF32 ? Tensor() : part(unit.stored.values),
          .remainder = part(unit.stored.remainder),
          .scalars = u.scalars,
          .scale = static_cast<float>(scale_of(static_cast<double>(rows), static_cast<double>(cols)))});
}

void MuonRule::update(const UnitUpdate& u) const {
  engine::ParameterUnit& unit = u.unit;
  const auto has_rule = [&](const engine::ParameterRun& run) { return run.rule == u.rule; };
  if (std::none_of(unit.runs.begin(), unit.runs.end(), has_rule)) return;
  engine::Stash& stash = u.rank.stash();
  Buffer own_buffer = stash.allocate(unit.shard.size() * size_of(DType::kF32));
  const Tensor own = own_buffer.view(DType::kF32, {unit.shard.size()});
  for (const engine::UnitState& state : unit.states) {
    if (state.rule != u.rule || state.elements.empty() || state.spec.name != kMomentum) continue;
    const auto part = [&](const Tensor& of_shard) {
      return of_shard.slice(state.elements.begin - unit.shard.begin, state.elements.end - unit.shard.begin);
    };
    turbo::launch(u.rank.context(), turbo::MuonMomentum{.grad = part(unit.reduced),
                                                        .momentum = state.values,
                                                        .direction = part(own),
                                                        .grad_scale = u.gradient_scale,
                                                        .beta = static_cast<float>(settings_.momentum),
                                                        .nesterov = settings_.nesterov});
  }
  Buffer whole_buffer;
  Tensor whole = own;
  if (unit.shard.size() != unit.elements) {
    whole_buffer = stash.allocate(unit.elements * size_of(DType::kF32));
    whole = whole_buffer.view(DType::kF32, {unit.elements});
    u.parallel.gather_shards(unit, own, whole);
    own_buffer.reset();
  }
  for (const Parameter* p : unit.parameters) {
    if (p->rule != u.rule) continue;
    const std::int64_t cols = p->shape[p->shape.rank() - 1];
    for (const FlatRange& rows : muon_matrices(*p, settings_.split_qkv)) {
      const FlatRange matrix{p->offset + rows.begin * cols, p->offset + rows.end * cols};
      update_matrix(u, matrix, cols, whole.slice(matrix.begin, matrix.end));
    }
  }
}

UpdateRules make_rules(const config::TrainerConfig& c) {
  using Scale = MuonSettings::Scale;
  const std::string& scale = c.muon_scale_mode;
  const MuonSettings settings{
      .momentum = c.muon_momentum,
      .nesterov = c.muon_use_nesterov,
      .scale = scale == "unit_rms_norm"   ? Scale::kUnitRmsNorm
               : scale == "shape_scaling" ? Scale::kShapeScaling
                                          : Scale::kSpectral,
      .extra_scale = c.muon_extra_scale_factor,
      .steps = c.muon_num_ns_steps,
      .polynomials = c.muon_coefficient_type == "simple" ? std::span<const Polynomial>(kSimple) : kQuintic,
      .fp32_products = c.muon_fp32_matmul_prec == "high" || c.muon_fp32_matmul_prec == "highest",
      .split_qkv = c.muon_split_qkv};
  UpdateRules rules{std::make_shared<MuonRule>(settings)};
  config::TrainerConfig companion = c;
  companion.optimizer = c.muon_scalar_optimizer;
  for (auto& rule : update_rules_of(companion)) rules.push_back(std::move(rule));
  return rules;
}

}  // namespace

extern const OptimizerEntry kMuon{
    .name = "muon", .title = "Muon", .make = make_rules, .other_name = "dist_muon"};

std::vector<FlatRange> muon_matrices(const Parameter& p, bool split_qkv) {
  const std::int64_t cols = p.shape[p.shape.rank() - 1], rows = p.shape.elements() / cols;
  const std::int64_t of_expert = p.shape.rank() > 2 ? rows / p.shape[0] : rows;
  const bool whole = !split_qkv && p.name.ends_with(".attention.qkv");
  // The rows where matrices begin: the first row of each expert, and of each published tensor of which this
  // rank has a part.
  std::vector<std::int64_t> begins;
  for (std::int64_t row = 0; row < rows; row += of_expert) begins.push_back(row);
  for (const engine::CheckpointPart& part : p.parts) {
    const FlatRange here = engine::elements_in_rows(p, part.row, part.rows);
    if (!whole && !here.empty()) begins.push_back(here.begin / cols);
  }
  std::sort(begins.begin(), begins.end());
  begins.erase(std::unique(begins.begin(), begins.end()), begins.end());
  std::vector<FlatRange> matrices;
  for (std::size_t i = 0; i < begins.size(); ++i)
    matrices.push_back({begins[i], i + 1 < begins.size() ? begins[i + 1] : rows});
  return matrices;
}

}  // namespace primus
