// primus logs
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/terminal/terminal.h"
#include "base/text/json_text.h"
#include "cli/command.h"
#include "cli/train/stop_signal.h"
#include "lm/events/run_folder.h"
#include "lm/report/run_list.h"
#include "lm/reward/search_pattern.h"
#include "safe/jobs/log_view.h"

namespace primus::cli {
namespace {

// The ranks of "0,3-5".
class RankList {
 public:
  explicit RankList(const std::string& text) {
    for (std::size_t begin = 0; begin <= text.size();) {
      const std::size_t end = std::min(text.find(',', begin), text.size());
      const std::string_view part = std::string_view(text).substr(begin, end - begin);
      const std::size_t dash = part.find('-');
      const auto first = number(part.substr(0, dash));
      const auto last = dash == std::string_view::npos ? first : number(part.substr(dash + 1));
      if (!first || !last || *last < *first)
        throw invalid(fmt::format("--rank '{}' is not a list of ranks", printable(text)),
                      "write ranks and ranges, such as 0,3-5");
      ranges_.emplace_back(*first, *last);
      begin = end + 1;
    }
  }
  bool contains(int rank) const {
    for (const auto& [first, last] : ranges_)
      if (first <= rank && rank <= last) return true;
    return false;
  }

 private:
  static std::optional<int> number(std::string_view text) {
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
    return value;
  }
  std::vector<std::pair<int, int>> ranges_;
};

Color color_of(LogLevel level) {
  switch (level) {
    case LogLevel::kError:
      return Color::kRed;
    case LogLevel::kWarning:
      return Color::kYellow;
    case LogLevel::kDebug:
      return Color::kBlue;
    default:
      return Color::kBold;
  }
}

std::string_view level_name(LogLevel level) {
  switch (level) {
    case LogLevel::kError:
      return "error";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kDebug:
      return "debug";
    default:
      return "info";
  }
}

LogLevel level_of(const std::string& name) {
  for (const LogLevel level : {LogLevel::kDebug, LogLevel::kWarning, LogLevel::kError})
    if (level_name(level) == name) return level;
  return LogLevel::kInfo;
}

// Writes entries to standard output, many with one call.
class EntryWriter {
 public:
  EntryWriter(const Console& console, bool json) : console_(console), json_(json) {}

  void add(const jobs::LogEntry& entry) {
    if (json_) {
      text_ += json_text(as_json(entry), -1) + "\n";
    } else if (console_.out.color && entry.time > 0) {
      flush();
      print_colored(entry);
    } else {
      text_ += entry.text + "\n";
    }
    constexpr std::size_t kEnough = std::size_t{64} << 10;
    if (text_.size() >= kEnough) flush();
  }
  void flush() {
    if (text_.empty()) return;
    json_ ? console_.write(text_) : console_.print(text_);
    text_.clear();
  }

 private:
  static nlohmann::ordered_json as_json(const jobs::LogEntry& entry) {
    nlohmann::ordered_json json = nlohmann::ordered_json::object();
    const auto header = jobs::read_header(entry.text);
    if (header) {
      const std::int64_t day = entry.time / 1'000'000, clock = entry.time % 1'000'000;
      json["time"] = fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}", day / 10000, day / 100 % 100,
                                 day % 100, clock / 10000, clock / 100 % 100, clock % 100);
    }
    json["rank"] = entry.rank;
    json["module"] = entry.module;
    if (header) {
      json["level"] = level_name(entry.level);
      json["place"] = std::string(header->place);
    }
    json["text"] = header ? std::string(header->message) : entry.text;
    return json;
  }

  // The header's parts have the colors of the run's own log.
  void print_colored(const jobs::LogEntry& entry) {
    const std::string_view text = entry.text;
    const std::size_t time = text.find(']') + 1, rank = text.find(']', time) + 1;
    const std::size_t level = text.find(']', rank) + 1;
    console_.print(Color::kGreen, text.substr(0, time));
    console_.print(Color::kCyan, text.substr(time, rank - time));
    console_.print(color_of(entry.level), text.substr(rank, level - rank));
    console_.print(std::string(text.substr(level)) + "\n");
  }

  const Console& console_;
  bool json_;
  std::string text_;
};

class Logs final : public Command {
 public:
  void declare(Arguments& args) override {
    args.positional("RUN", &folder_, "folder of the run").required = true;
    args.option("--rank", "LIST", &ranks_, "only these ranks, such as 0,3-5");
    args.option("--level", "LEVEL", &level_, "lowest level of the entries").choices = {"debug", "info",
                                                                                       "warning", "error"};
    args.option("--grep", "REGEX", &pattern_,
                "only entries that match this regular expression (Perl's syntax)");
    constexpr double kMostLines = 1e9;
    args.option("--lines,-n", "N", &lines_, "only the last N entries; 0: all")
        .between(0, kMostLines)
        .default_note("100, or all with --grep");
    args.flag("--follow,-f", follow_, "show new entries until Ctrl-C, also of restarts and new ranks");
    args.flag("--json", json_, "print one JSON object per entry");
  }

  int run(Console& console) override {
    if (!is_run_folder(folder_) && !Env::posix().status(Path(folder_) / "logs")) {
      const std::string hint = hint_for_run_name(folder_);
      throw invalid(fmt::format("'{}' is not the folder of a run", printable(folder_)),
                    hint.empty() ? "'primus runs' lists the runs" : hint);
    }
    std::optional<RankList> ranks;
    if (ranks_) ranks.emplace(*ranks_);
    std::optional<SearchPattern> pattern;
    if (pattern_) pattern.emplace(*pattern_);
    std::int64_t undecided = 0;
    jobs::LogQuery query{
        .run = folder_, .level = level_of(level_), .unfinished = !follow_ && !RunLock::held(folder_)};
    if (ranks) query.wanted = [&](int rank) { return ranks->contains(rank); };
    if (pattern) {
      query.matches = [&](const jobs::LogEntry& entry) {
        const SearchResult result = pattern->find(entry.text);
        undecided += result == SearchResult::kLimit;
        return result != SearchResult::kMissing;
      };
    }
    jobs::LogView view(std::move(query));
    if (view.logs() == 0 && !follow_) {
      throw invalid(ranks ? fmt::format("the run has no log of the ranks {}", *ranks_)
                          : fmt::format("the run '{}' has no logs", printable(folder_)),
                    ranks ? "'primus runs' shows the run; without --rank, all ranks are shown"
                          : "it has not started yet, or its folder logs was removed");
    }
    EntryWriter writer(console, json_);
    const auto add = [&](const jobs::LogEntry& entry) { writer.add(entry); };
    constexpr std::int64_t kUsual = 100;
    const std::int64_t count = lines_.value_or(pattern ? 0 : kUsual);
    if (count > 0) {
      view.last(static_cast<std::size_t>(count), add);
    } else {
      view.all(add);
    }
    writer.flush();
    if (follow_) follow(view, writer);
    if (undecided > 0)
      console.note(fmt::format("note: {} entries are shown although the search in them took too many steps",
                               undecided));
    return 0;
  }

 private:
  // Looks for new entries a few times a second, less often if that takes long.
  static void follow(jobs::LogView& view, EntryWriter& writer) {
    using Clock = std::chrono::steady_clock;
    constexpr std::chrono::milliseconds kPause{200}, kSlice{50};
    constexpr int kShare = 10;  // the pause is this much longer than the work
    const std::atomic<bool>& stop = catch_stop_signals();
    const auto add = [&](const jobs::LogEntry& entry) { writer.add(entry); };
    while (!stop) {
      const auto begin = Clock::now();
      view.follow(add, steady_seconds());
      writer.flush();
      const auto end = Clock::now();
      const auto next = end + std::max<Clock::duration>(kPause, (end - begin) * kShare);
      while (!stop && Clock::now() < next) std::this_thread::sleep_for(kSlice);
    }
    view.finish(add);  // what was not complete yet
    writer.flush();
  }

  std::string folder_, level_ = "info";
  std::optional<std::string> ranks_, pattern_;
  std::optional<std::int64_t> lines_;
  bool follow_ = false, json_ = false;
};

}  // namespace

extern const CommandEntry kLogs{
    "logs",
    "Shows the logs of a run's ranks, merged by time",
    "An entry is a line of a log with its continuation lines. Times have whole seconds; entries of one "
    "second are sorted by rank. The command reads the files from their ends, so large logs take no more "
    "time than small ones. A line that a running run is still writing is not shown; with --follow, it is "
    "shown when it is complete. With --follow, the newest entry of a rank is shown when another one "
    "follows, or when nothing was added to it for a second.\n\nColors are used only on a terminal. --grep "
    "without -n searches the whole logs.",
    "primus logs output/team/me/run\n"
    "primus logs output/team/me/run --rank 0,3-5 --level warning -n 20\n"
    "primus logs output/team/me/run --grep 'saving iteration'\n"
    "primus logs output/team/me/run --follow\n"
    "primus logs output/team/me/run --json -n 0",
    make_command<Logs>,
    {Section::kTrain, 14}};

}  // namespace primus::cli
