// Tests of plans for hardware that is not present. Whether a run fits depends on the hardware's memory. The
// time is computed from the hardware's profile.
#include "lm/train/forecast/planned_hardware.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "config/trainer_config.h"
#include "device/plugin_loader.h"
#include "lm/model/family.h"
#include "lm/train/settings/training_settings.h"
#include "lm/train/trainer.h"

namespace primus {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

config::Hardware a_gpu() {
  return {.file = "x.yaml",
          .short_name = "x",
          .name = "a GPU",
          .source = "this test",
          .device = "cuda",
          .match = {"x"},
          .memory_gib = 80,
          .peak_tflops = 1000,
          .peak_fp8_tflops = 2000,
          .peak_fp32_tflops = 50,
          .step_share = 0.5,
          .fp8_step_share = 0.25,
          .peak_memory = 3000,
          .link = 100,
          .network = 10,
          .gpus_per_host = 8};
}

StepMeasurement stage_with(double flops, double fp8_flops = 0) {
  StepMeasurement stage;
  stage.kernels[turbo::KernelId::kGemm].flops = flops;
  stage.kernels[turbo::KernelId::kFp8Gemm].flops = fp8_flops;
  return stage;
}

GroupTraffic traffic(const std::string& group, int ranks, comm::Kind kind, double bytes) {
  GroupTraffic sent{.group = group, .ranks = ranks, .traffic = {}};
  sent.traffic.lines[static_cast<std::size_t>(kind)] = {.calls = 1, .bytes = bytes};
  return sent;
}

TEST(PlannedTime, IsWorkDividedByRatesOfRealSteps) {
  const config::Hardware gpu = a_gpu();
  const auto computing = [&](const StepMeasurement& stage, DType compute) {
    return planned_time(gpu, {stage}, {}, 1, compute, 0).computing;
  };
  EXPECT_DOUBLE_EQ(computing(stage_with(1e15), DType::kBF16), 2);
  EXPECT_DOUBLE_EQ(computing(stage_with(1e15), DType::kF32), 40);
  EXPECT_DOUBLE_EQ(computing(stage_with(1e15, 1e15), DType::kBF16), 2 + 2);
  // Memory traffic takes time even with little computation: 2 x 2.1e12 bytes.
  StepMeasurement wide = stage_with(1e9);
  wide.memory = {.persistent = 1'050'000'000'000, .stash = 1'050'000'000'000, .scratch = 0};
  EXPECT_DOUBLE_EQ(computing(wide, DType::kBF16), 2);
  // The stage with the most work determines the time, and stages wait in the bubble.
  const PlannedTime staged =
      planned_time(gpu, {stage_with(1e15), stage_with(2e15)}, {.pipeline = 2}, 2, DType::kBF16, 0.2);
  EXPECT_DOUBLE_EQ(staged.computing, 4);
  EXPECT_DOUBLE_EQ(staged.slowest, 5);
}

// Groups use links within a host, and network cards between hosts. The cards of all GPUs in a host share the
// traffic of a ring.
TEST(PlannedTime, CommunicationUsesTheLinksOfTheGroup) {
  const config::Hardware gpu = a_gpu();
  const auto seconds = [&](const GroupTraffic& sent, const engine::MeshShape& mesh, int world) {
    StepMeasurement stage = stage_with(5e14);
    stage.communication = {sent};
    const PlannedTime time = planned_time(gpu, {stage}, mesh, world, DType::kBF16, 0);
    EXPECT_DOUBLE_EQ(time.slowest, time.computing + time.communication);
    EXPECT_DOUBLE_EQ(time.quickest, std::max(time.computing, time.communication));
    return time.communication;
  };
  using comm::Kind;
  EXPECT_DOUBLE_EQ(seconds(traffic("data", 8, Kind::kAllReduce, 70e9), {}, 8), 1);
  // A ring with eight GPUs per host uses eight network cards of 10 GB/s.
  EXPECT_DOUBLE_EQ(seconds(traffic("data", 16, Kind::kAllReduce, 56e9), {}, 16), 1);
  // With 8 tensor ranks, each host has one rank of a data group.
  EXPECT_DOUBLE_EQ(seconds(traffic("data", 2, Kind::kAllReduce, 7e9), {.tensor = 8}, 16), 1);
  EXPECT_DOUBLE_EQ(seconds(traffic("tensor", 8, Kind::kAllReduce, 70e9), {.tensor = 8}, 16), 1);
  EXPECT_DOUBLE_EQ(seconds(traffic("pipeline", 2, Kind::kExchange, 7e9), {.pipeline = 2}, 16), 1);
  EXPECT_DOUBLE_EQ(seconds(traffic("pipeline", 2, Kind::kExchange, 70e9), {.pipeline = 2}, 8), 1);
  // Half of the data that a rank sends to 16 ranks stays within the host.
  EXPECT_DOUBLE_EQ(seconds(traffic("experts", 16, Kind::kAllToAll, 14e9), {.expert = 16}, 16), 1 + 0.1);
}

TEST(PlannedTime, UncertaintiesAreReported) {
  config::Hardware gpu = a_gpu();
  EXPECT_THAT(doubts_about(gpu, {stage_with(1, 1)}), IsEmpty());
  gpu.peak_fp8_tflops = 0;
  EXPECT_THAT(doubts_about(gpu, {stage_with(1)}), IsEmpty());
  EXPECT_THAT(doubts_about(gpu, {stage_with(1, 1)}).at(0), HasSubstr("no fp8 products"));
  gpu.peak_fp8_tflops = 2000;
  gpu.device = "hip";
  EXPECT_THAT(doubts_about(gpu, {stage_with(1, 1)}).at(0), HasSubstr("AMD"));
}

config::Experiment experiment(const std::string& more, std::shared_ptr<const config::Hardware> hardware,
                              const std::vector<std::string>& arguments = {}) {
  config::LoadOptions options;
  options.environment = [](const std::string&) { return std::nullopt; };
  options.preset_dirs.emplace();
  config::Experiment e = config::load_experiment_text(
      "{work_group: g, user_name: u, exp_name: e, workspace: w, modules: {pre_trainer: {overrides: "
      "{mock_data: true, num_layers: 2, hidden_size: 128, num_attention_heads: 4, vocab_size: 512, "
      "seq_length: 256, micro_batch_size: 2, global_batch_size: 16, num_threads: 1" +
          more + "}}}}",
      "exp.yaml", arguments, options);
  e.hardware = std::move(hardware);
  return e;
}

TrainingForecast forecast(const config::Experiment& e, int world) {
  static const FamilyRegistry families = builtin_families();
  Logger log(LogOptions{.console_level = LogLevel::kError, .console = {}});
  return Trainer(e, families, log).forecast(world, 1);
}

// A run fits if its need is at most the memory of the hardware minus the reserve for its driver and
// libraries.
TEST(PlannedHardware, ItsMemoryDeterminesWhetherTheRunFits) {
  config::Hardware gpu = a_gpu();
  const auto planned = [&](double gib) {
    gpu.memory_gib = gib;
    return forecast(experiment("", std::make_shared<const config::Hardware>(gpu)), 4);
  };
  const TrainingForecast large = planned(80);
  ASSERT_TRUE(large.hardware);
  // If the CUDA plug-in was built next to the program, the plan uses the plug-in's kernels.
  const bool has_plugin = std::ranges::count(installed_plugins(), "cuda") > 0;
  EXPECT_EQ(large.hardware->by_cpu_kernels, !has_plugin);
  EXPECT_TRUE(large.memory.fits);
  EXPECT_FALSE(large.memory.supply.shared);
  const PlannedMemory& memory = large.hardware->memory;
  EXPECT_EQ(memory.installed, std::int64_t{80} << 30);
  EXPECT_GT(memory.context, 0);
  EXPECT_GT(memory.collectives, 0);
  EXPECT_EQ(memory.libraries > 0, !has_plugin);
  EXPECT_EQ(large.memory.supply.device, memory.installed - memory.reserved());
  EXPECT_GT(large.seconds_per_step, 0);
  EXPECT_FALSE(large.timed);
  // The run needs this memory, which includes the reserve for other programs (fits()). One GiB more is
  // enough, and one GiB less is not enough.
  const double needs = static_cast<double>(large.memory.need.device.total() + memory.reserved()) / (1 << 30);
  EXPECT_TRUE(planned(needs + 1).memory.fits);
  const TrainingForecast small = planned(needs - 1);
  EXPECT_FALSE(small.memory.fits);
  EXPECT_THAT(describe_lack(small.memory), HasSubstr("of a GPU"));
}

// Weights, gradients and states are counted equally for every device.
TEST(PlannedHardware, PlansTheMemoryOfTheRun) {
  const auto gpu = std::make_shared<const config::Hardware>(a_gpu());
  const TrainingForecast here = forecast(experiment("", nullptr, {"device=cpu"}), 4);
  const TrainingForecast there = forecast(experiment("", gpu), 4);
  EXPECT_EQ(there.step().memory.persistent, here.step().memory.persistent);
  EXPECT_EQ(there.step().memory.stash, here.step().memory.stash);
  EXPECT_EQ(there.step().kernels.total_flops(), here.step().kernels.total_flops());
  EXPECT_FALSE(here.hardware);
}

// Ranks that share experts reserve the max number of rows. The forecast also gives the memory for an even
// load.
TEST(PlannedHardware, TheWorstCaseOfExpertsIsReported) {
  const std::string experts =
      ", num_experts: 8, ffn_hidden_size: 64, moe_ffn_hidden_size: 64, moe_router_topk: 2, model_type: "
      "mixtral";
  const auto gpu = std::make_shared<const config::Hardware>(a_gpu());
  const TrainingForecast spread = forecast(experiment(experts + ", expert_model_parallel_size: 4", gpu), 4);
  ASSERT_EQ(spread.balanced.size(), 1U);
  EXPECT_LT(spread.balanced[0].memory.stash, spread.step().memory.stash);
  EXPECT_EQ(spread.balanced[0].memory.persistent, spread.step().memory.persistent);
  const TrainingForecast together = forecast(experiment(experts, gpu), 4);
  EXPECT_TRUE(together.balanced.empty());
  // If the load of the experts is even, the ranks' work equals that of ranks that do not share experts. The
  // worst case would be a multiple of this work.
  EXPECT_LT(spread.executed_flops_per_step(), 1.1 * together.executed_flops_per_step());
  EXPECT_GT(4 * spread.step().kernels.total_flops(), 1.2 * together.executed_flops_per_step());
  EXPECT_TRUE(
      forecast(experiment(experts + ", expert_model_parallel_size: 4, moe_expert_capacity_factor: 1", gpu), 4)
          .balanced.empty());
  // If choices are forced to be even, no memory is reserved for an uneven load.
  const TrainingForecast even = forecast(
      experiment(experts + ", expert_model_parallel_size: 4, moe_router_force_load_balancing: true", gpu), 4);
  EXPECT_TRUE(even.balanced.empty());
  EXPECT_LT(even.step().memory.total(), spread.step().memory.total());
}

// A rank keeps activations for all rows of its experts. If the memory is too small for all rows, the rank
// keeps fewer rows.
TEST(PlannedHardware, FewerExpertRowsAreKeptOnlyIfAllRowsDoNotFit) {
  const auto plan = [](const std::string& margin, double gib) {
    config::Hardware gpu = a_gpu();
    gpu.memory_gib = gib;
    return forecast(experiment(", num_experts: 8, ffn_hidden_size: 64, moe_ffn_hidden_size: 64, "
                               "moe_router_topk: 2, model_type: mixtral, expert_model_parallel_size: 4, "
                               "moe_expert_capacity_margin: " +
                                   margin,
                               std::make_shared<const config::Hardware>(gpu), {"num_layers=24"}),
                    4);
  };
  constexpr double kGpu = 80, kBytes = 1 << 30;
  const TrainingForecast all = plan("1000", kGpu), fewer = plan("1.5", kGpu), least = plan("1", kGpu);
  const std::int64_t need_all = claimed(all.memory.need, all.memory.supply);
  const std::int64_t need_fewer = claimed(fewer.memory.need, fewer.memory.supply);
  EXPECT_LT(need_fewer, need_all);
  EXPECT_LT(claimed(least.memory.need, least.memory.supply), need_fewer);
  EXPECT_EQ(claimed(plan("null", kGpu).memory.need, all.memory.supply), need_all);
  // Plans for a GPU with room only for the smaller need. fits() leaves a twentieth free.
  const double room = static_cast<double>(need_all + need_fewer) / 2 / 0.95;
  const double gib = kGpu + (room - static_cast<double>(all.memory.supply.device)) / kBytes;
  const TrainingForecast small = plan("null", gib);
  EXPECT_TRUE(small.memory.fits);
  EXPECT_EQ(claimed(small.memory.need, small.memory.supply), need_fewer);
  EXPECT_FALSE(plan("1000, moe_expert_rounds: 1", gib).memory.fits);
}

// If fewer kept rows are not enough either, tokens travel to the experts in the smallest number of rounds
// that fits, a power of two.
TEST(PlannedHardware, TokensTravelInRoundsOnlyIfOneRoundDoesNotFit) {
  const auto plan = [](const std::string& rounds, double gib) {
    config::Hardware gpu = a_gpu();
    gpu.memory_gib = gib;
    return forecast(experiment(", num_experts: 8, ffn_hidden_size: 64, moe_ffn_hidden_size: 64, "
                               "moe_router_topk: 2, model_type: mixtral, expert_model_parallel_size: 4, "
                               "moe_expert_capacity_margin: 1.5, moe_expert_rounds: " +
                                   rounds,
                               std::make_shared<const config::Hardware>(gpu), {"num_layers=4"}),
                    4);
  };
  constexpr double kGpu = 80, kBytes = 1 << 30;
  const TrainingForecast one = plan("1", kGpu), two = plan("2", kGpu), four = plan("4", kGpu);
  const auto need = [](const TrainingForecast& f) { return claimed(f.memory.need, f.memory.supply); };
  EXPECT_LT(need(two), need(one));
  EXPECT_LT(need(four), need(two));
  EXPECT_EQ(need(plan("null", kGpu)), need(one));
  // Plans for a GPU with room only for four rounds. fits() leaves a twentieth free.
  const double room = static_cast<double>(need(two) + need(four)) / 2 / 0.95;
  const double gib = kGpu + (room - static_cast<double>(one.memory.supply.device)) / kBytes;
  EXPECT_FALSE(plan("2", gib).memory.fits);
  const TrainingForecast chosen = plan("null", gib);
  EXPECT_TRUE(chosen.memory.fits);
  EXPECT_EQ(chosen.experiment.trainer->moe_expert_rounds, 4);
  EXPECT_EQ(need(chosen), need(four));
}

}  // namespace
}  // namespace primus
