// Tests how devices are opened by name and how plug-ins are loaded.
#include "turbo/devices/devices.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "device/plugin_loader.h"
#include "turbo/context.h"
#include "turbo/elementwise/elementwise.h"

namespace primus::turbo {
namespace {

namespace fs = std::filesystem;

// Sets PRIMUS_PLUGIN_PATH during its lifetime.
class PluginPath {
 public:
  explicit PluginPath(const std::string& path) { setenv("PRIMUS_PLUGIN_PATH", path.c_str(), 1); }
  ~PluginPath() { unsetenv("PRIMUS_PLUGIN_PATH"); }
};

template <class Call>
Error error_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error was thrown";
  return invalid("");
}

bool says(const Error& error, const std::string& part) {
  return std::string(error.what()).find(part) != std::string::npos;
}

TEST(Devices, NamesAreParsed) {
  EXPECT_EQ(parse_device("auto").kind, "auto");
  EXPECT_EQ(parse_device("cpu", 3).threads, 3);
  const DeviceSpec second = parse_device("cuda:1");
  EXPECT_EQ(second.kind, "cuda");
  EXPECT_EQ(second.ordinal, 1);
  EXPECT_EQ(name_of(second), "cuda:1");
  EXPECT_EQ(name_of(parse_device("cpu")), "cpu");
  for (const char* const wrong : {"", ":", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "CUDA", "cu da", "auto:0",
                                  "../cuda", "cuda:99999999999999999999"}) {
    const Error error = error_of([&] { parse_device(wrong); });
    EXPECT_EQ(error.kind(), ErrorKind::kInvalid) << wrong;
    EXPECT_FALSE(error.hint().empty());
  }
}

TEST(Devices, AmdGpusAreNotBatchInvariant) {
  const PluginPath none("/nonexistent");
  DeviceSpec spec{.kind = "cpu", .threads = 1, .batch_invariant = true};
  EXPECT_EQ(open_device(spec)->properties().kind, "cpu");
  EXPECT_EQ(measuring_device(spec)->properties().kind, "cpu");
  for (const char* const kind : {"hip"}) {
    spec.kind = kind;
    for (const Error& error :
         {error_of([&] { open_device(spec); }), error_of([&] { measuring_device(spec); }),
          error_of([&] { planned_device({.kind = kind, .name = "GPU"}, spec); })}) {
      EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
      EXPECT_TRUE(says(error, std::string("batch_invariant is not supported on ") + kind)) << error.what();
    }
  }
}

TEST(Devices, TheCpuIsAlwaysListed) {
  const PluginPath none("/nonexistent");
  const auto device = open_device(parse_device("auto", 1));
  EXPECT_EQ(device->properties().kind, "cpu");
  EXPECT_GT(device->properties().memory, 0);
  EXPECT_GT(device->memory_use().used, 0);
  EXPECT_LE(device->memory_use().used, device->memory_use().total);
  const std::vector<DeviceListing> listings = list_devices();
  ASSERT_EQ(listings.size(), 1U);
  EXPECT_EQ(listings[0].kind, "cpu");
  EXPECT_EQ(listings[0].devices.size(), 1U);
  const Error second = error_of([] { open_device(parse_device("cpu:1")); });
  EXPECT_EQ(second.kind(), ErrorKind::kInvalid);
  EXPECT_TRUE(says(second, "there is only cpu:0")) << second.what();
}

TEST(Devices, APluginComputes) {
  const PluginPath path(PRIMUS_TEST_PLUGINS);
  const auto device = open_device(parse_device("guard", 2));
  EXPECT_EQ(device->properties().kind, "guard");
  EXPECT_FALSE(device->synchronous());
  const auto stream = device->create_stream(StreamKind::kCompute);
  void* const memory = device->allocate(4 * sizeof(float));
  void* const workspace = device->allocate(Arena::kAlignment);
  Arena scratch("scratch", workspace, Arena::kAlignment);
  Meter meter;
  Context context{*device, *stream, scratch, meter};
  launch(context, Fill{.out = Tensor(memory, DType::kF32, {4}), .value = 2.5F});
  PinnedBuffer host(*device, 4 * sizeof(float));
  stream->copy_to_host(host.data(), memory, host.bytes());
  stream->synchronize();
  float values[4];
  std::memcpy(values, host.data(), sizeof(values));
  for (const float value : values) EXPECT_EQ(value, 2.5F);
  EXPECT_GT(device->memory_use().used, 0);
  device->release(memory);
  device->release(workspace);

  const std::vector<DeviceListing> listings = list_devices();
  ASSERT_EQ(listings.size(), 2U);
  EXPECT_EQ(listings[1].kind, "guard");
  EXPECT_EQ(listings[1].devices.at(0).name, "guarded host memory");
}

// The program can catch an Error that a plug-in throws, and the Error keeps its kind.
TEST(Devices, ErrorsPassThePluginsInterface) {
  const PluginPath path(PRIMUS_TEST_PLUGINS);
  const auto device = open_device(parse_device("guard", 1));
  const Error error = error_of([&] { device->allocate(-1); });
  EXPECT_EQ(error.kind(), ErrorKind::kIo);
}

TEST(Devices, MeasuringNeedsNoMemoryAndNoThreads) {
  const PluginPath path(PRIMUS_TEST_PLUGINS);
  for (const char* const name : {"cpu", "guard"}) {
    const auto device = measuring_device(parse_device(name, 512));
    EXPECT_EQ(device->properties().kind, name);
    EXPECT_THROW(device->allocate(1), std::logic_error);
    EXPECT_THROW(device->allocate_pinned(1), std::logic_error);
    const auto stream = device->create_stream(StreamKind::kCompute);
    EXPECT_THROW(stream->fill_zero(nullptr, 1), std::logic_error);
    Arena scratch("scratch");
    Meter meter;
    Context context{*device, *stream, scratch, meter};
    launch(context, Fill{.out = Tensor(nullptr, DType::kF32, {4}), .value = 0});
    EXPECT_EQ(meter[KernelId::kFill].calls, 1);
  }
}

TEST(Devices, FaultyPluginsAreReported) {
  {
    const PluginPath path(PRIMUS_TEST_PLUGINS ":/nonexistent");
    const Error missing = error_of([] { open_device(parse_device("cuda")); });
    EXPECT_EQ(missing.kind(), ErrorKind::kDependency);
    EXPECT_TRUE(says(missing, "libprimus_cuda.so")) << missing.what();
    EXPECT_TRUE(says(missing, "/nonexistent")) << missing.what();
    EXPECT_NE(missing.hint().find("scripts/build-gpu.sh cuda"), std::string::npos) << missing.hint();
    const Error no_kind = error_of([] { open_device(parse_device("gpu")); });
    EXPECT_NE(no_kind.hint().find("cuda (NVIDIA) or hip (AMD)"), std::string::npos) << no_kind.hint();
  }
  const PluginPath path(PRIMUS_BROKEN_PLUGINS);
  EXPECT_TRUE(says(error_of([] { open_device(parse_device("other_abi")); }), "different sources"));
  EXPECT_TRUE(says(error_of([] { open_device(parse_device("no_entry")); }), "is not a valid device plug-in"));
  // list_devices() also lists the other kinds of devices after such an error.
  const std::vector<DeviceListing> listings = list_devices();
  ASSERT_EQ(listings.size(), 3U);
  for (std::size_t i = 1; i < listings.size(); ++i) {
    EXPECT_TRUE(listings[i].devices.empty());
    EXPECT_FALSE(listings[i].problem.empty());
  }
}

TEST(Devices, AFileThatIsNoLibraryIsAnError) {
  const fs::path folder = fs::temp_directory_path() / ("primus_plugins_" + std::to_string(getpid()));
  fs::create_directories(folder);
  std::ofstream(folder / "libprimus_text.so") << "not a library";
  {
    const PluginPath path(folder.string());
    const Error error = error_of([] { open_device(parse_device("text")); });
    EXPECT_EQ(error.kind(), ErrorKind::kDependency);
    EXPECT_TRUE(says(error, "libprimus_text.so"));
    EXPECT_FALSE(error.hint().empty());
  }
  // Creates a plug-in whose file name has the wrong kind.
  fs::copy_file(fs::path(PRIMUS_TEST_PLUGINS) / "libprimus_guard.so", folder / "libprimus_cuda.so");
  {
    const PluginPath path(folder.string());
    EXPECT_TRUE(says(error_of([] { open_device(parse_device("cuda")); }), "plug-in of 'guard'"));
    // 'auto' skips the broken plug-in and notes why.
    std::vector<std::string> notes;
    EXPECT_EQ(choose_device(parse_device("auto"), &notes).kind, "cpu");
    ASSERT_EQ(notes.size(), 1U);
    EXPECT_NE(notes[0].find("skips cuda"), std::string::npos);
  }
  fs::remove_all(folder);
}

}  // namespace
}  // namespace primus::turbo
