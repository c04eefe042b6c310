// Measures the bandwidth of a device's memory with kernels that read and write it, and the bandwidth between
// host and device. Consecutive calls use different buffers, which together exceed most caches.
#include <fmt/format.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/terminal/terminal.h"
#include "base/text/sizes.h"
#include "bench/benchmark_entry.h"
#include "bench/device_timer.h"
#include "bench/operator_benchmark.h"
#include "turbo/elementwise/elementwise.h"

namespace primus {
namespace {

constexpr std::int64_t kMaxBytes = std::int64_t{1} << 40;
// Small buffers need many sets to exceed the caches.
constexpr std::int64_t kMaxSets = 512;

class Cases {
 public:
  Cases(DeviceTimer& timer, BenchmarkReport& report, std::int64_t bytes)
      : timer_(timer), report_(report), count_((bytes + 3) / 4), bytes_(count_ * 4) {}

  void run() {
    const auto touched = static_cast<double>(bytes_);
    {
      const std::vector<Tensor> x = buffers(1);
      const Tensor sum = timer_.empty(DType::kF32, {1});
      std::vector<turbo::Sum> reads;
      std::vector<turbo::Fill> writes;
      for (const Tensor& tensor : x) {
        reads.push_back({.x = tensor, .out = sum, .accumulate = false});
        writes.push_back({.out = tensor, .value = 1});
      }
      keep("read (sum)", timer_.time("", reads, touched));
      keep("write (fill)", timer_.time("", writes, touched));
      std::size_t next = 0;
      BenchmarkResult zero =
          timer_.time_calls([&] { timer_.stream().fill_zero(x[next++ % x.size()].data, bytes_); });
      zero.bytes = touched;
      keep("write (zero)", std::move(zero));
      timer_.release();
    }
    {
      const std::vector<Tensor> x = buffers(2);
      std::size_t next = 0;
      BenchmarkResult copy = timer_.time_calls([&] {
        next = (next + 2) % x.size();
        timer_.stream().copy_on_device(x[next + 1].data, x[next].data, bytes_);
      });
      copy.bytes = 2 * touched;
      keep("copy", std::move(copy));
      timer_.release();
    }
    {
      const std::vector<Tensor> x = buffers(3);
      std::vector<turbo::Add> adds;
      for (std::size_t i = 0; i < x.size(); i += 3)
        adds.push_back({.a = x[i], .b = x[i + 1], .out = x[i + 2]});
      keep("read two, write one (add)", timer_.time("", adds, 3 * touched));
      timer_.release();
    }
    transfers(touched);
  }

 private:
  // Returns a multiple of `together` buffers. Each buffer is written once, because unwritten memory may map
  // to a single page.
  std::vector<Tensor> buffers(std::int64_t together) {
    std::vector<Tensor> made;
    for (std::int64_t set = timer_.sets(together * bytes_, kMaxSets); set > 0; --set) {
      for (std::int64_t i = 0; i < together; ++i) {
        made.push_back(timer_.empty(DType::kF32, {count_}));
        timer_.run_once(turbo::Fill{.out = made.back(), .value = 1});
      }
    }
    return made;
  }

  // Times transfers between host and device, with pinned and with pageable memory.
  void transfers(double touched) {
    const std::vector<Tensor> x = buffers(1);
    const std::int64_t sets = static_cast<std::int64_t>(x.size());
    const PinnedBuffer pinned(timer_.device(), sets * bytes_);
    std::vector<std::byte> pageable(static_cast<std::size_t>(sets * bytes_), std::byte{1});
    std::memset(pinned.data(), 1, static_cast<std::size_t>(sets * bytes_));
    const std::pair<const char*, std::byte*> hosts[] = {{"pinned", pinned.data()},
                                                        {"pageable", pageable.data()}};
    for (const auto& [kind, host] : hosts) {
      for (const bool to_device : {true, false}) {
        std::int64_t next = 0;
        BenchmarkResult result = timer_.time_calls([&, at = host] {
          const std::int64_t set = next++ % sets;
          void* const device = x[static_cast<std::size_t>(set)].data;
          std::byte* const side = at + set * bytes_;
          to_device ? timer_.stream().copy_to_device(device, side, bytes_)
                    : timer_.stream().copy_to_host(side, device, bytes_);
        });
        result.bytes = touched;
        keep(fmt::format("{}, {}", to_device ? "host to device" : "device to host", kind), std::move(result));
      }
    }
    timer_.release();
  }

  void keep(const std::string& what, BenchmarkResult result) {
    result.group = what;
    result.name = fmt::format("{}, {}", what, human_bytes(static_cast<double>(bytes_)));
    result.size = static_cast<double>(bytes_);
    result.flops = 0;
    report_.results.push_back(std::move(result));
  }

  DeviceTimer& timer_;
  BenchmarkReport& report_;
  std::int64_t count_, bytes_;
};

// Reported bytes are the sum of reads and writes. If a device shares the host's memory, transfers between
// host and device are copies within this memory.
class MemoryBenchmark final : public DeviceBenchmark {
  std::vector<BenchmarkOption> options() override {
    return {{"--sizes", "LIST", "sizes of the buffers", &sizes_}};
  }
  std::vector<RefusedOption> refused() const override {
    return {{"--dtype", "this benchmark moves bytes, so it has no data type", "remove --dtype"}};
  }
  void prepare() override { bytes_ = parse_sizes("--sizes", sizes_, kMaxBytes); }
  BenchmarkReport measure_on(Device& device, const OperatorBenchmarkOptions& options) override {
    DeviceTimer timer(device, options.seconds, options.rotated_bytes, options.progress);
    BenchmarkReport report{.suite = "memory", .device = device.description(), .dtype = {}};
    for (const std::int64_t size : bytes_) Cases(timer, report, size).run();
    if (device.properties().host_memory)
      report.notes.emplace_back("this device shares the host's memory: host-device copies stay within it");
    return report;
  }

  std::string sizes_ = "1M,16M,256M";
  std::vector<std::int64_t> bytes_;
};

}  // namespace

extern const BenchmarkEntry kMemoryEntry{.name = "memory",
                                         .make = make_benchmark<MemoryBenchmark>,
                                         .subject = BenchmarkSubject::kDevice,
                                         .seconds = 0.5};

}  // namespace primus
