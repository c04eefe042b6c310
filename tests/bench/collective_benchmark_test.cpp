// Tests of the benchmark of collectives, with ranks as threads: its cases, their sizes, and the detection of
// wrong results.
#include "bench/collective_benchmark.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <thread>

#include "base/error.h"
#include "comm/local/thread_group.h"
#include "turbo/devices/devices.h"

namespace primus {
namespace {

using ::testing::HasSubstr;

// Results of each rank of a group of threads, or the rank's error as text.
struct Outcome {
  std::vector<std::vector<BenchmarkResult>> results;
  std::vector<std::string> errors;
};
Outcome on_ranks(int ranks,
                 const std::function<std::vector<BenchmarkResult>(comm::Communicator&, Device&)>& work) {
  auto worlds = comm::local::make_thread_group(ranks);
  Outcome outcome{.results = std::vector<std::vector<BenchmarkResult>>(static_cast<std::size_t>(ranks)),
                  .errors = std::vector<std::string>(static_cast<std::size_t>(ranks))};
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < worlds.size(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const auto device = turbo::open_device({.kind = "cpu", .threads = 1});
        outcome.results[rank] = work(*worlds[rank], *device);
      } catch (const std::exception& error) {
        outcome.errors[rank] = error.what();
        worlds[rank]->abort(error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcome;
}

CollectivePlan small_plan() {
  return {.ops = parse_collectives("all"), .sizes = {1, 100, 4096}, .warmup = 1, .iterations = 5};
}

TEST(CollectiveBenchmark, EveryOperationIsCorrectAndCounted) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int ranks : {1, 2, 3}) {
      CollectivePlan plan = small_plan();
      plan.dtype = dtype;
      plan.check = true;
      plan.rank_times = true;
      const Outcome outcome = on_ranks(ranks, [&](comm::Communicator& world, Device& device) {
        return measure_collectives(world, device, plan);
      });
      for (const std::string& error : outcome.errors) EXPECT_EQ(error, "");
      const auto& results = outcome.results[0];
      ASSERT_EQ(results.size(), 6 * 3U + 1);
      const double n = ranks;
      const std::map<std::string, double> factors = {{"all_reduce", 2 * (n - 1) / n},
                                                     {"broadcast", 1},
                                                     {"reduce_scatter", (n - 1) / n},
                                                     {"all_gather", (n - 1) / n},
                                                     {"all_to_all", (n - 1) / n},
                                                     {"send_receive", 1},
                                                     {"barrier", 1}};
      for (const BenchmarkResult& result : results) {
        EXPECT_EQ(result.timing.samples, 5);
        EXPECT_EQ(result.rank_timings.size(), static_cast<std::size_t>(ranks));
        EXPECT_DOUBLE_EQ(result.bus_bytes, result.bytes * factors.at(result.group)) << result.name;
        // A case's time is that of the slowest rank.
        for (const Timing& timing : result.rank_timings)
          EXPECT_LE(timing.median, result.timing.median * (1 + 1e-12));
      }
      // 100 bytes are rounded up to whole elements for each rank.
      const std::int64_t unit = size_of(dtype) * ranks;
      EXPECT_EQ(results[1].bytes, static_cast<double>((100 + unit - 1) / unit * unit));
      EXPECT_EQ(results.back().name, "barrier");
      // All ranks report the same times.
      for (const auto& theirs : outcome.results) {
        ASSERT_EQ(theirs.size(), results.size());
        for (std::size_t i = 0; i < results.size(); ++i)
          EXPECT_EQ(theirs[i].timing.median, results[i].timing.median);
      }
    }
  }
}

// A communicator that spoils one element of an all-reduce.
class Spoiling final : public comm::Communicator {
 public:
  Spoiling(comm::Communicator& real) : Communicator("world", real.rank(), real.size()), real_(real) {}
  void abort(const std::string& reason) noexcept override { real_.abort(reason); }
  void set_timeout(std::chrono::milliseconds timeout) override { real_.set_timeout(timeout); }

 private:
  void enqueue(Stream& stream, comm::Call call) override {
    switch (call.kind) {
      case comm::Kind::kAllReduce: {
        stream.synchronize();
        static_cast<float*>(call.in.data)[7] += 1;
        return real_.all_reduce(stream, call.in, call.out, call.reduction);
      }
      case comm::Kind::kAllGather:
        return real_.all_gather(stream, call.in, call.out);
      default:
        return real_.barrier(stream);
    }
  }
  std::unique_ptr<Communicator> make_split(std::span<const int>, int, const std::string&,
                                           comm::Overlap) override {
    return {};
  }

  comm::Communicator& real_;
};

TEST(CollectiveBenchmark, AWrongResultIsReported) {
  for (const bool check : {true, false}) {
    CollectivePlan plan = small_plan();
    plan.ops = parse_collectives("all_reduce");
    plan.sizes = {4096};
    plan.check = check;
    const Outcome outcome = on_ranks(2, [&](comm::Communicator& world, Device& device) {
      if (world.rank() == 0) return measure_collectives(world, device, plan);
      Spoiling spoiling(world);
      return measure_collectives(spoiling, device, plan);
    });
    EXPECT_EQ(outcome.errors[0].find("at element 7, expected") != std::string::npos ||
                  outcome.errors[1].find("at element 7, expected") != std::string::npos,
              check)
        << outcome.errors[0] << outcome.errors[1];
  }
}

TEST(CollectiveBenchmark, TheTraceHasEveryCall) {
  CollectivePlan plan = small_plan();
  plan.ops = parse_collectives("broadcast");
  plan.sizes = {64};
  plan.repetitions = 3;
  std::vector<std::vector<double>> seen;
  const Outcome outcome = on_ranks(2, [&](comm::Communicator& world, Device& device) {
    CollectivePlan own = plan;
    if (world.rank() == 0)
      own.trace = [&](const CollectiveSample& sample) {
        EXPECT_EQ(sample.op, CollectiveOp::kBroadcast);
        EXPECT_EQ(sample.bytes, 64);
        EXPECT_EQ(sample.repetition * 5 + sample.iteration, static_cast<int>(seen.size()));
        seen.push_back(sample.seconds);
      };
    return measure_collectives(world, device, own);
  });
  EXPECT_EQ(seen.size(), 15U);
  for (const auto& seconds : seen) EXPECT_EQ(seconds.size(), 2U);
}

TEST(CollectiveBenchmark, ProgressIsReportedBeforeEveryCase) {
  CollectivePlan plan = small_plan();
  plan.ops = parse_collectives("broadcast,all_gather");
  plan.sizes = {64, 4096};
  std::vector<std::int64_t> done;
  std::int64_t all = 0;
  on_ranks(2, [&](comm::Communicator& world, Device& device) {
    CollectivePlan own = plan;
    if (world.rank() == 0)
      own.progress = [&](std::int64_t now, std::int64_t total) {
        done.push_back(now);
        all = total;
      };
    return measure_collectives(world, device, own);
  });
  ASSERT_EQ(done.size(), 4U);
  EXPECT_EQ(done.front(), 0);
  EXPECT_EQ(done[2], all / 2);
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
  EXPECT_LT(done.back(), all);
}

TEST(CollectiveBenchmark, EachRepetitionIsAResult) {
  for (const bool aggregate : {false, true}) {
    CollectivePlan plan = small_plan();
    plan.ops = parse_collectives("all_gather");
    plan.sizes = {64};
    plan.repetitions = 2;
    plan.aggregate = aggregate;
    const Outcome outcome = on_ranks(2, [&](comm::Communicator& world, Device& device) {
      return measure_collectives(world, device, plan);
    });
    const auto& results = outcome.results[0];
    ASSERT_EQ(results.size(), aggregate ? 3U : 2U);
    EXPECT_EQ(results[0].name, "all_gather 64, repetition 1");
    EXPECT_EQ(results[1].name, "all_gather 64, repetition 2");
    EXPECT_EQ(results[1].timing.samples, 5);
    if (!aggregate) continue;
    EXPECT_EQ(results[2].name, "all_gather 64");
    EXPECT_EQ(results[2].timing.samples, 10);
    EXPECT_EQ(results[2].timing.slowest, std::max(results[0].timing.slowest, results[1].timing.slowest));
  }
}

TEST(CollectiveBenchmark, StridedGroups) {
  for (const bool parallel : {false, true}) {
    // 998 bytes are rounded up to whole elements.
    const StridedPlan plan{
        .sizes = {998, 3000}, .stride = 2, .parallel = parallel, .warmup = 1, .iterations = 5};
    const Outcome outcome = on_ranks(5, [&](comm::Communicator& world, Device& device) {
      return measure_strided_all_gather(world, device, plan);
    });
    for (const std::string& error : outcome.errors) EXPECT_EQ(error, "");
    const auto& results = outcome.results[4];
    ASSERT_EQ(results.size(), parallel ? 2U : 4U);
    EXPECT_EQ(results[0].name, parallel ? "2 groups at once, 1000 each" : "ranks 0,2,4, 1000 each");
    EXPECT_EQ(results[0].bus_bytes, 2000);
    if (parallel) continue;
    EXPECT_EQ(results[1].name, "ranks 1,3, 1000 each");
    EXPECT_EQ(results[1].bus_bytes, 1000);
  }
  const StridedPlan wide{.sizes = {1000}, .stride = 2, .warmup = 0, .iterations = 1};
  const Outcome refused = on_ranks(3, [&](comm::Communicator& world, Device& device) {
    return measure_strided_all_gather(world, device, wide);
  });
  EXPECT_THAT(refused.errors[0], HasSubstr("a stride of 2 puts no two of 3 ranks into a group"));
}

TEST(CollectiveBenchmark, Names) {
  EXPECT_EQ(parse_collectives("alltoall,all_to_all").size(), 1U);
  EXPECT_EQ(parse_collectives("all").size(), 7U);
  for (const char* wrong : {"", "all_redoce", "all_reduce,", ",", "all reduce"})
    EXPECT_THROW(parse_collectives(wrong), Error) << wrong;
}

}  // namespace
}  // namespace primus
