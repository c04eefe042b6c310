// Tests of preflight's measurements: exact products, devices that compute wrongly, fail or hang, thresholds,
// and storage.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "base/error.h"
#include "base/small_disk.h"
#include "base/temporary_folder.h"
#include "config/hardware.h"
#include "device/forwarding_device.h"
#include "fake_machine.h"
#include "safe/preflight/all_reduce.h"
#include "safe/preflight/corruption.h"
#include "safe/preflight/performance.h"
#include "safe/preflight/storage.h"
#include "turbo/devices/devices.h"

namespace primus::preflight {
namespace {

using preflight::test::FakeMachine;
using primus::test::TemporaryFolder;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

std::unique_ptr<Device> cpu(int threads = 1) {
  return turbo::open_device(turbo::parse_device("cpu", threads));
}

// Forwards all calls, and flips a bit in the chosen copies to the host.
class FlippingStream final : public primus::test::ForwardingStream {
 public:
  FlippingStream(std::unique_ptr<Stream> stream, std::function<bool(int copy)> flips)
      : ForwardingStream(std::move(stream)), flips_(std::move(flips)) {}
  void copy_to_host(void* host, const void* device, std::int64_t bytes) override {
    below().copy_to_host(host, device, bytes);
    below().synchronize();
    // Flips the lowest mantissa bit of a number in row 17 of 64, as a weak memory cell does.
    if (flips_(copies_++)) static_cast<unsigned char*>(host)[17 * 64 * 4 + 40] ^= 1;
  }

 private:
  std::function<bool(int)> flips_;
  int copies_ = 0;
};

class FlippingDevice final : public primus::test::ForwardingDevice {
 public:
  explicit FlippingDevice(std::function<bool(int)> flips)
      : ForwardingDevice(cpu()), flips_(std::move(flips)) {}
  std::unique_ptr<Stream> create_stream(StreamKind kind) override {
    return std::make_unique<FlippingStream>(below().create_stream(kind), flips_);
  }

 private:
  std::function<bool(int)> flips_;
};

TEST(Corruption, ProductsAreExactOnAnyNumberOfThreads) {
  const CorruptionOptions options{.side = 65, .rounds = 3};
  const auto one = cpu(1), three = cpu(3);
  const CorruptionResult a = scan_for_corruption(*one, options), b = scan_for_corruption(*three, options);
  EXPECT_EQ(a.wrong, 0);
  EXPECT_EQ(a.rounds, 3);
  EXPECT_NE(a.checksum, 0U);
  EXPECT_EQ(a.checksum, b.checksum);
}

TEST(Corruption, AFlippedBitIsReportedWithRoundAndRow) {
  for (const int copy : {0, 1, 4}) {
    FlippingDevice device([copy](int n) { return n == copy; });
    const CorruptionResult result = scan_for_corruption(device, {.side = 64, .rounds = 5});
    EXPECT_EQ(result.wrong, 1) << copy;
    EXPECT_EQ(result.first_wrong, "round " + std::to_string(copy + 1) + ", row 17");
  }
  FlippingDevice always([](int) { return true; });
  EXPECT_EQ(scan_for_corruption(always, {.side = 64, .rounds = 5}).wrong, 5);
}

const Finding* finding(const NodeReport& report, const std::string& check) {
  for (const Finding& f : report.findings)
    if (f.check == check) return &f;
  return nullptr;
}

TEST(Performance, ACorruptedProductIsAFailureWithItsDevice) {
  PerformanceOptions options{.products = false, .memory = false, .corruption = true, .quick = true};
  options.open = [](const std::string&) {
    return std::make_unique<FlippingDevice>([](int n) { return n == 3; });
  };
  NodeReport report;
  measure_device("cpu", {}, options, report);
  const Finding* const found = finding(report, "performance.corruption");
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->verdict, Verdict::kFail);
  EXPECT_THAT(found->measured, HasSubstr("cpu: 1 of 10 matrix products were wrong, first in round 4"));
  EXPECT_THAT(found->fix, HasSubstr("drain the node"));
}

TEST(Performance, DevicesThatFailOrHangAreFailures) {
  PerformanceOptions options{.quick = true};
  options.timeout = 200ms;
  options.open = [](const std::string&) -> std::unique_ptr<Device> {
    throw Error(ErrorKind::kDependency, "no driver", "install it");
  };
  NodeReport report;
  measure_device("cuda:3", {}, options, report);
  const Finding* found = finding(report, "performance.products");
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->verdict, Verdict::kFail);
  EXPECT_EQ(found->measured, "cuda:3: no driver; install it");
  EXPECT_FALSE(report.has_stuck_threads);

  NodeReport hangs;
  options.open = [](const std::string&) -> std::unique_ptr<Device> {
    std::this_thread::sleep_for(600ms);
    throw invalid("too late");
  };
  options.products = options.memory = false;
  measure_device("cuda:0", {}, options, hangs);
  found = finding(hangs, "performance.corruption");
  ASSERT_NE(found, nullptr);
  EXPECT_THAT(found->measured, HasSubstr("no answer within"));
  EXPECT_TRUE(hangs.has_stuck_threads);
  std::this_thread::sleep_for(600ms);
}

TEST(Performance, ThresholdsDetermineTheVerdict) {
  const auto table = read_hardware({Path(PRIMUS_SOURCE_DIR) / "presets"});
  PerformanceOptions options{.corruption = false, .quick = true, .seconds = 0.001};
  options.wanted.min_tflops = Wanted{1e6, "--gemm-tflops-min"};
  NodeReport report;
  measure_device("cpu", table, options, report);
  const Finding* const products = finding(report, "performance.products");
  ASSERT_NE(products, nullptr);
  EXPECT_EQ(products->verdict, Verdict::kFail);
  EXPECT_EQ(products->source, "--gemm-tflops-min");
  const Finding* const memory = finding(report, "performance.memory");
  ASSERT_NE(memory, nullptr);
  EXPECT_EQ(memory->source, "presets/hardware/cpu.yaml");
  ASSERT_EQ(report.measurements.size(), 2U);
  EXPECT_GT(report.measurements[0].value, 0);
  EXPECT_EQ(report.measurements[0].wanted, 1e6);
}

TEST(Performance, UnusableGpusAreReported) {
  FakeMachine fake;
  test::make_amd_node(fake);  // the plug-in for AMD GPUs is not built here
  std::vector<Finding> findings;
  const std::vector<std::string> devices = devices_to_measure(*fake.machine(), findings);
  EXPECT_FALSE(devices.empty());
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_GE(findings[0].verdict, Verdict::kWarn);
  EXPECT_THAT(findings[0].measured, HasSubstr("8 GPUs"));
  // If the user requested the speed of GPUs, the missing plug-in is a failure.
  findings.clear();
  devices_to_measure(*fake.machine(), findings, true);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].verdict, Verdict::kFail);
  FakeMachine plain;
  test::make_cpu_node(plain);
  findings.clear();
  devices_to_measure(*plain.machine(), findings, true);
  EXPECT_TRUE(findings.empty());
}

TEST(Hardware, EveryFileOfTheTableIsReadAndConsistent) {
  const auto table = read_hardware({Path(PRIMUS_SOURCE_DIR) / "presets"});
  EXPECT_GE(table.size(), 10U);
  for (const Hardware& h : table) {
    EXPECT_GT(h.min_tflops, 0) << h.file;
    EXPECT_GT(h.min_memory, 0) << h.file;
    if (h.peak_tflops > 0) {
      EXPECT_LT(h.min_tflops, 0.7 * h.peak_tflops) << h.file;
      EXPECT_GT(h.min_tflops, 0.3 * h.peak_tflops) << h.file;
      EXPECT_LT(h.min_memory, 0.8 * h.peak_memory) << h.file;
    }
  }
  EXPECT_EQ(find_hardware(table, "NVIDIA H100 80GB HBM3")->name, "NVIDIA H100 SXM");
  EXPECT_EQ(find_hardware(table, "NVIDIA H100 PCIe")->name, "NVIDIA H100 PCIe");
  EXPECT_EQ(find_hardware(table, "AMD Instinct MI300X OAM")->name, "AMD Instinct MI300X");
  EXPECT_FALSE(find_hardware(table, "Another"));
}

TEST(Hardware, MistakesAreReportedWithTheirLocation) {
  const TemporaryFolder folder;
  make_folders(folder.path() / "hardware");
  for (const auto& [text, message] :
       {std::pair("name: X\nmatch: [X]\nsource: s\nmin_bf16_tflop: 3\n", "unknown key"),
        {"min_memory_gbs: -1\n", "above 0"},
        {"name: X\n", "lacks"}}) {
    write_file(folder.path() / "hardware" / "x.yaml", text);
    try {
      read_hardware({folder.path()});
      FAIL() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
      EXPECT_THAT(error.render(), HasSubstr(message));
      EXPECT_THAT(error.render(), HasSubstr("x.yaml"));
    }
  }
}

TEST(Storage, IsMeasuredAndNothingIsLeft) {
  const TemporaryFolder folder;
  NodeReport report;
  check_storage({.folder = folder.path() / "deep" / "down", .bytes = 9 << 20, .min_rate = {0.001, "test"}},
                report);
  ASSERT_EQ(report.findings.size(), 1U);
  EXPECT_EQ(report.findings[0].verdict, Verdict::kPass) << report.findings[0].measured;
  EXPECT_EQ(report.measurements.size(), 1U);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path() / "deep" / "down"));
  check_storage({.folder = folder.path(), .bytes = 1 << 20, .min_rate = {1e9, "test"}}, report);
  EXPECT_EQ(report.findings[1].verdict, Verdict::kWarn);
}

TEST(Storage, AFullDiskIsAFailure) {
  const bool mounted = primus::test::on_small_disk(1 << 20, [](const Path& disk) {
    NodeReport report;
    check_storage({.folder = disk, .bytes = 8 << 20}, report);
    EXPECT_EQ(report.findings[0].verdict, Verdict::kFail);
    EXPECT_THAT(report.findings[0].measured, HasSubstr("No space left"));
    EXPECT_TRUE(std::filesystem::is_empty(disk));
  });
  if (!mounted) GTEST_SKIP() << "mounting a file system is not permitted here";
}

TEST(Storage, AReadOnlyFolderIsAFailure) {
  NodeReport report;
  check_storage({.folder = "/proc/no-folder", .bytes = 1 << 20}, report);
  EXPECT_EQ(report.findings[0].verdict, Verdict::kFail);
  EXPECT_FALSE(report.findings[0].fix.empty());
}

Finding all_reduce_of_8(AllReduceFacts facts) {
  facts.what = "all-reduce of 8 GPUs";
  facts.gpus = 8;
  std::vector<Finding> findings;
  check_all_reduce(facts, findings);
  EXPECT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings.at(0).check, "performance.all-reduce");
  return findings.at(0);
}

TEST(AllReduce, WithoutAnOptionTheThresholdComesFromTheHardwareFile) {
  const std::vector<Hardware> table = read_hardware({Path(PRIMUS_SOURCE_DIR) / "presets"});
  const auto gpus = [](const char* name) {
    return std::vector<turbo::DeviceListing>{
        {.kind = "cpu", .devices = {{.kind = "cpu", .name = "a processor"}}, .problem = {}},
        {.kind = "cuda",
         .devices = {{.kind = "cuda", .name = name}, {.kind = "cuda", .name = name}},
         .problem = {}}};
  };
  const auto minimum = min_all_reduce(table, gpus("NVIDIA H100 80GB HBM3"));
  ASSERT_TRUE(minimum);
  EXPECT_GT(minimum->value, 0);
  EXPECT_THAT(minimum->source, HasSubstr("hardware/"));
  EXPECT_FALSE(min_all_reduce(table, gpus("a GPU of tomorrow")));
  EXPECT_FALSE(min_all_reduce(table, {}));

  EXPECT_EQ(all_reduce_of_8({.rate = 0.9 * minimum->value, .minimum = minimum}).verdict, Verdict::kFail);
  EXPECT_EQ(all_reduce_of_8({.rate = 1.1 * minimum->value, .minimum = minimum}).verdict, Verdict::kPass);
  const Finding unknown = all_reduce_of_8({.rate = 3});
  EXPECT_EQ(unknown.verdict, Verdict::kSkip);
  EXPECT_THAT(unknown.measured, HasSubstr("no threshold is known"));
}

TEST(AllReduce, RequestedRatesThatCannotBeMeasuredFail) {
  EXPECT_EQ(all_reduce_of_8({}).verdict, Verdict::kSkip);
  const Finding demanded = all_reduce_of_8({.minimum = Wanted{100, "--rccl-gbs-min"}, .is_demanded = true});
  EXPECT_EQ(demanded.verdict, Verdict::kFail);
  EXPECT_THAT(demanded.fix, HasSubstr("omit --rccl-gbs-min"));
  const Finding late = all_reduce_of_8({.problem = "it did not end", .minimum = Wanted{100, "a table"}});
  EXPECT_EQ(late.verdict, Verdict::kFail);
  EXPECT_EQ(late.measured, "it did not end");
  EXPECT_THAT(late.fix, HasSubstr("--nproc 8"));
}

}  // namespace
}  // namespace primus::preflight
