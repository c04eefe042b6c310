// Tests of cmake/SourceList.cmake, which finds definitions in the sources and writes lists of them for the
// build.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "../base/temporary_folder.h"

namespace primus {
namespace {

using ::testing::HasSubstr;

class SourceList : public ::testing::Test {
 protected:
  struct Outcome {
    int status;
    std::string output;
  };
  // Lists the names of lines "  int kId = kName;" in b.h and a.h, or other definitions, in the given form.
  Outcome run(const std::string& form = "-DMACRO=ENTRY",
              const std::string& definitions = "-DLIKE=kId '-DFORM=  int kId = (k[A-Za-z]+)'") const {
    const std::string command = "'" PRIMUS_CMAKE "' " + definitions + " " + form +
                                " '-DSOURCES=" + (root_ / "b.h").string() + ";" + (root_ / "a.h").string() +
                                "' '-DOUTPUT=" + list_.string() +
                                "' -P '" PRIMUS_SOURCE_DIR "/cmake/SourceList.cmake' 2>&1";
    Outcome outcome{};
    FILE* pipe = ::popen(command.c_str(), "r");
    std::array<char, 256> line{};
    while (std::fgets(line.data(), line.size(), pipe)) outcome.output += line.data();
    outcome.status = ::pclose(pipe);
    return outcome;
  }
  void write(const char* name, const std::string& content) const { std::ofstream(root_ / name) << content; }
  std::string list() const {
    std::ifstream in(list_);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  test::TemporaryFolder folder_;
  const std::filesystem::path root_ = folder_.path(), list_ = root_ / "list.def";
};

TEST_F(SourceList, HasTheOrderOfFilesAndLines) {
  write("a.h", "struct A {\n  int kId = kA;\n  float x[2];  // [n\n};\n");
  write("b.h", "struct Z {\n  int kId = kZ;\n};\nstruct C {\n  int kId = kC;  // [n], in place\n};\n");
  const Outcome outcome = run();
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_EQ(list(), "ENTRY(kZ)\nENTRY(kC)\nENTRY(kA)\n");
}

TEST_F(SourceList, DeclaresTheEntriesOfATypeAndTheirArray) {
  write("a.h", "  int kId = kA;\n");
  write("b.h", "  int kId = kZ;\n  int kId = kC;\n");
  const Outcome outcome = run("-DTYPE=Rule");
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_EQ(list(),
            "extern const Rule kZ;\nextern const Rule kC;\nextern const Rule kA;\n"
            "constexpr const Rule* kAllRule[] = {\n    &kZ,\n    &kC,\n    &kA};\n");
}

// An unchanged list is not rewritten. Otherwise a change of any header would recompile everything.
TEST_F(SourceList, IsWrittenOnlyWhenItChanges) {
  write("a.h", "  int kId = kA;\n");
  write("b.h", "");
  ASSERT_EQ(run().status, 0);
  const std::filesystem::file_time_type long_ago{};
  std::filesystem::last_write_time(list_, long_ago);
  write("b.h", "// A comment.\n");
  ASSERT_EQ(run().status, 0);
  EXPECT_EQ(std::filesystem::last_write_time(list_), long_ago);
  write("b.h", "  int kId = kB;\n");
  ASSERT_EQ(run().status, 0);
  EXPECT_NE(std::filesystem::last_write_time(list_), long_ago);
  EXPECT_EQ(list(), "ENTRY(kB)\nENTRY(kA)\n");
}

TEST_F(SourceList, OtherFormsAreRefusedWithTheirFile) {
  write("a.h", "  int kId = kA;\n");
  write("b.h", "  static int kId = kB;\n");
  const Outcome outcome = run();
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(outcome.output, HasSubstr("b.h"));
  EXPECT_THAT(outcome.output, HasSubstr("static int kId = kB"));
  EXPECT_FALSE(std::filesystem::exists(list_));
}

// A listed statement ends before its semicolon, even if more text follows on the line. The lines of the
// statement are joined.
TEST_F(SourceList, AStatementMayTakeSeveralLines) {
  write("a.h", "Rule kIdA{.x = {.name = \"a\"}, .f = make};\n  Rule kIdB{.x = {1}};\n");
  write("b.h",
        "int z[2];  // Rule kIdC{\nRule kIdZ{\n    .x = {.name = \"z\",\n          .y = n[0]},\n"
        "    .f = [] { return 1; }};\n");
  const Outcome outcome =
      run("-DMACRO=ENTRY", "-DSTATEMENTS=ON '-DLIKE=Rule kId' '-DFORM=Rule kId[A-Z]{ *[.]x = ({[^{}]*})'");
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_EQ(list(), "ENTRY({.name = \"z\", .y = n[0]})\nENTRY({.name = \"a\"})\n");
}

}  // namespace
}  // namespace primus
