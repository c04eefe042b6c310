// Tests collectives between threads, with data passed through rings or read directly from the peer: results,
// order, misuse, aborts and timeouts.
#include "comm/local/thread_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <thread>

#include "comm/conformance.h"
#include "comm/error_of.h"
#include "device/cpu/cpu_device.h"
#include "device/guard_device.h"
#include "turbo/kernel_table.h"

namespace primus::comm {
namespace {

using namespace std::chrono_literals;
using test::error_of;
using ::testing::HasSubstr;

const KernelTable kNoKernels;

// Runs `body` once per rank, each in its own thread, and rethrows its exception.
void on_all_ranks(int ranks, const local::ThreadOptions& options,
                  const std::function<void(HostCommunicator&)>& body) {
  auto comms = local::make_thread_group(ranks, options);
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(*comms[static_cast<std::size_t>(rank)]);
      } catch (...) {
        failures[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

struct Threads : ::testing::TestWithParam<std::tuple<int, bool>> {
  int ranks() const { return std::get<0>(GetParam()); }
  local::ThreadOptions options() const { return {.timeout = 60s, .rings = std::get<1>(GetParam())}; }
};

// The largest sizes exceed one transfer and one accumulator. With up to three ranks, the largest size also
// exceeds a block and a ring.
TEST_P(Threads, EveryCollectiveEqualsItsReference) {
  on_all_ranks(ranks(), options(), [&](HostCommunicator& comm) {
    cpu::CpuDevice device(1, kNoKernels);
    const auto stream = device.create_stream(StreamKind::kCompute);
    test::Conformance conformance(comm, device, *stream);
    EXPECT_EQ(conformance.run(ranks() <= 3 ? std::vector<std::int64_t>{0, 1, 7, 1021, 150001}
                                           : std::vector<std::int64_t>{0, 1, 7, 2503}),
              "");
  });
}

TEST_P(Threads, WorkRunsAsynchronouslyInStreamOrder) {
  on_all_ranks(ranks(), options(), [&](HostCommunicator& comm) {
    primus::test::GuardDevice device(1, kNoKernels);
    const auto stream = device.create_stream(StreamKind::kCompute);
    test::Conformance conformance(comm, device, *stream);
    EXPECT_EQ(conformance.run({1, 2503}), "");
  });
}

TEST_P(Threads, SplitGroupsWorkAndNest) {
  on_all_ranks(ranks(), options(), [&](HostCommunicator& comm) {
    cpu::CpuDevice device(1, kNoKernels);
    const auto stream = device.create_stream(StreamKind::kCompute);
    // Makes groups of even and odd ranks in descending order, then groups of one rank, then the first groups
    // again.
    std::vector<int> members;
    for (int rank = comm.size() - 1; rank >= 0; --rank) {
      if (rank % 2 == comm.rank() % 2) members.push_back(rank);
    }
    const auto half = comm.split(members, "half");
    EXPECT_EQ(half->name(), "half");
    ASSERT_EQ(half->size(), static_cast<int>(members.size()));
    EXPECT_EQ(members[static_cast<std::size_t>(half->rank())], comm.rank());
    EXPECT_EQ(test::Conformance(*half, device, *stream).run({5, 2503}), "");
    const int self[] = {half->rank()};
    const auto single = half->split(self, "alone");
    EXPECT_EQ(single->size(), 1);
    EXPECT_EQ(test::Conformance(*single, device, *stream).run({0, 5, 2503}), "");
    const auto again = comm.split(members, "half");
    EXPECT_EQ(test::Conformance(*again, device, *stream).run({5}), "");
    EXPECT_EQ(test::Conformance(comm, device, *stream).run({5}), "");
  });
}

INSTANTIATE_TEST_SUITE_P(All, Threads, ::testing::Combine(::testing::Values(2, 3, 4, 8), ::testing::Bool()),
                         [](const auto& each) {
                           return std::to_string(std::get<0>(each.param)) +
                                  (std::get<1>(each.param) ? "Rings" : "Shown");
                         });

// ---- Order --------------------------------------------------------------------------------------

TEST(ThreadGroup, TwoStreamsKeepTheOrderOfTheCalls) {
  on_all_ranks(2, {.timeout = 60s}, [&](HostCommunicator& comm) {
    cpu::CpuDevice device(1, kNoKernels);
    const auto first = device.create_stream(StreamKind::kCommunication),
               second = device.create_stream(StreamKind::kCommunication);
    std::vector<std::int32_t> values(100, comm.rank() + 1);
    const Tensor data(values.data(), DType::kI32, {100});
    // Rank 1 blocks its first stream: the second call must still wait for the first one.
    if (comm.rank() == 1) {
      const int nothing = 0;
      first->launch([](KernelContext&, const void*) { std::this_thread::sleep_for(20ms); }, &nothing,
                    sizeof(nothing));
    }
    comm.all_reduce(*first, data, data, Reduction::kSum);   // 3
    comm.all_reduce(*second, data, data, Reduction::kSum);  // 6
    comm.all_reduce(*first, data, data, Reduction::kMax);
    first->synchronize();
    EXPECT_EQ(values, std::vector<std::int32_t>(100, 6));
    second->synchronize();
  });
}

TEST(ThreadGroup, EventsMarkCompletion) {
  on_all_ranks(2, {.timeout = 60s}, [&](HostCommunicator& comm) {
    cpu::CpuDevice device(1, kNoKernels);
    const auto stream = device.create_stream(StreamKind::kCommunication);
    const auto event = device.create_event();
    std::vector<float> in(50000, 1.5F), out(50000);
    comm.all_reduce(*stream, {in.data(), DType::kF32, {50000}}, {out.data(), DType::kF32, {50000}},
                    Reduction::kSum);
    stream->record(*event);
    event->synchronize();
    EXPECT_EQ(out, std::vector<float>(50000, 3.0F));
    stream->synchronize();
  });
}

TEST(ThreadGroup, SumsArePairwiseAndMeansAreRoundedOnce) {
  on_all_ranks(4, {.timeout = 60s}, [&](HostCommunicator& comm) {
    cpu::CpuDevice device(1, kNoKernels);
    const auto stream = device.create_stream(StreamKind::kCompute);
    // fp32 has a spacing of 8 here. 1e8 + 1 rounds to 1e8, and -1e8 + 5 to -99999992. The two results add up
    // to 8. Added one after another, the numbers would give 5.
    const float large[] = {1e8F, 1.0F, -1e8F, 5.0F};
    float value = large[comm.rank()];
    comm.all_reduce(*stream, {&value, DType::kF32, {1}}, {&value, DType::kF32, {1}}, Reduction::kSum);
    EXPECT_EQ(value, 8.0F);
    const float small[] = {256.0F, 1.0F, 1.0F, 1.0F};  // bf16 has a spacing of 2: each 1 would be lost
    BFloat16 half(small[comm.rank()]);
    comm.all_reduce(*stream, {&half, DType::kBF16, {1}}, {&half, DType::kBF16, {1}}, Reduction::kSum);
    EXPECT_EQ(static_cast<float>(half), 260.0F);       // 259 in fp32; bf16 rounds to even, 260
    const float many[] = {2048.0F, 1.0F, 1.0F, 1.0F};  // fp16 has a spacing of 2
    Float16 ieee(many[comm.rank()]);
    comm.all_reduce(*stream, {&ieee, DType::kF16, {1}}, {&ieee, DType::kF16, {1}}, Reduction::kSum);
    EXPECT_EQ(static_cast<float>(ieee), 2052.0F);  // 2051 in fp32
    float nan = comm.rank() == 2 ? std::numeric_limits<float>::quiet_NaN() : 5.0F;
    comm.all_reduce(*stream, {&nan, DType::kF32, {1}}, {&nan, DType::kF32, {1}}, Reduction::kMax);
    EXPECT_TRUE(std::isnan(nan));
  });
}

// ---- Failures -----------------------------------------------------------------------------------

TEST(ThreadGroup, WrongArgumentsAreRefusedAtOnce) {
  on_all_ranks(2, {}, [&](HostCommunicator& comm) {
    cpu::CpuDevice device(1, kNoKernels);
    const auto stream = device.create_stream(StreamKind::kCompute);
    std::vector<float> memory(64);
    const auto tensor = [&](std::int64_t at, std::int64_t count, DType dtype = DType::kF32) {
      return Tensor(memory.data() + at, dtype, {count});
    };
    const auto refused = [&](auto call) { EXPECT_THROW(call(), std::logic_error); };
    refused([&] { comm.all_reduce(*stream, tensor(0, 4), tensor(8, 5), Reduction::kSum); });
    refused([&] { comm.all_reduce(*stream, tensor(0, 4), tensor(8, 4, DType::kI32), Reduction::kSum); });
    refused([&] { comm.all_reduce(*stream, tensor(0, 4), tensor(1, 4), Reduction::kSum); });
    refused([&] {
      comm.all_reduce(*stream, tensor(0, 4, DType::kI32), tensor(8, 4, DType::kI32), Reduction::kMean);
    });
    refused([&] {
      comm.all_reduce(*stream, tensor(0, 4, DType::kU16), tensor(8, 4, DType::kU16), Reduction::kSum);
    });
    refused([&] { comm.all_reduce(*stream, {}, tensor(8, 4), Reduction::kSum); });
    refused([&] { comm.reduce_scatter(*stream, tensor(0, 5), tensor(8, 2), Reduction::kSum); });
    refused([&] {
      comm.reduce_scatter(*stream, tensor(0, 4), tensor(comm.rank() == 0 ? 2 : 0, 2), Reduction::kSum);
    });
    refused([&] { comm.all_gather(*stream, tensor(0, 4), tensor(8, 4)); });
    refused([&] { comm.broadcast(*stream, tensor(0, 4), 2); });
    const std::int64_t two[] = {2, 2}, three[] = {3, 3}, less[] = {-1, 2}, one[] = {2};
    refused([&] { comm.all_to_all(*stream, tensor(0, 4), two, tensor(8, 6), three); });
    refused([&] { comm.all_to_all(*stream, tensor(0, 4), three, tensor(8, 6), three); });
    refused([&] { comm.all_to_all(*stream, tensor(0, 4), less, tensor(8, 6), less); });
    refused([&] { comm.all_to_all(*stream, tensor(0, 4), one, tensor(8, 6), one); });
    refused([&] { comm.exchange(*stream, std::vector{Transfer::send(tensor(0, 4), 2)}); });
    refused([&] { comm.exchange(*stream, std::vector{Transfer::send(tensor(0, 4), comm.rank())}); });
    const int others[] = {1 - comm.rank()}, twice[] = {0, 1, 1}, outside[] = {0, 1, 2};
    refused([&] { comm.split(others, "x"); });
    refused([&] { comm.split(twice, "x"); });
    refused([&] { comm.split(outside, "x"); });
    comm.barrier(*stream);  // the communicator still works
  });
}

// Every rank makes one call. Expects that all calls fail soon, with a text that contains `parts`.
void expect_abort(int ranks, const local::ThreadOptions& options, const std::vector<std::string>& parts,
                  const std::function<void(HostCommunicator&, Stream&)>& body) {
  std::atomic<int> failed = 0;
  const auto start = std::chrono::steady_clock::now();
  on_all_ranks(ranks, options, [&](HostCommunicator& comm) {
    cpu::CpuDevice device(1, kNoKernels);
    const auto stream = device.create_stream(StreamKind::kCompute);
    const std::string text = error_of([&] { body(comm, *stream); });
    for (const std::string& part : parts) EXPECT_THAT(text, HasSubstr(part));
    // Later calls throw this error again, on every communicator of the job.
    EXPECT_EQ(error_of([&] { comm.barrier(*stream); }), text);
    const int self[] = {comm.rank()};
    EXPECT_EQ(error_of([&] { comm.split(self, "alone"); }), text);
    ++failed;
  });
  EXPECT_EQ(failed, ranks);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 20s);
}

TEST(ThreadGroup, DifferentCallsAreNamed) {
  for (const bool rings : {false, true}) {
    expect_abort(3, {.rings = rings},
                 {"differ in what they call", "all_reduce (sum of 1024 fp32)", "rank 2 calls"},
                 [](HostCommunicator& comm, Stream& stream) {
                   std::vector<float> data(3072);
                   const Tensor some(data.data(), DType::kF32, {1024}), all(data.data(), DType::kF32, {3072});
                   if (comm.rank() == 2) {
                     comm.all_gather(stream, {data.data() + 2048, DType::kF32, {1024}}, all);
                   } else {
                     comm.all_reduce(stream, some, some, Reduction::kSum);
                   }
                 });
  }
}

TEST(ThreadGroup, DifferentSizesAndTypesAreNamed) {
  expect_abort(2, {}, {"sum of 100 fp32", "sum of 101 fp32"}, [](HostCommunicator& comm, Stream& stream) {
    std::vector<float> data(101);
    const Tensor mine(data.data(), DType::kF32, {100 + comm.rank()});
    comm.all_reduce(stream, mine, mine, Reduction::kSum);
  });
  expect_abort(2, {}, {"of 100 fp32", "of 100 int32"}, [](HostCommunicator& comm, Stream& stream) {
    std::vector<float> data(100);
    const Tensor mine(data.data(), comm.rank() == 0 ? DType::kF32 : DType::kI32, {100});
    comm.all_reduce(stream, mine, mine, Reduction::kSum);
  });
  expect_abort(2, {}, {"sends 3 fp32 to rank", "expects 4 fp32", "exchange"},
               [](HostCommunicator& comm, Stream& stream) {
                 std::vector<float> data(100);
                 const Tensor out(data.data(), DType::kF32, {3}), in(data.data() + 50, DType::kF32, {4});
                 comm.exchange(stream, std::vector{Transfer::send(out, 1 - comm.rank()),
                                                   Transfer::receive(in, 1 - comm.rank())});
               });
  expect_abort(2, {}, {"sends 5 uint8 to rank 0, which expects 6", "all_to_all"},
               [](HostCommunicator& comm, Stream& stream) {
                 std::vector<char> in(20), out(20);
                 const std::int64_t five[] = {5, 5}, more[] = {5, 6};
                 comm.all_to_all(stream, {in.data(), DType::kU8, {20}}, five, {out.data(), DType::kU8, {20}},
                                 comm.rank() == 0 ? more : five);
                 comm.barrier(stream);  // rank 1 has received its data; this call throws the abort
               });
}

TEST(ThreadGroup, AMissingRankIsNamedWithItsLastCall) {
  expect_abort(
      3, {.timeout = 300ms},
      {"all_gather #2 (8 int64) of group 'world' did not complete within",
       "rank 1 has not called it: its last collective in that group was barrier #1 of group 'world'"},
      [](HostCommunicator& comm, Stream& stream) {
        comm.barrier(stream);
        std::vector<std::int64_t> in(8), out(24);
        if (comm.rank() == 1) {  // makes no call until the other ranks have timed out
          while (!comm.state().abort->aborted()) std::this_thread::sleep_for(1ms);
        }
        comm.all_gather(stream, {in.data(), DType::kI64, {8}}, {out.data(), DType::kI64, {24}});
      });
}

// Ranks 0 and 1 wait in a chain that ends at rank 2, which makes no call.
TEST(ThreadGroup, AChainOfWaitingRanksIsFollowedToItsEnd) {
  expect_abort(3, {.timeout = 300ms}, {"rank 2 has not called it"},
               [](HostCommunicator& comm, Stream& stream) {
                 std::vector<float> data(10);
                 const Tensor tensor(data.data(), DType::kF32, {10});
                 if (comm.rank() == 2) {
                   while (!comm.state().abort->aborted()) std::this_thread::sleep_for(1ms);
                   comm.state().abort->check();
                 }
                 comm.exchange(stream, std::vector{Transfer::receive(tensor, comm.rank() + 1)});
               });
}

TEST(ThreadGroup, AnAbortWakesAllRanksWithTheFirstReason) {
  for (const bool rings : {false, true}) {
    const auto start = std::chrono::steady_clock::now();
    expect_abort(4, {.rings = rings}, {"the disk of rank 3 is full"},
                 [](HostCommunicator& comm, Stream& stream) {
                   std::vector<float> data(1 << 20);
                   const Tensor tensor(data.data(), DType::kF32, {1 << 20});
                   if (comm.rank() == 3) {
                     std::this_thread::sleep_for(50ms);
                     comm.abort("the disk of rank 3 is full");
                     comm.abort("a later reason");
                   }
                   comm.all_reduce(stream, tensor, tensor, Reduction::kSum);
                 });
    EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);
  }
}

// After a call has thrown, each rank frees its memory at once, so no rank may read a peer's memory.
TEST(ThreadGroup, AfterAnAbortNoRankReadsAPeersMemory) {
  for (int round = 0; round < 20; ++round) {
    std::atomic<bool> go = false;
    on_all_ranks(3, {.timeout = 60s}, [&](HostCommunicator& comm) {
      cpu::CpuDevice device(1, kNoKernels);
      const auto stream = device.create_stream(StreamKind::kCompute);
      const std::int64_t count = 1 << 19;
      if (comm.rank() == 0) {
        while (!go) std::this_thread::yield();
        std::this_thread::sleep_for(std::chrono::microseconds(100 * round));
        comm.abort("enough");
        return;
      }
      EXPECT_EQ(
          error_of([&] {
            for (;;) {
              void* memory = device.allocate(count * 8);
              const std::shared_ptr<void> freed(memory, [&](void* address) { device.release(address); });
              const Tensor out(memory, DType::kF32, {count});
              const Tensor in(static_cast<float*>(memory) + count, DType::kF32, {count});
              go = true;
              const int peer = 3 - comm.rank();
              comm.exchange(*stream, std::vector{Transfer::send(out, peer), Transfer::receive(in, peer)});
            }
          }),
          "enough");
    });
  }
}

}  // namespace
}  // namespace primus::comm
