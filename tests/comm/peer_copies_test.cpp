// Tests exchanges between tensor ranks by copy engines, without a GPU. This test provides the table of device
// functions (DevicePeers), and ranks are threads on guard devices. Every buffer is overwritten with poison
// once its work is done, so a stream that misses a wait reads poison.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

#include "comm/conformance.h"
#include "comm/fake_peers.h"
#include "comm/nccl_job.h"
#include "engine/parallel/tensor_parallel.h"
#include "tensor/bfloat16.h"
#include "turbo/cpu/cpu_kernels.h"

namespace primus::comm {
namespace {

using namespace std::chrono_literals;
using test::garbles;
using test::kPeers;
using test::mapped;
using test::none;
using test::on_all_ranks;
using test::opened;
using test::Rank;
using test::refuses_to_open;
using ::testing::AllOf;
using ::testing::HasSubstr;

// ---- Tests ------------------------------------------------------------------------------------------

struct PeerCopies : ::testing::Test {
  PeerCopies() { collectives.peers = &kPeers; }
  void TearDown() override {
    EXPECT_EQ(opened, 0) << "memory of a peer is still mapped";
    EXPECT_EQ(mapped, 0);
    refuses_to_open = garbles = false;
  }
  // Returns a tensor group with all ranks of the job.
  static std::unique_ptr<Communicator> group_of(Communicator& world) {
    std::vector<int> members(static_cast<std::size_t>(world.size()));
    std::iota(members.begin(), members.end(), 0);
    return world.split(members, "tensor.0", Overlap::kProducts);
  }
  std::vector<std::string> on_tensor_ranks(int ranks,
                                           const std::function<void(Rank&, Communicator&)>& body) const {
    std::atomic<int> through{0};
    const auto all = [&](Rank& r) {
      const auto world = r.job.world(r.device, &collectives);
      const auto group = group_of(*world);
      // Ranks end together, so that no memory is unmapped while another stream reads it. A GPU keeps mapped
      // memory alive; these devices do not.
      const auto wait_for_all = [&] {
        ++through;
        for (int i = 0; i < 6000 && through < ranks; ++i) std::this_thread::sleep_for(10ms);
      };
      try {
        body(r, *group);
      } catch (...) {
        wait_for_all();
        throw;
      }
      wait_for_all();
    };
    return on_all_ranks(ranks, all, wanted);
  }
  DeviceCollectives collectives = test::fake_collectives();
  CopyEngines wanted = CopyEngines::kOn;
};

struct PeerCopiesRanks : PeerCopies, ::testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(All, PeerCopiesRanks, ::testing::Values(2, 3, 4));

TEST_P(PeerCopiesRanks, EveryCollectiveEqualsItsReference) {
  const auto errors = on_tensor_ranks(GetParam(), [&](Rank& r, Communicator& group) {
    EXPECT_TRUE(group.by_copy_engines()) << group.why_no_copy_engines();
    const auto stream = r.device.create_stream(StreamKind::kCommunication);
    EXPECT_EQ(test::Conformance(group, r.device, *stream).run({0, 1, 7, 1021}), "");
  });
  EXPECT_EQ(errors, none(GetParam()));
}

// Fills a tensor with a number, or counts the elements that differ from the number.
struct Numbers {
  Tensor tensor;
  std::int32_t value;
  std::atomic<int>* wrong;
};

void fill(Stream& stream, const Tensor& tensor, std::int32_t value) {
  const Numbers numbers{tensor, value, nullptr};
  stream.launch(
      [](KernelContext& context, const void* a) {
        const auto& n = *static_cast<const Numbers*>(a);
        auto* const data = static_cast<cpu::CpuContext&>(context).data<std::int32_t>(n.tensor);
        std::fill_n(data, n.tensor.elements(), n.value);
      },
      &numbers, sizeof(numbers));
}

void expect(Stream& stream, const Tensor& tensor, std::int32_t value, std::atomic<int>& wrong) {
  const Numbers numbers{tensor, value, &wrong};
  stream.launch(
      [](KernelContext& context, const void* a) {
        const auto& n = *static_cast<const Numbers*>(a);
        const auto* const data = static_cast<cpu::CpuContext&>(context).data<std::int32_t>(n.tensor);
        for (std::int64_t i = 0; i < n.tensor.elements(); ++i) *n.wrong += data[i] != n.value;
      },
      &numbers, sizeof(numbers));
}

void dawdle(Stream& stream, std::chrono::microseconds time) {
  stream.launch(
      [](KernelContext&, const void* t) {
        std::this_thread::sleep_for(*static_cast<const std::chrono::microseconds*>(t));
      },
      &time, sizeof(time));
}

// Reuses two buffers in every round. Poisons a buffer as soon as the stream may reuse the buffer. In each
// round, another rank is slow.
TEST_P(PeerCopiesRanks, MemoryIsReusedInStreamOrder) {
  constexpr std::int64_t kCount = 20000;
  constexpr std::int32_t kPoison = -1;
  std::atomic<int> wrong{0};
  const int ranks = GetParam();
  const auto errors = on_tensor_ranks(ranks, [&](Rank& r, Communicator& group) {
    const auto stream = r.device.create_stream(StreamKind::kCommunication);
    const Tensor own(r.device.allocate(kCount * 4), DType::kI32, {kCount});
    const Tensor theirs(r.device.allocate(kCount * 4), DType::kI32, {kCount});
    for (int round = 0; round < 40; ++round) {
      for (int distance = 1; distance < ranks; ++distance) {
        const int from = (r.rank + distance) % ranks, to = (r.rank + ranks - distance) % ranks;
        const auto number = [&](int rank) { return 1000 * round + 10 * distance + rank; };
        if (round % ranks == r.rank) dawdle(*stream, 500us);
        fill(*stream, own, number(r.rank));
        group.exchange(*stream, std::vector{Transfer::send(own, to), Transfer::receive(theirs, from)});
        fill(*stream, own, kPoison);
        expect(*stream, theirs, number(from), wrong);
        fill(*stream, theirs, kPoison);
      }
    }
    stream->synchronize();
  });
  EXPECT_EQ(errors, none(ranks));
  EXPECT_EQ(wrong, 0);
}

// Large gathers use copy engines, too, out of place and in place.
TEST_P(PeerCopiesRanks, LargeGathersReuseMemory) {
  constexpr std::int64_t kCount = 300000;  // more than a MiB
  std::atomic<int> wrong{0};
  const int ranks = GetParam();
  const auto errors = on_tensor_ranks(ranks, [&](Rank& r, Communicator& group) {
    const auto stream = r.device.create_stream(StreamKind::kCommunication);
    const Tensor own(r.device.allocate(kCount * 4), DType::kI32, {kCount});
    const Tensor all(r.device.allocate(kCount * 4 * ranks), DType::kI32, {kCount * ranks});
    for (int round = 0; round < 12; ++round) {
      const Tensor place = all.slice(r.rank * kCount, (r.rank + 1) * kCount);
      const Tensor in = round % 2 == 0 ? own : place;
      if (round % ranks == r.rank) dawdle(*stream, 500us);
      fill(*stream, in, 10 * round + r.rank);
      group.all_gather(*stream, in, all);
      if (round % 2 == 0) fill(*stream, own, -1);
      for (int rank = 0; rank < ranks; ++rank)
        expect(*stream, all.slice(rank * kCount, (rank + 1) * kCount), 10 * round + rank, wrong);
      fill(*stream, all, -1);
    }
    stream->synchronize();
  });
  EXPECT_EQ(errors, none(ranks));
  EXPECT_EQ(wrong, 0);
}

// Hosts run ahead of their devices as far as the communicator allows.
TEST_F(PeerCopies, ManyExchangesMayBeInFlight) {
  std::atomic<int> wrong{0};
  const auto errors = on_tensor_ranks(2, [&](Rank& r, Communicator& group) {
    const auto stream = r.device.create_stream(StreamKind::kCommunication);
    constexpr int kRounds = 600;
    const Tensor data(r.device.allocate(2 * kRounds * 4), DType::kI32, {2 * kRounds});
    if (r.rank == 1) dawdle(*stream, 100ms);
    for (int i = 0; i < kRounds; ++i) {
      const Tensor own = data.slice(i, i + 1), theirs = data.slice(kRounds + i, kRounds + i + 1);
      fill(*stream, own, 10 * i + r.rank);
      group.exchange(*stream,
                     std::vector{Transfer::receive(theirs, 1 - r.rank), Transfer::send(own, 1 - r.rank)});
      expect(*stream, theirs, 10 * i + 1 - r.rank, wrong);
    }
    stream->synchronize();
  });
  EXPECT_EQ(errors, none(2));
  EXPECT_EQ(wrong, 0);
}

// ---- Sums --------------------------------------------------------------------------------------------

// Returns one rank's part of one output element. The value is exact in bf16.
BFloat16 part_of(int rank, std::int64_t row, std::int64_t column) {
  return BFloat16(std::ldexp(static_cast<float>((rank * 37 + row * 11 + column * 5) % 251 + 1),
                             static_cast<int>((rank * 3 + row + column) % 7) - 8));
}

// Sums over tensor ranks are made in fp32 and rounded once, whichever transport delivers the parts.
TEST_F(PeerCopies, PartsOfProductsAreAddedInFp32AndRoundedOnce) {
  constexpr int kRanks = 4;
  constexpr std::int64_t kRows = 8, kColumns = 24;  // rows of all ranks; also the inner dimension
  std::atomic<int> through{0}, wrong{0}, rounded_otherwise{0};
  const auto body = [&](Rank& r) {
    auto device = std::make_unique<primus::test::GuardDevice>(1, turbo::cpu_kernel_table());
    auto world = r.job.world(*device, &collectives);
    engine::Rank rank(std::move(device), engine::Mesh(std::move(world), {.tensor = kRanks}));
    EXPECT_TRUE(rank.mesh().tensor()->by_copy_engines());
    engine::ParameterStore store;
    const auto bytes = [](const std::vector<BFloat16>& values) {
      return static_cast<std::int64_t>(values.size() * sizeof(BFloat16));
    };
    std::vector<BFloat16> x, weight;  // x: the identity; weight: one rank's parts
    for (std::int64_t row = 0; row < kRows; ++row)
      for (std::int64_t k = 0; k < kRows; ++k) x.push_back(BFloat16(k == row ? 1.0F : 0.0F));
    for (std::int64_t column = 0; column < kColumns; ++column)
      for (std::int64_t row = 0; row < kRows; ++row) weight.push_back(part_of(r.rank, row, column));
    rank.reserve({.persistent = 1 << 16, .stash = 1 << 16, .scratch = 1 << 16});
    store.begin_group("all");
    engine::Parameter& w = store.add("w", {kColumns, kRows}, engine::Initializer::constant(0));
    w.uses.push_back(0);
    store.allocate({.compute = DType::kBF16, .train = false}, rank.persistent());
    rank.compute().copy_to_device(w.value.data, weight.data(), bytes(weight));
    engine::TensorParallel overlap(rank, {.min_bytes = 0});
    std::vector<BFloat16> sums(static_cast<std::size_t>(kRows / kRanks * kColumns));
    engine::Tape tape(rank.context(), rank.stash());
    tape.begin({.train = false});
    {
      const engine::Value in = tape.input(DType::kBF16, {kRows, kRows}, false);
      rank.compute().copy_to_device(in.tensor().data, x.data(), bytes(x));
      const engine::Value y = engine::scattered_linear(in, w, rank.mesh().tensor(), &overlap);
      rank.compute().copy_to_host(sums.data(), y.tensor().data, bytes(sums));
      rank.synchronize();
    }
    for (std::int64_t i = 0; i < kRows / kRanks; ++i) {
      for (std::int64_t column = 0; column < kColumns; ++column) {
        const std::int64_t row = r.rank * (kRows / kRanks) + i;
        const auto part = [&](int of) { return static_cast<float>(part_of(of, row, column)); };
        const BFloat16 once = BFloat16((part(0) + part(1)) + (part(2) + part(3)));
        const BFloat16 each = BFloat16(static_cast<float>(BFloat16(part(0) + part(1))) +
                                       static_cast<float>(BFloat16(part(2) + part(3))));
        const BFloat16 sum = sums[static_cast<std::size_t>(i * kColumns + column)];
        wrong += sum.bits != once.bits;
        rounded_otherwise += each.bits != once.bits;
      }
    }
    // Ends together with the other ranks, as in on_tensor_ranks().
    ++through;
    for (int i = 0; i < 6000 && through < kRanks; ++i) std::this_thread::sleep_for(10ms);
  };
  EXPECT_EQ(on_all_ranks(kRanks, body, wanted), none(kRanks));
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(rounded_otherwise, 10) << "too few elements tell the roundings apart";
}

// ---- Failures -------------------------------------------------------------------------------------

Tensor numbers_on(Device& device, std::int64_t count) {
  return {device.allocate(count * 4), DType::kI32, {count}};
}

std::vector<Transfer> swap_with(int peer, const Tensor& own, const Tensor& theirs) {
  return {Transfer::send(own, peer), Transfer::receive(theirs, peer)};
}

// One rank's host never makes the call. The host of the other rank waits inside the call.
TEST_F(PeerCopies, ARankThatDoesNotCallIsNamed) {
  const auto errors = on_tensor_ranks(2, [&](Rank& r, Communicator& group) {
    group.set_timeout(300ms);
    const auto stream = r.device.create_stream(StreamKind::kCommunication);
    const Tensor own = numbers_on(r.device, 8), theirs = numbers_on(r.device, 8);
    group.exchange(*stream, swap_with(1 - r.rank, own, theirs));
    stream->synchronize();
    if (r.rank == 0) group.exchange(*stream, swap_with(1, own, theirs));
    while (!r.job.state().abort->aborted()) std::this_thread::sleep_for(5ms);
    stream->synchronize();  // the wait ends
    r.job.state().abort->check();
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, AllOf(HasSubstr("rank 0: exchange #2 (8 int32)"),
                             HasSubstr("of group 'tensor.0' did not complete")));
    EXPECT_THAT(error,
                HasSubstr("rank 1 has not called it: its last collective in that group was exchange #1"));
  }
}

// One rank's host makes the call, but its device never reaches it. The device of the other rank waits.
TEST_F(PeerCopies, AMissingDeviceIsNamedAndAllRanksWakeUp) {
  const auto errors = on_tensor_ranks(2, [&](Rank& r, Communicator& group) {
    group.set_timeout(300ms);
    std::atomic<bool> go{false};
    const std::atomic<bool>* const pointer = &go;
    const auto stream = r.device.create_stream(StreamKind::kCommunication);
    const Tensor own = numbers_on(r.device, 8), theirs = numbers_on(r.device, 8);
    if (r.rank == 1) {
      stream->launch(
          [](KernelContext&, const void* flag) {
            while (!**static_cast<const std::atomic<bool>* const*>(flag)) std::this_thread::sleep_for(1ms);
          },
          &pointer, sizeof(pointer));
    }
    for (int i = 0; i < 3; ++i) group.exchange(*stream, swap_with(1 - r.rank, own, theirs));
    while (!r.job.state().abort->aborted()) std::this_thread::sleep_for(5ms);
    if (r.rank == 0) stream->synchronize();  // the wait ends, though rank 1 is still stuck
    go = true;
    stream->synchronize();
    r.job.state().abort->check();
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, HasSubstr("rank 0: exchange #1 (8 int32)"));
    EXPECT_THAT(error, HasSubstr("rank 1"));
  }
}

TEST_F(PeerCopies, AnAbortWakesDevicesAndHosts) {
  const auto errors = on_tensor_ranks(3, [&](Rank& r, Communicator& group) {
    const auto stream = r.device.create_stream(StreamKind::kCommunication);
    const Tensor own = numbers_on(r.device, 8), theirs = numbers_on(r.device, 8);
    if (r.rank == 2) {
      std::this_thread::sleep_for(50ms);
      group.abort("the data set of rank 2 is broken");
    } else {
      const int other = 1 - r.rank;
      for (int i = 0; i < 20; ++i) group.exchange(*stream, swap_with(other, own, theirs));
      // One of the exchanges never completes.
      if (r.rank == 0) group.exchange(*stream, swap_with(2, own, theirs));
      while (!r.job.state().abort->aborted()) std::this_thread::sleep_for(5ms);
    }
    stream->synchronize();
    group.exchange(*stream, swap_with((r.rank + 1) % 3, own, theirs));
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "the data set of rank 2 is broken");
}

TEST_F(PeerCopies, DifferentSizesAreRefused) {
  const auto errors = on_tensor_ranks(2, [&](Rank& r, Communicator& group) {
    const auto stream = r.device.create_stream(StreamKind::kCommunication);
    const Tensor data = numbers_on(r.device, 16);
    const std::int64_t received = r.rank == 0 ? 8 : 4;
    try {
      group.exchange(*stream, swap_with(1 - r.rank, data.slice(0, 4), data.slice(8, 8 + received)));
    } catch (const Error& error) {
      r.job.abort(error.what(), error.kind());
    }
    while (!r.job.state().abort->aborted()) std::this_thread::sleep_for(5ms);
    stream->synchronize();
    r.job.state().abort->check();
  });
  for (const std::string& error : errors) {
    EXPECT_EQ(error, "rank 1 of the group sends 16 bytes, but 32 are expected");
  }
}

// ---- Fallback to the library where copy engines do not work ----------------------------------------

TEST_F(PeerCopies, IfOneRankCannotAllRanksUseTheLibrary) {
  refuses_to_open = true;
  auto errors = on_tensor_ranks(2, [&](Rank& r, Communicator& group) {
    EXPECT_FALSE(group.by_copy_engines());
    EXPECT_EQ(group.why_no_copy_engines(), "rank 1: fake: cannot open the memory of another GPU");
    const auto stream = r.device.create_stream(StreamKind::kCommunication);
    EXPECT_EQ(test::Conformance(group, r.device, *stream).run({7}), "");
  });
  EXPECT_EQ(errors, none(2));
  refuses_to_open = false;
  garbles = true;
  errors = on_tensor_ranks(2, [&](Rank&, Communicator& group) {
    EXPECT_FALSE(group.by_copy_engines());
    EXPECT_THAT(group.why_no_copy_engines(), HasSubstr("the copy engines deliver wrong data from rank"));
  });
  EXPECT_EQ(errors, none(2));
}

TEST_F(PeerCopies, AreUsedForTheRequestedGroups) {
  DevicePeers usual = kPeers;
  usual.usual = true;
  const auto groups_of = [&](CopyEngines engines) {
    std::mutex mutex;
    std::set<Overlap> groups;
    const auto body = [&](Rank& r) {
      const auto world = r.job.world(r.device, &collectives);
      const int members[] = {0, 1};
      EXPECT_FALSE(world->by_copy_engines());
      for (const Overlap overlap : {Overlap::kNothing, Overlap::kKernels, Overlap::kProducts}) {
        const auto group = world->split(members, "group", overlap);
        EXPECT_EQ(group->why_no_copy_engines(), "");
        const std::lock_guard lock(mutex);
        if (group->by_copy_engines()) groups.insert(group->overlap());
      }
    };
    EXPECT_EQ(on_all_ranks(2, body, engines), none(2));
    return groups;
  };
  using Groups = std::set<Overlap>;
  const Groups none_of_them, products = {Overlap::kProducts}, both = {Overlap::kKernels, Overlap::kProducts};
  EXPECT_EQ(groups_of(CopyEngines::kAuto), none_of_them);
  EXPECT_EQ(groups_of(CopyEngines::kOn), products);
  collectives.peers = &usual;
  EXPECT_EQ(groups_of(CopyEngines::kAuto), both);
  EXPECT_EQ(groups_of(CopyEngines::kOff), none_of_them);
  EXPECT_EQ(groups_of(CopyEngines::kAll), both);
}

TEST_F(PeerCopies, AreNotUsedIfDevicesDoNotSupportThem) {
  collectives.peers = nullptr;
  const auto body = [](Rank&, Communicator& group) {
    EXPECT_FALSE(group.by_copy_engines());
    EXPECT_THAT(group.why_no_copy_engines(), HasSubstr("cannot access each other's"));
  };
  EXPECT_EQ(on_tensor_ranks(2, body), none(2));
}

}  // namespace
}  // namespace primus::comm
