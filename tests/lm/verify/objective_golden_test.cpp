// Compares the losses of post-training with TRL: a small folder of references, and any other folder.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "lm/verify/verify_objective.h"
#include "turbo/cpu/cpu_kernels.h"
#include "turbo/operator_test.h"

namespace primus {
namespace {

const std::filesystem::path kFolder = std::filesystem::path(PRIMUS_SOURCE_DIR) / "tests/golden/posttrain";

ObjectiveReport verified(const VerifyObjectiveOptions& options) {
  return verify_objectives(options, builtin_families(), [] { return turbo::make_cpu_device(1); });
}

void expect_verified(const ObjectiveReport& report) {
  for (const ObjectiveCase& c : report.cases) {
    EXPECT_EQ(c.why_not_built, "") << c.name;
    for (const ObjectiveCheck& check : c.checks) {
      EXPECT_TRUE(check.passed()) << c.name << ", " << check.name << ": " << check.value << ", reference "
                                  << check.reference << ", error " << check.error;
    }
  }
}

// tests/golden/posttrain: Qwen2 with biases and tied embeddings.
TEST(ObjectiveGolden, EveryCaseEqualsTrl) {
  const ObjectiveReport report = verified({.folder = kFolder});
  EXPECT_GE(report.cases.size(), 30U);
  expect_verified(report);
  EXPECT_TRUE(report.passed());
}

// tests/golden/policy: a Llama.
TEST(ObjectiveGolden, PolicyGradientsEqualTrl) {
  const ObjectiveReport report =
      verified({.folder = std::filesystem::path(PRIMUS_SOURCE_DIR) / "tests/golden/policy"});
  EXPECT_EQ(report.cases.size(), 35U);
  expect_verified(report);
  EXPECT_TRUE(report.passed());
}

// tests/golden/ppo: a Llama, with a value model and a reward model of the same layers.
TEST(ObjectiveGolden, PpoWithAValueModelEqualsTrl) {
  const ObjectiveReport report =
      verified({.folder = std::filesystem::path(PRIMUS_SOURCE_DIR) / "tests/golden/ppo"});
  EXPECT_EQ(report.cases.size(), 6U);
  expect_verified(report);
  EXPECT_TRUE(report.passed());
}

// The kernels of GPUs: on the emulator, or on the GPU of PRIMUS_TEST_GPU.
TEST(ObjectiveGolden, PpoWithAValueModelEqualsTrlOnGpus) {
  for (const turbo::test::DeviceUnderTest& device : turbo::test::devices_under_test()) {
    const bool emulated = device.emulated_warp == 32;
    if (device.plugin.empty() && !emulated) continue;
    SCOPED_TRACE(device.name());
    // The emulator is slow, so it runs one case.
    VerifyObjectiveOptions options{.folder = std::filesystem::path(PRIMUS_SOURCE_DIR) / "tests/golden/ppo"};
    if (emulated) options.cases = {"ppo_narrow"};
    const ObjectiveReport report = verify_objectives(
        options, builtin_families(), [&] { return turbo::test::OperatorBench::make_device(device); });
    EXPECT_EQ(report.cases.size(), emulated ? 1U : 6U);
    expect_verified(report);
    EXPECT_TRUE(report.passed());
  }
}

// The goldens are in tests/golden/posttrain_llama, for a Llama with an untied head and for the same model
// with a head for scores. The cases are weighted pairs, fine-tuning, and reward models.
TEST(ObjectiveGolden, WeightedPairsFineTuningAndRewardModelsEqualTrl) {
  const ObjectiveReport report = verified({.folder = kFolder.parent_path() / "posttrain_llama"});
  EXPECT_EQ(report.cases.size(), 8U);
  expect_verified(report);
  EXPECT_TRUE(report.passed());
}

TEST(ObjectiveGolden, CasesAreChosenByNameAndObjective) {
  const ObjectiveReport one = verified({.folder = kFolder, .cases = {"kto"}});
  ASSERT_EQ(one.cases.size(), 1U);
  EXPECT_EQ(one.cases[0].objective, "kto");
  // The checks cover loss, metrics, norms and gradients of all weights, and six points of the trajectory.
  EXPECT_GT(one.cases[0].checks.size(), 60U);
  EXPECT_EQ(verified({.folder = kFolder, .cases = {"orpo", "sigmoid"}, .objectives = {"orpo"}}).cases.size(),
            1U);
  EXPECT_THROW(verified({.folder = kFolder, .cases = {"kot"}}), Error);
  EXPECT_THROW(verified({.folder = kFolder, .objectives = {"grpo"}}), Error);
  EXPECT_THROW(verified({.folder = kFolder / "model"}), Error);
}

TEST(ObjectiveGolden, ASmallErrorIsFound) {
  const ObjectiveReport report =
      verified({.folder = kFolder, .cases = {"hinge"}, .tolerance = 1e-12, .trajectory_tolerance = 1e-12});
  EXPECT_FALSE(report.passed());
}

// Runs every supported case of the folder that the environment variable names. Takes minutes for large
// models.
TEST(ObjectiveGolden, OtherFolders) {
  const char* const folder = std::getenv("PRIMUS_POSTTRAIN_GOLDENS");
  if (!folder) GTEST_SKIP() << "PRIMUS_POSTTRAIN_GOLDENS is not set";
  ObjectiveReport report = verified({.folder = folder});
  std::erase_if(report.cases, [](const ObjectiveCase& c) { return !c.why_not_built.empty(); });
  EXPECT_FALSE(report.cases.empty());
  expect_verified(report);
}

}  // namespace
}  // namespace primus
