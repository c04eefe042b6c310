// Runs each fuzz target on the files of its corpus. The ordinary compiler builds the targets for this test.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "../fuzz/config_fuzz.h"

namespace primus::config {
namespace {

void run_corpus(const std::string& folder, const std::string& name) {
  int files = 0;
  const std::filesystem::path corpus = std::filesystem::path(PRIMUS_SOURCE_DIR) / "tests" / "fuzz" / "corpus";
  for (const auto& entry : std::filesystem::directory_iterator(corpus / folder)) {
    SCOPED_TRACE(entry.path().string());
    std::ifstream file(entry.path(), std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    fuzz_experiment(text.str(), name);
    ++files;
  }
  EXPECT_GT(files, 5);
}

TEST(Corpus, Yaml) { run_corpus("config_yaml", "corpus.yaml"); }
TEST(Corpus, Toml) { run_corpus("config_toml", "corpus.toml"); }

}  // namespace
}  // namespace primus::config
