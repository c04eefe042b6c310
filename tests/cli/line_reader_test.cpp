// Tests of the reader of lines from a file or pipe.
#include "cli/options/line_reader.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/files/file.h"
#include "base/temporary_folder.h"

namespace primus::cli {
namespace {

using testing::ElementsAre;

class LineReaderTest : public testing::Test {
 protected:
  ~LineReaderTest() override { ::close(fd_); }
  LineReader reader(const std::string& content, std::size_t max_line = LineReader::kMaxLineBytes) {
    write_file_atomic(folder_.path() / "input", content);
    fd_ = ::open((folder_.path() / "input").c_str(), O_RDONLY);
    return LineReader(fd_, "input", max_line);
  }
  static std::vector<std::string> lines(LineReader reader) {
    std::vector<std::string> all;
    for (std::string_view line; reader.next(line);) all.emplace_back(line);
    EXPECT_EQ(reader.number(), static_cast<std::int64_t>(all.size()));
    return all;
  }

  test::TemporaryFolder folder_;
  int fd_ = -1;
};

TEST_F(LineReaderTest, ReturnsLinesWithoutLineEnds) {
  EXPECT_THAT(lines(reader("")), ElementsAre());
  EXPECT_THAT(lines(reader("\n")), ElementsAre(""));
  EXPECT_THAT(lines(reader("a\n\nb")), ElementsAre("a", "", "b"));
  // Lines longer than one read.
  const std::string x(200'000, 'x'), y(65'536, 'y');
  EXPECT_THAT(lines(reader(x + "\n" + y + "\n" + x + "\nz\n")), ElementsAre(x, y, x, "z"));
}

TEST_F(LineReaderTest, ReturnsALineBeforeTheNextArrives) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  LineReader reader(ends[0], "pipe");
  std::string_view line;
  for (const std::string text : {"one", "two"}) {
    const std::string written = text + "\n";
    ASSERT_EQ(::write(ends[1], written.data(), written.size()), static_cast<ssize_t>(written.size()));
    ASSERT_TRUE(reader.next(line));
    EXPECT_EQ(line, text);
  }
  ::close(ends[1]);
  EXPECT_FALSE(reader.next(line));
  ::close(ends[0]);
}

TEST_F(LineReaderTest, ALongLineTakesLinearTimeOrIsRefused) {
  const auto begin = std::chrono::steady_clock::now();
  const std::string longest(LineReader::kMaxLineBytes, 'x');
  EXPECT_EQ(lines(reader(longest)).front().size(), longest.size());
  try {
    lines(reader("a\n" + longest + "xx\n"));
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.render().substr(0, 47), "input:2: error: the line has more than 64.0 MiB");
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(seconds.count(), 20);  // a reader that searches the whole line after each read takes a minute
}

}  // namespace
}  // namespace primus::cli
