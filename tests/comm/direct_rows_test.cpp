// Tests all_to_all_rows() with PRIMUS_COUNTED_ROWS=direct and auto, without a GPU: kernels that write to
// other ranks' memory run in the emulator. Every buffer is overwritten with poison once its work is done.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "comm/conformance.h"
#include "comm/fake_nccl.h"
#include "comm/fake_peers.h"
#include "comm/nccl_job.h"

namespace primus::comm {
namespace {

using namespace std::chrono_literals;
using test::none;
using test::Rank;
using ::testing::HasSubstr;

// Sets what the fake library does in each abort.
void on_abort(void (*hook)()) {
  reinterpret_cast<decltype(&fake_nccl_on_abort)>(dlsym(dlopen(FAKE_NCCL, RTLD_NOW), "fake_nccl_on_abort"))(
      hook);
}

struct DirectRows : ::testing::TestWithParam<int> {
  DirectRows() { collectives.peers = &test::kPeers; }
  void TearDown() override {
    EXPECT_EQ(test::opened, 0) << "memory of a peer is still mapped";
    EXPECT_EQ(test::mapped, 0);
    test::refuses_to_open = false;
  }
  // Ranks end together, as in peer_copies_test.cpp.
  std::vector<std::string> run(int ranks, const std::function<void(Rank&, Communicator&)>& body) const {
    std::atomic<int> through{0};
    const auto all = [&](Rank& r) {
      const auto world = r.job.world(r.device, &collectives);
      const auto wait_for_all = [&] {
        ++through;
        for (int i = 0; i < 3000 && through < ranks; ++i) std::this_thread::sleep_for(10ms);
      };
      try {
        body(r, *world);
      } catch (...) {
        wait_for_all();
        throw;
      }
      wait_for_all();
    };
    return test::on_all_ranks(ranks, all, CopyEngines::kAuto, wanted);
  }
  DeviceCollectives collectives = test::fake_collectives();
  CountedRows wanted = CountedRows::kDirect;
};
INSTANTIATE_TEST_SUITE_P(All, DirectRows, ::testing::Values(2, 3));

TEST_P(DirectRows, EveryCollectiveEqualsItsReference) {
  const auto errors = run(GetParam(), [&](Rank& r, Communicator& group) {
    const auto stream = r.device.create_stream(StreamKind::kCommunication);
    EXPECT_EQ(test::Conformance(group, r.device, *stream).run({0, 1, 7, 130}), "");
  });
  EXPECT_EQ(errors, none(GetParam()));
}

// One rank's buffers.
struct Load {
  static constexpr std::int64_t kPart = 24, kWidth = 20;  // rows of a part, and elements of a row

  Load(Device& device, int size)
      : ranks(size),
        in(device.allocate(size * kPart * kWidth * 4), DType::kI32, {size * kPart, kWidth}),
        out(device.allocate(in.bytes()), DType::kI32, in.shape),
        counts(device.allocate(2 * size * 4), DType::kI32, {2 * size}) {}

  int ranks;
  Tensor in, out, counts;

  // Every rank sends this number of rows to every rank.
  void set_counts(Stream& stream, std::int32_t rows) const {
    const std::vector<std::int32_t> host(static_cast<std::size_t>(2 * ranks), rows);
    stream.copy_to_device(counts.data, host.data(), counts.bytes());
    stream.synchronize();
  }
  void send(Communicator& group, Stream& stream) const {
    group.all_to_all_rows(stream, in, counts.slice(0, ranks), out, counts.slice(ranks, 2 * ranks));
  }
};

// All rows to one rank, no rows to a rank, no rows at all, and other numbers for each pair.
int rows_of(int round, int from, int to) {
  switch (round % 4) {
    case 0:
      return to == 1 ? static_cast<int>(Load::kPart) : 0;
    case 1:
      return to == 0 ? 0 : 5;
    case 2:
      return (from * 5 + to * 3 + round) % 23;
    default:
      return 0;
  }
}

// The loads change in each round, and in each round another rank is slow
// to write its rows or to read what it received.
TEST_P(DirectRows, MemoryIsReusedInStreamOrderWithUnevenLoads) {
  struct Fill {
    Load load;
    int round, rank;
    std::atomic<int>* wrong;
  };
  const int ranks = GetParam();
  std::atomic<int> wrong{0};
  std::atomic<std::int64_t> sent{0}, counted{0};
  const auto errors = run(ranks, [&](Rank& r, Communicator& group) {
    const auto stream = r.device.create_stream(StreamKind::kCommunication);
    const Load load(r.device, ranks);
    for (int round = 0; round < 24; ++round) {
      const Fill fill{load, round, r.rank, &wrong};
      const auto launch = [&](auto work) { stream->launch(work, &fill, sizeof(fill)); };
      launch([](KernelContext& context, const void* a) {
        const auto& f = *static_cast<const Fill*>(a);
        auto& cpu = static_cast<cpu::CpuContext&>(context);
        const int n = f.load.ranks;
        if (f.round % n == f.rank) std::this_thread::sleep_for(300us);
        std::fill_n(cpu.data<std::int32_t>(f.load.in), f.load.in.elements(), 100 * f.round + f.rank);
        if (f.round == 0) std::fill_n(cpu.data<std::int32_t>(f.load.out), f.load.out.elements(), -1);
        auto* const counts = cpu.data<std::int32_t>(f.load.counts);
        for (int peer = 0; peer < n; ++peer) {
          counts[peer] = rows_of(f.round, f.rank, peer);
          counts[n + peer] = rows_of(f.round, peer, f.rank);
        }
      });
      load.send(group, *stream);
      launch([](KernelContext& context, const void* a) {
        const auto& f = *static_cast<const Fill*>(a);
        auto& cpu = static_cast<cpu::CpuContext&>(context);
        if (f.round % f.load.ranks != f.rank) std::this_thread::sleep_for(2ms);
        auto* const out = cpu.data<std::int32_t>(f.load.out);
        constexpr std::int64_t kPart = Load::kPart * Load::kWidth;
        for (int from = 0; from < f.load.ranks; ++from) {
          const std::int64_t arrived = rows_of(f.round, from, f.rank) * Load::kWidth;
          for (std::int64_t i = 0; i < kPart; ++i)
            *f.wrong += out[from * kPart + i] != (i < arrived ? 100 * f.round + from : -1);
        }
        std::fill_n(out, f.load.out.elements(), -1);
        std::fill_n(cpu.data<std::int32_t>(f.load.in), f.load.in.elements(), -2);
        std::fill_n(cpu.data<std::int32_t>(f.load.counts), f.load.counts.elements(), 1000);
      });
      for (int to = 0; to < ranks; ++to)
        sent += to == r.rank ? 0 : rows_of(round, r.rank, to) * Load::kWidth * 4;
    }
    stream->synchronize();
    counted += static_cast<std::int64_t>(group.traffic()[Kind::kAllToAll].bytes);
  });
  EXPECT_EQ(errors, none(ranks));
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(counted, sent) << "traffic() counts the rows";
}

// The host of a rank does not wait, and its device waits for the other rank's device. The library's abort
// waits for the device, as NCCL's does when it frees memory.
TEST_F(DirectRows, AMissingDeviceIsNamedAndAllRanksWakeUp) {
  static std::atomic<int> idle{0};
  static std::atomic<bool> stuck{false};
  idle = 0;
  stuck = false;
  on_abort([] {
    const auto end = std::chrono::steady_clock::now() + 20s;
    while (idle < 2 && !stuck) {
      std::this_thread::sleep_for(1ms);
      if (std::chrono::steady_clock::now() > end) stuck = true;
    }
  });
  const auto errors = run(2, [&](Rank& r, Communicator& group) {
    const auto stream = r.device.create_stream(StreamKind::kCommunication);
    const Load load(r.device, 2);
    load.set_counts(*stream, 3);
    load.send(group, *stream);
    stream->synchronize();
    group.set_timeout(300ms);
    std::atomic<bool> go{false};
    const std::atomic<bool>* const pointer = &go;
    if (r.rank == 1) {
      stream->launch(
          [](KernelContext&, const void* flag) {
            while (!**static_cast<const std::atomic<bool>* const*>(flag)) std::this_thread::sleep_for(1ms);
          },
          &pointer, sizeof(pointer));
    }
    for (int i = 0; i < 3; ++i) load.send(group, *stream);
    while (!r.job.state().abort->aborted()) std::this_thread::sleep_for(5ms);
    // The wait of rank 0 ends, though the device of rank 1 is still stuck.
    while (r.rank == 1 && idle == 0 && !stuck) std::this_thread::sleep_for(1ms);
    go = true;
    stream->synchronize();
    ++idle;
    r.job.state().abort->check();
  });
  on_abort(nullptr);
  EXPECT_FALSE(stuck) << "the device waited for flags during the abort";
  for (const std::string& error : errors) EXPECT_THAT(error, HasSubstr("rank 0: all_to_all #2"));
}

// A rank ends between two transfers. The others wait for its next buffer on the host, and for their earlier
// transfers on the device.
TEST_F(DirectRows, ARankThatEndsIsNamedAndAllRanksWakeUp) {
  const auto errors = run(3, [&](Rank& r, Communicator& group) {
    const auto stream = r.device.create_stream(StreamKind::kCommunication);
    const Load load(r.device, 3);
    load.set_counts(*stream, 3);
    load.send(group, *stream);
    if (r.rank == 2) {
      stream->synchronize();
      r.job.abort("rank 2 ended");
      return;
    }
    try {
      for (;;) load.send(group, *stream);
    } catch (const Error&) {
      stream->synchronize();
      throw;
    }
  });
  EXPECT_EQ(errors[2], "");
  for (int rank = 0; rank < 2; ++rank)
    EXPECT_THAT(errors[static_cast<std::size_t>(rank)], HasSubstr("rank 2 ended"));
}

// While a stream records a graph, the library sends complete parts, because a replay would repeat the flags.
TEST_F(DirectRows, AreNotRecordedInGraphs) {
  static thread_local bool recording = false;
  collectives.recording = [](Stream&) { return recording; };
  const auto errors = run(2, [&](Rank& r, Communicator& group) {
    const auto stream = r.device.create_stream(StreamKind::kCommunication);
    const Load load(r.device, 2);
    load.set_counts(*stream, 3);
    std::vector<std::int32_t> data(static_cast<std::size_t>(load.in.elements()));
    for (const bool in_graph : {false, true, false}) {
      std::fill(data.begin(), data.end(), 10 * r.rank + static_cast<int>(in_graph));
      stream->copy_to_device(load.in.data, data.data(), load.in.bytes());
      const double before = group.traffic()[Kind::kAllToAll].bytes;
      recording = in_graph;
      load.send(group, *stream);
      recording = false;
      stream->copy_to_host(data.data(), load.out.data, load.out.bytes());
      stream->synchronize();
      const std::int64_t rows = in_graph ? Load::kPart : 3;
      EXPECT_EQ(group.traffic()[Kind::kAllToAll].bytes - before, rows * Load::kWidth * 4);
      for (std::size_t from = 0; from < 2; ++from) {
        for (std::size_t i = 0; i < 3 * Load::kWidth; ++i)
          EXPECT_EQ(data[from * Load::kPart * Load::kWidth + i],
                    10 * static_cast<int>(from) + static_cast<int>(in_graph));
      }
    }
  });
  EXPECT_EQ(errors, none(2));
}

// With auto, all ranks make the same choice. Every way sends the same rows.
TEST_P(DirectRows, AreTheDefaultWhereTheyAreTestedAndPossible) {
  const auto choice = [&](const std::string& expected) {
    const auto errors = run(GetParam(), [&](Rank& r, Communicator& group) {
      EXPECT_THAT(group.prepare_rows(), HasSubstr(expected));
      if (wanted == CountedRows::kOff) return;  // the check expects the bytes of the counted rows
      const auto stream = r.device.create_stream(StreamKind::kCommunication);
      EXPECT_EQ(test::Conformance(group, r.device, *stream).run({0, 1, 7, 130}), "");
    });
    EXPECT_EQ(errors, none(GetParam()));
  };
  const std::string by_kernels = "kernels write the rows into the memory of the host's other GPUs",
                    by_library = "NCCL sends the counted rows, and the host waits for the counts";
  DevicePeers usual = test::kPeers;
  usual.usual = true;
  wanted = CountedRows::kAuto;
  choice(by_library + ": devices of this kind were not tested");
  collectives.peers = &usual;
  choice(by_kernels);
  test::refuses_to_open = true;
  choice(by_library + ": rank 1: fake: cannot open the memory of another GPU");
  test::refuses_to_open = false;
  usual.copy_rows = nullptr;
  choice(by_library + ": devices of this kind cannot write rows to each other's memory");
  collectives.peers = nullptr;
  choice(by_library + ": devices of this kind cannot access each other's memory");
  collectives.peers = &usual;
  wanted = CountedRows::kOn;
  choice(by_library);
  wanted = CountedRows::kOff;
  choice("NCCL sends complete parts (PRIMUS_COUNTED_ROWS=off)");
  usual.copy_rows = test::peer_copy_rows;
  wanted = CountedRows::kDirect;
  choice(by_kernels);
}

TEST_F(DirectRows, AreRefusedIfARankCannotReachItsPeers) {
  const auto send = [](Rank& r, Communicator& group) {
    const auto stream = r.device.create_stream(StreamKind::kCommunication);
    const Load load(r.device, 2);
    load.send(group, *stream);
  };
  test::refuses_to_open = true;
  for (const std::string& error : run(2, send))
    EXPECT_THAT(error, HasSubstr("PRIMUS_COUNTED_ROWS=direct is not possible in group 'world': rank 1: fake: "
                                 "cannot open the memory of another GPU"));
  test::refuses_to_open = false;
  collectives.peers = nullptr;
  for (const std::string& error : run(2, send))
    EXPECT_THAT(error, HasSubstr("devices of this kind cannot access each other's memory"));
}

}  // namespace
}  // namespace primus::comm
