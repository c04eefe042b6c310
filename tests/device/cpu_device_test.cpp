#include "device/cpu/cpu_device.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "tensor/arena.h"
#include "turbo/kernel_table.h"

namespace primus::cpu {
namespace {

const KernelTable kNoKernels;

// A kernel that waits for a flag. With it, a test can block a stream.
struct Gate {
  std::atomic<bool>* open;
};
void wait_for_gate(KernelContext&, const void* arguments) {
  while (!static_cast<const Gate*>(arguments)->open->load()) std::this_thread::yield();
}

struct Append {
  std::vector<int>* to;
  int value;
};
void append(KernelContext&, const void* arguments) {
  const auto& a = *static_cast<const Append*>(arguments);
  a.to->push_back(a.value);
}

void fail(KernelContext&, const void*) { throw invalid("this kernel fails"); }

TEST(CpuDevice, MemoryIsAlignedZeroedAndWritable) {
  CpuDevice device(1, kNoKernels);
  for (const std::int64_t bytes :
       {std::int64_t{0}, std::int64_t{1}, std::int64_t{5000}, std::int64_t{3} << 20}) {
    auto* memory = static_cast<unsigned char*>(device.allocate(bytes));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % Arena::kAlignment, 0U);
    EXPECT_EQ(std::accumulate(memory, memory + bytes, 0), 0);
    std::memset(memory, 0x5A, static_cast<std::size_t>(bytes));
    device.release(memory);
  }
  device.release(nullptr);
}

TEST(CpuDevice, ImpossibleAllocationsAreErrorsThatSayHowMuch) {
  CpuDevice device(1, kNoKernels);
  for (const std::int64_t bytes : {std::int64_t{1} << 45, std::int64_t{1} << 60, std::int64_t{-1}}) {
    try {
      device.allocate(bytes);
      FAIL() << bytes;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kIo);
      EXPECT_NE(std::string(error.what()).find(std::to_string(bytes)), std::string::npos);
      EXPECT_FALSE(error.hint().empty());
    }
  }
}

TEST(CpuDevice, DescribesItself) {
  EXPECT_EQ(CpuDevice(1, kNoKernels).description().rfind("cpu: 1 thread", 0), 0U);
  EXPECT_EQ(CpuDevice(3, kNoKernels).description().rfind("cpu: 3 threads", 0), 0U);
  EXPECT_EQ(CpuDevice(0, kNoKernels).pool().size(), available_cores());
}

TEST(CpuDevice, AvailableCoresFollowTheAffinityMask) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  EXPECT_GE(available_cores(), 1);
  EXPECT_LE(available_cores(), CPU_COUNT(&before));
  int first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(available_cores(), 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
}

TEST(CpuStream, ComputeRunsInsideTheCall) {
  CpuDevice device(2, kNoKernels);
  const auto stream = device.create_stream(StreamKind::kCompute);
  std::vector<int> order;
  const Append one{&order, 1};
  stream->launch(&append, &one, sizeof(one));
  EXPECT_EQ(order, (std::vector<int>{1}));

  // The copies are so large that several threads share them.
  std::vector<unsigned char> host((5 << 20) + 7), back(host.size());
  for (std::size_t i = 0; i < host.size(); ++i) host[i] = static_cast<unsigned char>(i * 37 % 251);
  const auto bytes = static_cast<std::int64_t>(host.size());
  void* a = device.allocate(bytes);
  void* b = device.allocate(bytes);
  stream->copy_to_device(a, host.data(), bytes);
  stream->copy_on_device(b, a, bytes);
  stream->copy_to_host(back.data(), b, bytes);
  EXPECT_EQ(back, host);
  stream->fill_zero(b, bytes);
  stream->copy_to_host(back.data(), b, bytes);
  EXPECT_EQ(std::count(back.begin(), back.end(), 0), bytes);
  EXPECT_THROW(stream->launch(&fail, nullptr, 0), Error);
}

TEST(CpuStream, WorkRunsAsynchronouslyInOrder) {
  CpuDevice device(1, kNoKernels);
  const auto stream = device.create_stream(StreamKind::kCommunication);
  std::atomic<bool> open = false;
  const Gate gate{&open};
  std::vector<int> order;
  stream->launch(&wait_for_gate, &gate, sizeof(gate));
  for (int i = 0; i < 100; ++i) {
    const Append next{&order, i};  // the stream copies the arguments
    stream->launch(&append, &next, sizeof(next));
  }
  const std::string text = "written before the copy began";
  void* memory = device.allocate(64);
  std::string back(text.size(), '?');
  stream->copy_to_device(memory, text.data(), static_cast<std::int64_t>(text.size()));
  stream->copy_to_host(back.data(), memory, static_cast<std::int64_t>(text.size()));
  EXPECT_EQ(back, std::string(text.size(), '?'));
  open = true;
  stream->synchronize();
  EXPECT_EQ(back, text);
  ASSERT_EQ(order.size(), 100U);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
}

// A copy stream works on the calling thread. A checkpoint is therefore copied by its writer thread, which has
// a lower priority than the training threads.
TEST(CpuStream, TransfersRunInTheCallingThread) {
  CpuDevice device(2, kNoKernels);
  const auto stream = device.create_stream(StreamKind::kCopy);
  std::vector<std::thread::id> threads;
  auto* const seen = &threads;
  const KernelFunction note = [](KernelContext&, const void* arguments) {
    (*static_cast<std::vector<std::thread::id>* const*>(arguments))->push_back(std::this_thread::get_id());
  };
  stream->launch(note, &seen, sizeof(seen));
  ASSERT_EQ(threads.size(), 1U);
  EXPECT_EQ(threads[0], std::this_thread::get_id());

  constexpr std::size_t kBytes = (5 << 20) + 7;  // other streams split such copies among threads
  std::vector<std::vector<unsigned char>> memory, back(4);
  for (unsigned char i = 0; i < 4; ++i) memory.emplace_back(kBytes, i);
  std::vector<std::thread> copying;
  for (std::size_t i = 0; i < 4; ++i) {
    copying.emplace_back([&, i] {
      back[i].resize(kBytes, 0xff);
      stream->copy_to_host(back[i].data(), memory[i].data(), kBytes);
    });
  }
  for (std::thread& thread : copying) thread.join();
  EXPECT_EQ(back, memory);
}

TEST(CpuStream, EventsOrderTwoStreams) {
  CpuDevice device(1, kNoKernels);
  const auto first = device.create_stream(StreamKind::kCommunication);
  const auto second = device.create_stream(StreamKind::kCommunication);
  const auto event = device.create_event();
  std::atomic<bool> open = false;
  const Gate gate{&open};
  std::vector<int> order;
  const Append one{&order, 1}, two{&order, 2};
  event->synchronize();  // never recorded: does not wait
  second->wait(*event);
  first->launch(&wait_for_gate, &gate, sizeof(gate));
  first->launch(&append, &one, sizeof(one));
  first->record(*event);
  second->wait(*event);
  second->launch(&append, &two, sizeof(two));
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  open = true;
  second->synchronize();
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
  event->synchronize();

  // Recorded again, the event marks the new point.
  open = false;
  first->launch(&wait_for_gate, &gate, sizeof(gate));
  first->launch(&append, &one, sizeof(one));
  first->record(*event);
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    open = true;
  });
  device.create_stream(StreamKind::kCompute)->wait(*event);
  EXPECT_EQ(order.size(), 3U);
  opener.join();
}

TEST(CpuStream, AFailureIsReportedOnceAndDropsLaterWork) {
  CpuDevice device(1, kNoKernels);
  const auto stream = device.create_stream(StreamKind::kCommunication);
  const auto event = device.create_event();
  std::vector<int> order;
  const Append one{&order, 1};
  stream->launch(&fail, nullptr, 0);
  stream->launch(&append, &one, sizeof(one));
  stream->record(*event);
  // Both a host and a stream that wait for the event get the error.
  EXPECT_THROW(event->synchronize(), Error);
  EXPECT_THROW(device.create_stream(StreamKind::kCompute)->wait(*event), Error);
  const auto other = device.create_stream(StreamKind::kCommunication);
  other->wait(*event);
  other->launch(&append, &one, sizeof(one));
  EXPECT_THROW(other->synchronize(), Error);
  EXPECT_THROW(stream->synchronize(), Error);
  EXPECT_TRUE(order.empty());
  stream->launch(&append, &one, sizeof(one));
  stream->record(*event);
  event->synchronize();
  stream->synchronize();
  EXPECT_EQ(order.size(), 1U);
}

TEST(CpuStream, DestructionFinishesTheQueue) {
  CpuDevice device(1, kNoKernels);
  std::vector<int> order;
  const Append one{&order, 1};
  {
    const auto stream = device.create_stream(StreamKind::kCommunication);
    for (int i = 0; i < 10; ++i) stream->launch(&append, &one, sizeof(one));
  }
  EXPECT_EQ(order.size(), 10U);
}

}  // namespace
}  // namespace primus::cpu
