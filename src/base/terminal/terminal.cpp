#include "base/terminal/terminal.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <limits>

#include "base/text/display_width.h"
#include "base/text/utf8.h"

namespace primus {
namespace {

constexpr std::size_t kDefaultWidth = 80, kDefaultHeight = 24;
// If poll() reports that a pipe is writable, a write of up to this number of bytes does not block.
constexpr std::size_t kPipeAtom = 4096;

std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view{} : std::string_view{value};
}

// Blocks SIGPIPE in this thread while the object lives. (A library must not change the signal's action for
// the entire program.)
class NoSigpipe {
 public:
  NoSigpipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoSigpipe() {
    // Consumes the signal only if this thread caused it.
    if (caused_ && !was_pending_) {
      const timespec none{};
      while (sigtimedwait(&pipe_, nullptr, &none) < 0 && errno == EINTR) {
      }
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;
  void caused() { caused_ = true; }

 private:
  sigset_t pipe_{}, before_{};
  bool was_pending_ = false, caused_ = false;
};

const char* color_code(Color color) {
  switch (color) {
    case Color::kRed:
      return "\x1b[31m";
    case Color::kGreen:
      return "\x1b[32m";
    case Color::kYellow:
      return "\x1b[33m";
    case Color::kBlue:
      return "\x1b[34m";
    case Color::kCyan:
      return "\x1b[36m";
    case Color::kBold:
      return "\x1b[1m";
    case Color::kDim:
      return "\x1b[2m";
  }
  return "";
}

}  // namespace

Terminal Terminal::detect(int fd) {
  Terminal terminal;
  terminal.fd = fd;
  terminal.tty = fd >= 0 && isatty(fd) == 1;
  const std::string_view term = environment("TERM");
  terminal.ansi = terminal.tty && !term.empty() && term != "dumb";
  terminal.color = terminal.ansi && environment("NO_COLOR").empty();
  return terminal;
}

std::size_t Terminal::width() const {
  winsize size{};
  if (tty && ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return kDefaultWidth;
}

std::size_t Terminal::height() const {
  winsize size{};
  if (tty && ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_row > 0) return size.ws_row;
  return kDefaultHeight;
}

std::string paint(const Terminal& terminal, Color color, std::string_view text) {
  if (!terminal.color) return std::string(text);
  return fmt::format("{}{}\x1b[0m", color_code(color), text);
}

std::string printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    int bad = 0;
    const int length = unicode::well_formed(text, bad);
    const std::string_view character = text.substr(0, static_cast<std::size_t>(length > 0 ? length : bad));
    text.remove_prefix(character.size());
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(character[i]); };
    const bool c0 = length == 1 && (byte(0) < 0x20 || byte(0) == 0x7F) && byte(0) != '\n' && byte(0) != '\t';
    const bool c1 = length == 2 && byte(0) == 0xC2 && byte(1) < 0xA0;
    if (length > 0 && !c0 && !c1) {
      out += character;
    } else {
      for (std::size_t i = 0; i < character.size(); ++i) out += fmt::format("\\x{:02x}", byte(i));
    }
  }
  return out;
}

bool try_write(int fd, std::string_view text, int wait_ms) {
  if (fd < 0) return true;
  NoSigpipe guard;
  while (!text.empty()) {
    pollfd ready{fd, POLLOUT, 0};
    const int polled = poll(&ready, 1, wait_ms);
    if (polled < 0 && errno == EINTR) continue;
    if (polled <= 0) return false;
    const ssize_t written = ::write(fd, text.data(), std::min(text.size(), kPipeAtom));
    if (written < 0) {
      if (errno == EINTR || errno == EAGAIN) continue;
      if (errno == EPIPE) guard.caused();
      return false;
    }
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

std::string human_bytes(double bytes) {
  constexpr std::array<const char*, 7> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  std::size_t unit = 0;
  while (std::abs(bytes) >= 1024.0 && unit + 1 < kUnits.size()) {
    bytes /= 1024.0;
    ++unit;
  }
  if (unit == 0) return fmt::format("{:.0f} B", bytes);
  return fmt::format("{:.{}f} {}", bytes,
                     std::abs(bytes) < 10    ? 2
                     : std::abs(bytes) < 100 ? 1
                                             : 0,
                     kUnits[unit]);
}

std::string human_count(double count) {
  constexpr std::array<const char*, 6> kUnits = {"", "k", "M", "B", "T", "Q"};
  std::size_t unit = 0;
  // A value such as 999.6 would round to "1000", so it uses the next unit.
  while (std::abs(count) >= 999.5 && unit + 1 < kUnits.size()) {
    count /= 1000.0;
    ++unit;
  }
  const double size = std::abs(count);
  if (unit == 0)
    return size == std::floor(size) ? fmt::format("{:.0f}", count) : fmt::format("{:.3g}", count);
  return fmt::format("{:.{}f}{}", count, size < 9.995 ? 2 : size < 99.95 ? 1 : 0, kUnits[unit]);
}

double drop_nan_sign(double value) { return std::isnan(value) ? std::abs(value) : value; }

std::string human_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "unknown";
  if (seconds == 0) return "0 s";
  if (seconds < 1e-3) return fmt::format("{:.1f} us", seconds * 1e6);
  if (seconds < 1.0) return fmt::format("{:.1f} ms", seconds * 1e3);
  if (seconds < 59.95) return fmt::format("{:.1f} s", seconds);
  // Limits the value to one that fits the integer type.
  const auto whole = static_cast<std::uint64_t>(std::min(seconds + 0.5, 1e15));
  const std::uint64_t minutes = whole / 60, hours = minutes / 60, days = hours / 24;
  if (hours == 0) return fmt::format("{}m {:02}s", minutes, whole % 60);
  if (days == 0) return fmt::format("{}h {:02}m", hours, minutes % 60);
  return fmt::format("{}d {:02}h", days, hours % 24);
}

bool locale_has_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    std::string locale(environment(name));
    if (locale.empty()) continue;
    for (char& c : locale) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    return locale.find("utf-8") != std::string::npos || locale.find("utf8") != std::string::npos;
  }
  return true;
}

std::string sparkline(std::span<const double> values, std::size_t width, bool utf8) {
  using Bars = std::array<const char*, 8>;
  constexpr Bars kBlocks = {"\u2581", "\u2582", "\u2583", "\u2584", "\u2585", "\u2586", "\u2587", "\u2588"};
  constexpr Bars kAscii = {"_", ".", "-", ":", "=", "+", "*", "#"};
  const Bars& bars = utf8 ? kBlocks : kAscii;
  const std::size_t count = std::min(width, values.size());
  std::string text;
  if (count == 0) return text;
  std::deque<double> bins;
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t begin = i * values.size() / count, end = (i + 1) * values.size() / count;
    double sum = 0.0;
    for (const double value : values.subspan(begin, end - begin)) sum += value;
    const double mean = sum / static_cast<double>(end - begin);
    bins.push_back(mean);
    if (std::isfinite(mean)) {
      low = std::min(low, mean);
      high = std::max(high, mean);
    }
  }
  for (const double mean : bins) {
    if (!std::isfinite(mean)) {
      text += '!';
      continue;
    }
    // If all values are equal, they are drawn at the lowest height.
    const double share = high > low ? (mean - low) / (high - low) : 0.0;
    text += bars[std::min<std::size_t>(static_cast<std::size_t>(share * bars.size()), bars.size() - 1)];
  }
  return text;
}

void EtaEstimator::update(std::uint64_t done, double now) {
  constexpr std::size_t kMaxMarks = 512;
  constexpr double kPauseSeconds = 60.0, kPauseFactor = 100.0;
  if (marks_.empty()) {
    marks_.push_back({done, now});
    last_now_ = now;
    last_done_ = done;
    return;
  }
  const double interval = now - last_now_;
  const double usual = rate();
  const auto units = static_cast<double>(done - last_done_);
  if (usual > 0 && interval > kPauseSeconds && interval > kPauseFactor * std::max(units, 1.0) / usual) {
    paused_ += interval - units / usual;
  }
  last_now_ = now;
  last_done_ = done;
  if (done == marks_.back().done) return;
  marks_.push_back({done, now - paused_});
  if (marks_.size() > kMaxMarks) {
    // Removes every second mark, but keeps the first and the last mark.
    std::deque<Mark> kept;
    for (std::size_t i = 0; i + 1 < marks_.size(); i += 2) kept.push_back(marks_[i]);
    kept.push_back(marks_.back());
    marks_.swap(kept);
  }
}

double EtaEstimator::rate() const {
  if (marks_.size() < 2) return 0.0;
  const Mark& last = marks_.back();
  const std::uint64_t middle = marks_.front().done + (last.done - marks_.front().done) / 2;
  // Uses the latest mark at or before the middle, so that the measured interval is never empty.
  auto from = std::upper_bound(marks_.begin(), marks_.end(), middle,
                               [](std::uint64_t value, const Mark& mark) { return value < mark.done; });
  --from;
  const double seconds = last.time - from->time;
  return seconds > 0 ? static_cast<double>(last.done - from->done) / seconds : 0.0;
}

std::optional<double> EtaEstimator::remaining(std::uint64_t total) const {
  const double speed = rate();
  if (marks_.empty() || speed <= 0) return std::nullopt;
  const std::uint64_t done = marks_.back().done;
  return done >= total ? 0.0 : static_cast<double>(total - done) / speed;
}

ProgressLine::ProgressLine(const Terminal& terminal, ProgressOptions options)
    : terminal_(terminal), options_(std::move(options)) {}

ProgressLine::~ProgressLine() {
  if (on_screen_) try_write(terminal_.fd, "\r\x1b[K", 0);
}

std::string ProgressLine::render(std::uint64_t done, std::size_t width, std::string_view note) const {
  constexpr std::size_t kBarWidth = 20;
  std::string text = options_.label;
  if (options_.total > 0) {
    const double share = std::min(1.0, static_cast<double>(done) / static_cast<double>(options_.total));
    const auto filled = static_cast<std::size_t>(share * kBarWidth);
    text += fmt::format("  {:3.0f}%  [{:#<{}}{:-<{}}]", std::floor(share * 100), "", filled, "",
                        kBarWidth - filled);
  }
  if (!options_.unit.empty()) {
    text += fmt::format("  {} {}", human_count(static_cast<double>(done)), options_.unit);
    if (eta_.rate() > 0) text += fmt::format("  {} {}/s", human_count(eta_.rate()), options_.unit);
  }
  if (!note.empty()) text += fmt::format("  {}", note);
  if (const auto left = eta_.remaining(options_.total); left && options_.total > 0 && done < options_.total) {
    text += "  ETA " + human_duration(*left);
  }
  return fit_width(text, width);
}

void ProgressLine::update(std::uint64_t done, double now, std::string_view note) {
  done_ = done;
  eta_.update(done, now);
  const double pace = terminal_.ansi ? options_.redraw_seconds : options_.plain_seconds;
  if (!drawn_ && !terminal_.ansi) {
    // If the output is not a terminal, the first update prints no line. A short command then prints only its
    // last line.
    drawn_ = true;
    last_draw_ = now;
    return;
  }
  if (drawn_ && now - last_draw_ < pace) return;
  draw(now, note);
}

void ProgressLine::finish(double now, std::string_view note) {
  eta_.update(done_, now);
  draw(now, note);
  if (on_screen_) try_write(terminal_.fd, "\n", 0);
  on_screen_ = false;
}

void ProgressLine::draw(double now, std::string_view note) {
  drawn_ = true;
  last_draw_ = now;
  if (terminal_.ansi) {
    // Leaves one column free, because some terminals wrap a line that fills all columns.
    const std::size_t width = std::max<std::size_t>(terminal_.width(), 2) - 1;
    on_screen_ = try_write(terminal_.fd, "\r\x1b[K" + render(done_, width, note), 0);
  } else {
    try_write(terminal_.fd, render(done_, std::numeric_limits<std::size_t>::max(), note) + "\n", 0);
  }
}

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace primus
