// Compares training steps with steps of Megatron-LM with equal settings
// (tests/golden/megatron/write_model_golden.py): the losses of the model, of multi-token prediction and of
// the routers, every gradient of the sum of these losses, the load of each expert, and the update of the
// expert biases. Some cases have packed documents.
#include "lm/train/megatron_golden.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/files/file.h"
#include "lm/checkpoint/safetensors.h"
#include "lm/model/published_layout.h"
#include "lm/model/weights.h"
#include "lm/train/finite_differences.h"
#include "lm/train/step/session.h"
#include "turbo/cpu/cpu_kernels.h"

namespace primus::test {
namespace {

constexpr double kTolerance = 1e-5;  // Megatron-LM and Primus both compute in fp32

const std::filesystem::path& kGolden = kMegatronGoldens;

template <class T>
std::vector<T> elements_of(const SafetensorsFile& file, const std::string& name) {
  const TensorView tensor = file.find(name).value();
  std::vector<T> values(tensor.data.size() / sizeof(T));
  std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  return values;
}

double normalised_error(const std::vector<float>& ours, const std::vector<float>& golden) {
  if (ours.size() != golden.size()) return INFINITY;
  double error = 0, largest = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const double difference = static_cast<double>(std::abs(ours[i] - golden[i]));
    error = std::isnan(difference) ? INFINITY : std::max(error, difference);
    largest = std::max(largest, static_cast<double>(std::abs(golden[i])));
  }
  return largest > 0 ? error / largest : error;
}

class MegatronStep : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const nlohmann::json& settings = json_.at("settings");
    settings_ = {.model = golden_model(settings),
                 .compute = DType::kF32,
                 .step = {.micro_batch = settings.at("micro_batch_size"),
                          .sequence = settings.at("seq_length"),
                          .microbatches = json_.at("microbatches"),
                          .packed_documents = json_.contains("document_starts")},
                 .optimizer = {}};
    session_ = open_session(rank_, settings_, builtin_families());
    const std::string weights = json_.value("weights", GetParam());
    load_weights(SafetensorsFolder::open(kGolden / weights), session_->store(), rank_);
  }

  StepResult forward_backward() {
    const auto tokens = elements_of<std::int32_t>(golden_, "tokens"),
               labels = elements_of<std::int32_t>(golden_, "labels");
    const auto mask = elements_of<float>(golden_, "loss_mask");
    TrainingStep& step = session_->step();
    const StepSettings& s = settings_.step;
    const auto count = static_cast<std::size_t>(s.micro_batch * s.sequence);
    step.begin();
    for (std::int64_t i = 0; i < s.microbatches; ++i) {
      const std::size_t at = static_cast<std::size_t>(i) * count;
      data::BatchView batch{.tokens = std::span(tokens).subspan(at, count),
                            .labels = std::span(labels).subspan(at, count),
                            .loss_mask = std::span(mask).subspan(at, count)};
      std::vector<std::int32_t> starts;
      if (s.packed_documents) {
        json_.at("document_starts").at(static_cast<std::size_t>(i)).get_to(starts);
        starts.push_back(static_cast<std::int32_t>(count));
        batch.document_starts = starts;
      }
      step.microbatch(i, batch);
    }
    step.finish_gradients();
    return step.result();
  }

  void expect_same(double ours, double golden, const std::string& what) {
    EXPECT_NEAR(ours, golden, kTolerance * std::abs(golden)) << what;
  }

  // Compares every tensor of a checkpoint of the model with chosen(parameter) in the session.
  template <class Choose>
  int expect_same_tensors(bool trainable, double tolerance, Choose chosen) {
    int compared = 0;
    for (const engine::Parameter& p : session_->store().parameters()) {
      if (p.trainable != trainable) continue;
      for (const engine::CheckpointPart& part : p.parts) {
        const std::vector<float> ours = values_of(rank_, part_of(chosen(p), p, part));
        EXPECT_LE(normalised_error(ours, elements_of<float>(golden_, part.name)), tolerance) << part.name;
        ++compared;
      }
    }
    return compared;
  }

  std::filesystem::path folder_ = kGolden / GetParam();
  nlohmann::json json_ = nlohmann::json::parse(read_file(folder_ / "golden.json"));
  SafetensorsFile golden_ = SafetensorsFile::open(folder_ / "golden.safetensors");
  engine::Rank rank_{turbo::make_cpu_device(2)};
  SessionSettings settings_;
  std::unique_ptr<TrainingSession> session_;
};

TEST_P(MegatronStep, HasTheSameResults) {
  const StepResult result = forward_backward();
  expect_same(result.loss, json_.at("loss"), "loss");
  const std::vector<double> of_depths = json_.at("mtp_losses");
  ASSERT_EQ(result.mtp_loss.has_value(), !of_depths.empty());
  if (!of_depths.empty()) {
    double mean = 0;
    for (const double loss : of_depths) mean += loss / static_cast<double>(of_depths.size());
    expect_same(*result.mtp_loss, mean, "mtp_loss");
  }

  const nlohmann::json& routers = json_.at("router_losses");
  const nlohmann::json& balance = routers.at(
      settings_.model.moe.training.balance_sequences ? "seq_load_balancing_loss" : "load_balancing_loss");
  const std::vector<std::vector<std::int32_t>> loads = json_.at("tokens_per_expert");
  ASSERT_FALSE(result.routing.empty());
  for (std::size_t i = 0; i < result.routing.size(); ++i) {
    const LayerRouting& layer = result.routing[i];
    const std::string at = "layer " + std::to_string(layer.layer);
    expect_same(layer.balance_loss, balance.at(static_cast<std::size_t>(layer.layer)), at);
    expect_same(layer.z_loss, routers.at("z_loss").at(static_cast<std::size_t>(layer.layer)), at);
    if (!loads.empty()) {
      EXPECT_EQ(layer.load, loads.at(i)) << at;
    }
    EXPECT_EQ(layer.dropped > 0, settings_.model.moe.training.capacity_factor > 0);
  }

  const int gradients =
      expect_same_tensors(true, kTolerance, [](const engine::Parameter& p) { return p.gradient; });
  session_->step().update(1, 0, 0);
  const int biases = expect_same_tensors(false, 0, [](const engine::Parameter& p) { return p.value; });
  // The golden file has no other tensors than the compared ones, tokens, labels and loss_mask.
  EXPECT_EQ(static_cast<std::size_t>(gradients + biases + 3), golden_.size());
}
INSTANTIATE_TEST_SUITE_P(Steps, MegatronStep, testing::Values("deepseek_v3", "deepseek_v3_packed", "mixtral"),
                         [](const auto& step) { return std::string(step.param); });

TEST(MegatronGolden, Capacities) {
  const auto json = nlohmann::json::parse(read_file(kGolden / "router.json"));
  for (const nlohmann::json& c : json.at("capacities")) {
    const MoeConfig::Training training{.capacity_factor = c.at("factor")};
    EXPECT_EQ(training.capacity(c.at("slots"), c.at("experts")), c.at("capacity")) << c.dump();
  }
}

}  // namespace
}  // namespace primus::test
