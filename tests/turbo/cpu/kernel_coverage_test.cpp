// Checks every kernel that an operator's header declares: it is in the list of kernels, has a CPU and a GPU
// implementation, and is tested.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/error.h"
#include "turbo/context.h"
#include "turbo/cpu/cpu_kernels.h"
#include "turbo/elementwise/elementwise.h"
#include "turbo/gpu/emulated.h"
#include "turbo/operator_test.h"

namespace primus::turbo {
namespace {

constexpr int kKernels = static_cast<int>(KernelId::kCount);

// The build's list contains every kernel once, sorted by header and line. So the list is equal on every
// machine.
TEST(KernelCoverage, TheListEqualsTheHeaders) {
  const std::filesystem::path root = std::filesystem::path(PRIMUS_SOURCE_DIR) / "src" / "turbo";
  std::vector<std::filesystem::path> headers;
  for (const auto& file : std::filesystem::recursive_directory_iterator(root)) {
    if (file.path().extension() == ".h") headers.push_back(file.path());
  }
  std::ranges::sort(headers);
  const std::string mark = "  static constexpr KernelId kId = KernelId::k";
  std::vector<std::string> declared, listed;
  for (const auto& header : headers) {
    std::ifstream in(header);
    for (std::string line; std::getline(in, line);) {
      if (line.starts_with(mark)) declared.push_back(line.substr(mark.size(), line.find(';') - mark.size()));
    }
  }
  for (int id = 0; id < kKernels; ++id) listed.emplace_back(name_of(static_cast<KernelId>(id)));
  EXPECT_EQ(listed, declared);
}

TEST(KernelCoverage, EveryKernelExistsAtEveryLevel) {
  for (const IsaLevel level : supported_isa_levels()) {
    for (int id = 0; id < kKernels; ++id) {
      EXPECT_NE(cpu_kernel_table(level)[static_cast<KernelId>(id)].run, nullptr)
          << name_of(static_cast<KernelId>(id)) << " at " << name_of(level);
    }
  }
}

TEST(KernelCoverage, EveryKernelExistsForGpus) {
  for (const int warp : {32, 64}) {
    for (int id = 0; id < kKernels; ++id) {
      EXPECT_NE(emulated_kernel_table(warp)[static_cast<KernelId>(id)].run, nullptr)
          << name_of(static_cast<KernelId>(id));
    }
  }
}

bool is_word_character(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

bool contains_word(const std::string& text, const std::string& word) {
  for (auto at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    const bool starts = at == 0 || !is_word_character(text[at - 1]);
    const bool ends = at + word.size() == text.size() || !is_word_character(text[at + word.size()]);
    if (starts && ends) return true;
  }
  return false;
}

TEST(KernelCoverage, EveryKernelIsTested) {
  std::string tests;
  const std::filesystem::path root = std::filesystem::path(PRIMUS_SOURCE_DIR) / "tests" / "turbo";
  for (const auto& file : std::filesystem::recursive_directory_iterator(root)) {
    const std::string name = file.path().filename().string();
    if (!name.ends_with("_test.cpp") && name != "checks.cpp") continue;
    std::ifstream in(file.path());
    tests.append(std::istreambuf_iterator<char>(in), {});
    tests += '\n';
  }
  for (int id = 0; id < kKernels; ++id) {
    const std::string name(name_of(static_cast<KernelId>(id)));
    EXPECT_TRUE(contains_word(tests, name)) << "no file under tests/turbo names " << name;
  }
}

TEST(KernelTable, AMissingKernelIsAnErrorThatNamesItAndTheDevice) {
  const KernelTable empty;
  struct Nothing final : Device {
    explicit Nothing(const KernelTable& table) : table_(table) {}
    std::string description() const override { return "nothing"; }
    void* allocate(std::int64_t) override { return nullptr; }
    void release(void*) noexcept override {}
    DeviceProperties properties() const override { return {}; }
    DeviceMemoryUse memory_use() const override { return {}; }
    void* allocate_pinned(std::int64_t) override { return nullptr; }
    void release_pinned(void*) noexcept override {}
    std::unique_ptr<Stream> create_stream(StreamKind) override { return nullptr; }
    std::unique_ptr<Event> create_event() override { return nullptr; }
    const KernelTable& kernels() const override { return table_; }
    KernelContext& kernel_context() override { return context_; }
    bool synchronous() const override { return true; }
    const KernelTable& table_;
    KernelContext context_;
  } device(empty);
  const auto cpu = make_cpu_device(1);
  const auto stream = cpu->create_stream(StreamKind::kCompute);
  Arena scratch("scratch");
  Meter meter;
  Context context{device, *stream, scratch, meter};
  try {
    launch(context, Fill{.out = Tensor(nullptr, DType::kF32, {1}), .value = 0});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
    EXPECT_NE(std::string(error.what()).find("Fill"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("nothing"), std::string::npos);
  }
}

// The error for a missing kernel contains the device's description. The emulator runs on a CPU, but its
// description must be that of a GPU.
TEST(KernelTable, TheEmulatorReportsAGpu) {
  test::OperatorBench bench({.emulated_warp = 64});
  EXPECT_EQ(bench.device().description(), "emulated GPU, warps of 64");
}

}  // namespace
}  // namespace primus::turbo
