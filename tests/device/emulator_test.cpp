// Tests the emulated GPU: what it guarantees to kernels, and errors where hardware has undefined behaviour.
#define PRIMUS_EMULATED_WARP 32
#include "device/gpu/emulator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "device/gpu/launch.h"
#include "device/gpu/thread.h"

namespace primus::gpu::emulated32 {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

template <class Body>
void run(const emulator::Grid& grid, const Body& body) {
  ThreadPool pool(2);
  emulator::run(
      pool, grid, [](const void* captured) { (*static_cast<const Body*>(captured))(); }, &body);
}

TEST(Emulator, EveryThreadRunsOnce) {
  std::vector<int> runs(7 * 96);
  run({7, 96, 32, 0}, [&] {
    EXPECT_EQ(threads(), 96);
    EXPECT_EQ(blocks(), 7);
    ++runs[static_cast<std::size_t>(block() * 96 + thread())];
  });
  EXPECT_THAT(runs, ::testing::Each(1));
}

TEST(Emulator, BarriersOrderSharedMemory) {
  struct Values {
    int at[64];
  };
  std::vector<int> sums(5 * 64);
  run({5, 64, 32, 0}, [&] {
    Values& values = shared<Values>();
    int sum = 0;
    for (int round = 0; round < 3; ++round) {
      values.at[thread()] = thread() + round;
      barrier();
      sum += values.at[63 - thread()];
      barrier();
    }
    sums[static_cast<std::size_t>(block() * 64 + thread())] = sum;
  });
  for (std::size_t i = 0; i < sums.size(); ++i) EXPECT_EQ(sums[i], 3 * (63 - static_cast<int>(i % 64)) + 3);
}

TEST(Emulator, SomeThreadsCanMeetAtABarrierOrWaitForOthers) {
  struct Values {
    int at[64], ready;
  };
  std::vector<int> seen(3 * 96);
  run({3, 96, 32, 0}, [&] {
    Values& values = shared<Values>();
    if (thread() == 0) values.ready = 0;
    barrier();
    int& mine = seen[static_cast<std::size_t>(block() * 96 + thread())];
    if (thread() < 64) {
      for (int round = 0; round < 2; ++round) {
        values.at[thread()] = thread() + round;
        emulator::barrier(3, 64);
        mine += values.at[63 - thread()];
        emulator::barrier(3, 64);
      }
      if (thread() == 63) {
        values.ready = 1;
        emulator::made_progress();
      }
    } else {
      emulator::wait_until([](const void* ready) { return *static_cast<const int*>(ready) == 1; },
                           &values.ready);
      mine = values.at[5];
    }
  });
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const int thread = static_cast<int>(i % 96);
    EXPECT_EQ(seen[i], thread < 64 ? 2 * (63 - thread) + 1 : 6) << i;
  }
}

TEST(Emulator, EndlessWaitsAreErrors) {
  const auto waiting = [](auto body) { return [body] { run({1, 64, 32, 0}, body); }; };
  EXPECT_THAT(waiting([] { emulator::wait_until([](const void*) { return false; }, nullptr); }),
              ThrowsMessage<std::logic_error>(HasSubstr("or nothing ends the wait")));
  EXPECT_THAT(waiting([] { emulator::barrier(1, 96); }),
              ThrowsMessage<std::logic_error>(HasSubstr("or nothing ends the wait")));
}

TEST(Emulator, SharedMemoryStartsAsNanInEveryBlock) {
  struct Value {
    float at;
  };
  std::vector<int> nans(8);
  run({8, 32, 32, 64}, [&] {
    if (thread() != 0) return;
    Value& value = shared<Value>();
    float dynamic;
    std::memcpy(&dynamic, dynamic_shared(), sizeof(dynamic));
    nans[static_cast<std::size_t>(block())] = (std::isnan(value.at) ? 1 : 0) + (std::isnan(dynamic) ? 1 : 0);
    value.at = 1;
  });
  EXPECT_THAT(nans, ::testing::Each(2));
}

TEST(Emulator, LanesExchangeWithinTheirWarp) {
  for (const int warp : {32, 64}) {
    std::vector<int> seen(128);
    run({1, 128, warp, 0}, [&] {
      for (int round = 0; round < 4; ++round) {
        const int mine = thread() * 10 + round;
        const std::byte* all = emulator::exchange(&mine, sizeof(mine));
        const int other = (thread() % warp + 1) % warp;
        int theirs;
        std::memcpy(&theirs, all + static_cast<std::size_t>(other) * emulator::kExchangeBytes,
                    sizeof(theirs));
        if (theirs == (thread() / warp * warp + other) * 10 + round)
          ++seen[static_cast<std::size_t>(thread())];
      }
    });
    EXPECT_THAT(seen, ::testing::Each(4));
  }
}

TEST(Emulator, SkippedBarriersAreErrors) {
  EXPECT_THAT(([] {
                run({2, 64, 32, 0}, [] {
                  if (thread() < 40) barrier();
                });
              }),
              ThrowsMessage<std::logic_error>(HasSubstr("they do not all reach")));
}

TEST(Emulator, ExchangesThatSomeLanesSkipAreErrors) {
  EXPECT_THAT(([] {
                run({1, 32, 32, 0}, [] {
                  if (thread() != 3) from_lane_xor(1, 1);
                });
              }),
              ThrowsMessage<std::logic_error>(HasSubstr("exchange between lanes")));
}

TEST(Emulator, ErrorsOfAKernelReachTheCallerAndTheNextLaunchWorks) {
  for (int repetition = 0; repetition < 3; ++repetition) {
    EXPECT_THAT(([] {
                  run({4, 64, 32, 0}, [] {
                    if (block() == 2 && thread() == 5) throw std::runtime_error("from a kernel");
                    barrier();
                  });
                }),
                ThrowsMessage<std::runtime_error>("from a kernel"));
  }
  int ran = 0;
  run({1, 32, 32, 0}, [&] { ran += thread() == 31 ? 1 : 0; });
  EXPECT_EQ(ran, 1);
}

// The threads from `first` on wait for the previous kernel.
struct Waits {
  static constexpr int kThreads = 64;
  int first = 0;
  void operator()() const {
    let_next_begin();
    if (thread() >= first) wait_for_previous();
  }
};
struct WaitsEarly : Waits {
  using StartsEarly = void;
};

TEST(Emulator, AKernelThatStartsEarlyWaitsInEveryThread) {
  ThreadPool pool(2);
  Context context(pool, 0);
  launch(context, 3, Waits{});
  launch(context, 3, Waits{40});  // starts after the previous kernel has ended
  launch(context, 3, WaitsEarly{});
  EXPECT_THAT(([&] { launch(context, 1, WaitsEarly{{40}}); }),
              ThrowsMessage<std::logic_error>(
                  AllOf(HasSubstr("WaitsEarly starts early, and thread 0 of block 0 ended without"),
                        HasSubstr("wait_for_previous()"))));
  // Waits of an earlier launch do not count.
  EXPECT_THROW(launch(context, 1, WaitsEarly{{64}}), std::logic_error);
}

TEST(Emulator, BlocksAreMadeOfWholeWarps) {
  EXPECT_THROW(run({1, 48, 32, 0}, [] {}), std::logic_error);
}

}  // namespace
}  // namespace primus::gpu::emulated32
