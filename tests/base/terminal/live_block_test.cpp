// Tests of the live display that is redrawn in place, with a small model of a terminal.
#include "base/terminal/live_block.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/text/display_width.h"

namespace primus {
namespace {

TEST(DisplayWidth, CountsColumns) {
  EXPECT_EQ(display_width("abc"), 3U);
  EXPECT_EQ(display_width("\x1b[31mred\x1b[0m"), 3U);
  EXPECT_EQ(display_width("日本"), 4U);
  EXPECT_EQ(display_width("e\u0301"), 1U);  // with a combining accent
  EXPECT_EQ(display_width("▁▇"), 2U);
  EXPECT_EQ(display_width("\xff\xfe"), 2U);
}

TEST(DisplayWidth, CutsWholeCharactersAndEndsColors) {
  EXPECT_EQ(fit_width("abcdef", 3), "abc");
  EXPECT_EQ(fit_width("日本語", 5), "日本");
  EXPECT_EQ(fit_width("\x1b[31mabcdef\x1b[0mx", 2), "\x1b[31mab\x1b[0m");
  EXPECT_EQ(fit_width("abc", 9), "abc");
}

// A pseudo-terminal. lines() interprets the bytes written to it as a screen would.
class Screen {
 public:
  Screen() {
    EXPECT_EQ(grantpt(master_) + unlockpt(master_), 0);
    slave_ = open(ptsname(master_), O_RDWR | O_NOCTTY);
    resize(40, 12);
  }
  ~Screen() {
    close(slave_);
    close(master_);
  }
  void resize(unsigned short columns, unsigned short rows) {
    winsize size{};
    size.ws_col = columns;
    size.ws_row = rows;
    EXPECT_EQ(ioctl(slave_, TIOCSWINSZ, &size), 0);
    columns_ = columns;
  }
  Terminal terminal() const { return {.fd = slave_, .tty = true, .ansi = true, .color = false}; }

  // Returns the lines on the screen. Handles the codes of LiveBlock and Logger: \r, \n, ESC [ n A, ESC [ K,
  // ESC [ J.
  std::vector<std::string> lines() {
    std::string bytes;
    std::array<char, 4096> buffer{};
    fcntl(master_, F_SETFL, O_NONBLOCK);
    for (ssize_t n; (n = read(master_, buffer.data(), buffer.size())) > 0;)
      bytes.append(buffer.data(), static_cast<std::size_t>(n));
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      if (bytes[i] == '\r') {
        column_ = 0;
      } else if (bytes[i] == '\n') {
        ++row_;
        column_ = 0;
      } else if (bytes[i] == '\x1b') {
        std::size_t end = i + 2;
        while (bytes[end] >= '0' && bytes[end] <= '9') ++end;
        const std::string number = bytes.substr(i + 2, end - i - 2);
        if (bytes[end] == 'A') row_ -= number.empty() ? 1 : std::stoul(number);
        if (bytes[end] == 'K') at(row_).resize(std::min(at(row_).size(), column_));
        if (bytes[end] == 'J') {
          at(row_).resize(std::min(at(row_).size(), column_));
          screen_.resize(row_ + 1);
        }
        i = end;
      } else {
        std::string& line = at(row_);
        line.resize(std::max(line.size(), column_ + 1), ' ');
        line[column_++] = bytes[i];
        EXPECT_LT(column_, columns_) << "a full line would wrap";
      }
    }
    while (!screen_.empty() && screen_.back().empty()) screen_.pop_back();
    return screen_;
  }
  // Wraps long lines as a terminal does when it becomes narrower.
  void wrap() {
    std::vector<std::string> wrapped;
    for (const std::string& line : screen_) {
      for (std::size_t i = 0; i == 0 || i < line.size(); i += columns_)
        wrapped.push_back(line.substr(i, columns_));
    }
    screen_ = wrapped;
    row_ = screen_.size() - 1;
    column_ = screen_.back().size();
  }

 private:
  std::string& at(std::size_t row) {
    if (screen_.size() <= row) screen_.resize(row + 1);
    return screen_[row];
  }
  int master_ = posix_openpt(O_RDWR | O_NOCTTY), slave_ = -1;
  std::vector<std::string> screen_;
  std::size_t row_ = 0, column_ = 0, columns_ = 0;
};

using Lines = std::vector<std::string>;

TEST(LiveBlock, IsDrawnInPlace) {
  Screen screen;
  LiveBlock block(screen.terminal());
  block.show({"one", "two"});
  EXPECT_EQ(screen.lines(), (Lines{"one", "two"}));
  block.show({"1", "2", "3"});
  EXPECT_EQ(screen.lines(), (Lines{"1", "2", "3"}));
  block.show({"alone"});
  EXPECT_EQ(screen.lines(), (Lines{"alone"}));
}

TEST(LiveBlock, OtherTextStaysAbove) {
  Screen screen;
  LiveBlock block(screen.terminal());
  EXPECT_TRUE(block.print_above("before\n", 1000));
  block.show({"one", "two"});
  EXPECT_TRUE(block.print_above("warning\nmore\n", 1000));
  EXPECT_EQ(screen.lines(), (Lines{"before", "warning", "more", "one", "two"}));
  block.show({"last"});
  block.finish();
  EXPECT_TRUE(block.print_above("after\n", 1000));
  EXPECT_EQ(screen.lines(), (Lines{"before", "warning", "more", "last", "after"}));
}

TEST(LiveBlock, LinesAreCutToTheCurrentWindowWidth) {
  Screen screen;
  LiveBlock block(screen.terminal());
  block.show({std::string(100, 'x'), "end"});
  EXPECT_EQ(screen.lines(), (Lines{std::string(39, 'x'), "end"}));
  // In the narrower terminal, all wrapped lines are drawn over.
  screen.resize(20, 12);
  screen.wrap();
  EXPECT_EQ(screen.lines().size(), 3U);
  block.show({std::string(100, 'y'), "end"});
  EXPECT_EQ(screen.lines(), (Lines{std::string(19, 'y'), "end"}));
}

TEST(LiveBlock, LogLinesScrollAboveIt) {
  Screen screen;
  screen.resize(200, 12);
  LiveBlock block(screen.terminal());
  Logger log(LogOptions{.console_level = LogLevel::kWarning, .console = screen.terminal(), .above = &block});
  block.show({"picture"});
  log.warning("the disk is full");
  log.info("not shown");
  const Lines lines = screen.lines();
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_NE(lines[0].find("the disk is full"), std::string::npos);
  EXPECT_EQ(lines[1], "picture");
}

}  // namespace
}  // namespace primus
