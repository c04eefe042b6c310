// A program that stays alive and answers requests: one line to its input, one line from its output.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <string>
#include <string_view>
#include <vector>

namespace primus {

// Thread-safety: one thread at a time.
class WorkerProgram {
 public:
  // `command`: the program's file and its arguments. `folder`: its working folder. exchange() starts it.
  WorkerProgram(std::vector<std::string> command, std::string folder);
  ~WorkerProgram();  // ends the program and all processes of its process group
  WorkerProgram(const WorkerProgram&) = delete;
  WorkerProgram& operator=(const WorkerProgram&) = delete;

  enum class Outcome {
    kLine,     // `line` is the program's reply
    kTimeout,  // no reply in time
    kEnded,    // the program ended, or could not start
    kWrong,    // the program wrote a line without a request, or a line of more than kMaxLineBytes
  };
  struct Reply {
    Outcome outcome = Outcome::kEnded;
    std::string line;     // without its line end
    std::string problem;  // why there is no line, as a sentence without a period; set unless kLine
  };
  static constexpr std::size_t kMaxLineBytes = std::size_t{1} << 20;

  // Sends `line` and waits for one line. After an outcome other than kLine, the program is ended with its
  // process group, and the next call starts it again. Throws Error(kIo) if the system cannot start a process.
  // `stop`, if not null, ends the wait with kTimeout soon after another thread has set it.
  Reply exchange(std::string_view line, std::chrono::milliseconds timeout,
                 const std::atomic<bool>* stop = nullptr);

  // Returns the end of the text that the program wrote to its standard error, at most 4 KiB.
  const std::string& error_text() const { return error_text_; }

 private:
  void start();
  void stop();
  Reply failed(Outcome outcome, std::string problem);
  std::string ending();
  // Each of these functions transfers as much as possible without waiting. They return false at the end of a
  // stream.
  bool write_some(std::string_view& rest) const;
  bool read_output();
  bool read_errors();

  std::vector<std::string> command_;
  std::string folder_;
  pid_t pid_ = -1;
  int input_ = -1, output_ = -1, errors_ = -1;
  std::string received_;    // output that is not yet returned
  std::string error_text_;  // text of the current process, or of the last process if none runs
};

}  // namespace primus
