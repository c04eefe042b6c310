// Tests that a rank reserves the planned memory, and that its error states the purposes of the memory.
#include "engine/runtime/rank.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "device/forwarding_device.h"
#include "turbo/cpu/cpu_kernels.h"

namespace primus::engine {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A device with a limited number of bytes.
class SmallDevice final : public test::ForwardingDevice {
 public:
  explicit SmallDevice(std::int64_t bytes) : ForwardingDevice(turbo::make_cpu_device(1)), left_(bytes) {}
  void* allocate(std::int64_t bytes) override {
    if (bytes > left_) throw invalid("small: out of device memory", "buy a larger one");
    left_ -= bytes;
    return ForwardingDevice::allocate(bytes);
  }

 private:
  std::int64_t left_;
};

constexpr std::int64_t kMiB = 1 << 20;
constexpr MemoryPlan kPlan{.persistent = 8 * kMiB, .stash = 4 * kMiB, .scratch = kMiB};

TEST(Rank, AllocatesThePlannedMemory) {
  Rank rank(std::make_unique<SmallDevice>(13 * kMiB));
  rank.reserve(kPlan);
  EXPECT_FALSE(rank.measuring());
}

TEST(Rank, ReportsWhatMemoryIsForIfTheDeviceHasTooLittle) {
  Rank rank(std::make_unique<SmallDevice>(13 * kMiB - 1));
  try {
    rank.reserve(kPlan);
    FAIL() << "reserve() accepted a plan that exceeds the device's memory";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("8.00 MiB for weights, gradients and optimizer states"),
                                    HasSubstr("4.00 MiB for activations"), HasSubstr("1.00 MiB of scratch"),
                                    HasSubstr("small: out of device memory")));
    EXPECT_EQ(error.hint(), "buy a larger one");
  }
}

}  // namespace
}  // namespace primus::engine
