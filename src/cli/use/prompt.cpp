#include "cli/use/prompt.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/error.h"

namespace primus::cli {
namespace {

constexpr int kWaitMs = 10'000;
// Sequences that make the terminal mark pasted text, or stop marking it.
constexpr std::string_view kMarkPaste = "\x1b[?2004h", kDoNotMarkPaste = "\x1b[?2004l";

// State with which a signal handler restores the terminal; set while the terminal is in key mode.
termios original_mode{};
volatile sig_atomic_t mode_is_changed = 0, screen_descriptor = -1;

extern "C" void restore_terminal(int signal_number) {
  if (mode_is_changed) {
    tcsetattr(STDIN_FILENO, TCSANOW, &original_mode);
    [[maybe_unused]] const ssize_t written =
        write(screen_descriptor, kDoNotMarkPaste.data(), kDoNotMarkPaste.size());
  }
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

// While the object exists, the terminal delivers every key as it is pressed.
class KeyMode {
 public:
  explicit KeyMode(const Terminal& screen) : screen_(screen) {
    if (tcgetattr(STDIN_FILENO, &original_mode) != 0) throw io_error("cannot ask the terminal", errno);
    screen_descriptor = screen.fd;
    struct sigaction action {};
    action.sa_handler = restore_terminal;
    for (std::size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &action, &before_[i]);
    begin();
  }
  ~KeyMode() {
    end();
    for (std::size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &before_[i], nullptr);
  }
  KeyMode(const KeyMode&) = delete;
  KeyMode& operator=(const KeyMode&) = delete;

  // Stops the process as Ctrl-Z usually does; returns when the process resumes.
  void suspend() {
    end();
    raise(SIGTSTP);
    begin();
  }

 private:
  static constexpr int kSignals[] = {SIGTERM, SIGHUP, SIGINT, SIGQUIT};

  void begin() {
    termios mode = original_mode;
    mode.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | ISIG | IEXTEN);
    mode.c_iflag &= ~static_cast<tcflag_t>(ICRNL | INLCR | IGNCR | IXON | ISTRIP);
    mode.c_cc[VMIN] = 1;
    mode.c_cc[VTIME] = 0;
    mode_is_changed = 1;
    tcsetattr(STDIN_FILENO, TCSADRAIN, &mode);
    try_write(screen_.fd, kMarkPaste, kWaitMs);
  }
  void end() {
    try_write(screen_.fd, kDoNotMarkPaste, kWaitMs);
    tcsetattr(STDIN_FILENO, TCSADRAIN, &original_mode);
    mode_is_changed = 0;
  }

  const Terminal& screen_;
  struct sigaction before_[std::size(kSignals)] = {};
};

bool keys_are_waiting() {
  pollfd keys{STDIN_FILENO, POLLIN, 0};
  return poll(&keys, 1, 0) > 0;
}

std::size_t height_of(int screen) {
  winsize size{};
  return ioctl(screen, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 ? size.ws_row : 24;
}

}  // namespace

bool Prompt::works(const Terminal& screen) { return isatty(STDIN_FILENO) == 1 && screen.ansi; }

bool Prompt::read(const std::string& prompt, std::string& line) {
  KeyMode mode(screen_);
  editor_.clear();
  cursor_row_ = rows_below_ = 0;
  draw(prompt);
  while (true) {
    const LineEditor::Event event = editor_.feed(typed_);
    switch (event) {
      case LineEditor::Event::kNone:
        break;
      case LineEditor::Event::kLine:
        draw(prompt);
        leave_line();
        line = editor_.take();
        return true;
      case LineEditor::Event::kInterrupt:
        draw(prompt);
        leave_line();
        if (editor_.text().empty()) return false;
        editor_.clear();
        break;
      case LineEditor::Event::kEnd:
        leave_line();
        return false;
      case LineEditor::Event::kSuspend:
        leave_line();
        mode.suspend();
        break;
      case LineEditor::Event::kClearScreen:
        try_write(screen_.fd, "\x1b[H\x1b[2J", kWaitMs);
        cursor_row_ = rows_below_ = 0;
        break;
    }
    if (event != LineEditor::Event::kNone) {
      draw(prompt);
      continue;
    }
    // while more keys are waiting, as in a long paste, nothing is drawn
    if (!keys_are_waiting()) draw(prompt);
    char keys[4096];
    const ssize_t count = ::read(STDIN_FILENO, keys, sizeof(keys));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      leave_line();
      return false;
    }
    typed_.append(keys, static_cast<std::size_t>(count));
  }
}

// Draws the text over the previous drawing. If the text has more rows than the screen, shows the part around
// the cursor.
void Prompt::draw(const std::string& prompt) {
  const std::size_t columns = std::max<std::size_t>(screen_.width(), prompt.size() + 4);
  const LineEditor::Screen drawn = editor_.screen(prompt.size(), columns);
  const std::size_t height = height_of(screen_.fd);
  const std::size_t count = std::min(drawn.rows.size(), height);
  const std::size_t first =
      std::min(drawn.row >= height / 2 ? drawn.row - height / 2 : 0, drawn.rows.size() - count);
  std::string out = "\r";
  if (cursor_row_ > 0) out += fmt::format("\x1b[{}A", cursor_row_);
  out += "\x1b[J";
  for (std::size_t i = 0; i < count; ++i) {
    if (i > 0) out += "\r\n";
    if (first + i == 0) out += paint(screen_, Color::kBold, prompt);
    out += drawn.rows[first + i];
  }
  cursor_row_ = drawn.row - first;
  rows_below_ = count - 1 - cursor_row_;
  if (rows_below_ > 0) out += fmt::format("\x1b[{}A", rows_below_);
  out += "\r";
  if (drawn.column > 0) out += fmt::format("\x1b[{}C", drawn.column);
  try_write(screen_.fd, out, kWaitMs);
}

// Moves to a new row below the drawn text.
void Prompt::leave_line() {
  std::string out;
  if (rows_below_ > 0) out = fmt::format("\x1b[{}B", rows_below_);
  try_write(screen_.fd, out + "\r\n", kWaitMs);
  cursor_row_ = rows_below_ = 0;
}

}  // namespace primus::cli
