// Tests of the thread pool and of groups of threads.
#include "base/system/thread_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/address_space.h"
#include "base/error.h"
#include "base/system/stop_request.h"
#include "base/system/threads.h"

namespace primus {
namespace {

TEST(ThreadPool, EveryIndexRunsExactlyOnceInFixedTasks) {
  for (int threads : {1, 2, 3, 4, 7}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.size(), threads);
    for (std::int64_t n : {0, 1, 2, 7, 64, 1000, 1001}) {
      for (std::int64_t grain : {0, 1, 3, 64, 5000}) {
        std::vector<std::atomic<int>> hits(static_cast<std::size_t>(n));
        std::atomic<bool> tasks_fixed{true}, index_in_range{true};
        pool.parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end, int thread) {
          const std::int64_t step = std::max<std::int64_t>(grain, 1);
          if (begin % step != 0 || end != std::min(n, begin + step)) tasks_fixed = false;
          if (thread < 0 || thread >= threads) index_in_range = false;
          for (auto i = begin; i < end; ++i) ++hits[static_cast<std::size_t>(i)];
        });
        EXPECT_TRUE(tasks_fixed && index_in_range);
        for (auto& h : hits) ASSERT_EQ(h, 1);
      }
    }
  }
}

TEST(ThreadPool, ThreadIndicesNeverOverlap) {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> inside(4);
  std::atomic<bool> overlap{false};
  for (int round = 0; round < 200; ++round) {
    pool.parallel_for(64, 1, [&](std::int64_t, std::int64_t, int thread) {
      if (inside[static_cast<std::size_t>(thread)].fetch_add(1) != 0) overlap = true;
      inside[static_cast<std::size_t>(thread)].fetch_sub(1);
    });
  }
  EXPECT_FALSE(overlap);
}

TEST(ThreadPool, WritesOfTheBodyAreVisibleAfterwards) {
  ThreadPool pool(3);
  std::vector<std::int64_t> data(512);
  for (int round = 1; round <= 3000; ++round) {
    pool.parallel_for(512, 32, [&](std::int64_t begin, std::int64_t end, int) {
      for (auto i = begin; i < end; ++i) data[static_cast<std::size_t>(i)] += i;
    });
  }
  for (std::int64_t i = 0; i < 512; ++i) ASSERT_EQ(data[static_cast<std::size_t>(i)], 3000 * i);
}

TEST(ThreadPool, SleepingWorkersWakeUp) {
  ThreadPool pool(3, std::chrono::microseconds(0));
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    // Two tasks that wait for each other end only if a second thread takes part.
    std::atomic<int> arrived{0};
    pool.parallel_for(2, 1, [&](std::int64_t, std::int64_t, int) {
      ++arrived;
      while (arrived < 2) std::this_thread::yield();
    });
    EXPECT_EQ(arrived, 2);
  }
}

TEST(ThreadPool, TheFirstExceptionReachesTheCallerAndThePoolStaysUsable) {
  for (int threads : {1, 2, 4}) {
    ThreadPool pool(threads);
    for (int round = 0; round < 50; ++round) {
      EXPECT_THROW(pool.parallel_for(100, 1,
                                     [&](std::int64_t begin, std::int64_t, int) {
                                       if (begin == 37 || begin == 38) throw std::runtime_error("task");
                                     }),
                   std::runtime_error);
      std::atomic<int> count{0};
      pool.parallel_for(10, 1, [&](std::int64_t, std::int64_t, int) { ++count; });
      EXPECT_EQ(count, 10);
    }
  }
}

TEST(ThreadPool, AStopEndsALoopBetweenTwoTasks) {
  for (const int threads : {1, 2, 4}) {
    ThreadPool pool(threads);
    std::atomic<bool> stop{false};
    std::atomic<int> tasks{0};
    const auto count = [&](std::int64_t, std::int64_t, int) {
      if (++tasks == 10) stop = true;
    };
    pool.stop_on(&stop);
    EXPECT_THROW(pool.parallel_for(1'000'000, 1, count), StopRequest);
    EXPECT_LE(tasks, 10 + threads) << threads;  // tasks that had already begun
    EXPECT_THROW(pool.parallel_for(1, 1, count), StopRequest);
    EXPECT_LE(tasks, 10 + threads) << threads;
    // Without a stop flag, loops run to their end.
    pool.stop_on(nullptr);
    tasks = 0;
    pool.parallel_for(1000, 1, count);
    EXPECT_EQ(tasks, 1000) << threads;
  }
}

TEST(ThreadPool, PoolsOfDifferentRanksCoexist) {
  std::vector<std::thread> ranks;
  std::vector<std::int64_t> sums(4);
  for (std::size_t rank = 0; rank < 4; ++rank) {
    ranks.emplace_back([&, rank] {
      ThreadPool pool(2);
      for (int round = 0; round < 100; ++round) {
        std::atomic<std::int64_t> sum{0};
        pool.parallel_for(100, 10, [&](std::int64_t begin, std::int64_t end, int) { sum += end - begin; });
        sums[rank] += sum;
      }
    });
  }
  for (auto& rank : ranks) rank.join();
  EXPECT_EQ(sums, std::vector<std::int64_t>(4, 10000));
}

TEST(ThreadPool, RefusesImpossibleSizes) {
  EXPECT_THROW(ThreadPool(0), Error);
  EXPECT_THROW(ThreadPool(-3), Error);
  EXPECT_THROW(ThreadPool(ThreadPool::kMaxThreads + 1), Error);
}

// If the system cannot start all threads, the started ones are ended, and the constructor throws.
TEST(ThreadPool, ThreadsThatCannotBeStartedAreAnError) {
  if (!kAddressSpaceCanBeLimited) GTEST_SKIP();
  EXPECT_EXIT(
      {
        limit_address_space(size_t{200} << 20);  // each stack takes 8 MiB
        try {
          ThreadPool pool(1000);
        } catch (const Error& error) {
          std::fputs(error.render().c_str(), stderr);
          std::exit(error.exit_code());
        }
        std::exit(0);
      },
      testing::ExitedWithCode(2),
      "cannot start a thread that computes, number [0-9]+ of 1000: Resource temporarily "
      "unavailable\n.*ulimit -v");
}

TEST(ThreadGroup, JoinsTheThreadsThatWereStarted) {
  if (!kAddressSpaceCanBeLimited) GTEST_SKIP();
  EXPECT_EXIT(
      {
        limit_address_space(size_t{200} << 20);
        std::atomic<std::size_t> ran{0};
        std::size_t started = 0;
        {
          ThreadGroup threads;
          try {
            for (;;) threads.start([&] { ++ran; }, "counts");
          } catch (const Error&) {
            started = threads.size();
          }
        }
        std::exit(started > 0 && ran == started ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST(FunctionRef, CallsFunctionsAndMutableLambdas) {
  int calls = 0;
  auto count = [&calls](int by) mutable { return calls += by; };
  FunctionRef<int(int)> reference = count;
  EXPECT_EQ(reference(2), 2);
  EXPECT_EQ(FunctionRef<int(int)>(reference)(3), 5);
}

}  // namespace
}  // namespace primus
