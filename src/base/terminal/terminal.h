// What the program shows on a screen: what the terminal can do, numbers for people, and a progress line.
//
// Nothing here writes unless it was handed a file descriptor. Writing never stops the work it reports on: a
// reader that went away or does not read (a closed pipe, Ctrl-S, a full disk behind stdout) costs the text,
// not the run.
//
// Thread-safety: the functions are pure apart from the descriptor; ProgressLine and EtaEstimator belong to
// one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace primus {

// What one descriptor can do, asked once.
struct Terminal {
  int fd = -1;         // -1: nowhere, writing does nothing
  bool tty = false;    // a person watches
  bool ansi = false;   // cursor control works: a tty, and TERM is neither empty nor "dumb"
  bool color = false;  // ansi, and NO_COLOR is unset or empty (https://no-color.org)

  static Terminal detect(int fd);
  // Columns now (windows get resized); 80 where nobody knows.
  std::size_t width() const;
  // Rows now; 24 where nobody knows.
  std::size_t height() const;
};

enum class Color { kRed, kGreen, kYellow, kBlue, kCyan, kBold, kDim };

// `text` in that color, or just `text` where the terminal has none.
std::string paint(const Terminal& terminal, Color color, std::string_view text);

// Text from anywhere, fit for a screen: control characters (C0 but newline and tab, DEL, C1) and bytes that
// are no UTF-8 become \xNN, so that what a file holds cannot drive the reader's terminal.
std::string printable(std::string_view text);

// Writes all of `text`, waiting at most `wait_ms` for a reader. False when it could not: the text is then
// lost, in part or whole. Never raises SIGPIPE.
bool try_write(int fd, std::string_view text, int wait_ms);

// --- numbers for people

// A NaN without its sign, which means nothing and would be shown: "nan", never "-nan".
double drop_nan_sign(double value);
std::string human_bytes(double bytes);       // 1536 -> "1.50 KiB"
std::string human_count(double count);       // 1234567 -> "1.23M"
std::string human_duration(double seconds);  // 0.0421 -> "42.1 ms", 192 -> "3m 12s", 98000 -> "1d 03h"

// Whether the locale of the environment (LC_ALL, LC_CTYPE, LANG) has UTF-8. True where none of them is set:
// containers set none, and their terminals are of today.
bool locale_has_utf8();

// One character per value, lowest to highest as eight block heights, or as "_.-:=+*#" without `utf8`; at most
// `width` characters, older values averaged together. Values that are not finite show as "!".
std::string sparkline(std::span<const double> values, std::size_t width, bool utf8 = locale_has_utf8());

// --- how long still

// The time of the rest, from the newer half of what has been seen: old enough to average over costs that come
// from time to time (evaluation, checkpoints), new enough to follow a change of speed. A pause (a laptop that
// slept: over a minute and over a hundred times the usual) is left out. Memory is bounded.
class EtaEstimator {
 public:
  // `done` units were finished at `now` seconds of any steady clock. Both never decrease; the first call sets
  // the start.
  void update(std::uint64_t done, double now);
  // Units per second over the newer half; 0 before two updates.
  double rate() const;
  // Seconds until `total`; empty while unknown.
  std::optional<double> remaining(std::uint64_t total) const;

 private:
  struct Mark {
    std::uint64_t done;
    double time;  // seconds of work: pauses subtracted
  };
  std::deque<Mark> marks_;
  double last_now_ = 0.0, paused_ = 0.0;
  std::uint64_t last_done_ = 0;
};

struct ProgressOptions {
  std::string label = {};       // "tokenizing"
  std::string unit = {};        // "docs": shown as "1.2k docs/s"; empty shows no rate
  std::uint64_t total = 0;      // 0: unknown, then neither percent nor ETA is shown
  double redraw_seconds = 0.1;  // at most this often on a tty
  double plain_seconds = 10.0;  // one line this often elsewhere
};

// "tokenizing  42%  [#########-----------]  1.2M docs  3.4k docs/s  ETA 3m 12s": redrawn in place on a tty,
// plain lines elsewhere.
class ProgressLine {
 public:
  ProgressLine(const Terminal& terminal, ProgressOptions options);
  // Erases a line left half-way by an exception.
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // `note`: what else to say, e.g. "loss 3.21". `now`: seconds of a steady clock; steady_seconds() in
  // programs.
  void update(std::uint64_t done, double now, std::string_view note = {});
  // The last state, ended with a new line.
  void finish(double now, std::string_view note = {});

  // The text of a state without cursor control, `width` columns at most. For tests and other displays.
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

// Seconds of the steady clock, for update() above.
double steady_seconds();

}  // namespace primus
