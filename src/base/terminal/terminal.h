// Screen output: terminal capabilities, human-readable numbers, and a progress line.
//
// All output goes to a file descriptor from the caller. Writing cannot stop the program: if the reader has
// ended or does not read (a closed pipe, Ctrl-S, a full disk), only the text is lost.
//
// Thread-safety: the functions are thread-safe; a ProgressLine or EtaEstimator belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace primus {

// The capabilities of a descriptor, detected once.
struct Terminal {
  int fd = -1;         // -1: discard all output
  bool tty = false;    // the descriptor is a terminal
  bool ansi = false;   // supports cursor control: a tty, and TERM is neither empty nor "dumb"
  bool color = false;  // ansi, and NO_COLOR is unset or empty (https://no-color.org)

  static Terminal detect(int fd);
  // Returns the current columns (windows can be resized); 80 if unknown.
  std::size_t width() const;
  // Returns the current rows; 24 if unknown.
  std::size_t height() const;
};

enum class Color { kRed, kGreen, kYellow, kBlue, kCyan, kBold, kDim };

// Returns `text` in that color, or unchanged if the terminal has no colors.
std::string paint(const Terminal& terminal, Color color, std::string_view text);

// Makes untrusted text safe to print: control characters (C0 except newline and tab, DEL, C1) and invalid
// UTF-8 bytes become \xNN, so that file contents cannot control the reader's terminal.
std::string printable(std::string_view text);

// Writes all of `text`, and waits at most `wait_ms` for a reader. Returns false if some or all of the text is
// lost. Never raises SIGPIPE.
bool try_write(int fd, std::string_view text, int wait_ms);

// --- human-readable numbers

// Removes the sign of a NaN, so that it prints as "nan" and not as "-nan".
double drop_nan_sign(double value);
std::string human_bytes(double bytes);       // 1536 -> "1.50 KiB"
std::string human_count(double count);       // 1234567 -> "1.23M"
std::string human_duration(double seconds);  // 0.0421 -> "42.1 ms", 192 -> "3m 12s", 98000 -> "1d 03h"

// Returns whether the locale of the environment (LC_ALL, LC_CTYPE, LANG) uses UTF-8. Returns true if none of
// the variables is set: containers set none, but are used from terminals with UTF-8.
bool locale_has_utf8();

// Returns one character per value: one of eight block heights, or one of "_.-:=+*#" if not `utf8`. If there
// are more than `width` values, averages adjacent values. Non-finite values show as "!".
std::string sparkline(std::span<const double> values, std::size_t width, bool utf8 = locale_has_utf8());

// --- remaining time

// Estimates the remaining time from the second half of the completed work. This half is long enough to
// average over occasional costs (evaluation, checkpoints), and recent enough to follow a change of speed.
// Pauses, such as a suspended laptop, are excluded. An interval counts as a pause if it is longer than a
// minute and longer than a hundred usual intervals. Memory use is bounded.
class EtaEstimator {
 public:
  // `done`: units finished at `now`, in seconds of any steady clock. Neither `done` nor `now` may decrease
  // from one call to the next. The first call sets the start.
  void update(std::uint64_t done, double now);
  // Returns units per second over the second half of the completed work; 0 before the second update.
  double rate() const;
  // Returns the seconds until `total`; nullopt while unknown.
  std::optional<double> remaining(std::uint64_t total) const;

 private:
  struct Mark {
    std::uint64_t done;
    double time;  // seconds without pauses
  };
  std::deque<Mark> marks_;
  double last_now_ = 0.0, paused_ = 0.0;
  std::uint64_t last_done_ = 0;
};

struct ProgressOptions {
  std::string label = {};       // "tokenizing"
  std::string unit = {};        // "docs": shown as "1.2k docs/s"; empty: no rate
  std::uint64_t total = 0;      // 0: unknown; then neither percentage nor ETA is shown
  double redraw_seconds = 0.1;  // minimum interval on a tty
  double plain_seconds = 10.0;  // interval between lines if the output is not a tty
};

// A progress line such as "tokenizing  42%  [#########-----------]  1.2M docs  3.4k docs/s  ETA 3m 12s".
// On a terminal, the line is redrawn in place. Other outputs get plain lines.
class ProgressLine {
 public:
  ProgressLine(const Terminal& terminal, ProgressOptions options);
  // Erases an unfinished line, e.g. after an exception.
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // `note`: additional text, e.g. "loss 3.21". `now`: seconds of a steady clock, usually steady_seconds().
  void update(std::uint64_t done, double now, std::string_view note = {});
  // Draws the last state and ends the line.
  void finish(double now, std::string_view note = {});

  // Returns the text without cursor control, at most `width` columns. For tests and other displays.
  std::string render(std::uint64_t done, std::size_t width, std::string_view note) const;

 private:
  void draw(double now, std::string_view note);

  Terminal terminal_;
  ProgressOptions options_;
  EtaEstimator eta_;
  std::uint64_t done_ = 0;
  double last_draw_ = 0.0;
  bool drawn_ = false, on_screen_ = false;
};

// Returns the seconds of the steady clock, for update() above.
double steady_seconds();

}  // namespace primus
