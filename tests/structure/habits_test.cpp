// Habits that hold everywhere in src/ (CONTRIBUTING.md): how integers are spelled, and which namespace a
// folder has.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <string>
#include <vector>

namespace primus {
namespace {

namespace fs = std::filesystem;

const fs::path kSource = fs::path(PRIMUS_SOURCE_DIR) / "src";

// The namespace of a folder; the longest name that fits counts. A file may open further ones within it.
const std::map<std::string, std::string> kNamespaces = {
    {"backends", "primus::backends"},
    {"base", "primus"},
    {"bench", "primus"},
    {"cli", "primus::cli"},
    {"comm", "primus::comm"},
    {"config", "primus::config"},
    {"device", "primus"},
    {"engine", "primus::engine"},
    {"launch", "primus::launch"},
    {"lm", "primus"},
    {"lm/data", "primus::data"},
    {"plan", "primus"},
    {"safe/preflight", "primus::preflight"},
    {"tensor", "primus"},
    {"turbo", "primus::turbo"},
};

// Generic lambdas of CPU kernels and C entry points stand in no namespace of ours.
const std::vector<std::string> kWithoutNamespace = {"cli/main.cpp", "base/fmt_library.cpp"};

struct SourceText {
  std::string file;  // within src/
  std::vector<std::string> lines;
};

std::vector<SourceText> source_texts() {
  std::vector<SourceText> all;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(kSource)) {
    const std::string extension = entry.path().extension().string();
    if (extension != ".h" && extension != ".cpp" && extension != ".cu") continue;
    SourceText text{.file = fs::relative(entry.path(), kSource).string(), .lines = {}};
    std::ifstream stream(entry.path());
    for (std::string line; std::getline(stream, line);) text.lines.push_back(line);
    all.push_back(std::move(text));
  }
  return all;
}

TEST(Habits, IntegersOfAWidthAreThoseOfStd) {
  const std::regex bare(R"((^|[^:\w"])(u?int(8|16|32|64)|size|ptrdiff)_t\b)");
  int seen = 0;
  for (const SourceText& text : source_texts()) {
    for (std::size_t i = 0; i < text.lines.size(); ++i) {
      const std::string& line = text.lines[i];
      seen += line.find("std::int64_t") != std::string::npos ? 1 : 0;
      EXPECT_FALSE(std::regex_search(line, bare))
          << "src/" << text.file << ":" << i + 1 << ": write std:: before it: " << line;
    }
  }
  EXPECT_GT(seen, 1000);
}

TEST(Habits, AFolderHasOneNamespace) {
  const std::regex opening(R"(^namespace ([\w:]+) \{$)");
  for (const SourceText& text : source_texts()) {
    if (std::ranges::find(kWithoutNamespace, text.file) != kWithoutNamespace.end()) continue;
    std::string folder = fs::path(text.file).parent_path().string();
    while (!kNamespaces.contains(folder) && !folder.empty()) folder = fs::path(folder).parent_path().string();
    ASSERT_FALSE(folder.empty()) << "src/" << text.file << ": no namespace is known for its folder";
    const std::string& expected = kNamespaces.at(folder);
    bool any = false, own = false;
    for (const std::string& line : text.lines) {
      std::smatch match;
      if (!std::regex_match(line, match, opening)) continue;
      any = true;
      own = own || match[1] == expected || match[1].str().starts_with(expected + "::");
    }
    // Lists of macros and of instances open none.
    EXPECT_TRUE(own || !any) << "src/" << text.file << " opens a namespace other than " << expected;
  }
}

}  // namespace
}  // namespace primus
