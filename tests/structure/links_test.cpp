// Tests that links between documents lead to existing files and headings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cctype>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace primus {
namespace {

namespace fs = std::filesystem;
using ::testing::IsEmpty;

// Returns the lines of a document outside code blocks.
std::vector<std::string> lines_of(const fs::path& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  bool in_code = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("```")) in_code = !in_code;
    if (!in_code) lines.push_back(line);
  }
  return lines;
}

// Returns GitHub's anchor of a heading: "## 1. Train on my text" -> "1-train-on-my-text".
std::string anchor_of(const std::string& heading) {
  std::string anchor;
  for (const char c : heading) {
    const auto letter = static_cast<unsigned char>(c);
    if (std::isalnum(letter) || c == '-' || c == '_' || letter >= 0x80)
      anchor += static_cast<char>(std::tolower(letter));
    else if (c == ' ')
      anchor += '-';
  }
  return anchor;
}

std::set<std::string> anchors_of(const fs::path& path) {
  std::set<std::string> anchors;
  for (const std::string& line : lines_of(path)) {
    const std::size_t text = line.find_first_not_of('#');
    if (line.starts_with("#") && text != std::string::npos && line[text] == ' ')
      anchors.insert(anchor_of(line.substr(text + 1)));
  }
  return anchors;
}

// Returns broken links of `document`, such as "docs/data.md: formats/nowhere.md". Links to other sites are
// not checked.
std::vector<std::string> broken_links(const fs::path& document) {
  static const std::regex kLink(R"(\]\(([^)\s#]*)(?:#([^)\s]*))?\))");
  std::vector<std::string> broken;
  for (const std::string& line : lines_of(document)) {
    for (std::sregex_iterator link(line.begin(), line.end(), kLink), end; link != end; ++link) {
      const std::string file = (*link)[1], anchor = (*link)[2];
      if (file.find("://") != std::string::npos || file.starts_with("mailto:")) continue;
      const fs::path target = file.empty() ? document : document.parent_path() / file;
      const bool found = fs::exists(target) && (anchor.empty() || target.extension() != ".md" ||
                                                anchors_of(target).contains(anchor));
      if (!found) broken.push_back(document.string() + ": " + (*link)[0].str());
    }
  }
  return broken;
}

TEST(Links, InDocumentsLeadToFilesAndHeadings) {
  const fs::path root(PRIMUS_SOURCE_DIR);
  std::size_t documents = 0;
  const auto check = [&](const fs::path& path) {
    if (path.extension() != ".md") return;
    ++documents;
    EXPECT_THAT(broken_links(path), IsEmpty());
  };
  for (const fs::directory_entry& entry : fs::directory_iterator(root)) check(entry.path());
  for (const char* folder : {"docs", "tests/golden"})
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root / folder))
      check(entry.path());
  EXPECT_GT(documents, 30U);
}

TEST(Links, ThatAreBrokenAreFound) {
  const fs::path path = fs::path(::testing::TempDir()) / "primus_links_test.md";
  std::ofstream(path) << "# A heading, with `code`\n[good](#a-heading-with-code) [bad](#nowhere)\n"
                         "[gone](gone.md) [site](https://example.org/gone)\n```\n[code](gone.md)\n```\n";
  EXPECT_EQ(broken_links(path).size(), 2U);
  fs::remove(path);
}

}  // namespace
}  // namespace primus
