#include "safe/postmortem/text_evidence.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/terminal/terminal.h"
#include "base/text/secrets.h"
#include "lm/events/line_file.h"
#include "safe/postmortem/kernel_process.h"

namespace primus::postmortem {
namespace {

constexpr std::size_t kMaxText = 400;  // bytes of a line that are shown
constexpr std::size_t kMaxHead = 160;  // bytes of a line in which a time is searched
constexpr std::size_t kKept = 8;       // pieces of evidence per file and cause
constexpr std::uint64_t kMaxJson = std::uint64_t{64} << 20;
constexpr std::array<std::string_view, 12> kMonths = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                                      "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Reads `digits` digits at `at`. Returns -1 if there are fewer.
int digits_at(std::string_view text, std::size_t at, std::size_t digits) {
  if (at + digits > text.size()) return -1;
  int value = 0;
  for (std::size_t i = at; i < at + digits; ++i) {
    if (!is_digit(text[i])) return -1;
    value = value * 10 + (text[i] - '0');
  }
  return value;
}

struct Moment {
  int year = 0, month = 0, day = 0, hour = 0, minute = 0, second = 0;
  double fraction = 0;
  std::optional<int> zone_minutes = {};  // east of UTC; empty: local time
};

// Returns the seconds since 1970; 0 for a moment that does not exist.
double seconds_of(const Moment& m) {
  const bool valid = m.year >= 1970 && m.year < 10000 && m.month >= 1 && m.month <= 12 && m.day >= 1 &&
                     m.day <= 31 && m.hour >= 0 && m.hour <= 24 && m.minute >= 0 && m.minute < 60 &&
                     m.second >= 0 && m.second <= 60;
  if (!valid) return 0;
  std::tm tm{};
  tm.tm_year = m.year - 1900;
  tm.tm_mon = m.month - 1;
  tm.tm_mday = m.day;
  tm.tm_hour = m.hour;
  tm.tm_min = m.minute;
  tm.tm_sec = m.second;
  tm.tm_isdst = -1;
  const std::time_t seconds =
      m.zone_minutes ? timegm(&tm) - std::time_t{60} * *m.zone_minutes : std::mktime(&tm);
  return static_cast<double>(seconds) + m.fraction;
}

// Reads "12:34:56" at `at`, and a fraction after '.' or ','. Returns the position after it; npos: there is
// none.
std::size_t clock_at(std::string_view text, std::size_t at, Moment& m) {
  m.hour = digits_at(text, at, 2);
  m.minute = digits_at(text, at + 3, 2);
  m.second = digits_at(text, at + 6, 2);
  if (m.hour < 0 || m.minute < 0 || m.second < 0 || text[at + 2] != ':' || text[at + 5] != ':')
    return std::string_view::npos;
  std::size_t end = at + 8;
  if (end + 1 < text.size() && (text[end] == '.' || text[end] == ',') && is_digit(text[end + 1])) {
    double unit = 0.1;
    for (++end; end < text.size() && is_digit(text[end]); ++end, unit /= 10)
      m.fraction += (text[end] - '0') * unit;
  }
  return end;
}

// Reads "Z", "+01:00" or "+0100" at `at`.
void zone_at(std::string_view text, std::size_t at, Moment& m) {
  if (at >= text.size()) return;
  if (text[at] == 'Z') m.zone_minutes = 0;
  if (text[at] != '+' && text[at] != '-') return;
  const int hours = digits_at(text, at + 1, 2);
  const bool colon = at + 3 < text.size() && text[at + 3] == ':';
  const int minutes = digits_at(text, at + (colon ? 4 : 3), 2);
  if (hours < 0 || minutes < 0) return;
  m.zone_minutes = (text[at] == '-' ? -1 : 1) * (60 * hours + minutes);
}

// Reads "2026-11-28T05:00:31.25+00:00", also with a space for the T.
double iso_time(std::string_view text) {
  for (std::size_t at = 0; at + 19 <= text.size(); ++at) {
    if (!is_digit(text[at]) || text[at + 4] != '-' || text[at + 7] != '-') continue;
    if (text[at + 10] != 'T' && text[at + 10] != ' ') continue;
    Moment m{.year = digits_at(text, at, 4),
             .month = digits_at(text, at + 5, 2),
             .day = digits_at(text, at + 8, 2)};
    const std::size_t end = clock_at(text, at + 11, m);
    if (end == std::string_view::npos) continue;
    zone_at(text, end, m);
    if (const double time = seconds_of(m); time > 0) return time;
  }
  return 0;
}

// Reads "[20260101 12:00:00]", the form of this program's logs, at the start of a line.
double own_time(std::string_view text) {
  if (text.size() < 19 || text[0] != '[' || text[9] != ' ') return 0;
  Moment m{.year = digits_at(text, 1, 4), .month = digits_at(text, 5, 2), .day = digits_at(text, 7, 2)};
  return clock_at(text, 10, m) == std::string_view::npos ? 0 : seconds_of(m);
}

// Reads "Nov 28 05:00:31", with a year after it (dmesg -T) or without one (syslog).
double named_month_time(std::string_view text, double near) {
  for (std::size_t month = 0; month < kMonths.size(); ++month) {
    const std::size_t at = text.find(kMonths[month]);
    if (at == std::string_view::npos || at + 15 > text.size()) continue;
    Moment m{.month = static_cast<int>(month) + 1};
    m.day = text[at + 4] == ' ' ? digits_at(text, at + 5, 1) : digits_at(text, at + 4, 2);
    const std::size_t end = clock_at(text, at + 7, m);
    if (end == std::string_view::npos) continue;
    m.year = digits_at(text, end + 1, 4);
    if (m.year >= 1970) return seconds_of(m);
    // Chooses the year that brings the time nearest to `near`.
    const auto seconds = static_cast<std::time_t>(near > 0 ? near : static_cast<double>(std::time(nullptr)));
    std::tm local{};
    localtime_r(&seconds, &local);
    double best = 0;
    for (int year = local.tm_year + 1899; year <= local.tm_year + 1901; ++year) {
      m.year = year;
      const double time = seconds_of(m);
      if (best == 0 || std::abs(time - near) < std::abs(best - near)) best = time;
    }
    return best;
  }
  return 0;
}

// Returns the number after `word` in the line; -1 if there is none.
int number_after(std::string_view line, std::string_view word) {
  for (std::size_t at = line.find(word); at != std::string_view::npos; at = line.find(word, at + 1)) {
    const char* const begin = line.data() + at + word.size();
    int value = 0;
    const auto result = std::from_chars(begin, line.data() + line.size(), value);
    if (result.ec == std::errc() && value >= 0) return value;
  }
  return -1;
}

// Returns the rank that stopped the others, according to a message of one of them: "rank 0: all_reduce did
// not complete; rank 1 is missing and does not answer" is about rank 1. Returns -1 if the line names none.
int blamed_rank(std::string_view line) {
  constexpr std::string_view kRank = "rank ";
  for (const std::string_view phrase :
       {" has not called it", " is missing and does not answer", " was lost", " was killed",
        " stopped before the end", " is slow", " has been ", " has exited"}) {
    for (std::size_t at = line.find(phrase); at != std::string_view::npos; at = line.find(phrase, at + 1)) {
      std::size_t begin = at;
      while (begin > 0 && is_digit(line[begin - 1])) --begin;
      if (line.substr(0, begin).ends_with(kRank))
        return number_after(line.substr(begin - kRank.size()), kRank);
    }
  }
  return -1;
}

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '-' || c == '_' || c == '.';
}

// Returns the name that begins at `at`; empty if it ends neither with the line nor at one of `ends`.
std::string name_at(std::string_view line, std::size_t at, std::string_view ends) {
  std::size_t end = at;
  while (end < line.size() && is_name_character(line[end])) ++end;
  const bool ended = end == line.size() || ends.find(line[end]) != std::string_view::npos;
  return ended && end > at ? std::string(line.substr(at, end - at)) : std::string();
}

std::string node_of(std::string_view line) {
  // "srun: error: n2: task 1: Killed"
  constexpr std::string_view kError = "srun: error: ";
  if (line.find("DUE TO NODE FAILURE") != std::string_view::npos) return {};  // ON names the reporting node
  if (const std::size_t at = line.find(kError); at != std::string_view::npos) {
    const std::string node = name_at(line, at + kError.size(), ":");
    if (line.find(node + ": task") != std::string_view::npos && !node.empty()) return node;
  }
  for (const std::string_view before : {" ON ", "failure of node ", "Node failure on ", "error: Nodes "}) {
    if (const std::size_t at = line.find(before); at != std::string_view::npos)
      return name_at(line, at + before.size(), " ,;:*");
  }
  // "n2:4711:4712 [1] NCCL WARN ..."
  if (line.find(" NCCL ") != std::string_view::npos) return name_at(line, 0, ":");
  // "Nov 28 05:00:31 host kernel: ..." and "2026-11-28T05:00:31+00:00 host kernel: ..."
  if (const std::size_t at = line.find(" kernel:"); at != std::string_view::npos) {
    std::size_t begin = at;
    while (begin > 0 && is_name_character(line[begin - 1])) --begin;
    return std::string(line.substr(begin, at - begin));
  }
  return {};
}

bool contains_any(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::ranges::any_of(
      words, [&](std::string_view word) { return text.find(word) != std::string_view::npos; });
}

// Returns the text for a report: printable, short, without words that are secrets.
std::string shown(std::string_view line) {
  std::string text;
  for (std::size_t at = 0; at < line.size() && text.size() < kMaxText;) {
    const std::size_t end = std::min(line.find(' ', at), line.size());
    const std::string_view word = line.substr(at, end - at);
    if (!text.empty()) text += ' ';
    text += is_secret_value(word) ? kRedacted : word;
    at = end + 1;
  }
  if (text.size() > kMaxText) text = text.substr(0, kMaxText) + " ...";
  return printable(text);
}

// Keeps the first and the newest pieces of evidence of each cause of a file.
class Collector {
 public:
  explicit Collector(CaseFile& into) : into_(into) {}
  void add(Evidence evidence) {
    std::vector<Evidence>& kept = kept_[evidence.cause];
    if (kept.size() == kKept) kept.erase(kept.begin() + kKept / 2);
    kept.push_back(std::move(evidence));
  }
  ~Collector() {
    for (auto& [cause, kept] : kept_)
      into_.evidence.insert(into_.evidence.end(), std::make_move_iterator(kept.begin()),
                            std::make_move_iterator(kept.end()));
  }
  Collector(const Collector&) = delete;
  Collector& operator=(const Collector&) = delete;

 private:
  CaseFile& into_;
  std::map<const Cause*, std::vector<Evidence>> kept_;
};

// Where the lines of a file come from.
struct Origin {
  std::string file;
  std::optional<int> rank = {};
  double near = 0;
  std::string node = {};
  double last_time = 0;  // of the rank's preceding line; 0: unknown, or not the log of a rank
};

// Returns whether a process has a name that no rank has: "Killed process 4711 (node_exporter)".
bool is_other_program(const std::optional<KernelProcess>& process) {
  return process && !process->name.starts_with("primus");
}

// Returns whether the line is a row of 'sacct -P': "26|name|TIMEOUT|0:0|2026-...|2026-...|n[1-2]".
bool is_sacct(std::string_view line) {
  return std::ranges::count(line, '|') >= 5 && line.find("|20") != std::string_view::npos &&
         is_digit(line[0]);
}

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  for (std::size_t at = line.find_first_not_of(' '); at != std::string_view::npos;
       at = line.find_first_not_of(' ', at)) {
    const std::size_t end = std::min(line.find(' ', at), line.size());
    words.push_back(line.substr(at, end - at));
    at = end;
  }
  return words;
}

// Returns whether the line is a row of 'kubectl get pods' ("run-0 0/1 Evicted ...") or of 'kubectl get
// events'
// ("2m Warning Evicted pod/run-0 ...").
bool is_kubernetes_row(std::string_view line) {
  const std::vector<std::string_view> words = words_of(line.substr(0, 400));
  if (words.size() < 4) return false;
  const bool pod = words[1].size() >= 3 && is_digit(words[1][0]) &&
                   words[1].find('/') != std::string_view::npos && is_digit(words[1].back()) &&
                   is_digit(words[3][0]);
  const bool event =
      (words[1] == "Normal" || words[1] == "Warning") && words[3].find('/') != std::string_view::npos;
  return pod || event;
}

// Takes the nodes of pods and of a Slurm job from tables.
void take_table(std::string_view line, CaseFile& into) {
  constexpr std::size_t kMost = 1 << 16;
  if (is_sacct(line)) {
    const std::string_view nodes = line.substr(line.rfind('|') + 1);
    if (nodes.find('[') != std::string_view::npos || !into.hosts.empty()) return;  // an abbreviated list
    for (std::size_t at = 0; at <= nodes.size() && into.hosts.size() < kMost;) {
      const std::size_t end = std::min(nodes.find(',', at), nodes.size());
      if (std::string name = name_at(nodes, at, ","); !name.empty()) into.hosts.push_back(std::move(name));
      at = end + 1;
    }
    return;
  }
  if (!is_kubernetes_row(line) || into.pods.size() >= kMost) return;
  const std::vector<std::string_view> words = words_of(line);
  constexpr std::string_view kAssigned = "Successfully assigned ";
  if (const std::size_t at = line.find(kAssigned); at != std::string_view::npos) {
    const std::vector<std::string_view> parts = words_of(line.substr(at + kAssigned.size()));
    if (parts.size() < 3) return;
    const std::string pod(parts[0].substr(parts[0].find('/') + 1));
    into.pods.try_emplace(pod, parts[2]);
  } else if (words[1] != "Normal" && words[1] != "Warning" && words.size() >= 7) {
    if (words[6] != "<none>") into.pods.try_emplace(std::string(words[0]), words[6]);
  }
}

void take_line(std::string_view line, std::int64_t number, const Origin& origin, Collector& into) {
  const Source source = source_of(line);
  const Cause* const cause = match(source, line);
  if (!cause) return;
  const std::optional<KernelProcess> process = kernel_process(line);
  if (is_other_program(process)) return;
  LineFacts facts = facts_of(line, origin.near);
  // A rank's message may have several lines, of which the first one has the time.
  if (facts.time == 0) facts.time = origin.last_time;
  into.add({.source = source,
            .file = origin.file,
            .line = number,
            .time = facts.time,
            .rank = facts.rank >= 0 ? facts.rank : origin.rank.value_or(-1),
            .writer = origin.rank.value_or(-1),
            .node = facts.node.empty() ? origin.node : facts.node,
            .text = shown(line),
            .pid = process ? process->pid : 0,
            .cause = cause});
}

std::string text_in(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

// Reads the items of 'kubectl get events -o json' and 'kubectl get pods -o json'.
void take_kubernetes(const nlohmann::json& list, const std::string& file, Collector& into) {
  for (const nlohmann::json& item : list.at("items")) {
    if (!item.is_object()) continue;
    std::string text = text_in(item, "reason") + ": " + text_in(item, "message");
    std::string node;
    double time = 0;
    for (const char* key : {"lastTimestamp", "eventTime", "firstTimestamp"}) {
      if (time == 0) time = iso_time(text_in(item, key));
    }
    if (const auto source = item.find("source"); source != item.end() && source->is_object())
      node = text_in(*source, "host");
    if (const auto object = item.find("involvedObject"); object != item.end() && object->is_object()) {
      const std::string name = text_in(*object, "name");
      if (text_in(*object, "kind") == "Node") node = name;
      text += " (" + name + ")";
    }
    const Cause* const cause = match(Source::kScheduler, text);
    if (!cause) continue;
    into.add({.source = Source::kScheduler,
              .file = file,
              .time = time,
              .node = node,
              .text = shown(text),
              .cause = cause});
  }
}

// Returns the file as JSON if it is a list of Kubernetes objects; else null.
nlohmann::json kubernetes_list(const Path& file) {
  const auto status = Env::posix().status(file);
  if (!status || status->size > kMaxJson) return nullptr;
  const std::string text = read_file(file, kMaxJson);
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos || text[first] != '{' || text.find("\"items\"") == std::string::npos)
    return nullptr;
  nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  const bool list = json.is_object() && json.contains("items") && json["items"].is_array();
  return list ? json : nlohmann::json(nullptr);
}

}  // namespace

LineFacts facts_of(std::string_view line, double near) {
  LineFacts facts;
  const std::string_view head = line.substr(0, kMaxHead);
  facts.time = own_time(head);
  // The last time of a line of sacct is the job's end.
  if (is_sacct(line)) facts.time = iso_time(line.substr(line.rfind("|20") + 1));
  if (facts.time == 0) facts.time = iso_time(head);
  if (facts.time == 0) facts.time = named_month_time(head, near);
  facts.rank = blamed_rank(line);
  // "ranks 0 and 2 differ in hidden_size": the ranks are compared with rank 0.
  if (line.find(" differ in ") != std::string_view::npos && line.find("ranks ") != std::string_view::npos)
    facts.rank = number_after(line.substr(line.find("ranks ")), " and ");
  // A rank that reports the error of another one: "[rank-0/2][ERROR] : rank 1: cannot save".
  for (const std::string_view word : {"] : rank ", "[rank-", "[rank ", "rank ", "task ", "Rank "}) {
    if (facts.rank < 0) facts.rank = number_after(line, word);
  }
  facts.node = node_of(line);
  return facts;
}

Source source_of(std::string_view line) {
  const std::string_view head = line.substr(0, kMaxHead);
  if (contains_any(head, {"srun:", "slurmstepd:", "slurmctld", "slurmd", "sbatch:", "requeue job",
                          "Requeuing JobId", "kubelet", "*** JOB", "*** STEP"}) ||
      is_sacct(line) || is_kubernetes_row(line))
    return Source::kScheduler;
  const bool dmesg = head.starts_with("[") && head.find("] ") != std::string_view::npos && !own_time(head) &&
                     head.find("[rank-") == std::string_view::npos;
  if (contains_any(head, {" kernel:", "NVRM:", "amdgpu ", "mce: ", "EXT4-fs"}) || dmesg)
    return Source::kKernel;
  return Source::kLog;
}

void read_text(const Path& file, std::optional<int> rank, double near, CaseFile& into,
               const std::string& node) {
  Collector collector(into);
  const std::string name = file.string();
  if (const nlohmann::json list = kubernetes_list(file); !list.is_null())
    return take_kubernetes(list, name, collector);
  std::int64_t number = 0;
  Origin origin{.file = name, .rank = rank, .near = near, .node = node};
  Evidence last;  // the newest line of the log of a job without records
  read_lines(file, [&](std::string_view line) {
    const bool dated = rank || (into.ranks.empty() && source_of(line) != Source::kKernel);
    const double time = dated ? facts_of(line, near).time : 0;
    if (rank && time > 0) origin.last_time = time;
    if (!rank && time >= last.time)
      last = {.source = source_of(line), .file = name, .line = number + 1, .time = time, .text = shown(line)};
    take_line(line, ++number, origin, collector);
    take_table(line, into);
  });
  if (last.time > 0) into.evidence.push_back(std::move(last));
}

void read_output(std::string_view text, const std::string& name, double near, CaseFile& into) {
  Collector collector(into);
  for (std::int64_t number = 1; !text.empty(); ++number) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    take_line(line, number, {.file = name, .near = near}, collector);
  }
}

}  // namespace primus::postmortem
