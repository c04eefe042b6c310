#include "device/guard_device.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "turbo/context.h"
#include "turbo/cpu/cpu_kernels.h"
#include "turbo/elementwise/elementwise.h"

namespace primus::test {
namespace {

TEST(GuardDevice, KernelsAndCopiesWork) {
  GuardDevice device(2, turbo::cpu_kernel_table());
  const auto stream = device.create_stream(StreamKind::kCompute);
  std::vector<float> host(100000, 1.5F), back(host.size());
  const auto n = static_cast<std::int64_t>(host.size());
  const Tensor x(device.allocate(n * 4), DType::kF32, {n});
  const Tensor y(device.allocate(n * 4), DType::kF32, {n});
  stream->copy_to_host(back.data(), y.data, y.bytes());
  stream->synchronize();
  EXPECT_EQ(back, std::vector<float>(host.size(), 0.0F));

  stream->copy_to_device(x.data, host.data(), x.bytes());
  Arena scratch("scratch", device.allocate(1 << 20), 1 << 20);
  turbo::Meter meter;
  turbo::Context context{device, *stream, scratch, meter};
  launch(context, turbo::Add{.a = x, .b = x, .out = y});
  stream->copy_on_device(x.data, y.data, x.bytes());
  stream->fill_zero(y.data, 4);
  stream->copy_to_host(host.data(), y.data, y.bytes());
  stream->copy_to_host(back.data(), x.data, x.bytes());
  stream->synchronize();
  EXPECT_EQ(back, std::vector<float>(back.size(), 3.0F));
  EXPECT_EQ(host[0], 0.0F);
  EXPECT_EQ(host[1], 3.0F);
}

TEST(GuardDevice, WorkIsAsynchronous) {
  GuardDevice device(1, turbo::cpu_kernel_table(), std::chrono::milliseconds(50));
  const auto stream = device.create_stream(StreamKind::kCompute);
  const auto event = device.create_event();
  std::atomic<bool> done = false;
  std::atomic<bool>* address = &done;
  const auto set = [](KernelContext&, const void* flag) {
    *static_cast<std::atomic<bool>* const*>(flag)[0] = true;
  };
  stream->launch(set, &address, sizeof(address));
  stream->record(*event);
  EXPECT_FALSE(done);
  event->synchronize();
  EXPECT_TRUE(done);
}

TEST(GuardDevice, TheSameStepOnTwoStreamsNeedsAnEvent) {
  GuardDevice device(1, turbo::cpu_kernel_table());
  const auto compute = device.create_stream(StreamKind::kCompute),
             copy = device.create_stream(StreamKind::kCopy);
  const auto ready = device.create_event();
  void* memory = device.allocate(4);
  const int one = 1;
  int value = 0;
  compute->copy_to_device(memory, &one, 4);
  compute->record(*ready);
  copy->wait(*ready);
  copy->copy_to_host(&value, memory, 4);
  copy->synchronize();
  EXPECT_EQ(value, 1);
}

using GuardDeviceDeathTest = ::testing::Test;

TEST(GuardDeviceDeathTest, TheHostCannotAccessDeviceAddresses) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  GuardDevice device(1, turbo::cpu_kernel_table());
  auto* memory = static_cast<volatile int*>(device.allocate(4096));
  EXPECT_DEATH((void)memory[0], "");
  EXPECT_DEATH(memory[0] = 1, "");
}

TEST(GuardDeviceDeathTest, KernelsCannotAccessOtherOrReleasedBlocks) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  GuardDevice device(1, turbo::cpu_kernel_table());
  const auto stream = device.create_stream(StreamKind::kCompute);
  void* memory = device.allocate(4096);
  std::vector<char> host(5000);
  const auto copy = [&](std::int64_t bytes) {
    stream->copy_to_host(host.data(), memory, bytes);
    stream->synchronize();
  };
  copy(4096);
  EXPECT_DEATH(copy(4097), "");
  device.release(memory);
  EXPECT_DEATH(copy(1), "");
}

}  // namespace
}  // namespace primus::test
