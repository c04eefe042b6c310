#include "safe/preflight/machine.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <system_error>

#include "launch/node/node.h"

namespace primus::preflight {
namespace {

constexpr std::size_t kMaxBytes = std::size_t{1} << 20;

std::optional<std::string> process_variable(const std::string& name) {
  const char* const value = std::getenv(name.c_str());
  return value ? std::optional<std::string>(value) : std::nullopt;
}

std::vector<std::string> process_variables() {
  std::vector<std::string> names;
  for (char** entry = environ; entry && *entry; ++entry) {
    const std::string_view text = *entry;
    names.emplace_back(text.substr(0, text.find('=')));
  }
  return names;
}

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\0'; }

}  // namespace

Machine::Machine(MachineOptions options) : options_(std::move(options)) {
  if (!options_.environment) options_.environment = process_variable;
  if (!options_.variables) options_.variables = process_variables;
  options_.root = std::filesystem::absolute(options_.root).lexically_normal();
  if (!options_.root.has_filename() && options_.root != "/") options_.root = options_.root.parent_path();
}

Path Machine::path(std::string_view name) const {
  while (name.starts_with('/')) name.remove_prefix(1);
  return options_.root / Path(name);
}

std::optional<std::string> Machine::text(std::string_view name) const {
  std::ifstream file(path(name), std::ios::binary);
  if (!file) return std::nullopt;
  std::string bytes(4096, '\0');
  std::size_t size = 0;
  while (size < kMaxBytes &&
         file.read(bytes.data() + size, static_cast<std::streamsize>(bytes.size() - size)).gcount() > 0) {
    size += static_cast<std::size_t>(file.gcount());
    if (size == bytes.size()) bytes.resize(std::min(2 * size, kMaxBytes));
  }
  // Some files in /sys can be opened but not read.
  if (size == 0 && file.bad()) return std::nullopt;
  while (size > 0 && is_blank(bytes[size - 1])) --size;
  bytes.resize(size);
  return bytes;
}

std::optional<std::int64_t> Machine::number(std::string_view name) const {
  const auto content = text(name);
  return content ? leading_number(*content) : std::nullopt;
}

std::vector<std::string> Machine::list(std::string_view name) const {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(path(name), error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool Machine::exists(std::string_view name) const {
  std::error_code error;
  return std::filesystem::exists(path(name), error);
}

std::string Machine::link_name(std::string_view name) const {
  std::error_code error;
  return std::filesystem::read_symlink(path(name), error).filename().string();
}

std::optional<std::string> Machine::variable(const std::string& name) const {
  auto value = options_.environment(name);
  return value && !value->empty() ? value : std::nullopt;
}

std::vector<std::string> Machine::variables() const {
  std::vector<std::string> names = options_.variables();
  std::sort(names.begin(), names.end());
  return names;
}

SubprocessResult Machine::command(const std::vector<std::string>& words,
                                  std::optional<std::chrono::milliseconds> timeout) const {
  return run_subprocess(words, {.timeout = timeout.value_or(options_.command_timeout),
                                .path = variable("PATH").value_or("/usr/sbin:/usr/bin:/sbin:/bin")});
}

std::string Machine::program(const std::string& name) const {
  return find_program(name, variable("PATH").value_or("/usr/sbin:/usr/bin:/sbin:/bin"));
}

std::string Machine::host_name() const {
  if (!is_this_one()) return text("/etc/hostname").value_or("unknown");
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown";
}

std::string Machine::node_name() const {
  if (!variable("SLURM_JOB_ID")) return host_name();
  if (const auto name = variable("SLURMD_NODENAME")) return *name;
  // A container may not inherit SLURMD_NODENAME, so SLURM_NODEID selects a name from the list of nodes.
  const auto number = leading_number(variable("SLURM_NODEID").value_or(""));
  const std::vector<std::string> nodes = slurm_nodes(*this);
  if (!number || *number < 0 || *number >= static_cast<std::int64_t>(nodes.size())) return host_name();
  return nodes[static_cast<std::size_t>(*number)];
}

std::vector<std::string> slurm_nodes(const Machine& machine) {
  for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"})
    if (const auto list = machine.variable(name)) return launch::expand_nodes(*list);
  return {};
}

std::optional<Space> Machine::space(std::string_view name) const {
  struct statvfs status {};
  if (::statvfs(path(name).c_str(), &status) != 0) return std::nullopt;
  const auto block = static_cast<std::uint64_t>(status.f_frsize);
  return Space{.total = status.f_blocks * block,
               .available = status.f_bavail * block,
               .inodes = status.f_files,
               .inodes_available = status.f_favail,
               .read_only = (status.f_flag & ST_RDONLY) != 0};
}

ClockState Machine::clock() const {
  // "Ref,IP,stratum,time,system,last offset,RMS,frequency,residual,skew,delay,dispersion,interval,leap"
  const SubprocessResult chrony = command({"chronyc", "-c", "-n", "tracking"});
  if (chrony.ok()) {
    const std::vector<std::string> fields = split_text(first_line_of(chrony.out), ',');
    if (fields.size() >= 14) {
      return {
          .known = true,
          .synchronised = fields[13] != "Not synchronised",
          .error_seconds = leading_real(fields[11]).value_or(0) + leading_real(fields[10]).value_or(0) / 2,
          .source = "chronyc"};
    }
  }
  const SubprocessResult timedate = command({"timedatectl", "show", "--property=NTPSynchronized", "--value"});
  if (timedate.ok() && (timedate.out == "yes\n" || timedate.out == "no\n")) {
    return {.known = true, .synchronised = timedate.out == "yes\n", .source = "timedatectl"};
  }
  if (!is_this_one()) return {};
  struct timex state {};
  const int status = ::adjtimex(&state);
  if (status < 0) return {};
  return {.known = true,
          .synchronised = status != TIME_ERROR && (state.status & STA_UNSYNC) == 0,
          .error_seconds = static_cast<double>(state.maxerror) * 1e-6,
          .source = "the kernel"};
}

double Machine::wall_clock() const {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::optional<std::uint32_t> Machine::resolve(const std::string& host) const {
  in_addr address{};
  if (::inet_pton(AF_INET, host.c_str(), &address) == 1) return ntohl(address.s_addr);
  for (const std::string& line : lines_of(text("/etc/hosts").value_or(""))) {
    const std::vector<std::string> words = words_of(line.substr(0, line.find('#')));
    if (words.empty() || std::find(words.begin() + 1, words.end(), host) == words.end()) continue;
    if (::inet_pton(AF_INET, words[0].c_str(), &address) == 1) return ntohl(address.s_addr);
  }
  if (!is_this_one()) return std::nullopt;
  addrinfo hints{}, *found = nullptr;
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  if (::getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return std::nullopt;
  const auto result = ntohl(reinterpret_cast<const sockaddr_in*>(found->ai_addr)->sin_addr.s_addr);
  ::freeaddrinfo(found);
  return result;
}

std::vector<std::string> words_of(std::string_view line) {
  std::vector<std::string> words;
  for (std::size_t at = 0; at < line.size();) {
    if (is_blank(line[at])) {
      ++at;
      continue;
    }
    std::size_t end = at;
    while (end < line.size() && !is_blank(line[end])) ++end;
    words.emplace_back(line.substr(at, end - at));
    at = end;
  }
  return words;
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

std::string first_line_of(std::string_view text) { return std::string(text.substr(0, text.find('\n'))); }

std::vector<std::string> split_text(std::string_view text, char separator) {
  std::vector<std::string> parts;
  if (text.empty()) return parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(trimmed(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return parts;
}

std::string trimmed(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return std::string(text);
}

std::optional<std::int64_t> leading_number(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() ? std::optional(value) : std::nullopt;
}

std::optional<double> leading_real(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() ? std::optional(value) : std::nullopt;
}

int count_of_list(std::string_view list) {
  int count = 0;
  for (const std::string& part : split_text(list, ',')) {
    const auto first = leading_number(part);
    if (!first) continue;
    const std::size_t dash = part.find('-');
    const auto last = dash == std::string::npos ? first : leading_number(part.substr(dash + 1));
    if (last && *last >= *first && *last - *first < 65536) count += static_cast<int>(*last - *first) + 1;
  }
  return count;
}

}  // namespace primus::preflight
