// Tests the GPU communicator without a GPU: results, groups, and failures of ranks and of the library. A fake
// library has NCCL's interface (fake_nccl.h). Ranks are threads on guard devices.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <thread>

#include "comm/conformance.h"
#include "comm/fake_nccl.h"
#include "comm/nccl/nccl_communicator.h"
#include "comm/nccl_job.h"
#include "comm/overlap.h"

namespace primus::comm {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

using test::fake_collectives;
using test::kNoKernels;
using test::none;
using test::on_all_ranks;
using test::Rank;
using test::this_gpu;
using test::this_guard;

// The fake library's controls.
struct Controls {
  Controls() {
    void* const library = dlopen(FAKE_NCCL, RTLD_NOW | RTLD_LOCAL);
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    };
    find(version, "fake_nccl_version");
    find(error, "fake_nccl_error");
    find(slowness, "fake_nccl_slowness");
    find(alive, "fake_nccl_alive");
    find(aborted, "fake_nccl_aborted");
    find(blocks, "fake_nccl_blocks");
  }
  decltype(&fake_nccl_version) version;
  decltype(&fake_nccl_error) error;
  decltype(&fake_nccl_slowness) slowness;
  decltype(&fake_nccl_alive) alive;
  decltype(&fake_nccl_aborted) aborted;
  decltype(&fake_nccl_blocks) blocks;
};

const Controls& fake() {
  static const Controls controls;
  return controls;
}

struct Nccl : ::testing::Test {
  void TearDown() override {
    EXPECT_EQ(fake().alive(), 0) << "a communicator of the library was not destroyed";
    fake().slowness(0);
    for (int rank = 0; rank < 8; ++rank) fake().error(rank, 0);
  }
  const DeviceCollectives collectives = fake_collectives();
};

struct NcclRanks : Nccl, ::testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(All, NcclRanks, ::testing::Values(1, 2, 3, 4));

TEST_P(NcclRanks, EveryCollectiveEqualsItsReference) {
  const int aborted = fake().aborted();
  const auto errors = on_all_ranks(GetParam(), [&](Rank& r) {
    const auto world = r.job.world(r.device, &collectives);
    EXPECT_EQ(world->size(), GetParam());
    EXPECT_EQ(world->name(), "world");
    const auto stream = r.device.create_stream(StreamKind::kCommunication);
    EXPECT_EQ(test::Conformance(*world, r.device, *stream).run({0, 1, 7, 1021}), "");
    EXPECT_EQ(test::Conformance(*world, r.device, *stream, test::Order::kAny).run({7}), "");
  });
  EXPECT_EQ(errors, none(GetParam()));
  EXPECT_EQ(fake().aborted(), aborted) << "a regular end must not abort communicators";
}

TEST_F(Nccl, GroupsCanBeSplitNestedAndRecreated) {
  const auto errors = on_all_ranks(4, [&](Rank& r) {
    const auto world = r.job.world(r.device, &collectives);
    const auto stream = r.device.create_stream(StreamKind::kCommunication);
    std::vector<int> members;
    for (int rank = 3; rank >= 0; --rank) {
      if (rank % 2 == r.rank % 2) members.push_back(rank);
    }
    const auto half = world->split(members, "half");
    EXPECT_EQ(members[static_cast<std::size_t>(half->rank())], r.rank);
    EXPECT_EQ(test::Conformance(*half, r.device, *stream).run({5, 250}), "");
    const int self[] = {half->rank()};
    const auto single = half->split(self, "alone");
    EXPECT_EQ(test::Conformance(*single, r.device, *stream).run({0, 5}), "");
    const auto again = world->split(members, "half");
    EXPECT_EQ(test::Conformance(*again, r.device, *stream).run({5}), "");
    EXPECT_EQ(test::Conformance(*world, r.device, *stream).run({5}), "");
  });
  EXPECT_EQ(errors, none(4));
}

// Only groups that overlap with matrix products limit their blocks. The products get the other
// multiprocessors.
TEST_F(Nccl, OnlyGroupsThatOverlapProductsUseFewBlocks) {
  const auto errors = on_all_ranks(2, [&](Rank& r) {
    const auto world = r.job.world(r.device, &collectives);
    EXPECT_EQ(fake().blocks(), nccl::Config::kDefault);
    const auto stream = r.device.create_stream(StreamKind::kCommunication);
    const int members[] = {0, 1};
    for (const Overlap overlap : {Overlap::kProducts, Overlap::kKernels, Overlap::kNothing}) {
      world->barrier(*stream);
      stream->synchronize();
      const auto group = world->split(members, "group", overlap);
      EXPECT_EQ(fake().blocks(), overlap == Overlap::kProducts ? kOverlapProcessors : nccl::Config::kDefault)
          << static_cast<int>(overlap);
    }
  });
  EXPECT_EQ(errors, none(2));
}

// While the library reports that a call is in progress, the host waits.
TEST_F(Nccl, SlowLibraryCallsAreWaitedFor) {
  fake().slowness(300);
  const auto errors = on_all_ranks(2, [&](Rank& r) {
    const auto world = r.job.world(r.device, &collectives);
    const auto stream = r.device.create_stream(StreamKind::kCommunication);
    EXPECT_EQ(test::Conformance(*world, r.device, *stream).run({7}), "");
  });
  EXPECT_EQ(errors, none(2));
}

TEST_F(Nccl, WorkRunsInTheOrderOfTheCallsOverStreams) {
  const auto errors = on_all_ranks(2, [&](Rank& r) {
    const auto world = r.job.world(r.device, &collectives);
    const auto slow = r.device.create_stream(StreamKind::kCompute);
    const auto quick = r.device.create_stream(StreamKind::kCommunication);
    const Tensor value(r.device.allocate(4), DType::kI32, {1});
    for (int i = 0; i < 20; ++i) {
      slow->launch([](KernelContext&, const void*) { std::this_thread::sleep_for(2ms); }, nullptr, 0);
      const std::int32_t one = 1;
      slow->copy_to_device(value.data, &one, 4);
      world->all_reduce(*slow, value, value, Reduction::kSum);   // 2
      world->all_reduce(*quick, value, value, Reduction::kSum);  // 4 if it runs after the other call
      std::int32_t result = 0;
      quick->copy_to_host(&result, value.data, 4);
      quick->synchronize();
      EXPECT_EQ(result, 4);
    }
    slow->synchronize();
  });
  EXPECT_EQ(errors, none(2));
}

TEST_F(Nccl, TheFlightRecorderFollowsTheDevice) {
  const auto errors = on_all_ranks(2, [&](Rank& r) {
    const auto world = r.job.world(r.device, &collectives);
    const auto stream = r.device.create_stream(StreamKind::kCommunication);
    const auto last = [&] { return r.job.state().recorder.records().back(); };
    const auto wait_for = [&](FlightRecorder::State state) {
      for (int i = 0; i < 2000 && last().state != state; ++i) std::this_thread::sleep_for(2ms);
      return last().state == state;
    };
    std::atomic<bool> go{false};
    std::atomic<bool>* const pointer = &go;
    stream->launch(
        [](KernelContext&, const void* flag) {
          while (!**static_cast<std::atomic<bool>* const*>(flag)) std::this_thread::sleep_for(1ms);
        },
        &pointer, sizeof(pointer));
    world->barrier(*stream);
    EXPECT_EQ(last().to_string(), "barrier #1 of group 'world'");
    EXPECT_EQ(last().state, FlightRecorder::State::kEnqueued);
    std::this_thread::sleep_for(50ms);
    EXPECT_EQ(last().state, FlightRecorder::State::kEnqueued) << "the stream has not reached it";
    if (r.rank == 0) {
      go = true;
      EXPECT_TRUE(wait_for(FlightRecorder::State::kRunning));
      r.job.barrier("rank 0 runs");
    } else {
      r.job.barrier("rank 0 runs");
      go = true;
    }
    EXPECT_TRUE(wait_for(FlightRecorder::State::kDone));
  });
  EXPECT_EQ(errors, none(2));
}

// ---- Failures -----------------------------------------------------------------------------------

TEST_F(Nccl, AMissingRankIsNamedWithItsLastCall) {
  std::atomic<int> named{0};
  const auto errors = on_all_ranks(3, [&](Rank& r) {
    const auto world = r.job.world(r.device, &collectives);
    world->set_timeout(300ms);
    const auto stream = r.device.create_stream(StreamKind::kCommunication);
    world->barrier(*stream);
    stream->synchronize();
    if (r.rank == 1) {
      while (!r.job.state().abort->aborted()) std::this_thread::sleep_for(5ms);
    } else {
      const Tensor data(r.device.allocate(4000), DType::kF32, {1000});
      world->all_reduce(*stream, data, data, Reduction::kMax);
      stream->synchronize();  // wakes up when the library's work is aborted
      // The first watchdog that acts aborts the wait of the other rank. That rank may not have collected the
      // state of its peers yet.
      if (r.job.state().recorder.records().back().waiting_for == 1) ++named;
    }
    // The memory now holds no valid result, so waiting for the device throws.
    ASSERT_TRUE(this_guard);
    EXPECT_THROW(this_guard(), Error);
    r.job.state().abort->check();
  });
  EXPECT_GE(named, 1);
  for (const std::string& error : errors) {
    EXPECT_THAT(error,
                HasSubstr("all_reduce #2 (max of 1000 fp32) of group 'world' did not complete within"));
    EXPECT_THAT(error,
                HasSubstr("rank 1 has not called it: its last collective in that group was barrier #1"));
    EXPECT_THAT(error, Not(HasSubstr("rank 0 has not"))) << "who waits, too, is not the cause";
  }
}

// With NCCL, too, a rank that reports its activity does not count as hanging.
TEST_F(Nccl, TheOthersWaitForABusyRank) {
  for (const bool on_device : {true, false}) {
    std::atomic<int> notices{0};
    const auto errors = on_all_ranks(3, [&](Rank& r) {
      r.job.state().notice = [&](const std::string& text) {
        EXPECT_THAT(text, HasSubstr("rank 1 has been saving a checkpoint for "));
        ++notices;
      };
      const auto world = on_device ? r.job.world(r.device, &collectives) : r.job.world();
      world->set_timeout(300ms);
      const auto stream = r.device.create_stream(StreamKind::kCommunication);
      world->barrier(*stream);
      stream->synchronize();
      if (r.rank == 1) {
        const Activity busy(&r.job.state().activities, "saving a checkpoint");
        std::this_thread::sleep_for(1500ms);
      }
      world->barrier(*stream);
      stream->synchronize();
    });
    EXPECT_EQ(errors, none(3)) << on_device;
    EXPECT_GE(notices, 2);
    EXPECT_LE(notices, 10) << "notices must be rare";
  }
}

TEST_F(Nccl, ARankThatIsBusyForTooLongIsNamedWithItsActivity) {
  for (const bool on_device : {true, false}) {
    const auto errors = on_all_ranks(2, [&](Rank& r) {
      const auto world = on_device ? r.job.world(r.device, &collectives) : r.job.world();
      world->set_timeout(200ms);
      r.job.state().activity_timeout = 600ms;
      const auto stream = r.device.create_stream(StreamKind::kCommunication);
      world->barrier(*stream);
      stream->synchronize();
      if (r.rank == 1) {
        const Activity busy(&r.job.state().activities, "reading data");
        while (!r.job.state().abort->aborted()) std::this_thread::sleep_for(5ms);
      } else {
        world->barrier(*stream);
        stream->synchronize();
        while (!r.job.state().abort->aborted()) std::this_thread::sleep_for(5ms);
      }
      r.job.state().abort->check();
    });
    for (const std::string& error : errors) {
      EXPECT_THAT(error, HasSubstr("barrier #2 of group 'world' did not complete within"));
      EXPECT_THAT(error, HasSubstr("rank 1 has been reading data for "));
    }
  }
}

// The first call of a kind connects the ranks. The host waits until the ranks are connected.
TEST_F(Nccl, ARankThatDoesNotConnectIsNamed) {
  const auto errors = on_all_ranks(2, [&](Rank& r) {
    const auto world = r.job.world(r.device, &collectives);
    world->set_timeout(300ms);
    const auto stream = r.device.create_stream(StreamKind::kCommunication);
    r.job.barrier("made");
    if (r.rank == 0) {
      fake().slowness(-1);
      world->barrier(*stream);
    }
    while (!r.job.state().abort->aborted()) std::this_thread::sleep_for(5ms);
    r.job.state().abort->check();
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, HasSubstr("rank 0: barrier #1 of group 'world' did not complete within"));
    EXPECT_THAT(error, HasSubstr("rank 1 has not called it or any other collective of that group"));
  }
}

TEST_F(Nccl, AReceiveWithoutASendIsNamed) {
  const auto errors = on_all_ranks(3, [&](Rank& r) {
    const auto world = r.job.world(r.device, &collectives);
    world->set_timeout(300ms);
    const auto stream = r.device.create_stream(StreamKind::kCommunication);
    if (r.rank == 0) {
      const Tensor data(r.device.allocate(4), DType::kF32, {1});
      world->exchange(*stream, std::vector{Transfer::receive(data, 2)});
    }
    while (!r.job.state().abort->aborted()) std::this_thread::sleep_for(5ms);
    r.job.state().abort->check();
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, HasSubstr("rank 0: exchange #1 (0 fp32) of group 'world' did not complete within"));
    EXPECT_THAT(error, AllOf(HasSubstr("rank 2 has not called it"), Not(HasSubstr("rank 1"))));
  }
}

// A driver queues a limited amount of work. A rank that blocked on a full queue could not react to an abort.
// Therefore the communicator limits how far the host runs ahead.
TEST_F(Nccl, ARankThatIsFarAheadWaits) {
  const auto errors = on_all_ranks(2, [&](Rank& r) {
    const auto world = r.job.world(r.device, &collectives);
    world->set_timeout(300ms);
    const auto stream = r.device.create_stream(StreamKind::kCommunication);
    int calls = 0;
    try {
      for (; r.rank == 0; ++calls) world->barrier(*stream);
      while (!r.job.state().abort->aborted()) std::this_thread::sleep_for(5ms);
      r.job.state().abort->check();
    } catch (...) {
      EXPECT_EQ(calls, r.rank == 0 ? 256 : 0);
      throw;
    }
  });
  for (const std::string& error : errors) EXPECT_THAT(error, HasSubstr("rank 1 has not called it"));
}

TEST_F(Nccl, ErrorsOfTheLibraryEndTheJob) {
  const auto errors = on_all_ranks(2, [&](Rank& r) {
    const auto world = r.job.world(r.device, &collectives);
    const auto stream = r.device.create_stream(StreamKind::kCommunication);
    r.job.barrier("made");
    if (r.rank == 0) {
      world->barrier(*stream);
      std::this_thread::sleep_for(20ms);
      fake().error(0, static_cast<int>(nccl::Result::kInternalError));
      stream->synchronize();
    }
    while (!r.job.state().abort->aborted()) std::this_thread::sleep_for(5ms);
    EXPECT_THROW(world->barrier(*stream), Error);
    r.job.state().abort->check();
  });
  for (const std::string& error : errors) {
    EXPECT_EQ(error,
              "rank 0: NCCL failed in group 'world': some error of the library (as the library logged it)");
  }
}

// The library may notice that a rank ended before the rendezvous does.
TEST_F(Nccl, ALostRankIsNamedAlsoIfTheLibraryFailsFirst) {
  fake().slowness(3);  // the library starts operations late, and then reports its error
  const auto errors = on_all_ranks(2, [&](Rank& r) {
    const auto world = r.job.world(r.device, &collectives);
    const auto stream = r.device.create_stream(StreamKind::kCommunication);
    r.job.barrier("made");
    if (r.rank == 1) {
      std::this_thread::sleep_for(300ms);
      throw invalid("rank 1 was lost");
    }
    fake().error(0, static_cast<int>(nccl::Result::kSystemError));
    world->barrier(*stream);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "rank 1 was lost");
}

TEST_F(Nccl, AnAbortWakesAllRanksAndKeepsItsReason) {
  const auto errors = on_all_ranks(3, [&](Rank& r) {
    const auto world = r.job.world(r.device, &collectives);
    const auto stream = r.device.create_stream(StreamKind::kCommunication);
    if (r.rank == 2) {
      std::this_thread::sleep_for(50ms);
      world->abort("the data set of rank 2 is broken");
    } else {
      world->barrier(*stream);
      stream->synchronize();
    }
    while (!r.job.state().abort->aborted()) std::this_thread::sleep_for(5ms);
    world->barrier(*stream);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "the data set of rank 2 is broken");
}

// A rank that throws does not wait for its peers, and the peers do not wait for this rank.
TEST_F(Nccl, ARankThatFailsLeavesAtOnce) {
  const auto begin = std::chrono::steady_clock::now();
  const auto errors = on_all_ranks(2, [&](Rank& r) {
    const auto world = r.job.world(r.device, &collectives);
    const auto stream = r.device.create_stream(StreamKind::kCommunication);
    if (r.rank == 1) throw invalid("the data of rank 1 is broken");
    world->barrier(*stream);
    while (!r.job.state().abort->aborted()) std::this_thread::sleep_for(5ms);
    r.job.state().abort->check();
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "the data of rank 1 is broken");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 4s) << "the rank must not wait until peers leave";
}

TEST_F(Nccl, RanksThatShareAGpuAreNamed) {
  const auto errors = on_all_ranks(3, [&](Rank& r) {
    this_gpu = r.rank == 0 ? "0000:07" : "0000:1B";
    r.job.world(r.device, &collectives);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "ranks 1 and 2 have the same GPU, 0000:1B");
}

TEST_F(Nccl, DifferentLibrariesAndDevicesAreNamed) {
  auto errors = on_all_ranks(2, [&](Rank& r) {
    fake().version(r.rank == 0 ? 22809 : 22703);
    r.job.world(r.device, &collectives);
  });
  for (const std::string& error : errors) {
    EXPECT_EQ(error, "ranks 0 and 1 have different versions of NCCL: 2.28.9, 2.27.3");
  }
  errors = on_all_ranks(2, [&](Rank& r) {
    cpu::CpuDevice cpu(1, kNoKernels);
    r.rank == 0 ? r.job.world(r.device, &collectives) : r.job.world(cpu, nullptr);
  });
  for (const std::string& error : errors) {
    EXPECT_EQ(error, "ranks 0 and 1 compute on devices of different kinds: guard, cpu");
  }
}

TEST_F(Nccl, DevicesWithoutALibraryHaveTheHostsCommunicator) {
  const auto errors = on_all_ranks(2, [&](Rank& r) {
    cpu::CpuDevice cpu(1, kNoKernels);
    const auto world = r.job.world(cpu, nullptr);
    const auto stream = cpu.create_stream(StreamKind::kCompute);
    EXPECT_EQ(test::Conformance(*world, cpu, *stream).run({7}), "");
  });
  EXPECT_EQ(errors, none(2));
}

std::pair<std::string, std::string> opening(const DeviceCollectives& collectives) {
  try {
    nccl::open_library(collectives);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kDependency);
    return {error.what(), error.hint()};
  }
  return {"opened", ""};
}

TEST(NcclLibrary, MissingOldAndOtherLibrariesAreErrors) {
  const char* const absent[] = {"libnot_there.so.2", "/not/there/either.so", nullptr};
  auto [what, hint] = opening(fake_collectives(absent));
  EXPECT_THAT(what, AllOf(HasSubstr("cannot load NCCL"), HasSubstr("libnot_there.so.2"),
                          HasSubstr("/not/there/either.so")));
  EXPECT_THAT(hint, HasSubstr("install the fake one (NCCL 2.18 or newer)"));

  const char* const other[] = {"libm.so.6", nullptr};
  std::tie(what, hint) = opening(fake_collectives(other));
  EXPECT_THAT(what, HasSubstr("libm.so.6 cannot be used for NCCL: it has no function ncclGetVersion"));

  const char* const second[] = {"libnot_there.so.2", FAKE_NCCL, nullptr};
  fake().version(21705);
  std::tie(what, hint) = opening(fake_collectives(second));
  EXPECT_THAT(what, HasSubstr("is NCCL 2.17.5, which is too old: 2.18 is the minimum"));
  fake().version(21800);
  EXPECT_EQ(nccl::open_library(fake_collectives(second))->version_text, "2.18.0");
  fake().version(22809);
}

TEST(NcclLibrary, VersionsAreParsedInBothNotations) {
  EXPECT_EQ(nccl::version_text(22809), "2.28.9");
  EXPECT_EQ(nccl::version_text(2804), "2.8.4");
}

// A job of one rank on one GPU runs without NCCL.
TEST_F(Nccl, OneRankNeedsNoLibrary) {
  const char* const absent[] = {"libnot_there.so.2", nullptr};
  const DeviceCollectives nothing = fake_collectives(absent);
  const auto errors = on_all_ranks(1, [&](Rank& r) {
    const auto world = r.job.world(r.device, &nothing);
    const auto stream = r.device.create_stream(StreamKind::kCommunication);
    EXPECT_EQ(test::Conformance(*world, r.device, *stream).run({0, 5}), "");
    const int self[] = {0};
    EXPECT_EQ(world->split(self, "alone")->size(), 1);
  });
  EXPECT_EQ(errors, none(1));
  EXPECT_THAT(on_all_ranks(2, [&](Rank& r) { r.job.world(r.device, &nothing); })[0],
              HasSubstr("cannot load NCCL"));
}

}  // namespace
}  // namespace primus::comm
