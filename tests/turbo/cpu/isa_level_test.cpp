// Tests the choice of an instruction set in programs that contain kernels for only some sets.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "turbo/cpu/cpu_kernels.h"

namespace primus::turbo {
namespace {

constexpr IsaLevel kLevels[] = {IsaLevel::kV2, IsaLevel::kV3, IsaLevel::kV4};

// The chosen level is the highest level that both the program and the machine have.
TEST(IsaLevel, TheBestLevelIsTheHighestCommonLevel) {
  EXPECT_EQ(best_isa_level(kLevels, IsaLevel::kV2), IsaLevel::kV2);
  EXPECT_EQ(best_isa_level(kLevels, IsaLevel::kV4), IsaLevel::kV4);
  const std::vector<IsaLevel> outer{IsaLevel::kV2, IsaLevel::kV4};
  EXPECT_EQ(best_isa_level(outer, IsaLevel::kV3), IsaLevel::kV2);
  const std::vector<IsaLevel> lowest{IsaLevel::kV2};
  EXPECT_EQ(best_isa_level(lowest, IsaLevel::kV4), IsaLevel::kV2);
}

TEST(IsaLevel, AnOlderMachineGetsAnErrorThatNamesBothLevels) {
  const std::vector<IsaLevel> built{IsaLevel::kV3, IsaLevel::kV4};
  try {
    best_isa_level(built, IsaLevel::kV2);
    FAIL() << "no error was thrown";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kUnsupported);
    const std::string message = e.render();
    for (const char* part : {"x86-64-v3, x86-64-v4", "x86-64-v2", "-DPRIMUS_CPU_KERNELS=all"})
      EXPECT_NE(message.find(part), std::string::npos) << message;
  }
}

// Every supported level is built into the program, and is not above the level of the machine.
TEST(IsaLevel, TheProgramContainsTheListedLevels) {
  const std::vector<IsaLevel> built = built_isa_levels();
  ASSERT_FALSE(built.empty());
  EXPECT_TRUE(std::ranges::is_sorted(built));
  for (const IsaLevel level : supported_isa_levels()) {
    EXPECT_LE(level, machine_isa_level());
    EXPECT_NE(std::ranges::find(built, level), built.end()) << name_of(level);
  }
}

}  // namespace
}  // namespace primus::turbo
