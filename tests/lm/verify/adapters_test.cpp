// Compares adapters of PEFT folders with PEFT itself (tests/golden/peft).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "../../base/temporary_folder.h"
#include "base/error.h"
#include "base/files/file.h"
#include "lm/exchange/exchange.h"
#include "lm/model/weights.h"
#include "lm/train/step/session.h"
#include "lm/verify/verified_session.h"
#include "lm/verify/verify_adapters.h"
#include "turbo/cpu/cpu_kernels.h"

namespace primus {
namespace {

const std::filesystem::path kFolder = std::filesystem::path(PRIMUS_SOURCE_DIR) / "tests/golden/peft/peft";

std::unique_ptr<Device> cpu_device() { return turbo::make_cpu_device(2); }

void expect_all_hold(const std::filesystem::path& folder, std::size_t cases) {
  const std::vector<AdapterReport> reports = verify_adapters(folder, {}, builtin_families(), cpu_device);
  EXPECT_GE(reports.size(), cases);
  for (const AdapterReport& report : reports) {
    SCOPED_TRACE(report.name);
    for (const std::string& failure : report.failures) ADD_FAILURE() << failure;
    EXPECT_GE(report.gradients.size(), 8U);
    EXPECT_EQ(report.trajectory.size(), 6U);
    EXPECT_EQ(report.merged.empty(), report.name == "lora_bias");
  }
}

// The cases are LoRA, rsLoRA, DoRA, biases of B (which cannot be merged), patterns of ranks and factors, and
// an adapted embedding next to norms that are trained without adapters.
TEST(Adapters, AgreeWithPeft) { expect_all_hold(kFolder, 6); }

// PRIMUS_PEFT_GOLDENS names another folder in the form of tests/golden/peft/peft.
TEST(Adapters, AgreeWithPeftInAnotherFolder) {
  const char* const folder = std::getenv("PRIMUS_PEFT_GOLDENS");
  if (!folder) GTEST_SKIP() << "PRIMUS_PEFT_GOLDENS is not set";
  expect_all_hold(folder, 1);
}

TEST(Adapters, OneWrongNumberFails) {
  const test::TemporaryFolder copy;
  std::filesystem::copy(kFolder.parent_path(), copy.path(), std::filesystem::copy_options::recursive);
  const Path folder = copy.path() / "peft", file = folder / "peft.json";
  auto cases = nlohmann::json::parse(read_file(file));
  cases["dora"]["trajectory"][5][0] = cases["dora"]["trajectory"][5][0].get<double>() * 1.001;
  write_file_atomic(file, cases.dump());
  const auto reports = verify_adapters(folder, "dora", builtin_families(), cpu_device);
  ASSERT_EQ(reports.size(), 1U);
  EXPECT_EQ(reports[0].failures.size(), 1U);
  EXPECT_THROW(verify_adapters(folder, "no such case", builtin_families(), cpu_device), Error);
}

// write_adapters() writes the adapters that it read, with complete names in place of patterns.
TEST(Adapters, FoldersAreWrittenAsTheyWereRead) {
  for (const char* name : {"dora", "lora_bias", "lora_pattern", "lora_saved_head"}) {
    SCOPED_TRACE(name);
    const test::TemporaryFolder out;
    const Path written = out.path() / "adapters";
    const ModelFolder from{kFolder.parent_path() / "model/policy", {}, kFolder / name};
    write_adapters(from, written, base_model_of(from), builtin_families());
    const ModelFolder again = find_model_folder(written);
    ASSERT_EQ(again.adapters, written);
    const ModelConfig before = load_model_config(from, builtin_families()),
                      after = load_model_config(again, builtin_families());
    EXPECT_TRUE(before.lora.by_matrix == after.lora.by_matrix);
    const auto old_file = SafetensorsFile::open(kFolder / name / "adapter_model.safetensors"),
               new_file = SafetensorsFile::open(written / "adapter_model.safetensors");
    for (std::size_t i = 0; i < new_file.size(); ++i) {
      const auto old = old_file.find(new_file[i].name);
      ASSERT_TRUE(old) << new_file[i].name;
      EXPECT_TRUE(std::ranges::equal(old->data, new_file[i].data)) << new_file[i].name;
    }
    // PEFT also saves the embedding to which an adapter belongs; write_adapters() does not.
    EXPECT_EQ(old_file.size() - new_file.size(), std::string(name) == "lora_saved_head" ? 1U : 0U);
  }
}

// The files of a PEFT folder replace those of the base model, and are written again.
TEST(Adapters, FoldersKeepTheTokenizerAndTheEndTokens) {
  const test::TemporaryFolder out;
  const Path peft = out.path() / "peft", written = out.path() / "written", model = out.path() / "model";
  std::filesystem::copy(kFolder / "dora", peft);
  const std::string generation = "{\"eos_token_id\": [7]}", jinja = "{{ messages[0]['content'] }}";
  const std::string words =
      R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}, "added_tokens": []})";
  write_file_atomic(peft / "generation_config.json", generation);
  write_file_atomic(peft / "chat_template.jinja", jinja);
  write_file_atomic(peft / "tokenizer.json", words);
  const ModelFolder from{kFolder.parent_path() / "model/policy", {}, peft};
  write_adapters(from, written, base_model_of(from), builtin_families());
  const ModelFolder again = find_model_folder(written);
  copy_model(again, model, {}, builtin_families(), {});
  for (const Path& folder : {written, model}) {
    EXPECT_EQ(read_file(folder / "generation_config.json"), generation);
    EXPECT_EQ(read_file(folder / "chat_template.jinja"), jinja);
    EXPECT_EQ(read_file(folder / "tokenizer.json"), words);
  }
  const auto tokenizer = load_own_tokenizer(again);
  EXPECT_EQ(tokenizer->chat_template(), jinja);
  EXPECT_THAT(load_stop_ids(again, load_model_config(again, builtin_families()), *tokenizer, nullptr),
              testing::Contains(7));
}

// Without adapters in the loaded folder, DoRA begins as the base model.
TEST(Adapters, NewMagnitudesAreTheNormsOfRows) {
  const Path base = kFolder.parent_path() / "model/policy";
  SessionSettings settings;
  settings.model = load_model_config({base, {}, kFolder / "dora"}, builtin_families());
  settings.compute = DType::kF32;
  settings.step = {.micro_batch = 1, .sequence = 8, .microbatches = 1};
  engine::Rank rank(cpu_device());
  const auto session = open_session(rank, settings, builtin_families());
  const SafetensorsFolder weights = SafetensorsFolder::open(base);
  load_weights(weights, session->store(), rank, Adapters::kMayBeMissing);
  int magnitudes = 0;
  for (const engine::Parameter& p : session->store().parameters()) {
    if (!p.name.ends_with(".lora_magnitude")) continue;
    ++magnitudes;
    std::string name = p.parts.front().name;
    name.replace(name.rfind('.'), std::string::npos, ".weight");
    const TensorView matrix = weights.at(name);
    std::vector<float> values(matrix.data.size() / sizeof(float));
    std::memcpy(values.data(), matrix.data.data(), matrix.data.size());
    const std::vector<float> norms = download(rank, p.value);
    const auto cols = static_cast<std::size_t>(matrix.shape[1]);
    for (std::size_t row = 0; row < norms.size(); ++row) {
      double squares = 0;
      for (std::size_t i = 0; i < cols; ++i)
        squares += static_cast<double>(values[row * cols + i]) * static_cast<double>(values[row * cols + i]);
      EXPECT_NEAR(static_cast<double>(norms[row]), std::sqrt(squares), 1e-6 * std::sqrt(squares)) << name;
    }
  }
  EXPECT_EQ(magnitudes, 8);
}

}  // namespace
}  // namespace primus
