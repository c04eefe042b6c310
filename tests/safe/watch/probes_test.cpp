// Tests of the probes on simulated machines.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <thread>

#include "base/address_space.h"
#include "safe/preflight/fake_machine.h"
#include "safe/watch/probe.h"
#include "safe/watch/rank_watch.h"

namespace primus::watch {
namespace {

using preflight::Space;
using preflight::test::FakeMachine;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::unique_ptr<Probe> probe(std::string_view name, const ProbeContext& context) {
  for (const ProbeEntry* entry : probes()) {
    if (entry->name == name) return entry->make(context);
  }
  throw std::logic_error("there is no such probe");
}

class Probes : public ::testing::Test {
 protected:
  ProbeContext context() const { return {.machine = fake_.machine(), .place = {.device_kind = "cpu"}}; }
  static Findings look(Probe& probe, double now) {
    Findings found;
    probe.look(now, found);
    return found;
  }
  static bool has(const Findings& found, Symptom symptom) {
    return (found.symptoms & static_cast<std::uint32_t>(symptom)) != 0;
  }

  FakeMachine fake_;
  int sector_ = 0;
};

class NvidiaProbe : public Probes {
 protected:
  NvidiaProbe() {
    setenv("PRIMUS_FAKE_NVML_VALUES", values_.c_str(), 1);
    set("");
  }
  void set(const std::string& more) const {
    std::ofstream(values_) << "temperature 60\nclock 1800\nlargest_clock 1980\n" << more;
  }
  std::unique_ptr<Probe> open(int device = 0, const std::string& bus = "") const {
    ProbeContext of = context();
    of.place.bus = bus;
    of.place.device_kind = "cuda";
    of.place.device = device;
    of.nvml = PRIMUS_FAKE_NVML;
    return probe("gpu", of);
  }

  primus::test::TemporaryFolder folder_;
  Path values_ = folder_.path() / "values";
};

TEST_F(NvidiaProbe, NewEccErrorsAreReported) {
  set("uncorrected 2\ncorrected 5\nthrottle 0\nwidth 16\nlargest_width 16\n");
  const auto gpu = open();
  EXPECT_THAT(look(*gpu, 0).warnings, IsEmpty());  // these errors are older than the run
  set("uncorrected 3\ncorrected 80\n");
  Findings found = look(*gpu, 5);
  ASSERT_THAT(found.warnings, SizeIs(1));
  EXPECT_EQ(found.warnings[0].detector, "gpu_memory");
  EXPECT_THAT(found.warnings[0].text, HasSubstr("gpu 0 has 1 new uncorrectable ECC errors"));
  EXPECT_THAT(look(*gpu, 10).warnings, IsEmpty());
  set("uncorrected 3\ncorrected 500\n");
  found = look(*gpu, 15);
  ASSERT_THAT(found.warnings, SizeIs(1));
  EXPECT_THAT(found.warnings[0].text, HasSubstr("corrected 495 ECC errors"));
}

TEST_F(NvidiaProbe, XidErrorsAreReportedOnce) {
  const auto gpu = open();
  EXPECT_THAT(look(*gpu, 0).warnings, IsEmpty());
  set("xid 79\nxid 94\n");
  const Findings found = look(*gpu, 5);
  ASSERT_THAT(found.warnings, SizeIs(2));
  EXPECT_THAT(found.warnings[0].text, HasSubstr("Xid 79"));
  EXPECT_THAT(found.warnings[1].text, HasSubstr("Xid 94"));
  EXPECT_THAT(look(*gpu, 10).warnings, IsEmpty());
}

TEST_F(NvidiaProbe, ThrottlingAndANarrowLinkAreSymptoms) {
  set("throttle 0\nwidth 16\nlargest_width 16\n");
  const auto gpu = open();
  EXPECT_EQ(look(*gpu, 0).symptoms, 0U);
  set("throttle 64\nwidth 8\nlargest_width 16\n");
  Findings found = look(*gpu, 5);
  EXPECT_TRUE(has(found, Symptom::kGpuThrottled));
  EXPECT_TRUE(has(found, Symptom::kGpuLink));
  ASSERT_THAT(found.warnings, SizeIs(1));
  EXPECT_THAT(found.warnings[0].text, HasSubstr("8 lanes instead of 16"));
  EXPECT_THAT(look(*gpu, 10).warnings, IsEmpty());
  found = look(*gpu, 15);
  ASSERT_THAT(found.warnings, SizeIs(1));
  EXPECT_THAT(found.warnings[0].text,
              AllOf(HasSubstr("thermal slowdown by hardware"), HasSubstr("60 C"), HasSubstr("1800 of 1980")));
}

TEST_F(NvidiaProbe, VisibleDevicesSelectTheGpu) {
  fake_.set("CUDA_VISIBLE_DEVICES", "5,GPU-abc");
  set("xid 1\n");
  EXPECT_THAT(look(*open(0), 0).warnings[0].text, HasSubstr("gpu 5"));
  EXPECT_THAT(look(*open(1), 0).warnings[0].text, HasSubstr("gpu GPU-abc"));
  EXPECT_EQ(open(2), nullptr);
  fake_.set("CUDA_VISIBLE_DEVICES", "9");
  EXPECT_EQ(open(0), nullptr);
}

// On a machine with different cards, CUDA's first GPU is the fastest one, and NVML's the first on the bus.
TEST_F(NvidiaProbe, TheAddressOnTheBusFindsTheGpu) {
  set("xid 1\nbus 3\n");
  EXPECT_THAT(look(*open(0, "0000:1B:00.0"), 0).warnings[0].text, HasSubstr("gpu 3 "));
  fake_.set("CUDA_VISIBLE_DEVICES", "GPU-ab");  // CUDA accepts a part of a UUID, NVML does not
  EXPECT_THAT(look(*open(0, "0000:1B:00.0"), 0).warnings[0].text, HasSubstr("gpu 3 "));
  EXPECT_EQ(open(0), nullptr);
  fake_.set("CUDA_VISIBLE_DEVICES", "5");
  EXPECT_THAT(look(*open(0, "0000:FF:00.0"), 0).warnings[0].text, HasSubstr("gpu 5 "));
}

TEST_F(Probes, AMachineWithoutADriverHasNoGpuProbe) {
  ProbeContext of = context();
  of.place.device_kind = "cuda";
  of.nvml = "/nowhere/libnvidia-ml.so.1";
  EXPECT_EQ(probe("gpu", of), nullptr);
}

TEST_F(Probes, ErrorsOfAnAmdGpuAreReported) {
  preflight::test::make_amd_node(fake_);
  ProbeContext of = context();
  of.place.device_kind = "hip";
  of.place.device = 1;
  const auto gpu = probe("gpu", of);
  ASSERT_NE(gpu, nullptr);
  EXPECT_THAT(look(*gpu, 0).warnings, IsEmpty());
  fake_.write("/sys/class/drm/card1/device/ras/umc_err_count", "ue: 3\nce: 0\n");
  const Findings found = look(*gpu, 5);
  ASSERT_THAT(found.warnings, SizeIs(1));
  EXPECT_THAT(found.warnings[0].text, HasSubstr("gpu 1 has 3 new uncorrectable ECC errors"));
}

TEST_F(Probes, AnAmdGpuIsFoundByItsAddressOnTheBus) {
  preflight::test::make_amd_node(fake_);
  ProbeContext of = context();
  of.place = {.device_kind = "hip", .device = 0, .bus = "0000:13:00.0"};
  const auto gpu = probe("gpu", of);
  ASSERT_NE(gpu, nullptr);
  EXPECT_THAT(look(*gpu, 0).warnings, IsEmpty());
  fake_.write("/sys/class/drm/card3/device/ras/umc_err_count", "ue: 3\nce: 0\n");
  const Findings found = look(*gpu, 5);
  ASSERT_THAT(found.warnings, SizeIs(1));
  EXPECT_THAT(found.warnings[0].text, HasSubstr("gpu 3 has 3 new"));
}

TEST_F(Probes, ErrorsOfRdmaPortsAreReported) {
  preflight::test::make_nvidia_node(fake_);
  const auto network = probe("network", context());
  EXPECT_THAT(look(*network, 0).warnings, IsEmpty());
  fake_.write("/sys/class/infiniband/mlx5_2/ports/1/counters/link_downed", "1\n");
  Findings found = look(*network, 5);
  ASSERT_THAT(found.warnings, SizeIs(1));
  EXPECT_THAT(found.warnings[0].text, HasSubstr("mlx5_2:1 went down 1 times"));
  EXPECT_TRUE(has(found, Symptom::kPortErrors));
  fake_.write("/sys/class/infiniband/mlx5_2/ports/1/counters/symbol_error", "1000\n");
  found = look(*network, 10);
  ASSERT_THAT(found.warnings, SizeIs(1));
  EXPECT_THAT(found.warnings[0].text, HasSubstr("1000 new symbol errors"));
  EXPECT_THAT(look(*network, 15).warnings, IsEmpty());
}

TEST_F(Probes, MessagesOfTheKernelAreReported) {
  fake_.write("/dev/kmsg", "3,1,100,-;NVRM: Xid (PCI:0000:00:06): 79, old\n");
  const auto log = probe("kernel_log", context());
  EXPECT_THAT(look(*log, 0).warnings, IsEmpty());
  std::ofstream(fake_.root().string() + "/dev/kmsg", std::ios::app)
      << "6,2,200,-;eth0: renamed\n3,3,300,-;NVRM: Xid (PCI:0000:00:06): 79, pid=1, GPU has fallen off the "
         "bus\n SUBSYSTEM=pci\n";
  const Findings found = look(*log, 5);
  ASSERT_THAT(found.warnings, SizeIs(1));
  EXPECT_EQ(found.warnings[0].detector, "kernel_fault");
  EXPECT_THAT(found.warnings[0].text, HasSubstr("fallen off the bus"));
}

TEST_F(Probes, ABurstOfKernelMessagesIsOneWarningAndACount) {
  fake_.write("/dev/kmsg", "");
  const auto log = probe("kernel_log", context());
  std::ofstream file(fake_.root().string() + "/dev/kmsg", std::ios::app);
  const auto burst = [&](int messages) {
    for (int i = 0; i < messages; ++i)
      file << "3,1,1,-;I/O error, dev sda, sector " << ++sector_ << " op 0x0\n";
    file.flush();
  };
  burst(100);
  file << "3,1,1,-;NVRM: Xid (PCI:0000:00:06): 79, a\n3,1,1,-;NVRM: Xid (PCI:0000:00:07): 79, b\n"
       << std::flush;
  Findings found = look(*log, 0);
  ASSERT_THAT(found.warnings, SizeIs(3));  // one for the disk, one for each GPU
  EXPECT_THAT(found.warnings[0].text, HasSubstr("sector 1 "));
  std::size_t later = 0;
  for (int now = 5; now < 60; now += 5) {
    burst(100);
    later += look(*log, now).warnings.size();
  }
  EXPECT_EQ(later, 0U);
  found = look(*log, 60);
  ASSERT_THAT(found.warnings, SizeIs(1));
  EXPECT_THAT(found.warnings[0].text,
              AllOf(HasSubstr("1199 messages in 60 s; the newest: "), HasSubstr("sector 1200 ")));
  EXPECT_THAT(look(*log, 65).warnings, IsEmpty());
  burst(1);
  EXPECT_THAT(look(*log, 130).warnings, SizeIs(1));
}

TEST_F(Probes, AJumpOfTheClockIsReported) {
  const auto clock = probe("clock", context());
  fake_.set_wall_clock(1000);
  EXPECT_THAT(look(*clock, 0).warnings, IsEmpty());
  fake_.set_wall_clock(1005.2);
  EXPECT_THAT(look(*clock, 5).warnings, IsEmpty());
  fake_.set_wall_clock(980);
  const Findings found = look(*clock, 10);
  ASSERT_THAT(found.warnings, SizeIs(1));
  EXPECT_THAT(found.warnings[0].text, HasSubstr("jumped by -30.2 s"));
}

TEST_F(Probes, ADiskThatWillBeFullSoonIsReported) {
  constexpr std::uint64_t kGiB = 1 << 30;
  ProbeContext of = context();
  of.place.folder = "/runs";
  const auto disk = probe("disk", of);
  const auto set = [&](std::uint64_t free) {
    fake_.set_space("/runs", Space{.total = 1000 * kGiB, .available = free});
  };
  std::vector<std::string> texts;
  for (int i = 0; i <= 20; ++i) {
    set((100 - static_cast<std::uint64_t>(i)) * kGiB);  // 1 GiB a minute: full in 80 minutes at the end
    for (const RunWarning& warning : look(*disk, 60.0 * i).warnings) texts.push_back(warning.text);
  }
  EXPECT_THAT(texts, IsEmpty());
  for (int i = 21; i <= 50; ++i) {
    set((100 - static_cast<std::uint64_t>(i)) * kGiB);
    for (const RunWarning& warning : look(*disk, 60.0 * i).warnings) texts.push_back(warning.text);
  }
  ASSERT_THAT(texts, SizeIs(1));
  EXPECT_THAT(texts[0], AllOf(HasSubstr("'/runs'"), HasSubstr("is full in")));
}

TEST_F(Probes, MemoryThatGrowsAllTheTimeIsReported) {
  const auto memory = probe("process_memory", context());
  fake_.write("/proc/meminfo", "MemTotal: 1000000 kB\nMemAvailable: 500000 kB\n");
  std::vector<std::string> texts;
  const auto run = [&](int from, int to, int growth) {
    for (int i = from; i < to; ++i) {
      fake_.write("/proc/self/status",
                  "RssAnon:\t" + std::to_string(100'000 + growth * (i - from)) + " kB\n");
      for (const RunWarning& warning : look(*memory, 10.0 * i).warnings) texts.push_back(warning.text);
    }
  };
  run(0, 200, 0);
  EXPECT_THAT(texts, IsEmpty());
  run(200, 400, 1000);
  ASSERT_THAT(texts, SizeIs(1));
  EXPECT_THAT(texts[0], HasSubstr("the machine's memory is full in"));
}

TEST_F(Probes, CausesOfASlowCpuAreSymptoms) {
  fake_.write("/proc/self/cgroup", "0::/job\n");
  fake_.write("/sys/fs/cgroup/job/cpu.stat", "usage_usec 1\nthrottled_usec 0\n");
  fake_.write("/sys/fs/cgroup/job/cpu.max", "100000 100000\n");
  fake_.write("/sys/fs/cgroup/cgroup.controllers", "cpu memory\n");
  fake_.write("/proc/self/mountinfo", "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  fake_.write("/proc/self/task/1/schedstat", "1000000000 0 5\n");
  fake_.write("/proc/vmstat", "pswpin 10\n");
  fake_.write("/proc/pressure/io", "some avg10=0.50 avg60=0.1\n");
  const auto cpu = probe("cpu", context());
  EXPECT_EQ(look(*cpu, 0).symptoms, 0U);
  EXPECT_EQ(look(*cpu, 5).symptoms, 0U);
  fake_.write("/proc/self/task/1/schedstat", "5000000000 1000000000 5\n");
  EXPECT_EQ(look(*cpu, 10).symptoms, static_cast<std::uint32_t>(Symptom::kCpuBusy));
  fake_.write("/proc/vmstat", "pswpin 100000\n");
  EXPECT_EQ(look(*cpu, 15).symptoms, static_cast<std::uint32_t>(Symptom::kSwapping));
  fake_.write("/proc/pressure/io", "some avg10=44.00 avg60=0.1\n");
  EXPECT_EQ(look(*cpu, 20).symptoms, static_cast<std::uint32_t>(Symptom::kSlowDisk));
  fake_.write("/proc/pressure/io", "some avg10=0.00 avg60=0.1\n");
  fake_.write("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", "800000\n");
  fake_.write("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq", "3000000\n");
  EXPECT_EQ(look(*cpu, 25).symptoms, static_cast<std::uint32_t>(Symptom::kSlowClock));
  fake_.remove("/sys/devices/system/cpu");
  fake_.write("/sys/fs/cgroup/job/cpu.stat", "usage_usec 1\nthrottled_usec 2000000\n");
  EXPECT_EQ(look(*cpu, 30).symptoms, static_cast<std::uint32_t>(Symptom::kCpuLimit));
}

// The thread on this machine, with the default probes, must use less than 0.5 % of a core.
TEST(RankWatch, CostsLittle) {
  RankWatch watch({.interval = std::chrono::milliseconds(50)});
  watch.begin({.device_kind = "cpu", .folder = "/tmp"});
  while (watch.looks() < 20) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const double each = watch.cpu_seconds() / watch.looks();
  printf("a look takes %.2f ms of CPU time, %.3f %% of a core\n", each * 1e3, each / 5 * 100);
  EXPECT_LT(each, 0.005 * 5);
}

bool continues_without_thread() {
  RankWatch watch;
  limit_address_space(1 << 20);
  watch.begin({.device_kind = "cpu"});
  const std::vector<RunWarning> found = watch.take();
  return found.size() == 1 && found[0].detector == "not_watched" &&
         found[0].text.find("cannot start a thread") != std::string::npos;
}

TEST(RankWatch, ARankWithoutAThreadForTheWatchContinues) {
  if (!kAddressSpaceCanBeLimited) GTEST_SKIP();
  // A new process has no stacks of earlier threads, which another thread could use again.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(std::_Exit(continues_without_thread() ? 0 : 1), ::testing::ExitedWithCode(0), "");
}

TEST(RankWatch, FindingsAreTakenOnce) {
  FakeMachine fake;
  fake.write("/dev/kmsg", "");
  RankWatch watch({.machine = fake.machine(), .interval = std::chrono::milliseconds(5)});
  watch.begin({.device_kind = "cpu"});
  while (watch.looks() < 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::ofstream(fake.root().string() + "/dev/kmsg", std::ios::app) << "3,3,300,-;mlx5_core: Link is Down\n";
  std::vector<RunWarning> found;
  for (int i = 0; i < 1000 && found.empty(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    found = watch.take();
  }
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(found[0].text, HasSubstr("Link is Down"));
  EXPECT_THAT(watch.take(), IsEmpty());
}

}  // namespace
}  // namespace primus::watch
