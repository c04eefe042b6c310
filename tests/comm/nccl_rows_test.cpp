// Tests all_to_all_rows() of the GPU communicator without a GPU: the bytes on the wire, when the host waits
// for counts, and aborts during such a wait. The library is a fake (fake_nccl.h).
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "comm/conformance.h"
#include "comm/fake_nccl.h"
#include "comm/nccl_job.h"

namespace primus::comm {
namespace {

using namespace std::chrono_literals;
using test::none;
using test::on_all_ranks;
using test::Rank;

constexpr std::int64_t kRows = 10, kWidth = 6;  // rows of a part, and elements of a row

long long sent_bytes() {
  static const auto sent =
      reinterpret_cast<decltype(&fake_nccl_sent)>(dlsym(dlopen(FAKE_NCCL, RTLD_NOW), "fake_nccl_sent"));
  return sent();
}

std::atomic<bool> recording{false};

// One rank's buffers and counts. Rank r sends `of(r, p)` rows to rank p.
struct Rows {
  template <class Of>
  Rows(Rank& r, int ranks, Of of)
      : in(r.device.allocate(ranks * kRows * kWidth * 4), DType::kF32, {ranks * kRows, kWidth}),
        out(r.device.allocate(ranks * kRows * kWidth * 4), DType::kF32, {ranks * kRows, kWidth}),
        counts(r.device.allocate(2 * ranks * 4), DType::kI32, {2 * ranks}),
        sends(counts.slice(0, ranks)),
        receives(counts.slice(ranks, 2 * ranks)) {
    for (int peer = 0; peer < ranks; ++peer) host.push_back(of(r.rank, peer));
    for (int peer = 0; peer < ranks; ++peer) host.push_back(of(peer, r.rank));
  }
  void write_counts(Stream& stream) const { stream.copy_to_device(counts.data, host.data(), counts.bytes()); }
  void send(Communicator& group, Stream& stream, RowCounts known = {}) const {
    group.all_to_all_rows(stream, in, sends, out, receives, known);
  }

  Tensor in, out, counts, sends, receives;
  std::vector<std::int32_t> host;
};

// Makes the stream wait until `go` is true.
void block(Stream& stream, const std::atomic<bool>& go) {
  const std::atomic<bool>* const pointer = &go;
  stream.launch(
      [](KernelContext&, const void* flag) {
        while (!**static_cast<const std::atomic<bool>* const*>(flag)) std::this_thread::sleep_for(1ms);
      },
      &pointer, sizeof(pointer));
}

struct NcclRows : ::testing::Test {
  void TearDown() override { recording = false; }
  DeviceCollectives collectives = test::fake_collectives();
};

// The loads change with every call: all rows to one rank, no rows for a rank, different numbers for each
// pair.
TEST_F(NcclRows, OnlyTheCountedRowsAreSent) {
  constexpr int kRanks = 3;
  const auto of = [](int call, int from, int to) {
    switch (call) {
      case 0:
        return to == 1 ? static_cast<int>(kRows) : 0;
      case 1:
        return to == 2 ? 0 : 3;
      case 2:
        return (from * 5 + to * 2) % 7;
      default:
        return 0;
    }
  };
  const long long before = sent_bytes();
  std::atomic<long long> expected{0}, counted{0};
  const auto errors = on_all_ranks(kRanks, [&](Rank& r) {
    const auto world = r.job.world(r.device, &collectives);
    const auto stream = r.device.create_stream(StreamKind::kCompute);
    for (int call = 0; call < 4; ++call) {
      const Rows rows(r, kRanks, [&](int from, int to) { return of(call, from, to); });
      rows.write_counts(*stream);
      rows.send(*world, *stream);
      stream->synchronize();
      for (int peer = 0; peer < kRanks; ++peer) {
        if (peer != r.rank) expected += of(call, r.rank, peer) * kWidth * 4;
      }
    }
    counted += static_cast<long long>(world->traffic()[Kind::kAllToAll].bytes);
    EXPECT_EQ(world->traffic()[Kind::kAllToAll].calls, 4);
  });
  EXPECT_EQ(errors, none(kRanks));
  EXPECT_EQ(sent_bytes() - before, expected) << "bytes = rows * width";
  EXPECT_EQ(counted, expected);
}

// The host waits for counts that it does not know, but not for known counts.
TEST_F(NcclRows, TheHostWaitsOncePerNumber) {
  const auto errors = on_all_ranks(2, [&](Rank& r) {
    const auto world = r.job.world(r.device, &collectives);
    const auto stream = r.device.create_stream(StreamKind::kCompute);
    const Rows rows(r, 2, [](int from, int to) { return 1 + from + 2 * to; });
    const std::uint64_t number = world->new_row_number();
    EXPECT_NE(number, world->new_row_number());
    rows.write_counts(*stream);
    world->count_rows(*stream, rows.sends, rows.receives, number);
    rows.send(*world, *stream, {.number = number});
    std::atomic<bool> go{false};
    block(*stream, go);
    // The stream is blocked, so these calls return only if the host knows the counts.
    rows.send(*world, *stream, {.number = number});
    world->all_to_all_rows(*stream, rows.out, rows.receives, rows.in, rows.sends,
                           {.number = number, .back = true});
    world->count_rows(*stream, rows.sends, rows.receives, number);
    go = true;
    stream->synchronize();
    // Unknown counts are those that the stream has computed before the call.
    std::atomic<bool> later{false};
    block(*stream, later);
    rows.write_counts(*stream);
    std::thread waker([&] {
      std::this_thread::sleep_for(20ms);
      later = true;
    });
    rows.send(*world, *stream);
    EXPECT_TRUE(later);
    waker.join();
    stream->synchronize();
  });
  EXPECT_EQ(errors, none(2));
}

// A plan that is computed again, as by recomputation, may choose other rows.
TEST_F(NcclRows, ARecomputedPlanHasItsOwnCounts) {
  const long long before = sent_bytes();
  const auto errors = on_all_ranks(2, [&](Rank& r) {
    const auto world = r.job.world(r.device, &collectives);
    const auto stream = r.device.create_stream(StreamKind::kCompute);
    const std::uint64_t number = world->new_row_number();
    for (const int count : {2, 5, 3}) {
      const Rows rows(r, 2, [count](int, int) { return count; });
      rows.write_counts(*stream);
      world->count_rows(*stream, rows.sends, rows.receives, number);
      rows.send(*world, *stream, {.number = number});
      stream->synchronize();
    }
  });
  EXPECT_EQ(errors, none(2));
  EXPECT_EQ(sent_bytes() - before, 2 * (2 + 5 + 3) * kWidth * 4);
}

TEST_F(NcclRows, CompletePartsAreSentOnRequestAndInGraphs) {
  collectives.recording = [](Stream&) { return recording.load(); };
  for (const bool in_graph : {false, true}) {
    const long long before = sent_bytes();
    const auto body = [&](Rank& r) {
      const auto world = r.job.world(r.device, &collectives);
      const auto stream = r.device.create_stream(StreamKind::kCompute);
      const Rows rows(r, 2, [](int, int) { return 1; });
      r.job.barrier("made");
      recording = in_graph;
      // Nothing waits for counts, although the stream has not computed any.
      std::atomic<bool> go{false};
      block(*stream, go);
      world->count_rows(*stream, rows.sends, rows.receives, world->new_row_number());
      rows.send(*world, *stream);
      go = true;
      stream->synchronize();
      EXPECT_EQ(world->traffic()[Kind::kAllToAll].bytes, kRows * kWidth * 4);
    };
    const CountedRows wanted = in_graph ? CountedRows::kOn : CountedRows::kOff;
    EXPECT_EQ(on_all_ranks(2, body, CopyEngines::kAuto, wanted), none(2));
    EXPECT_EQ(sent_bytes() - before, 2 * kRows * kWidth * 4);
    recording = false;
  }
}

TEST_F(NcclRows, AnAbortEndsTheWaitForCounts) {
  const auto errors = on_all_ranks(2, [&](Rank& r) {
    const auto world = r.job.world(r.device, &collectives);
    const auto stream = r.device.create_stream(StreamKind::kCompute);
    const Rows rows(r, 2, [](int, int) { return 1; });
    std::atomic<bool> go{false};
    if (r.rank == 0) block(*stream, go);
    std::thread aborts;
    if (r.rank == 1) {
      aborts = std::thread([&] {
        std::this_thread::sleep_for(50ms);
        world->abort("the data set of rank 1 is broken");
      });
    }
    rows.write_counts(*stream);
    std::string error;
    try {
      rows.send(*world, *stream);
      while (!r.job.state().abort->aborted()) std::this_thread::sleep_for(5ms);
      r.job.state().abort->check();
    } catch (const Error& thrown) {
      error = thrown.what();
    }
    go = true;
    stream->synchronize();
    if (aborts.joinable()) aborts.join();
    EXPECT_EQ(error, "the data set of rank 1 is broken");
    EXPECT_THROW(rows.send(*world, *stream), Error);
  });
  EXPECT_EQ(errors, none(2));
}

TEST_F(NcclRows, ACountAboveThePartIsABug) {
  const auto errors = on_all_ranks(2, [&](Rank& r) {
    const auto world = r.job.world(r.device, &collectives);
    const auto stream = r.device.create_stream(StreamKind::kCompute);
    const Rows rows(r, 2, [](int, int) { return static_cast<int>(kRows) + 1; });
    rows.write_counts(*stream);
    EXPECT_THROW(rows.send(*world, *stream), std::logic_error);
  });
  EXPECT_EQ(errors, none(2));
}

}  // namespace
}  // namespace primus::comm
