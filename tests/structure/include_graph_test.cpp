// Tests that every #include of src/ points down: a folder may include only the folders below it
// (docs/design.md).
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace primus {
namespace {

namespace fs = std::filesystem;

// Folders that each folder may include, besides itself and base.
const std::map<std::string, std::vector<std::string>> kMayUse = {
    {"base", {}},
    {"tensor", {}},
    {"device", {"tensor"}},
    {"turbo", {"tensor", "device"}},
    {"comm", {"tensor", "device"}},
    {"launch", {"comm", "config"}},
    {"backends", {"comm", "config", "launch", "lm/model", "lm/events", "lm/train"}},
    {"engine", {"tensor", "device", "turbo", "comm"}},
    {"config", {}},
    {"lm/tokenizer", {}},
    {"lm/template", {}},
    {"lm/data", {"lm/tokenizer", "lm/template"}},
    {"lm/reward", {"comm", "lm/tokenizer"}},
    {"lm/checkpoint", {"tensor", "comm"}},
    {"lm/events", {}},
    {"lm/report", {"config", "lm/events"}},
    {"lm/model", {"tensor", "device", "turbo", "engine", "config", "lm/tokenizer", "lm/checkpoint"}},
    {"lm/optimizer", {"tensor", "turbo", "engine", "config"}},
    {"lm/train",
     {"tensor", "device", "turbo", "engine", "config", "lm/tokenizer", "lm/template", "lm/data",
      "lm/checkpoint", "lm/events", "lm/model", "lm/optimizer", "lm/decode", "lm/generate", "lm/reward",
      "comm"}},
    {"lm/verify",
     {"config", "tensor", "device", "engine", "lm/data", "lm/checkpoint", "lm/model", "lm/train",
      "lm/optimizer", "lm/generate", "lm/exchange"}},
    {"lm/decode", {"tensor", "device", "turbo", "engine", "comm", "lm/model"}},
    {"lm/generate",
     {"lm/decode", "tensor", "device", "turbo", "engine", "config", "lm/tokenizer", "lm/template", "lm/data",
      "lm/checkpoint", "lm/model", "lm/events"}},
    {"lm/exchange", {"tensor", "engine", "lm/checkpoint", "lm/model", "lm/tokenizer", "lm/generate"}},
    {"plan", {"engine"}},
    {"safe/preflight",
     {"tensor", "device", "turbo", "comm", "config", "launch", "lm/model", "lm/train", "bench"}},
    {"safe/watch", {"lm/events", "lm/reward", "safe/preflight"}},
    {"safe/supervise", {"comm", "launch", "lm/checkpoint", "lm/events"}},
    {"safe/simulation", {"lm/events", "safe/supervise"}},
    {"safe/postmortem", {"lm/events", "lm/report"}},
    {"safe/dashboard", {"lm/events", "lm/report"}},
    {"safe/jobs", {"lm/events", "lm/report"}},
    {"bench",
     {"tensor", "device", "turbo", "comm", "engine", "config", "lm/tokenizer", "lm/data", "lm/checkpoint",
      "lm/model", "lm/decode", "lm/generate", "lm/train"}},
};

// Returns the folder of a path in src/ as named above: "lm/train" for "lm/train/trainer.h".
std::string floor_of(const std::string& path) {
  const std::size_t first = path.find('/');
  const std::string top = path.substr(0, first);
  return top == "lm" || top == "safe" ? path.substr(0, path.find('/', first + 1)) : top;
}

TEST(IncludeGraph, PointsDown) {
  const fs::path root = fs::path(PRIMUS_SOURCE_DIR) / "src";
  int includes = 0;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root)) {
    if (entry.path().extension() != ".h" && entry.path().extension() != ".cpp") continue;
    const std::string file = fs::relative(entry.path(), root).string();
    const std::string floor = floor_of(file);
    if (floor == "cli") continue;  // the top folder may include everything
    const auto allowed = kMayUse.find(floor);
    ASSERT_NE(allowed, kMayUse.end()) << file << " is in a folder that kMayUse lacks";
    std::ifstream stream(entry.path());
    for (std::string line; std::getline(stream, line);) {
      if (!line.starts_with("#include \"")) continue;
      const std::string included = line.substr(10, line.find('"', 10) - 10);
      if (!fs::exists(root / included)) continue;  // generated
      ++includes;
      const std::string target = floor_of(included);
      EXPECT_TRUE(target == floor || target == "base" ||
                  std::find(allowed->second.begin(), allowed->second.end(), target) != allowed->second.end())
          << file << " includes " << included;
    }
  }
  EXPECT_GT(includes, 100);
}

// Headers of CUDA, HIP and other vendors are included only in the permitted files.
TEST(IncludeGraph, NoVendorHeadersAboveTheDevice) {
  const fs::path root = fs::path(PRIMUS_SOURCE_DIR) / "src";
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root)) {
    const std::string file = fs::relative(entry.path(), root).string();
    if (file.starts_with("device/gpu") || file.starts_with("turbo/") || !entry.is_regular_file()) continue;
    std::ifstream stream(entry.path());
    for (std::string line; std::getline(stream, line);) {
      if (!line.starts_with("#include")) continue;
      const std::size_t quote = line.find('"');
      const bool ours = quote != std::string::npos &&
                        fs::exists(root / line.substr(quote + 1, line.rfind('"') - quote - 1));
      if (ours) continue;  // comm/nccl has headers with such names
      for (const char* vendor : {"cuda", "hip/", "cublas", "cudnn", "nccl", "rccl", "libxsmm"}) {
        EXPECT_EQ(line.find(vendor), std::string::npos) << file << ": " << line;
      }
    }
  }
}

}  // namespace
}  // namespace primus
