// The log of one rank: on the screen, and in the files {debug,info,warning,error}.log of its folder.
//
//   [20260101 12:00:00][rank-0/1][INFO]     [----------trainer.cpp:118] : restored iteration 400
//
// This is the line format of AMD Primus, so its log parsers can read our logs. Each file contains messages of
// its own level and above. A file that reaches 10 MB becomes info.1.log; older files become info.2.log and so
// on.
//
//   Logger log({.folder = run.rank_logs("pre_trainer", 0), .console_level = LogLevel::kInfo});
//   log.info("restored iteration {}", iteration);
//
// Logging cannot stop the program. If a sink fails (disk full, folder removed, closed pipe), the line is
// dropped and counted, and the sink is tried again with the next line. Control characters in messages are
// escaped, so that a hostile file name cannot control the reader's terminal.
//
// There is no global logger: pass a Logger&. Thread-safety: any thread may call any member.
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

struct LogOptions {
  std::string folder = {};  // created if missing; empty: no files
  int rank = 0, world_size = 1;
  LogLevel file_level = LogLevel::kDebug;       // levels below this level are not written to files
  LogLevel console_level = LogLevel::kWarning;  // only warnings by default
  Terminal console = {};                        // usually Terminal::detect(2); the default discards output
  LiveBlock* above = nullptr;                   // drawn on `console`: log lines scroll above it
  std::uint64_t rotate_bytes = 10'000'000;      // max bytes of a file, unless a single line is longer
  int rotations_kept = 9;                       // older files are removed
};

// A format string with its source location. With PRIMUS_CHECK_FORMATS it is checked at compile time.
template <class... Args>
struct LogFormat {
  template <class Text>
  consteval LogFormat(const Text& text,  // NOLINT(google-explicit-constructor): callers pass a string literal
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

  // Logs a message that is already formatted.
  void write(LogLevel level, std::string_view message,
             std::source_location where = std::source_location::current());

  // Logs only to files, for messages that the screen shows in another form.
  void write_to_files(LogLevel level, std::string_view message,
                      std::source_location where = std::source_location::current());

  // Returns true if any sink accepts this level. Callers can skip the preparation of messages that no sink
  // accepts.
  bool enabled(LogLevel level) const { return level >= lowest_; }
  // Returns the number of dropped lines. A line counts once per sink that dropped it.
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
