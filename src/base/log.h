// The log of one rank: to the screen, and to the files {debug,info,warning,error}.log of its folder.
//
//   [20260101 12:00:00][rank-0/1][INFO]     [----------trainer.cpp:118] : restored iteration 400
//
// That is Primus's line, so that what reads its logs reads ours. Each file holds its own level and everything
// above it; at 10 MB it becomes info.1.log, older ones move up to info.2.log and so on.
//
//   Logger log({.folder = run.rank_logs("pre_trainer", 0), .console_level = LogLevel::kInfo});
//   log.info("restored iteration {}", iteration);
//
// Logging never stops the work: a sink that fails (disk full, folder removed, closed pipe)
// loses the line and counts it, and is tried again with the next one. Control characters in messages are
// escaped, so a hostile file name cannot drive the reader's terminal.
//
// There is no global logger: hand a Logger& down. Thread-safety: every member may be called from any thread.
#pragma once

#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <source_location>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/files/file.h"
#include "base/terminal/terminal.h"

namespace primus {

class LiveBlock;

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

// "INFO" for kInfo. parse: any case; throws Error(kInvalid) naming the choices.
std::string_view log_level_name(LogLevel level);
LogLevel parse_log_level(std::string_view name);

struct LogOptions {
  std::string folder = {};  // made when missing; empty: no files
  int rank = 0, world_size = 1;
  LogLevel file_level = LogLevel::kDebug;       // files below it are not written
  LogLevel console_level = LogLevel::kWarning;  // quiet unless asked
  Terminal console = {};                        // Terminal::detect(2); the default writes nowhere
  LiveBlock* above = nullptr;                   // drawn on `console`: lines scroll by above it
  std::uint64_t rotate_bytes = 10'000'000;      // a file never grows beyond this by more than one line
  int rotations_kept = 9;                       // older ones are removed
};

// A format string that remembers where it was written. Checked at compile time, where fmt checks its own
// (PRIMUS_CHECK_FORMATS).
template <class... Args>
struct LogFormat {
  template <class Text>
  consteval LogFormat(const Text& text,  // NOLINT(google-explicit-constructor): callers write a plain literal
                      std::source_location place = std::source_location::current())
      : format(text), where(place) {
#ifdef FMT_HAS_CONSTEVAL
    static_cast<void>(fmt::format_string<Args...>(text));
#endif
  }
  fmt::string_view format;
  std::source_location where;
};

class Logger {
 public:
  explicit Logger(LogOptions options, Env& env = Env::posix());
  ~Logger();
  Logger(const Logger&) = delete;
  Logger& operator=(const Logger&) = delete;

  template <class... Args>
  void debug(LogFormat<std::type_identity_t<Args>...> text, Args&&... args) {
    log(LogLevel::kDebug, text, args...);
  }
  template <class... Args>
  void info(LogFormat<std::type_identity_t<Args>...> text, Args&&... args) {
    log(LogLevel::kInfo, text, args...);
  }
  template <class... Args>
  void warning(LogFormat<std::type_identity_t<Args>...> text, Args&&... args) {
    log(LogLevel::kWarning, text, args...);
  }
  template <class... Args>
  void error(LogFormat<std::type_identity_t<Args>...> text, Args&&... args) {
    log(LogLevel::kError, text, args...);
  }

  // A message made elsewhere.
  void write(LogLevel level, std::string_view message,
             std::source_location where = std::source_location::current());

  // To the log files alone: what the screen shows in another way.
  void write_to_files(LogLevel level, std::string_view message,
                      std::source_location where = std::source_location::current());

  // True when some sink wants this level: saves the work of preparing an expensive message.
  bool enabled(LogLevel level) const { return level >= lowest_; }
  // Lines lost so far, one for each sink that lost it.
  std::uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

 private:
  class FileSink;

  void write(LogLevel level, std::string_view message, std::source_location where, bool on_console);

  template <class Format, class... Args>
  void log(LogLevel level, const Format& text, Args&... args) {
    if (enabled(level)) write(level, fmt::vformat(text.format, fmt::make_format_args(args...)), text.where);
  }

  LogOptions options_;
  LogLevel lowest_;
  std::mutex mutex_;  // guards the sinks
  std::vector<std::unique_ptr<FileSink>> files_;
  bool console_stalled_ = false;
  std::atomic<std::uint64_t> dropped_{0};
};

}  // namespace primus
