// Tests of the profiles in presets/hardware, and of the names that choose them.
#include "config/hardware.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "support.h"

namespace primus::config {
namespace {

using ::testing::HasSubstr;

std::vector<Hardware> table() { return read_hardware({Path(PRIMUS_SOURCE_DIR) / "presets"}); }

TEST(Hardware, AcceptsCommonNames) {
  const auto name_of = [](const std::string& name) { return hardware_named(table(), name).name; };
  EXPECT_EQ(name_of("mi355x"), "AMD Instinct MI355X");
  EXPECT_EQ(name_of("MI355X"), "AMD Instinct MI355X");
  EXPECT_EQ(name_of("MI350X"), "AMD Instinct MI355X");
  EXPECT_EQ(name_of("amd_mi300x"), "AMD Instinct MI300X");
  EXPECT_EQ(name_of("h100"), "NVIDIA H100 SXM");
  EXPECT_EQ(name_of("h100_pcie"), "NVIDIA H100 PCIe");
  EXPECT_EQ(name_of("a100"), "NVIDIA A100 40GB");
  EXPECT_EQ(name_of("a100_80gb"), "NVIDIA A100 80GB");
  EXPECT_EQ(name_of(PRIMUS_SOURCE_DIR "/presets/hardware/nvidia_b200.yaml"), "NVIDIA B200");
  try {
    hardware_named(table(), "mi355");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
    EXPECT_THAT(error.render(), HasSubstr("no hardware is called 'mi355'"));
    EXPECT_THAT(error.render(), HasSubstr("did you mean 'mi355x'?"));
    EXPECT_THAT(error.render(), HasSubstr("h200"));
  }
}

// A profile in several preset folders counts once. An installed program may also find the presets of its
// source tree.
TEST(Hardware, AProfileOfSeveralFoldersCountsOnce) {
  const Path presets = Path(PRIMUS_SOURCE_DIR) / "presets";
  EXPECT_EQ(read_hardware({presets, presets}).size(), table().size());
}

// All profiles except the CPU's have the memory and rates that planning needs.
TEST(Hardware, EveryGpuCanBePlannedFor) {
  for (const Hardware& h : table()) {
    EXPECT_EQ(h.can_be_planned(), h.device != "cpu") << h.file;
    if (h.device == "cpu") continue;
    EXPECT_GT(h.link, 0) << h.file;
    EXPECT_GT(h.network, 0) << h.file;
    EXPECT_EQ(h.gpus_per_host, h.short_name == "mi455x" ? 4 : 8) << h.file;
    EXPECT_GT(h.step_share, 0.2) << h.file;
    EXPECT_LT(h.step_share, 0.8) << h.file;
    EXPECT_TRUE(h.peak_fp32_tflops > 0 || h.short_name == "mi455x") << h.file;  // not published
    EXPECT_EQ(h.device == "hip", h.name.starts_with("AMD")) << h.file;
  }
}

TEST(Hardware, AFolderOfTheExperimentsPathNamesIt) {
  EXPECT_EQ(hardware_of_path(table(), "examples/megatron/configs/MI355X/llama.yaml")->short_name, "mi355x");
  EXPECT_FALSE(hardware_of_path(table(), "examples/native/configs/CPU/llama.yaml"));
  EXPECT_FALSE(hardware_of_path(table(), "MI355X.yaml"));
}

}  // namespace
}  // namespace primus::config
