#include "base/log.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <ctime>
#include <utility>

#include "base/error.h"
#include "base/files/append_file.h"
#include "base/terminal/live_block.h"

namespace primus {
namespace {

constexpr std::array<std::pair<LogLevel, std::string_view>, 5> kLevelNames = {
    {{LogLevel::kDebug, "DEBUG"},
     {LogLevel::kInfo, "INFO"},
     {LogLevel::kWarning, "WARNING"},
     {LogLevel::kError, "ERROR"},
     {LogLevel::kOff, "OFF"}}};

// Returns the local time as "20260101 12:00:00".
std::string timestamp() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  return fmt::format("{:04}{:02}{:02} {:02}:{:02}:{:02}", parts.tm_year + 1900, parts.tm_mon + 1,
                     parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec);
}

std::string_view base_name(std::string_view path) { return path.substr(path.find_last_of('/') + 1); }

std::string lower(std::string_view name) {
  std::string text(name);
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

// Returns "INFO" for kInfo.
std::string_view log_level_name(LogLevel level) {
  for (const auto& [value, name] : kLevelNames) {
    if (value == level) return name;
  }
  return "OFF";
}

Color level_color(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return Color::kBlue;
    case LogLevel::kWarning:
      return Color::kYellow;
    case LogLevel::kError:
      return Color::kRed;
    default:
      return Color::kBold;
  }
}

}  // namespace

// One log file with rotation.
class Logger::FileSink {
 public:
  FileSink(LogLevel level, const LogOptions& options, Env& env)
      : level_(level),
        limit_(options.rotate_bytes),
        kept_(options.rotations_kept),
        env_(env),
        stem_(lower(log_level_name(level))),
        file_(Path(options.folder) / (stem_ + ".log"), env) {}

  LogLevel level() const { return level_; }

  // Returns false if the line was lost.
  bool write(std::string_view line) {
    if (file_.size() > 0 && file_.size() + line.size() > limit_) rotate();
    return file_.append(as_bytes(line));
  }

 private:
  Path generation(int number) const {
    if (number == 0) return file_.path();
    return file_.path().parent_path() / fmt::format("{}.{}.log", stem_, number);
  }

  // Errors are ignored, because their only effect is that the file grows further or that an old file is lost.
  void rotate() {
    file_.close();
    try {
      for (int number = kept_; number > 0; --number) {
        // The rename to the highest number replaces the oldest file.
        if (env_.status(generation(number - 1))) env_.rename(generation(number - 1), generation(number));
      }
      if (kept_ <= 0) env_.remove_file(generation(0));
    } catch (const Error&) {
      return;
    }
  }

  LogLevel level_;
  std::uint64_t limit_;
  int kept_;
  Env& env_;
  std::string stem_;
  AppendFile file_;
};

Logger::Logger(LogOptions options, Env& env) : options_(std::move(options)), lowest_(LogLevel::kOff) {
  if (options_.console.fd >= 0) lowest_ = options_.console_level;
  if (options_.folder.empty()) return;
  for (const LogLevel level : {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning, LogLevel::kError}) {
    if (level < options_.file_level) continue;
    files_.push_back(std::make_unique<FileSink>(level, options_, env));
    lowest_ = std::min(lowest_, level);
  }
}

Logger::~Logger() = default;

void Logger::write(LogLevel level, std::string_view message, std::source_location where) {
  write(level, message, where, true);
}

void Logger::write_to_files(LogLevel level, std::string_view message, std::source_location where) {
  write(level, message, where, false);
}

void Logger::write(LogLevel level, std::string_view message, std::source_location where, bool on_console) {
  // The maximum time in milliseconds that a line waits for a reader that does not read. After this time,
  // lines are dropped without a wait until the reader reads again.
  constexpr int kConsoleWaitMs = 1000;
  if (level >= LogLevel::kOff || !enabled(level)) return;
  const std::string time = timestamp();
  const std::string rank = fmt::format("rank-{}/{}", options_.rank, options_.world_size);
  const std::string tag = fmt::format("{:<11}", fmt::format("[{}]", log_level_name(level)));
  const std::string place = fmt::format("{}:{}", base_name(where.file_name()), where.line());
  const std::string body = fmt::format("[{:->23}] : {}\n", place, printable(message));

  const std::lock_guard lock(mutex_);
  if (!files_.empty()) {
    const std::string line = fmt::format("[{}][{}]{}{}", time, rank, tag, body);
    for (const auto& file : files_) {
      if (level >= file->level() && !file->write(line)) dropped_.fetch_add(1, std::memory_order_relaxed);
    }
  }
  const Terminal& console = options_.console;
  if (!on_console || console.fd < 0 || level < options_.console_level) return;
  // The log line overwrites the progress line, which is then drawn again below the log line.
  const std::string line =
      fmt::format("{}[{}][{}]{}{}", console.ansi && !options_.above ? "\r\x1b[K" : "",
                  paint(console, Color::kGreen, time), paint(console, Color::kCyan, rank),
                  paint(console, level_color(level), tag), body);
  const int wait_ms = console_stalled_ ? 0 : kConsoleWaitMs;
  console_stalled_ =
      !(options_.above ? options_.above->print_above(line, wait_ms) : try_write(console.fd, line, wait_ms));
  if (console_stalled_) dropped_.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace primus
