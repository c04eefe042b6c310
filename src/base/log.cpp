#include "base/log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <ctime>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace primus {
namespace {

constexpr std::array<std::pair<LogLevel, std::string_view>, 5> kLevelNames = {
    {{LogLevel::kDebug, "DEBUG"},
     {LogLevel::kInfo, "INFO"},
     {LogLevel::kWarning, "WARNING"},
     {LogLevel::kError, "ERROR"},
     {LogLevel::kOff, "OFF"}}};

// "20260101 12:00:00", local time.
std::string timestamp() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  return fmt::format("{:04}{:02}{:02} {:02}:{:02}:{:02}", parts.tm_year + 1900, parts.tm_mon + 1,
                     parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec);
}

std::string_view base_name(std::string_view path) { return path.substr(path.find_last_of('/') + 1); }

std::string escape_controls(std::string_view message) {
  std::string text;
  text.reserve(message.size());
  for (const char c : message) {
    const auto byte = static_cast<unsigned char>(c);
    const bool control = (byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7F;
    if (control) {
      text += fmt::format("\\x{:02x}", byte);
    } else {
      text += c;
    }
  }
  return text;
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

std::string_view log_level_name(LogLevel level) {
  for (const auto& [value, name] : kLevelNames) {
    if (value == level) return name;
  }
  return "OFF";
}

LogLevel parse_log_level(std::string_view name) {
  std::string upper(name);
  std::transform(upper.begin(), upper.end(), upper.begin(), [](unsigned char c) { return std::toupper(c); });
  for (const auto& [level, known] : kLevelNames) {
    if (upper == known) return level;
  }
  throw invalid(fmt::format("unknown log level '{}'", name), "use DEBUG, INFO, WARNING, ERROR or OFF");
}

// One file that rotates. Opened when first needed, and again after whatever went wrong.
class Logger::FileSink {
 public:
  FileSink(LogLevel level, const LogOptions& options)
      : level_(level), limit_(options.rotate_bytes), kept_(options.rotations_kept) {
    std::string name(log_level_name(level));
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
    stem_ = options.folder + "/" + name;
  }
  ~FileSink() { close(); }
  FileSink(const FileSink&) = delete;
  FileSink& operator=(const FileSink&) = delete;

  LogLevel level() const { return level_; }

  // False when the line was lost.
  bool write(std::string_view line) {
    if (fd_ >= 0 && size_ > 0 && size_ + line.size() > limit_) rotate();
    if (fd_ < 0 && !open()) return false;
    while (!line.empty()) {
      const ssize_t written = ::write(fd_, line.data(), line.size());
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) {
        // What was written of this line stays; the next line must not be glued to it.
        torn_ = torn_ || partial_;
        close();
        return false;
      }
      size_ += static_cast<std::uint64_t>(written);
      line.remove_prefix(static_cast<std::size_t>(written));
      partial_ = !line.empty();
    }
    return true;
  }

 private:
  std::string name(int generation) const {
    return generation == 0 ? stem_ + ".log" : fmt::format("{}.{}.log", stem_, generation);
  }

  bool open() {
    std::error_code ignored;
    std::filesystem::create_directories(std::filesystem::path(stem_).parent_path(), ignored);
    fd_ = ::open(name(0).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd_ < 0) return false;
    struct stat status {};
    size_ = fstat(fd_, &status) == 0 ? static_cast<std::uint64_t>(status.st_size) : 0;
    partial_ = false;
    if (torn_) {
      torn_ = false;
      if (::write(fd_, "\n", 1) == 1) ++size_;
    }
    return true;
  }

  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

  void rotate() {
    close();
    // rename() over the oldest removes it; a missing generation is no error.
    for (int generation = kept_; generation > 0; --generation) {
      std::rename(name(generation - 1).c_str(), name(generation).c_str());
    }
    if (kept_ <= 0) unlink(name(0).c_str());
  }

  LogLevel level_;
  std::string stem_;
  std::uint64_t limit_, size_ = 0;
  int kept_;
  int fd_ = -1;
  bool partial_ = false, torn_ = false;
};

Logger::Logger(LogOptions options) : options_(std::move(options)), lowest_(LogLevel::kOff) {
  if (options_.console.fd >= 0) lowest_ = options_.console_level;
  if (options_.folder.empty()) return;
  for (const LogLevel level : {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning, LogLevel::kError}) {
    if (level < options_.file_level) continue;
    files_.push_back(std::make_unique<FileSink>(level, options_));
    lowest_ = std::min(lowest_, level);
  }
}

Logger::~Logger() = default;

void Logger::write(LogLevel level, std::string_view message, std::source_location where) noexcept {
  // A reader that stands still is waited for once, and then not again until it reads.
  constexpr int kConsoleWaitMs = 1000;
  if (level >= LogLevel::kOff || !enabled(level)) return;
  try {
    const std::string time = timestamp();
    const std::string rank = fmt::format("rank-{}/{}", options_.rank, options_.world_size);
    const std::string tag = fmt::format("{:<11}", fmt::format("[{}]", log_level_name(level)));
    const std::string place = fmt::format("{}:{}", base_name(where.file_name()), where.line());
    const std::string body = fmt::format("[{:->23}] : {}\n", place, escape_controls(message));

    const std::lock_guard lock(mutex_);
    if (!files_.empty()) {
      const std::string line = fmt::format("[{}][{}]{}{}", time, rank, tag, body);
      for (const auto& file : files_) {
        if (level >= file->level() && !file->write(line)) dropped_.fetch_add(1, std::memory_order_relaxed);
      }
    }
    if (options_.console.fd >= 0 && level >= options_.console_level) {
      const Terminal& console = options_.console;
      // The line takes the place of a progress line, which its owner draws again below.
      const std::string line =
          fmt::format("{}[{}][{}]{}{}", console.ansi ? "\r\x1b[K" : "", paint(console, Color::kGreen, time),
                      paint(console, Color::kCyan, rank), paint(console, level_color(level), tag), body);
      console_stalled_ = !try_write(console.fd, line, console_stalled_ ? 0 : kConsoleWaitMs);
      if (console_stalled_) dropped_.fetch_add(1, std::memory_order_relaxed);
    }
  } catch (...) {
    // Out of memory while formatting: the line is lost, the run goes on.
    dropped_.fetch_add(1, std::memory_order_relaxed);
  }
}

}  // namespace primus
