// Tests of output on terminals: numbers, colors, progress lines and estimates of the remaining time.
#include "base/terminal/terminal.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace primus {
namespace {

struct Pipe {
  Pipe() { EXPECT_EQ(pipe(ends.data()), 0); }
  ~Pipe() {
    close_reader();
    close(ends[1]);
  }
  void close_reader() {
    if (ends[0] >= 0) close(ends[0]);
    ends[0] = -1;
  }
  std::string read_some() {
    std::array<char, 4096> buffer{};
    const ssize_t count = read(ends[0], buffer.data(), buffer.size());
    return {buffer.data(), static_cast<std::size_t>(std::max<ssize_t>(count, 0))};
  }
  std::array<int, 2> ends{};
};

TEST(Human, Bytes) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1536), "1.50 KiB");
  EXPECT_EQ(human_bytes(10.0 * 1024 * 1024), "10.0 MiB");
  EXPECT_EQ(human_bytes(344.0 * 1024 * 1024 * 1024), "344 GiB");
}

TEST(Human, Counts) {
  EXPECT_EQ(human_count(0), "0");
  EXPECT_EQ(human_count(12.34), "12.3");
  EXPECT_EQ(human_count(999), "999");
  EXPECT_EQ(human_count(999.7), "1.00k");
  EXPECT_EQ(human_count(1234567), "1.23M");
  EXPECT_EQ(human_count(124e6), "124M");
  EXPECT_EQ(human_count(99.96e6), "100M");
}

TEST(Human, Durations) {
  EXPECT_EQ(human_duration(0), "0 s");
  EXPECT_EQ(human_duration(0.0000421), "42.1 us");
  EXPECT_EQ(human_duration(0.0421), "42.1 ms");
  EXPECT_EQ(human_duration(12.34), "12.3 s");
  EXPECT_EQ(human_duration(59.97), "1m 00s");
  EXPECT_EQ(human_duration(192), "3m 12s");
  EXPECT_EQ(human_duration(3599.6), "1h 00m");
  EXPECT_EQ(human_duration(98000), "1d 03h");
  EXPECT_EQ(human_duration(-1), "unknown");
  EXPECT_EQ(human_duration(std::numeric_limits<double>::infinity()), "unknown");
  EXPECT_EQ(human_duration(1e300), human_duration(1e15));
}

TEST(Locale, ReportsWhetherTheTerminalShowsUtf8) {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) unsetenv(name);
  EXPECT_TRUE(locale_has_utf8());
  setenv("LANG", "en_US.UTF-8", 1);
  EXPECT_TRUE(locale_has_utf8());
  setenv("LC_ALL", "POSIX", 1);
  EXPECT_FALSE(locale_has_utf8());
  setenv("LC_ALL", "C.utf8", 1);
  EXPECT_TRUE(locale_has_utf8());
  for (const char* name : {"LC_ALL", "LANG"}) unsetenv(name);
}

TEST(Sparkline, ShowsTheFall) {
  const std::vector<double> losses = {8, 7, 6, 5, 4, 3, 2, 1};
  EXPECT_EQ(sparkline(losses, 8, false), "#*+=:-._");
  EXPECT_EQ(sparkline(losses, 8, true), "\u2588\u2587\u2586\u2585\u2584\u2583\u2582\u2581");
  EXPECT_EQ(sparkline(losses, 2, true), "\u2588\u2581");
  EXPECT_EQ(sparkline(losses, 0, true), "");
  EXPECT_EQ(sparkline({}, 8, true), "");
  EXPECT_EQ(sparkline(std::vector<double>{2, 2}, 8, true), "\u2581\u2581");
  EXPECT_EQ(sparkline(std::vector<double>{2, std::nan(""), 1}, 8, true), "\u2588!\u2581");
}

TEST(Terminal, APipeHasNoColorAndNoCursor) {
  Pipe pipe;
  const Terminal terminal = Terminal::detect(pipe.ends[1]);
  EXPECT_FALSE(terminal.tty);
  EXPECT_FALSE(terminal.ansi);
  EXPECT_FALSE(terminal.color);
  EXPECT_EQ(terminal.width(), 80U);
  EXPECT_EQ(paint(terminal, Color::kRed, "text"), "text");
  EXPECT_EQ(paint({.fd = 1, .tty = true, .ansi = true, .color = true}, Color::kRed, "text"),
            "\x1b[31mtext\x1b[0m");
}

TEST(Terminal, NoColorIsRespected) {
  const int master = posix_openpt(O_RDWR | O_NOCTTY);
  if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0) GTEST_SKIP() << "no pseudo terminals here";
  const int screen = open(ptsname(master), O_RDWR | O_NOCTTY);
  ASSERT_GE(screen, 0);
  const char* term = std::getenv("TERM");
  const std::string before = term == nullptr ? "" : term;
  setenv("TERM", "xterm", 1);
  unsetenv("NO_COLOR");
  EXPECT_TRUE(Terminal::detect(screen).color);
  setenv("NO_COLOR", "1", 1);
  EXPECT_FALSE(Terminal::detect(screen).color);
  EXPECT_TRUE(Terminal::detect(screen).ansi);
  unsetenv("NO_COLOR");
  setenv("TERM", "dumb", 1);
  EXPECT_FALSE(Terminal::detect(screen).ansi);
  setenv("TERM", before.c_str(), 1);
  close(screen);
  close(master);
}

TEST(Printable, EscapesOnlyControlSequences) {
  EXPECT_EQ(printable("plain, caf\xc3\xa9 \xe6\x97\xa5 \xf0\x9f\x98\x80\tand\nlines"),
            "plain, caf\xc3\xa9 \xe6\x97\xa5 \xf0\x9f\x98\x80\tand\nlines");
  EXPECT_EQ(printable(std::string_view("\0\x1b[2J\r\x7f", 7)), "\\x00\\x1b[2J\\x0d\\x7f");
  EXPECT_EQ(printable("\xc2\x80\xc2\x9f\xc2\xa0"), "\\xc2\\x80\\xc2\\x9f\xc2\xa0");  // C1, and no-break space
  EXPECT_EQ(printable("\xff\xe6\x97|\xc0\x9b\xed\xa0\x80\xe6"),
            "\\xff\\xe6\\x97|\\xc0\\x9b\\xed\\xa0\\x80\\xe6");
  EXPECT_EQ(printable(""), "");
}

TEST(TryWrite, AClosedReaderDoesNotEndTheProcess) {
  Pipe pipe;
  EXPECT_TRUE(try_write(pipe.ends[1], "hello", 0));
  EXPECT_EQ(pipe.read_some(), "hello");
  pipe.close_reader();
  EXPECT_FALSE(try_write(pipe.ends[1], "lost", 0));  // without protection, SIGPIPE would end the test
  EXPECT_FALSE(try_write(pipe.ends[1], "lost", 0));
}

TEST(TryWrite, AStalledReaderIsNotWaitedFor) {
  Pipe pipe;
  const std::string block(1 << 20, 'x');  // more than a pipe's buffer
  const double start = steady_seconds();
  EXPECT_FALSE(try_write(pipe.ends[1], block, 0));
  EXPECT_LT(steady_seconds() - start, 5.0);
}

TEST(Eta, ConstantSpeed) {
  EtaEstimator eta;
  EXPECT_FALSE(eta.remaining(100).has_value());
  for (int i = 0; i <= 50; ++i) eta.update(static_cast<std::uint64_t>(i), 10.0 + 2.0 * i);
  EXPECT_DOUBLE_EQ(eta.rate(), 0.5);
  EXPECT_DOUBLE_EQ(eta.remaining(100).value(), 100.0);
  EXPECT_EQ(eta.remaining(50).value(), 0.0);
}

// After 5 % of a run with evaluations and checkpoints, the estimate is within 10 % of the true remaining
// time.
TEST(Eta, PeriodicCostsAreInTheEstimate) {
  EtaEstimator eta;
  double now = 0.0;
  std::vector<double> stamps;
  const int total = 20000;
  for (int i = 0; i <= total; ++i) {
    stamps.push_back(now);
    now += 0.1 + 0.02 * std::sin(i * 0.7);
    if (i % 100 == 99) now += 3.0;
  }
  for (int i = 0; i <= total; ++i) {
    eta.update(static_cast<std::uint64_t>(i), stamps[static_cast<std::size_t>(i)]);
    if (i >= total / 20 && i < total * 9 / 10 && i % 37 == 0) {
      const double truth = stamps.back() - stamps[static_cast<std::size_t>(i)];
      ASSERT_NEAR(eta.remaining(total).value(), truth, 0.1 * truth) << "at step " << i;
    }
  }
}

TEST(Eta, FollowsAChangeOfSpeedAndIgnoresAPause) {
  EtaEstimator eta;
  double now = 0.0;
  for (std::uint64_t i = 0; i <= 100; ++i) eta.update(i, now += 1.0);
  now += 8 * 3600;  // the laptop was suspended
  for (std::uint64_t i = 101; i <= 200; ++i) eta.update(i, now += 1.0);
  EXPECT_NEAR(eta.rate(), 1.0, 0.02);
  for (std::uint64_t i = 201; i <= 800; ++i) eta.update(i, now += 0.25);
  EXPECT_NEAR(eta.rate(), 4.0, 0.05);
}

TEST(ProgressLine, RendersEveryPart) {
  ProgressLine line({}, {.label = "tokenizing", .unit = "docs", .total = 400});
  line.update(0, 0.0);
  line.update(100, 10.0);
  EXPECT_EQ(line.render(100, 200, "loss 3.21"),
            "tokenizing   25%  [#####---------------]  100 docs  10 docs/s  loss 3.21  ETA 30.0 s");
  EXPECT_EQ(line.render(100, 15, {}), "tokenizing   25");
  EXPECT_EQ(line.render(400, 200, {}), "tokenizing  100%  [####################]  400 docs  10 docs/s");
}

TEST(ProgressLine, PrintsPlainLinesWithoutATerminal) {
  Pipe pipe;
  {
    ProgressLine line({.fd = pipe.ends[1]},
                      {.label = "saving", .unit = "files", .total = 100, .plain_seconds = 10});
    for (std::uint64_t i = 0; i <= 25; ++i) line.update(i, static_cast<double>(i));
    line.finish(25.0);
  }
  const std::string text = pipe.read_some();
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_EQ(text,
            "saving   10%  [##------------------]  10 files  1 files/s  ETA 1m 30s\n"
            "saving   20%  [####----------------]  20 files  1 files/s  ETA 1m 20s\n"
            "saving   25%  [#####---------------]  25 files  1 files/s  ETA 1m 15s\n");
}

TEST(ProgressLine, RedrawsInPlaceOnATerminal) {
  Pipe pipe;
  {
    ProgressLine line({.fd = pipe.ends[1], .ansi = true},
                      {.label = "saving", .total = 10, .redraw_seconds = 1.0});
    line.update(1, 0.0);
    line.update(2, 0.5);  // too early for a redraw
    line.update(3, 1.5);
  }
  EXPECT_EQ(pipe.read_some(),
            "\r\x1b[Ksaving   10%  [##------------------]"
            "\r\x1b[Ksaving   30%  [######--------------]  ETA 7.0 s"
            "\r\x1b[K");
}

}  // namespace
}  // namespace primus
