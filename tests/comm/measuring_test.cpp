// Tests of MeasuringCommunicator, which has no peers, and of the traffic counters of every communicator.
#include "comm/measuring.h"

#include <gtest/gtest.h>

#include "device/cpu/cpu_device.h"
#include "turbo/kernel_table.h"

namespace primus::comm {
namespace {

const KernelTable kNoKernels;

TEST(Measuring, CountsCallsAndBytesByKindWithoutMemory) {
  cpu::CpuDevice device(1, kNoKernels);
  const auto stream = device.create_stream(StreamKind::kCompute);
  MeasuringCommunicator comm("world", 3, 1024);
  const auto tensor = [](std::int64_t count, DType dtype = DType::kF32) {
    return Tensor(nullptr, dtype, {count});
  };
  comm.all_reduce(*stream, tensor(2048), tensor(2048), Reduction::kSum);
  comm.all_reduce(*stream, tensor(2048), tensor(2048), Reduction::kMean);
  comm.reduce_scatter(*stream, tensor(4096), tensor(4), Reduction::kSum);
  comm.all_gather(*stream, tensor(4, DType::kBF16), tensor(4096, DType::kBF16));
  comm.broadcast(*stream, tensor(100), 3);
  comm.broadcast(*stream, tensor(100), 4);
  std::vector<std::int64_t> counts(1024, 2);
  comm.all_to_all(*stream, tensor(2048), counts, tensor(2048), counts);
  comm.exchange(*stream, std::vector{Transfer::send(tensor(10), 4), Transfer::receive(tensor(10), 2),
                                     Transfer::send(tensor(10), 3), Transfer::receive(tensor(10), 3)});
  comm.barrier(*stream);
  const Traffic traffic = comm.traffic();
  EXPECT_EQ(traffic[Kind::kAllReduce].calls, 2);
  EXPECT_DOUBLE_EQ(traffic[Kind::kAllReduce].bytes, 2 * 2.0 * 1023 / 1024 * 8192);
  EXPECT_DOUBLE_EQ(traffic[Kind::kReduceScatter].bytes, 1023 * 16.0);
  EXPECT_DOUBLE_EQ(traffic[Kind::kAllGather].bytes, 1023 * 8.0);
  EXPECT_EQ(traffic[Kind::kBroadcast].calls, 2);
  EXPECT_DOUBLE_EQ(traffic[Kind::kBroadcast].bytes, 1023 * 400.0);
  EXPECT_DOUBLE_EQ(traffic[Kind::kAllToAll].bytes, 1023 * 8.0);
  EXPECT_DOUBLE_EQ(traffic[Kind::kExchange].bytes, 40.0);
  EXPECT_EQ(traffic[Kind::kBarrier].calls, 1);
  EXPECT_DOUBLE_EQ(traffic.total_bytes(), 2 * 2.0 * 1023 / 1024 * 8192 + 1023 * (16 + 8 + 400 + 8) + 40.0);
  // This communicator has no data, so its traffic has complete parts.
  const Tensor rows(nullptr, DType::kBF16, {2048, 3}), part_counts = tensor(1024, DType::kI32);
  comm.all_to_all_rows(*stream, rows, part_counts, rows, part_counts);
  EXPECT_DOUBLE_EQ(comm.traffic()[Kind::kAllToAll].bytes, 1023 * (8.0 + 12.0));
  // This communicator checks arguments as all communicators do.
  EXPECT_THROW(comm.all_to_all_rows(*stream, rows, tensor(1024), rows, part_counts), std::logic_error);
  EXPECT_THROW(comm.all_gather(*stream, tensor(4), tensor(4)), std::logic_error);
}

TEST(Measuring, SplitsIntoAnyGroup) {
  MeasuringCommunicator comm("world", 3, 1024);
  const int members[] = {7, 3, 1023};
  const auto group = comm.split(members, "tp");
  EXPECT_EQ(group->name(), "tp");
  EXPECT_EQ(group->rank(), 1);
  EXPECT_EQ(group->size(), 3);
  const int others[] = {1, 2};
  EXPECT_THROW(comm.split(others, "tp"), std::logic_error);
}

}  // namespace
}  // namespace primus::comm
