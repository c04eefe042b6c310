// Tests the best rate of each device, which is stored for later runs.
#include "lm/events/device_peak.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>

#include "../../base/temporary_folder.h"
#include "base/files/file.h"

namespace primus {
namespace {

TEST(DevicePeak, TheMaximumIsStoredPerDevice) {
  const test::TemporaryFolder folder;
  const Path file = folder.path() / "a" / "primus" / "peaks.json";
  DevicePeak first("cpu | bf16", file);
  EXPECT_FALSE(first.value());
  first.seen(8e11);
  first.seen(7e11);
  EXPECT_EQ(first.value(), 8e11);
  EXPECT_EQ(DevicePeak("cpu | bf16", file).value(), 8e11);
  EXPECT_FALSE(DevicePeak("cpu | fp32", file).value());
  DevicePeak("cpu | fp32", file).seen(1e11);
  EXPECT_EQ(DevicePeak("cpu | bf16", file).value(), 8e11);
  // With two processes, the higher value is kept.
  DevicePeak late("cpu | bf16", file);
  first.seen(9e11);
  late.seen(8.5e11);
  EXPECT_EQ(late.value(), 9e11);
  EXPECT_EQ(DevicePeak("cpu | bf16", file).value(), 9e11);
}

TEST(DevicePeak, AnImpossiblePeakIsReplacedByAMeasurement) {
  const test::TemporaryFolder folder;
  const Path file = folder.path() / "peaks.json";
  DevicePeak("d", file).seen(100);
  DevicePeak peak("d", file);
  peak.measured(25);  // a rate that is low but possible
  EXPECT_EQ(peak.value(), 100);
  peak.measured(0);
  EXPECT_EQ(peak.value(), 100);
  peak.measured(24);
  EXPECT_EQ(peak.value(), 24);
  EXPECT_EQ(DevicePeak("d", file).value(), 24);
  peak.measured(30);
  EXPECT_EQ(DevicePeak("d", file).value(), 30);
}

TEST(DevicePeak, InvalidPeaksAreIgnored) {
  const test::TemporaryFolder folder;
  const Path file = folder.path() / "peaks.json";
  for (const char* text : {"", "[", "[1]", "{\"d\": \"fast\"}", "{\"d\": -1}", "{\"d\": 1e999}"}) {
    write_file(file, text);
    EXPECT_FALSE(DevicePeak("d", file).value()) << text;
  }
  DevicePeak peak("d", file);
  peak.seen(std::numeric_limits<double>::infinity());
  peak.seen(std::numeric_limits<double>::quiet_NaN());
  EXPECT_FALSE(peak.value());
  peak.seen(5);
  EXPECT_EQ(DevicePeak("d", file).value(), 5);
  // If the value cannot be stored, this run still uses it.
  DevicePeak nowhere("d", Path("/proc/no/such/peaks.json"));
  nowhere.seen(7);
  EXPECT_EQ(nowhere.value(), 7);
  DevicePeak without("d", Path());
  without.seen(7);
  EXPECT_EQ(without.value(), 7);
}

TEST(DevicePeak, IsStoredInTheUsersCache) {
  setenv("XDG_CACHE_HOME", "/x/cache", 1);
  EXPECT_EQ(DevicePeak::default_file(), Path("/x/cache/primus/peaks.json"));
  setenv("XDG_CACHE_HOME", "relative", 1);
  setenv("HOME", "/h", 1);
  EXPECT_EQ(DevicePeak::default_file(), Path("/h/.cache/primus/peaks.json"));
  unsetenv("XDG_CACHE_HOME");
  unsetenv("HOME");
  EXPECT_TRUE(DevicePeak::default_file().empty());
}

}  // namespace
}  // namespace primus
