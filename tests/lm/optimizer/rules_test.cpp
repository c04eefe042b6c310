// Compares every update rule with its definition in double precision, over ten steps of a small model's
// parameters.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/random/random.h"
#include "config/keys.h"
#include "config/trainer_config.h"
#include "lm/optimizer/muon.h"
#include "lm/optimizer/optimizer.h"
#include "turbo/cpu/cpu_kernels.h"

namespace primus {
namespace {

using engine::FlatRange;
using engine::Initializer;
using engine::Parameter;
using engine::ParameterStore;
using Values = std::vector<double>;
using config::TrainerConfig;

constexpr double kRate = 1e-2, kDecay = 0.1, kClip = 2;
constexpr int kSteps = 10;

// Declares an embedding, and a block with every kind of parameter that a rule may treat specially: vectors;
// fused, stacked, wide and tall matrices; and two parameters that have the shape of a matrix but are none,
// expert biases and a convolution kernel.
void declare(ParameterStore& store) {
  const Initializer normal = Initializer::normal(0.5);
  store.begin_group("embedding");
  store.add("embedding", {24, 12}, normal).vocabulary = true;
  store.begin_group("layers.0");
  store.add("layers.0.norm", {12}, Initializer::constant(1));
  store.add("layers.0.attention.qkv", {20, 12}, normal, {{"q", 0, 12}, {"k", 12, 4}, {"v", 16, 4}});
  store.add("layers.0.down", {12, 30}, normal);
  store.add("layers.0.up", {30, 12}, normal);
  store.add("layers.0.experts", {3, 10, 12}, normal,
            {{"e0.gate", 0, 5},
             {"e0.up", 5, 5},
             {"e1.gate", 10, 5},
             {"e1.up", 15, 5},
             {"e2.gate", 20, 5},
             {"e2.up", 25, 5}});
  store.add("layers.0.stacked", {2, 6, 8}, normal);  // published as one tensor
  store.add("layers.0.biases", {3, 10}, normal).decay = false;
  store.add("layers.0.kernel", {12, 3}, normal).kernel = true;
}

// Declares the parameters and allocates memory for these rules.
void set_up(ParameterStore& store, const UpdateRules& rules, engine::Rank& rank) {
  declare(store);
  store.allocate(
      {.states = states_of(rules), .rule_of = [&](const Parameter& p) { return rule_of(rules, p); }},
      rank.persistent());
}

Values gradient_of(const Parameter& p, int step) {
  std::vector<float> draws(static_cast<std::size_t>(p.shape.elements()));
  fill_normal(RandomStream(static_cast<std::uint64_t>(100 * step + p.index), RandomPurpose::kTest), 0, draws);
  return {draws.begin(), draws.end()};
}

// ---- References ---------------------------------------------------------------------------------

using Matrix = std::vector<Values>;

Matrix product(const Matrix& a, const Matrix& b) {
  Matrix c(a.size(), Values(b[0].size()));
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t k = 0; k < b.size(); ++k) {
      for (std::size_t j = 0; j < b[0].size(); ++j) c[i][j] += a[i][k] * b[k][j];
    }
  }
  return c;
}

Matrix transposed(const Matrix& a) {
  Matrix t(a[0].size(), Values(a.size()));
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t j = 0; j < a[0].size(); ++j) t[j][i] = a[i][j];
  }
  return t;
}

// X = G/|G|, then repeatedly X = aX + bXX'X + cXX'XX'X.
Matrix newton_schulz(Matrix x, std::int64_t steps, const std::vector<std::array<double, 3>>& polynomials) {
  double sum = 0;
  for (const Values& row : x) {
    for (const double v : row) sum += v * v;
  }
  for (Values& row : x) {
    for (double& v : row) v /= std::max(std::sqrt(sum), 1e-7);
  }
  for (std::int64_t s = 0; s < steps; ++s) {
    const auto [a, b, c] = polynomials[static_cast<std::size_t>(s) % polynomials.size()];
    const Matrix x3 = product(product(x, transposed(x)), x), x5 = product(product(x, transposed(x)), x3);
    for (std::size_t i = 0; i < x.size(); ++i) {
      for (std::size_t j = 0; j < x[0].size(); ++j) x[i][j] = a * x[i][j] + b * x3[i][j] + c * x5[i][j];
    }
  }
  return x;
}

const std::vector<std::array<double, 3>> kSimple = {{3.4445, -4.7750, 2.0315}};
const std::vector<std::array<double, 3>> kQuintic = {{4.0848, -6.8946, 2.9270},
                                                     {3.9505, -6.3029, 2.6377},
                                                     {3.7418, -5.5913, 2.3037},
                                                     {2.8769, -3.1427, 1.2046},
                                                     {2.8366, -3.0525, 1.2012}};

struct Reference {
  TrainerConfig settings;
  // The rows of each parameter that Muon treats as one matrix. If there are none, the scalar optimizer
  // updates the parameter.
  std::map<std::string, std::vector<FlatRange>> matrices;
  std::map<std::string, Values> params, first, second;  // states by parameter name

  void step(const Parameter& p, Values g, int number) {
    Values &w = params[p.name], &m = first[p.name], &v = second[p.name];
    m.resize(w.size());
    v.resize(w.size());
    const double decay = p.shape.rank() > 1 && p.decay ? kDecay : 0;
    const bool muon = settings.optimizer == "muon";
    const std::string& rule = muon ? settings.muon_scalar_optimizer : settings.optimizer;
    if (muon && matrices.contains(p.name)) return muon_step(p, g, w, m);
    for (std::size_t i = 0; i < w.size(); ++i) {
      if (rule == "sgd") {
        m[i] = settings.sgd_momentum * m[i] + g[i] + decay * w[i];
        w[i] -= kRate * m[i];
      } else if (rule == "lion") {
        const double b1 = settings.lion_beta1, b2 = settings.lion_beta2;
        const double mixed = b1 * m[i] + (1 - b1) * g[i];
        w[i] = w[i] * (1 - kRate * decay) - kRate * (mixed > 0 ? 1 : -1);
        m[i] = b2 * m[i] + (1 - b2) * g[i];
      } else {
        const double b1 = settings.adam_beta1, b2 = settings.adam_beta2, eps = settings.adam_eps;
        m[i] = b1 * m[i] + (1 - b1) * g[i];
        v[i] = b2 * v[i] + (1 - b2) * g[i] * g[i];
        const double root = std::sqrt(v[i] / (1 - std::pow(b2, number))) + eps;
        w[i] = w[i] * (1 - kRate * decay) - kRate / (1 - std::pow(b1, number)) * m[i] / root;
      }
    }
  }

  void muon_step(const Parameter& p, const Values& g, Values& w, Values& m) const {
    const double momentum = settings.muon_momentum;
    Values direction(w.size());
    for (std::size_t i = 0; i < w.size(); ++i) {
      m[i] = momentum * m[i] + (1 - momentum) * g[i];
      direction[i] = settings.muon_use_nesterov ? momentum * m[i] + (1 - momentum) * g[i] : m[i];
    }
    const auto cols = static_cast<std::size_t>(p.shape[p.shape.rank() - 1]);
    for (const FlatRange& rows : matrices.at(p.name)) {
      Matrix x(static_cast<std::size_t>(rows.size()), Values(cols));
      const auto first_element = static_cast<std::size_t>(rows.begin) * cols;
      for (std::size_t i = 0; i < x.size() * cols; ++i) x[i / cols][i % cols] = direction[first_element + i];
      x = newton_schulz(x, settings.muon_num_ns_steps,
                        settings.muon_coefficient_type == "simple" ? kSimple : kQuintic);
      const auto out = static_cast<double>(x.size()), in = static_cast<double>(cols);
      const double scale = settings.muon_scale_mode == "spectral"        ? std::sqrt(std::max(out, in))
                           : settings.muon_scale_mode == "unit_rms_norm" ? std::sqrt(out / in)
                                                                         : std::sqrt(std::max(1.0, out / in));
      for (std::size_t i = 0; i < x.size() * cols; ++i) {
        double& weight = w[first_element + i];
        weight = weight * (1 - kRate * kDecay) -
                 kRate * scale * settings.muon_extra_scale_factor * x[i / cols][i % cols];
      }
    }
  }
};

// ---- The optimizer on one device ----------------------------------------------------------------

class Session {
 public:
  explicit Session(const TrainerConfig& config) : rank_(turbo::make_cpu_device(2)) {
    rank_.reserve({.persistent = 1 << 20, .stash = 1 << 20, .scratch = 1 << 20});
    const UpdateRules rules = update_rules_of(config);
    set_up(store_, rules, rank_);
    parallel_ = std::make_unique<engine::DataParallel>(rank_, store_, engine::DataParallelSettings{});
    optimizer_ = std::make_unique<Optimizer>(OptimizerSettings{.rules = rules, .clip_norm = kClip}, store_,
                                             *parallel_, rank_);
    scalars_ = Tensor(rank_.persistent().allocate(turbo::kStepScalars * 8).address, DType::kF64,
                      {turbo::kStepScalars});
    store_.initialize(rank_.context(), 3);
  }

  void step(int number) {
    for (const Parameter& p : store_.parameters()) {
      const Values g = gradient_of(p, number);
      const std::vector<float> narrow(g.begin(), g.end());
      rank_.compute().copy_to_device(p.gradient.data, narrow.data(), p.gradient.bytes());
      rank_.compute().synchronize();
    }
    std::array<double, turbo::kStepScalars> scalars{};
    optimizer_->set_scalars(number, kRate, kDecay, scalars);
    rank_.compute().copy_to_device(scalars_.data, scalars.data(), scalars_.bytes());
    optimizer_->measure_gradients();
    optimizer_->update(scalars_, number);
    rank_.compute().synchronize();
  }

  Values weights(const Parameter& p) {
    std::vector<float> values(static_cast<std::size_t>(p.shape.elements()));
    rank_.compute().copy_to_host(values.data(), p.value.data, p.value.bytes());
    rank_.compute().synchronize();
    return {values.begin(), values.end()};
  }

  const ParameterStore& store() const { return store_; }

 private:
  engine::Rank rank_;
  ParameterStore store_;
  std::unique_ptr<engine::DataParallel> parallel_;
  std::unique_ptr<Optimizer> optimizer_;
  Tensor scalars_;
};

const std::map<std::string, std::vector<FlatRange>> kMatrices = {
    {"layers.0.attention.qkv", {{0, 12}, {12, 16}, {16, 20}}},
    {"layers.0.down", {{0, 12}}},
    {"layers.0.up", {{0, 30}}},
    {"layers.0.experts", {{0, 5}, {5, 10}, {10, 15}, {15, 20}, {20, 25}, {25, 30}}},
    {"layers.0.stacked", {{0, 6}, {6, 12}}}};

// Returns each parameter's largest difference from the reference after all steps.
std::map<std::string, double> errors_of(const TrainerConfig& settings) {
  Session session(settings);
  Reference reference{settings, kMatrices, {}, {}, {}};
  if (!settings.muon_split_qkv) reference.matrices["layers.0.attention.qkv"] = {{0, 20}};
  for (const Parameter& p : session.store().parameters()) reference.params[p.name] = session.weights(p);
  for (int step = 1; step <= kSteps; ++step) {
    double sum = 0;
    for (const Parameter& p : session.store().parameters()) {
      for (const double g : gradient_of(p, step)) sum += g * g;
    }
    const double scale = std::min(1.0, kClip / (std::sqrt(sum) + 1e-6));
    for (const Parameter& p : session.store().parameters()) {
      Values g = gradient_of(p, step);
      for (double& value : g) value *= scale;
      reference.step(p, g, step);
    }
    session.step(step);
  }
  std::map<std::string, double> errors;
  for (const Parameter& p : session.store().parameters()) {
    const Values now = session.weights(p);
    double& error = errors[p.name];
    for (std::size_t i = 0; i < now.size(); ++i)
      error = std::max(error, std::abs(now[i] - reference.params[p.name][i]));
  }
  return errors;
}

// Weights are about 1, and a step changes them by a few times 1e-2. The tolerance covers ten fp32 roundings
// of the weights and the error of ten updates.
constexpr double kElementwise = 4e-6;

TEST(UpdateRules, ElementwiseRulesFollowTheirReferenceForTenSteps) {
  for (const TrainerConfig& settings :
       {TrainerConfig{.optimizer = "adam"}, TrainerConfig{.optimizer = "sgd"},
        TrainerConfig{.optimizer = "sgd", .sgd_momentum = 0}, TrainerConfig{.optimizer = "lion"}}) {
    for (const auto& [name, error] : errors_of(settings))
      EXPECT_LE(error, kElementwise) << settings.optimizer << ": " << name;
  }
}

// Let s be the product of the iteration's slopes at 0 (494 for quintic). The iteration multiplies small
// singular values by s. It also multiplies the rounding error of the operands, 2^-24 in fp32, by s. One
// update has this error times scale * rate, and the errors of ten steps add up.
TEST(UpdateRules, MuonFollowsItsReferenceForTenSteps) {
  TrainerConfig settings{.optimizer = "muon", .muon_fp32_matmul_prec = "highest"};
  const auto expect_close = [&](const char* what, double slope = 494) {
    const double tolerance = kSteps * kRate * std::sqrt(30) * slope * 8 * 0x1p-24 + kElementwise;
    for (const auto& [name, error] : errors_of(settings))
      EXPECT_LE(error, kMatrices.contains(name) ? tolerance : kElementwise) << what << ": " << name;
  };
  expect_close("as it is");
  // After the last of the five polynomials, the first one is used again.
  settings.muon_num_ns_steps = 6;
  expect_close("six steps", 494 * 4.0848);
  settings.muon_num_ns_steps = 5;
  settings.muon_use_nesterov = true;
  settings.muon_scale_mode = "unit_rms_norm";
  expect_close("nesterov, unit_rms_norm");
  settings.muon_scale_mode = "shape_scaling";
  settings.muon_extra_scale_factor = 0.2;
  settings.muon_coefficient_type = "simple";
  settings.muon_num_ns_steps = 3;
  expect_close("shape_scaling, simple, three steps");
  settings.muon_scalar_optimizer = "lion";
  settings.muon_split_qkv = false;
  expect_close("lion for the rest, qkv as one");
}

// With bf16 operands, the update differs from the reference by about one percent. Each rounding changes
// singular values, except the smallest ones, by 2^-9.
TEST(UpdateRules, MuonWithNarrowProductsIsNearTheReference) {
  const TrainerConfig settings{.optimizer = "muon"};
  for (const auto& [name, error] : errors_of(settings)) {
    EXPECT_LE(error, kMatrices.contains(name) ? kSteps * kRate * std::sqrt(30) * 0.02 : kElementwise) << name;
    if (kMatrices.contains(name)) {
      EXPECT_GT(error, 1e-5) << name << ": products must have bf16 operands";
    }
  }
}

TEST(UpdateRules, MuonTreatsExpertsAndPublishedTensorsAsMatrices) {
  ParameterStore store;
  declare(store);
  const UpdateRules rules = update_rules_of({.optimizer = "muon"});
  for (const Parameter& p : store.parameters()) {
    const auto known = kMatrices.find(p.name);
    EXPECT_EQ(rules.front()->takes(p), known != kMatrices.end()) << p.name;
    if (known == kMatrices.end()) continue;
    const std::vector<FlatRange> matrices = muon_matrices(p, true);
    ASSERT_EQ(matrices.size(), known->second.size()) << p.name;
    for (std::size_t i = 0; i < matrices.size(); ++i) {
      EXPECT_EQ(matrices[i].begin, known->second[i].begin) << p.name;
      EXPECT_EQ(matrices[i].end, known->second[i].end) << p.name;
    }
    EXPECT_EQ(muon_matrices(p, false).size(), p.name.ends_with("qkv") ? 1 : matrices.size());
  }
}

// States have memory only for the elements that their rule updates.
TEST(UpdateRules, StatesHaveTheSizeThatTheirRuleNeeds) {
  const auto persistent = [](const TrainerConfig& config) {
    engine::Rank rank(turbo::make_cpu_device(1));
    ParameterStore store;
    set_up(store, update_rules_of(config), rank);
    return std::pair(rank.high_water().persistent, store.state_bytes());
  };
  const auto padded = [](std::int64_t n) { return (n + 63) / 64 * 64; };
  std::int64_t matrices = 0, rest = 0, padded_matrices = 0, padded_rest = 0;
  ParameterStore store;
  declare(store);
  for (const Parameter& p : store.parameters()) {
    const std::int64_t n = p.shape.elements();
    (kMatrices.contains(p.name) ? matrices : rest) += n;
    (kMatrices.contains(p.name) ? padded_matrices : padded_rest) += padded(n);
  }
  const auto bare = persistent({.optimizer = "sgd", .sgd_momentum = 0});
  EXPECT_EQ(bare.second, 0);
  const auto expect = [&](const TrainerConfig& config, std::int64_t of_matrix, std::int64_t of_rest) {
    const auto [bytes, states] = persistent(config);
    EXPECT_EQ(bytes - bare.first, of_matrix * padded_matrices + of_rest * padded_rest);
    EXPECT_EQ(states, of_matrix * matrices + of_rest * rest);
  };
  expect({.optimizer = "adam"}, 8, 8);
  expect({.optimizer = "sgd"}, 4, 4);
  expect({.optimizer = "lion"}, 4, 4);
  expect({.optimizer = "muon"}, 4, 8);
  expect({.optimizer = "muon", .muon_scalar_optimizer = "lion"}, 4, 4);
}

// An 8-bit state has one byte per element and 2 bytes per block. Each parameter has whole blocks. A
// checkpoint has 2 bytes per element of the parameters, without padding.
TEST(UpdateRules, StatesInEightBitsNeedAByteAndAScalePerBlock) {
  struct Outcome {
    std::int64_t states = 0, in_checkpoint = 0, elements = 0;
  };
  const auto outcome_of = [](const TrainerConfig& config) {
    engine::Rank rank(turbo::make_cpu_device(1));
    ParameterStore store;
    set_up(store, update_rules_of(config), rank);
    Outcome outcome{.in_checkpoint = store.state_bytes()};
    for (const engine::ParameterUnit& unit : store.units()) {
      for (const Parameter* p : unit.parameters)
        EXPECT_EQ(p->offset % turbo::kMomentBlock, 0) << "a block must have elements of only one parameter";
      for (const engine::UnitState& state : unit.states) {
        outcome.states += state.values.bytes() + (state.scales.absent() ? 0 : state.scales.bytes());
        outcome.elements += state.elements.size();
        EXPECT_EQ(state.scales.absent(), !state.spec.has_scales());
      }
    }
    return outcome;
  };
  for (const std::string optimizer : {"adam", "muon"}) {
    const TrainerConfig narrow{.optimizer = optimizer, .exp_avg_dtype = "fp8", .exp_avg_sq_dtype = "fp8"};
    const Outcome outcome = outcome_of(narrow);
    std::int64_t of_adam = 0, of_muon = 0, in_checkpoint = 0;
    ParameterStore store;
    declare(store);
    for (const Parameter& p : store.parameters()) {
      const bool muon = optimizer == "muon" && kMatrices.contains(p.name);
      const std::int64_t n = p.shape.elements(), block = turbo::kMomentBlock;
      (muon ? of_muon : of_adam) += (n + block - 1) / block * block;
      in_checkpoint += n * (muon ? 4 : 2 * 2);
    }
    EXPECT_EQ(outcome.elements, of_muon + 2 * of_adam);
    EXPECT_EQ(outcome.states, 4 * of_muon + 2 * (of_adam + of_adam / 64)) << optimizer;
    EXPECT_EQ(outcome.in_checkpoint, in_checkpoint) << optimizer;
  }
}

// The values of the key and the list of optimizers must agree. A new optimizer needs both.
TEST(Optimizers, AreTheValuesOfTheirKey) {
  const config::KeySpec& key = *config::find_key("optimizer");
  std::set<std::string_view> known;
  for (const OptimizerEntry& entry : optimizers()) {
    for (const std::string_view name : {entry.name, entry.other_name}) {
      if (name.empty()) continue;
      EXPECT_TRUE(known.insert(name).second) << name << " is registered twice";
    }
    TrainerConfig config;
    config.optimizer = entry.name;
    const UpdateRules rules = update_rules_of(config);
    ASSERT_FALSE(rules.empty()) << entry.name;
    ParameterStore store;
    declare(store);
    for (const Parameter& p : store.parameters()) EXPECT_TRUE(rules.back()->takes(p)) << entry.name;
  }
  EXPECT_EQ(known, std::set<std::string_view>(key.native_values.begin(), key.native_values.end()));
  EXPECT_EQ(find_optimizer("soap"), nullptr);
  EXPECT_EQ(find_optimizer(""), nullptr);
}

}  // namespace
}  // namespace primus
