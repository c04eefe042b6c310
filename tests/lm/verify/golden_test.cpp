// Every family against transformers in float64 (tests/golden/models): logits, every gradient, ten AdamW
// steps.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "../../base/temporary_folder.h"
#include "base/error.h"
#include "base/file.h"
#include "lm/verify/verify.h"
#include "turbo/cpu/cpu_kernels.h"

namespace primus {
namespace {

const std::filesystem::path kGoldens = std::filesystem::path(PRIMUS_SOURCE_DIR) / "tests/golden/models";

std::unique_ptr<Device> cpu_device() { return turbo::make_cpu_device(2); }

VerifyOptions options_for(const std::string& family, DType compute) {
  const std::filesystem::path folder = kGoldens / family;
  return {.model = folder,
          .inputs = folder / "io.safetensors",
          .gradients = folder / "grads.safetensors",
          .trajectory = folder / "golden.json",
          .compute = compute};
}

class Golden : public testing::TestWithParam<const char*> {};

TEST_P(Golden, Fp32) {
  const VerifyReport report =
      verify_model(options_for(GetParam(), DType::kF32), builtin_families(), cpu_device);
  for (const std::string& failure : report.failures) ADD_FAILURE() << failure;
  EXPECT_EQ(report.trajectory.size(), 10U);
  EXPECT_GE(report.gradients.size(), 20U);
  EXPECT_LE(report.logits.normalised, 2e-5);
}

TEST_P(Golden, Bf16) {
  const VerifyReport report =
      verify_model(options_for(GetParam(), DType::kBF16), builtin_families(), cpu_device);
  for (const std::string& failure : report.failures) ADD_FAILURE() << failure;
  // It did run in bf16: rounding shows.
  EXPECT_GT(report.logits.normalised, 1e-4);
  // Near ties between experts, which rounding would decide (tests/golden/README.md).
  EXPECT_LE(report.rerouted_tokens, 3);
}

INSTANTIATE_TEST_SUITE_P(Families, Golden,
                         testing::Values("llama", "llama31_tied", "qwen2", "qwen3", "mixtral", "qwen3_moe",
                                         "deepseek_v2", "deepseek_v3", "gpt_oss", "llama4"),
                         [](const auto& family) { return std::string(family.param); });

// tests/golden/variants: what the goldens' own configurations leave at its neutral value.
class Variant : public testing::TestWithParam<const char*> {};

TEST_P(Variant, Logits) {
  const std::filesystem::path variants = std::filesystem::path(PRIMUS_SOURCE_DIR) / "tests/golden/variants";
  const auto variant = nlohmann::json::parse(read_file(variants / (GetParam() + std::string(".json"))));
  const std::filesystem::path golden = kGoldens / variant.at("golden").get<std::string>();
  const test::TemporaryFolder folder;
  auto config = nlohmann::json::parse(read_file(golden / "config.json"));
  for (const auto& [key, value] : variant.at("changes").items()) {
    config.erase(key);
    if (!value.is_null()) config[key] = value;
  }
  write_file_atomic(folder.path() / "config.json", config.dump());
  std::filesystem::copy(golden / "model.safetensors", folder.path());
  const VerifyOptions options{.model = folder.path(),
                              .inputs = variants / (GetParam() + std::string(".safetensors")),
                              .gradients = {},
                              .trajectory = {}};
  const VerifyReport report = verify_model(options, builtin_families(), cpu_device);
  for (const std::string& failure : report.failures) ADD_FAILURE() << failure;
  EXPECT_LE(report.logits.normalised, 2e-5);
}

INSTANTIATE_TEST_SUITE_P(Variants, Variant,
                         testing::Values("temperature_tuning", "groups_by_best", "weights_as_they_are",
                                         "sigmoids_as_they_are", "windows", "rope_linear", "rope_llama3",
                                         "rope_attention_factor", "rope_mscale", "absent_keys"),
                         [](const auto& variant) { return std::string(variant.param); });

TEST(Verify, SeesAWrongModel) {
  VerifyOptions options = options_for("llama", DType::kF32);
  options.inputs = kGoldens / "llama31_tied" / "io.safetensors";
  options.gradients.reset();
  options.trajectory.reset();
  const VerifyReport report = verify_model(options, builtin_families(), cpu_device);
  EXPECT_FALSE(report.passed());
  EXPECT_GT(report.logits.normalised, 0.1);
}

TEST(Verify, NamesWhatIsMissing) {
  VerifyOptions options = options_for("llama", DType::kF32);
  options.inputs = kGoldens / "llama" / "grads.safetensors";
  try {
    verify_model(options, builtin_families(), cpu_device);
    FAIL() << "a file without inputs was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_NE(std::string(error.what()).find("input_ids"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace primus
