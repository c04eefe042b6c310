// Names of devices in the names of tests, so that filters of tests do not depend on the instruction sets of
// the machine.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "turbo/operator_test.h"

namespace primus::turbo::test {

// Returns Gpu, Emulated32, Emulated64, or Cpu with the device's number among the parameters.
inline std::string device_name(const ::testing::TestParamInfo<DeviceUnderTest>& info) {
  if (!info.param.plugin.empty()) return "Gpu";
  if (info.param.emulated_warp > 0) return fmt::format("Emulated{}", info.param.emulated_warp);
  return fmt::format("Cpu{}", info.index);
}

}  // namespace primus::turbo::test
