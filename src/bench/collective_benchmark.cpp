#include "bench/collective_benchmark.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <memory>

#include "base/error.h"
#include "base/text/suggest.h"
#include "bench/device_timer.h"
#include "tensor/bfloat16.h"
#include "tensor/float16.h"

namespace primus {
namespace {

using comm::Communicator;
using Clock = std::chrono::steady_clock;

constexpr CollectiveOp kOps[] = {CollectiveOp::kAllReduce,     CollectiveOp::kBroadcast,
                                 CollectiveOp::kReduceScatter, CollectiveOp::kAllGather,
                                 CollectiveOp::kAllToAll,      CollectiveOp::kSendReceive,
                                 CollectiveOp::kBarrier};

// Number of elements of an operation's tensors `in` and `out`.
struct Counts {
  std::int64_t in = 0, out = 0;
};
Counts counts_of(CollectiveOp op, std::int64_t elements, std::int64_t ranks) {
  switch (op) {
    case CollectiveOp::kReduceScatter:
      return {elements, elements / ranks};
    case CollectiveOp::kAllGather:
      return {elements / ranks, elements};
    case CollectiveOp::kBarrier:
      return {};
    default:
      return {elements, elements};
  }
}

double bus_factor(CollectiveOp op, double n) {
  switch (op) {
    case CollectiveOp::kAllReduce:
      return 2 * (n - 1) / n;
    case CollectiveOp::kReduceScatter:
    case CollectiveOp::kAllGather:
    case CollectiveOp::kAllToAll:
      return (n - 1) / n;
    default:
      return 1;
  }
}

// Returns the test value of element i on `rank`, a small integer.
double value_of(int rank, std::int64_t i) { return static_cast<double>((i + 3 * rank) % 8); }

// Returns the maximum number of ranks whose test values sum to an exact number in the type. The first integer
// that bf16 cannot represent is 257, for fp16 it is 2049.
std::int64_t max_exact_ranks(DType dtype) {
  constexpr std::int64_t kLargestValue = 7, kOfBf16 = 256, kOfFp16 = 2048;
  if (dtype == DType::kBF16) return kOfBf16 / kLargestValue;
  if (dtype == DType::kF16) return kOfFp16 / kLargestValue;
  return std::numeric_limits<std::int64_t>::max();
}

// The buffers and calls of one rank for an operation.
class Exchange {
 public:
  Exchange(Communicator& group, Stream& stream, CollectiveOp op)
      : group_(group), stream_(stream), op_(op), size_(group.size()) {}

  void operator()(const Tensor& in, const Tensor& out) const {
    const int next = (group_.rank() + 1) % size_, previous = (group_.rank() + size_ - 1) % size_;
    switch (op_) {
      case CollectiveOp::kAllReduce:
        return group_.all_reduce(stream_, in, out, comm::Reduction::kSum);
      case CollectiveOp::kBroadcast:
        return group_.broadcast(stream_, in, 0);
      case CollectiveOp::kReduceScatter:
        return group_.reduce_scatter(stream_, in, out, comm::Reduction::kSum);
      case CollectiveOp::kAllGather:
        return group_.all_gather(stream_, in, out);
      case CollectiveOp::kAllToAll: {
        const std::vector<std::int64_t> counts(static_cast<std::size_t>(size_), in.elements() / size_);
        return group_.all_to_all(stream_, in, counts, out, counts);
      }
      case CollectiveOp::kSendReceive: {
        const comm::Transfer transfers[] = {comm::Transfer::send(in, next),
                                            comm::Transfer::receive(out, previous)};
        return group_.exchange(stream_, transfers);
      }
      case CollectiveOp::kBarrier:
        return group_.barrier(stream_);
    }
  }

  // Returns the expected value of element i of the result. A broadcast's result is in `in`, all other results
  // are in `out`.
  double expected(std::int64_t i, std::int64_t out_elements) const {
    const int rank = group_.rank();
    const auto sum = [&](std::int64_t at) {
      double total = 0;
      for (int r = 0; r < size_; ++r) total += value_of(r, at);
      return total;
    };
    const std::int64_t part = out_elements / size_;
    switch (op_) {
      case CollectiveOp::kAllReduce:
        return sum(i);
      case CollectiveOp::kReduceScatter:
        return sum(rank * out_elements + i);
      case CollectiveOp::kAllGather:
        return value_of(static_cast<int>(i / part), i % part);
      case CollectiveOp::kAllToAll:
        return value_of(static_cast<int>(i / part), rank * part + i % part);
      case CollectiveOp::kSendReceive:
        return value_of((rank + size_ - 1) % size_, i);
      default:
        return value_of(0, i);
    }
  }

 private:
  Communicator& group_;
  Stream& stream_;
  CollectiveOp op_;
  int size_;
};

void fill(Stream& stream, const Tensor& tensor, int rank) {
  const auto count = static_cast<std::size_t>(tensor.elements());
  std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.bytes()));
  for (std::size_t i = 0; i < count; ++i) {
    const auto value = static_cast<float>(value_of(rank, static_cast<std::int64_t>(i)));
    if (tensor.dtype == DType::kBF16) {
      const BFloat16 narrow(value);
      std::memcpy(bytes.data() + 2 * i, &narrow, 2);
    } else if (tensor.dtype == DType::kF16) {
      const Float16 narrow(value);
      std::memcpy(bytes.data() + 2 * i, &narrow, 2);
    } else {
      std::memcpy(bytes.data() + 4 * i, &value, 4);
    }
  }
  stream.copy_to_device(tensor.data, bytes.data(), tensor.bytes());
  stream.synchronize();
}

std::vector<float> read(Stream& stream, const Tensor& tensor) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.bytes()));
  stream.copy_to_host(bytes.data(), tensor.data, tensor.bytes());
  stream.synchronize();
  std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (tensor.dtype == DType::kBF16) {
      BFloat16 narrow;
      std::memcpy(&narrow, bytes.data() + 2 * i, 2);
      values[i] = static_cast<float>(narrow);
    } else if (tensor.dtype == DType::kF16) {
      Float16 narrow;
      std::memcpy(&narrow, bytes.data() + 2 * i, 2);
      values[i] = static_cast<float>(narrow);
    } else {
      std::memcpy(&values[i], bytes.data() + 4 * i, 4);
    }
  }
  return values;
}

class Measurement {
 public:
  Measurement(Communicator& world, Device& device) : world_(world), timer_(device, 1) {}

  DeviceTimer& timer() { return timer_; }

  // Returns iterations * repetitions samples of this rank, in seconds. A barrier of `group` precedes each
  // repetition.
  std::vector<double> samples(Communicator& group, int warmup, int iterations, int repetitions,
                              const std::function<void()>& call) {
    std::vector<double> seconds;
    for (int i = 0; i < warmup; ++i) call();
    for (int repetition = 0; repetition < repetitions; ++repetition) {
      group.barrier(timer_.stream());
      timer_.stream().synchronize();
      auto before = Clock::now();
      for (int i = 0; i < iterations; ++i) {
        call();
        timer_.stream().synchronize();
        const auto now = Clock::now();
        seconds.push_back(std::max(std::chrono::duration<double>(now - before).count(), 1e-9));
        before = now;
      }
    }
    return seconds;
  }

  // Returns the samples of all ranks, by rank.
  std::vector<std::vector<double>> gather(const std::vector<double>& mine) {
    const auto count = static_cast<std::int64_t>(mine.size());
    const Tensor in = timer_.empty(DType::kF64, {count}),
                 out = timer_.empty(DType::kF64, {count * world_.size()});
    std::vector<double> all(mine.size() * static_cast<std::size_t>(world_.size()));
    Stream& stream = timer_.stream();
    stream.copy_to_device(in.data, mine.data(), in.bytes());
    world_.all_gather(stream, in, out);
    stream.copy_to_host(all.data(), out.data, out.bytes());
    stream.synchronize();
    std::vector<std::vector<double>> by_rank;
    for (auto at = all.begin(); at != all.end(); at += count) by_rank.emplace_back(at, at + count);
    return by_rank;
  }

 private:
  Communicator& world_;
  DeviceTimer timer_;
};

// Returns, for each sample, the maximum over these ranks.
std::vector<double> slowest_of(const std::vector<std::vector<double>>& by_rank,
                               const std::vector<int>& ranks) {
  std::vector<double> worst(by_rank.front().size(), 0.0);
  for (const int rank : ranks)
    for (std::size_t i = 0; i < worst.size(); ++i)
      worst[i] = std::max(worst[i], by_rank[static_cast<std::size_t>(rank)][i]);
  return worst;
}

std::vector<int> all_ranks(int count) {
  std::vector<int> ranks;
  for (int rank = 0; rank < count; ++rank) ranks.push_back(rank);
  return ranks;
}

void check_result(Communicator& world, Stream& stream, CollectiveOp op, const std::string& name,
                  const Tensor& in, const Tensor& out) {
  const Exchange exchange(world, stream, op);
  fill(stream, in, world.rank());
  exchange(in, out);
  const Tensor& result = op == CollectiveOp::kBroadcast ? in : out;
  const std::vector<float> values = read(stream, result);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double wanted = exchange.expected(static_cast<std::int64_t>(i), result.elements());
    if (values[i] == static_cast<float>(wanted)) continue;
    throw Error(ErrorKind::kIo,
                fmt::format("{}: rank {} got {} at element {}, expected {}", name, world.rank(), values[i], i,
                            wanted),
                "run 'primus preflight' on these machines, and exclude the one with wrong results");
  }
}

}  // namespace

const char* name_of(CollectiveOp op) {
  switch (op) {
    case CollectiveOp::kAllReduce:
      return "all_reduce";
    case CollectiveOp::kBroadcast:
      return "broadcast";
    case CollectiveOp::kReduceScatter:
      return "reduce_scatter";
    case CollectiveOp::kAllGather:
      return "all_gather";
    case CollectiveOp::kAllToAll:
      return "all_to_all";
    case CollectiveOp::kSendReceive:
      return "send_receive";
    default:
      return "barrier";
  }
}

std::vector<CollectiveOp> parse_collectives(const std::string& list) {
  std::vector<CollectiveOp> ops;
  std::size_t at = 0;
  while (at <= list.size()) {
    const std::size_t end = std::min(list.find(',', at), list.size());
    std::string word = list.substr(at, end - at);
    at = end + 1;
    if (word == "all") return {std::begin(kOps), std::end(kOps)};
    if (word == "alltoall") word = "all_to_all";
    const auto found =
        std::find_if(std::begin(kOps), std::end(kOps), [&](CollectiveOp op) { return word == name_of(op); });
    if (found == std::end(kOps)) {
      std::vector<std::string_view> known;
      for (const CollectiveOp op : kOps) known.emplace_back(name_of(op));
      const std::string near = did_you_mean(word, known);
      throw invalid(fmt::format("unknown collective operation '{}'", word),
                    near.empty() ? fmt::format("choose one of {}, all", fmt::join(known, ", ")) : near);
    }
    if (std::find(ops.begin(), ops.end(), *found) == ops.end()) ops.push_back(*found);
  }
  return ops;
}

std::int64_t message_bytes(std::int64_t size, DType dtype, std::int64_t ranks) {
  const std::int64_t element = size_of(dtype), share = element * ranks;
  return ((size + element - 1) / element * element + share - 1) / share * share;
}

namespace {

// Returns the element counts of an operation's messages, without duplicates.
std::vector<std::int64_t> counts_of_sizes(const CollectivePlan& plan, CollectiveOp op, std::int64_t ranks) {
  if (op == CollectiveOp::kBarrier) return {0};
  std::vector<std::int64_t> counts;
  for (const std::int64_t size : plan.sizes) {
    const std::int64_t count = message_bytes(size, plan.dtype, ranks) / size_of(plan.dtype);
    if (counts.empty() || counts.back() != count) counts.push_back(count);
  }
  return counts;
}

// Counts the finished work and calls `progress`. The work of a call is its bytes plus a constant.
class Work {
 public:
  explicit Work(const std::function<void(std::int64_t, std::int64_t)>& progress) : progress_(progress) {}
  void plan(std::int64_t bytes) { total_ += cost_of(bytes); }
  void begin(std::int64_t bytes) {
    if (progress_) progress_(done_, total_);
    done_ += cost_of(bytes);
  }

 private:
  static std::int64_t cost_of(std::int64_t bytes) { return bytes + (std::int64_t{1} << 16); }
  const std::function<void(std::int64_t, std::int64_t)>& progress_;
  std::int64_t done_ = 0, total_ = 0;
};

}  // namespace

std::vector<BenchmarkResult> measure_collectives(Communicator& world, Device& device,
                                                 const CollectivePlan& plan) {
  Measurement measurement(world, device);
  DeviceTimer& timer = measurement.timer();
  const std::int64_t element = size_of(plan.dtype), ranks = world.size();
  if (plan.check && ranks > max_exact_ranks(plan.dtype)) {
    throw invalid(fmt::format("sums of {} over {} ranks are rounded, so they cannot be checked exactly",
                              name_of(plan.dtype), ranks),
                  "check with --dtype fp32");
  }
  std::vector<BenchmarkResult> results;
  Work work(plan.progress);
  for (const CollectiveOp op : plan.ops)
    for (const std::int64_t count : counts_of_sizes(plan, op, ranks)) work.plan(count * element);
  for (const CollectiveOp op : plan.ops) {
    for (const std::int64_t count : counts_of_sizes(plan, op, ranks)) {
      work.begin(count * element);
      const auto bytes = static_cast<double>(count * element);
      std::string name = name_of(op);
      if (count > 0) name += fmt::format(" {}", count * element);
      std::vector<std::pair<Tensor, Tensor>> sets;
      const Counts shape = counts_of(op, count, ranks);
      if (count > 0) {
        for (std::int64_t set = timer.sets((shape.in + shape.out) * element); set > 0; --set) {
          sets.emplace_back(timer.empty(plan.dtype, {shape.in}), timer.empty(plan.dtype, {shape.out}));
          fill(timer.stream(), sets.back().first, world.rank());
        }
      } else {
        sets.emplace_back();
      }
      if (plan.check && count > 0)
        check_result(world, timer.stream(), op, name, sets.front().first, sets.front().second);
      const Exchange exchange(world, timer.stream(), op);
      std::size_t next = 0;
      const std::vector<double> mine =
          measurement.samples(world, plan.warmup, plan.iterations, plan.repetitions, [&] {
            const auto& [in, out] = sets[next++ % sets.size()];
            exchange(in, out);
          });
      const std::vector<std::vector<double>> by_rank = measurement.gather(mine);
      timer.release();
      const auto each = static_cast<std::size_t>(plan.iterations);
      // Adds the result of `times` repetitions, starting with `first`.
      const auto add_result = [&](const std::string& suffix, std::size_t first, std::size_t times) {
        BenchmarkResult result{.name = name + suffix, .group = name_of(op) + suffix, .size = bytes};
        std::vector<std::vector<double>> part;
        for (const std::vector<double>& samples : by_rank) {
          const auto from = samples.begin() + static_cast<std::ptrdiff_t>(first * each);
          part.emplace_back(from, from + static_cast<std::ptrdiff_t>(times * each));
        }
        result.timing = summarize(slowest_of(part, all_ranks(world.size())));
        if (plan.rank_times)
          for (const std::vector<double>& samples : part) result.rank_timings.push_back(summarize(samples));
        result.bytes = bytes;
        result.bus_bytes = bytes * bus_factor(op, static_cast<double>(ranks));
        results.push_back(std::move(result));
      };
      const auto repetitions = static_cast<std::size_t>(plan.repetitions);
      for (std::size_t i = 0; i < repetitions && repetitions > 1; ++i)
        add_result(fmt::format(", repetition {}", i + 1), i, 1);
      if (repetitions == 1 || plan.aggregate) add_result("", 0, repetitions);
      if (plan.trace) {
        CollectiveSample sample{.op = op, .bytes = count * element};
        for (std::size_t i = 0; i < mine.size(); ++i) {
          sample.repetition = static_cast<int>(i / each), sample.iteration = static_cast<int>(i % each);
          sample.seconds.clear();
          for (const std::vector<double>& samples : by_rank) sample.seconds.push_back(samples[i]);
          plan.trace(sample);
        }
      }
    }
  }
  return results;
}

std::vector<BenchmarkResult> measure_strided_all_gather(Communicator& world, Device& device,
                                                        const StridedPlan& plan) {
  if (plan.stride < 1 || plan.stride > world.size() / 2) {
    throw invalid(
        fmt::format("a stride of {} puts no two of {} ranks into a group", plan.stride, world.size()),
        fmt::format("give a stride from 1 to half the ranks (--stride, --nproc); here {}",
                    std::max(world.size() / 2, 1)));
  }
  Measurement measurement(world, device);
  DeviceTimer& timer = measurement.timer();
  std::vector<std::vector<int>> groups(static_cast<std::size_t>(plan.stride));
  for (int rank = 0; rank < world.size(); ++rank)
    groups[static_cast<std::size_t>(rank % plan.stride)].push_back(rank);
  const auto mine = static_cast<std::size_t>(world.rank() % plan.stride);
  const std::unique_ptr<Communicator> group = world.split(groups[mine], fmt::format("stride{}", mine));
  std::vector<BenchmarkResult> results;
  Work work(plan.progress);
  for (const std::int64_t size : plan.sizes) work.plan(size);
  for (const std::int64_t asked : plan.sizes) {
    work.begin(asked);
    const std::int64_t element = size_of(plan.dtype), count = (asked + element - 1) / element,
                       size = count * element;
    std::vector<std::pair<Tensor, Tensor>> sets;
    for (std::int64_t set = timer.sets(size * (group->size() + 1)); set > 0; --set)
      sets.emplace_back(timer.empty(plan.dtype, {count}), timer.empty(plan.dtype, {count * group->size()}));
    // With `parallel`, all groups are timed at the same time; otherwise one group is timed after another.
    const std::size_t turns = plan.parallel ? 1 : groups.size();
    for (std::size_t turn = 0; turn < turns; ++turn) {
      world.barrier(timer.stream());
      timer.stream().synchronize();
      const bool takes_part = plan.parallel || turn == mine;
      std::size_t next = 0;
      const std::vector<double> own =
          takes_part ? measurement.samples(*group, plan.warmup, plan.iterations, 1,
                                           [&] {
                                             const auto& [in, out] = sets[next++ % sets.size()];
                                             group->all_gather(timer.stream(), in, out);
                                           })
                     : std::vector<double>(static_cast<std::size_t>(plan.iterations), 0.0);
      const auto by_rank = measurement.gather(own);
      const std::vector<int>& members = plan.parallel ? all_ranks(world.size()) : groups[turn];
      // Group sizes differ by at most one rank; the first group is the largest.
      const auto n = static_cast<double>((plan.parallel ? groups.front() : members).size());
      const std::string who = plan.parallel ? fmt::format("{} groups at once", groups.size())
                                            : fmt::format("ranks {}", fmt::join(members, ","));
      BenchmarkResult result{.name = fmt::format("{}, {} each", who, size),
                             .group = who,
                             .size = static_cast<double>(size),
                             .timing = summarize(slowest_of(by_rank, members))};
      result.bytes = static_cast<double>(size) * n;
      result.bus_bytes = static_cast<double>(size) * (n - 1);
      results.push_back(std::move(result));
    }
    timer.release();
  }
  return results;
}

}  // namespace primus
