// Compares the router with Megatron-LM's (tests/golden/megatron/write_router_golden.py): chosen experts,
// weights, dropped slots, losses, their gradient, and the update of the expert bias.
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "base/files/file.h"
#include "lm/checkpoint/safetensors.h"
#include "turbo/moe_permute/moe_permute.h"
#include "turbo/operator_test.h"
#include "turbo/router/router.h"

namespace primus::turbo::test {
namespace {

constexpr double kTolerance = 1e-5;  // both Megatron-LM and Primus compute in fp32

const std::filesystem::path kGolden = std::filesystem::path(PRIMUS_SOURCE_DIR) / "tests/golden/megatron";

template <class T>
Values values_of(const TensorView& tensor) {
  Values values(tensor.data.size() / sizeof(T));
  for (std::size_t i = 0; i < values.size(); ++i) {
    T value;
    std::memcpy(&value, tensor.data.data() + i * sizeof(T), sizeof(T));
    values[i] = static_cast<double>(value);
  }
  return values;
}

// Returns the rule for settings of Megatron-LM.
RouterRule rule_of(const nlohmann::json& settings) {
  RouterRule rule;
  rule.top_k = settings.at("topk");
  const bool sigmoid = settings.value("score", "softmax") == "sigmoid";
  rule.scoring = sigmoid ? RouterRule::Scoring::kSigmoid : RouterRule::Scoring::kSoftmax;
  rule.normalise = sigmoid ? rule.top_k > 1 : !settings.value("pre_softmax", false);
  rule.groups = settings.value("groups", 1);
  rule.top_groups = settings.value("group_topk", 1);
  // In Megatron-LM, the score of a group is the sum of its topk / group_topk best scores.
  if (rule.groups > 1 && rule.top_k / rule.top_groups == 2)
    rule.group_score = RouterRule::GroupScore::kTwoBest;
  rule.scale = settings.value("scaling", 1.0F);
  return rule;
}

// Tensors of one case on a device.
class RouterCase {
 public:
  RouterCase(OperatorBench& bench, const nlohmann::json& json, const SafetensorsFile& file)
      : bench_(bench),
        json_(json),
        settings_(json.at("settings")),
        file_(file),
        rule_(rule_of(settings_)),
        n_(json.at("experts")),
        k_(rule_.top_k),
        logits_values_(floats("logits")),
        tokens_(static_cast<std::int64_t>(logits_values_.size()) / n_),
        logits_(bench.upload(logits_values_, DType::kF32, {tokens_, n_})),
        experts_(bench.empty(DType::kI32, {tokens_, k_})),
        weights_(bench.empty(DType::kF32, {tokens_, k_})),
        plan_(bench.empty(DType::kI32, RoutingPlan::shape(n_, tokens_, k_))) {
    if (file.find(name_of("expert_bias"))) bias_ = bench.upload(floats("expert_bias"), DType::kF32, {n_});
  }

  void check() {
    route();
    check_losses_and_gradient();
    if (!bias_.absent()) check_bias_update();
  }

 private:
  std::string name_of(const char* tensor) const { return json_.at("name").get<std::string>() + "." + tensor; }
  TensorView golden(const char* tensor) const { return file_.find(name_of(tensor)).value(); }
  Values floats(const char* tensor) const { return values_of<float>(golden(tensor)); }
  std::size_t at(std::int64_t token, double expert) const {
    return static_cast<std::size_t>(token * n_) + static_cast<std::size_t>(expert);
  }

  Tensor rows() const { return RoutingPlan(plan_, n_, tokens_, k_).rows; }

  void route() {
    bench_.run(RouterForward{.rule = rule_,
                             .random = {},
                             .logits = logits_,
                             .bias = bias_,
                             .given = {},
                             .experts = experts_,
                             .weights = weights_});
    const bool by_weight = settings_.value("drop", "probs") == "probs";
    bench_.run(PlanRouting{.experts = experts_,
                           .weights = by_weight ? weights_ : Tensor(),
                           .plan = plan_,
                           .expert_count = n_,
                           .capacity = json_.value("rows", 0),
                           .sequences = json_.at("batch")});
    chosen_ = bench_.download(experts_);
    rows_ = bench_.download(rows());

    Values sorted = chosen_;
    for (auto first = sorted.begin(); first != sorted.end(); first += k_) std::sort(first, first + k_);
    EXPECT_EQ(sorted, values_of<std::int32_t>(golden("chosen")));
    const Values weights = bench_.download(weights_);
    Values probs(logits_values_.size());
    for (std::size_t slot = 0; slot < chosen_.size(); ++slot) {
      if (rows_[slot] >= 0) probs[place(slot)] = weights[slot];
    }
    EXPECT_LE(normalised_error(probs, floats("probs")), kTolerance);
    EXPECT_EQ(std::count(rows_.begin(), rows_.end(), -1), json_.at("dropped"));
  }

  // Returns the index of a slot's expert in a [tokens, experts] table.
  std::size_t place(std::size_t slot) const {
    return at(static_cast<std::int64_t>(slot) / k_, chosen_[slot]);
  }

  void check_losses_and_gradient() {
    const std::string balancing = settings_.at("load_balancing");
    Tensor load;
    if (balancing != "none") {
      const std::int64_t segments = balancing == "seq_aux_loss" ? json_.at("batch").get<std::int64_t>() : 1;
      load = bench_.empty(DType::kI32, {segments, n_});
      bench_.run(RouterLoad{.top_k = rule_.top_k, .logits = logits_, .chosen = {}, .load = load});
    }
    const Tensor losses = bench_.upload({0, 0}, DType::kF32, {2});
    bench_.run(RouterLosses{.rule = rule_, .logits = logits_, .load = load, .losses = losses});
    const Values sums = bench_.download(losses);
    const auto same = [&](double loss, const char* golden) {
      EXPECT_LE(normalised_error({loss}, {json_.at(golden)}), kTolerance) << golden;
    };
    if (!load.absent()) same(sums[0], "balance_loss");
    if (settings_.contains("z")) same(sums[1], "z_loss");

    const Values d_probs = floats("d_probs");
    Values d_weights(chosen_.size());
    for (std::size_t slot = 0; slot < chosen_.size(); ++slot) {
      if (rows_[slot] >= 0) d_weights[slot] = d_probs[place(slot)];
    }
    const Tensor d_logits = bench_.empty(DType::kF32, {tokens_, n_});
    bench_.run(RouterBackward{.rule = rule_,
                              .logits = logits_,
                              .experts = experts_,
                              .d_weights = bench_.upload(d_weights, DType::kF32, {tokens_, k_}),
                              .load = load,
                              .balance_scale = settings_.value("aux", 0.0F),
                              .z_scale = settings_.value("z", 0.0F),
                              .previous = {},
                              .d_logits = d_logits});
    EXPECT_LE(normalised_error(bench_.download(d_logits), floats("d_logits")), kTolerance);
  }

  void check_bias_update() {
    const Tensor load = bench_.upload(Values(static_cast<std::size_t>(n_ + 1)), DType::kI32, {n_ + 1});
    bench_.run(ExpertLoad{.experts = experts_, .rows = rows(), .load = load});
    bench_.run(ExpertBiasUpdate{.load = load, .bias = bias_, .rate = 0x1p-7F});
    EXPECT_EQ(bench_.download(bias_), floats("new_expert_bias"));
  }

  OperatorBench& bench_;
  const nlohmann::json& json_;
  const nlohmann::json& settings_;
  const SafetensorsFile& file_;
  RouterRule rule_;
  std::int64_t n_, k_;  // number of experts, and of chosen experts per token
  Values logits_values_;
  std::int64_t tokens_;
  Tensor logits_, bias_, experts_, weights_, plan_;
  Values chosen_, rows_;
};

class MegatronRouter : public ::testing::TestWithParam<DeviceUnderTest> {};
INSTANTIATE_TEST_SUITE_P(Devices, MegatronRouter, ::testing::ValuesIn(devices_under_test()));

TEST_P(MegatronRouter, HasTheSameResults) {
  const auto json = nlohmann::json::parse(read_file(kGolden / "router.json"));
  const SafetensorsFile file = SafetensorsFile::open(kGolden / "router.safetensors");
  ASSERT_EQ(json.at("bias_update_rate"), 0x1p-7);
  EXPECT_EQ(json.at("cases").size(), 15U);
  for (const nlohmann::json& c : json.at("cases")) {
    SCOPED_TRACE(c.at("name").get<std::string>());
    OperatorBench bench(GetParam());
    RouterCase(bench, c, file).check();
  }
}

}  // namespace
}  // namespace primus::turbo::test
