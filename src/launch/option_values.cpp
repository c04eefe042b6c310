#include "launch/option_values.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <vector>

#include "base/error.h"
#include "base/files/file.h"
#include "launch/assignment.h"
#include "launch/node.h"

namespace primus::launch {
namespace {

using View = std::string_view;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
std::string lower(View text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(), [](char c) { return lower(c); });
  return out;
}
bool all_digits(View text) { return !text.empty() && std::ranges::all_of(text, is_digit); }

// Whole numbers; a tool's own limits are tighter.
std::optional<std::int64_t> whole(View text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}
bool within(View text, std::int64_t low, std::int64_t high) {
  const auto value = whole(text);
  return value && *value >= low && *value <= high;
}
constexpr std::int64_t kMostInt = std::numeric_limits<int>::max();
constexpr std::int64_t kMost64 = std::numeric_limits<std::int64_t>::max();

std::vector<View> split(View text, View separators) {
  std::vector<View> parts;
  for (std::size_t begin = 0;;) {
    const std::size_t end = std::min(text.find_first_of(separators, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    if (end == text.size()) return parts;
    begin = end + 1;
  }
}

bool is_one_of(View word, std::initializer_list<View> words) { return std::ranges::count(words, word) > 0; }

// Of a list "a|b|c:": words as they are, in any case; "c:" and what follows it.
bool is_listed(View text, View list) {
  const std::string word = lower(text);
  return std::ranges::any_of(split(list, "|"), [&](View known) {
    const std::string name = lower(known);
    const bool begins = name.ends_with(':') || name.ends_with('=');
    return begins ? word.starts_with(name) : word == name;
  });
}

bool is_listed_list(View text, View list) {
  return std::ranges::any_of(split(text, ","), [&](View word) { return is_listed(word, list); });
}

bool all_parts(View text, View separators, bool (*fits)(View)) {
  return std::ranges::all_of(split(text, separators), fits);
}

// "4", "1k", "2m": Slurm counts by 1024.
std::optional<std::int64_t> counted(View text) {
  std::int64_t factor = 1;
  if (!text.empty() && (lower(text.back()) == 'k' || lower(text.back()) == 'm')) {
    factor = lower(text.back()) == 'k' ? 1024 : 1024 * 1024;
    text.remove_suffix(1);
  }
  if (!all_digits(text) || text.size() > 9) return std::nullopt;
  return *whole(text) * factor;
}

bool is_node_range(View text) {
  const std::size_t step = text.find(':');
  if (step != View::npos && !within(text.substr(step + 1), 1, kMostInt)) return false;
  const View range = text.substr(0, step);
  const std::size_t dash = range.find('-');
  const auto least = counted(range.substr(0, dash));
  if (dash == View::npos) return least && step == View::npos;
  const auto most = counted(range.substr(dash + 1));
  return least && most && *least <= *most;
}

// As Slurm reads it: at most one '-' in front of at most two ':', and a number for each of them.
bool is_slurm_time(View text) {
  if (text == "-1" || is_listed(text, "infinite|unlimited")) return true;
  int numbers = 0, dashes = 0, colons = 0;
  bool in_number = false;
  for (const char c : text) {
    if (is_digit(c)) {
      numbers += !in_number;
      in_number = true;
      continue;
    }
    in_number = false;
    if (c == '-' && colons == 0) {
      ++dashes;
    } else if (c == ':') {
      ++colons;
    } else {
      return false;
    }
  }
  // A day alone may end in '-'.
  return numbers > 0 && dashes <= 1 && colons <= 2 && (colons == 0 || numbers == dashes + colons + 1);
}

bool is_megabytes(View text) {
  std::size_t at = 0;
  while (at < text.size() && is_digit(text[at])) ++at;
  const std::string unit = lower(text.substr(at));
  return at > 0 && (unit.empty() || is_one_of(unit, {"k", "m", "g", "t", "kb", "mb", "gb", "tb"}));
}

bool is_clock(View text) {
  const auto parts = split(text, ":");
  constexpr std::int64_t kMost[] = {24, 59, 59};
  if (parts.size() < 2 || parts.size() > 3) return false;
  for (std::size_t i = 0; i < parts.size(); ++i)
    if (parts[i].size() > 2 || !within(parts[i], 0, kMost[i]) || !all_digits(parts[i])) return false;
  return true;
}

bool is_date(View text) {
  if (all_digits(text)) return text.size() == 4 || text.size() == 6;  // MMDD, MMDDYY
  const char separator = text.find('-') != View::npos ? '-' : text.find('/') != View::npos ? '/' : '.';
  const auto parts = split(text, View(&separator, 1));
  return std::ranges::all_of(parts, all_digits) &&
         (separator == '-' ? parts.size() == 3 && parts[0].size() == 4
                           : parts.size() == 2 || parts.size() == 3);
}

bool is_moment(View given) {
  std::string text = lower(given);
  if (text.starts_with("now")) {
    View more = View(text).substr(3);
    if (more.empty()) return true;
    if (more[0] != '+' && more[0] != '-') return false;
    more.remove_prefix(1);
    std::size_t digits = 0;
    while (digits < more.size() && is_digit(more[digits])) ++digits;
    const View unit = more.substr(digits);
    return digits > 0 && (unit.empty() || View("smhdw").find(unit[0]) != View::npos) &&
           std::ranges::all_of(unit, is_letter);
  }
  if (text.starts_with("uts")) return all_digits(View(text).substr(3));
  for (const View word : {"today", "tomorrow", "midnight", "noon", "fika", "teatime", "elevenses"})
    if (text.starts_with(word)) return true;
  if (text.ends_with("am") || text.ends_with("pm")) {
    text.resize(text.size() - 2);
    if (text.ends_with(' ')) text.pop_back();
    if (text.find(':') == std::string::npos) return false;
  }
  int clocks = 0, dates = 0;
  for (const View part : split(text, "t ")) {
    if (is_clock(part)) {
      ++clocks;
    } else if (is_date(part)) {
      ++dates;
    } else {
      return false;
    }
  }
  return clocks <= 1 && dates <= 1;
}

// "[name:]...[count]" of at most `most` parts, where the last of so many is a count. Types may begin with a
// digit ("1g.10gb").
bool is_resource(View text, std::size_t most) {
  const auto parts = split(text, ":");
  if (parts.size() > most) return false;
  if (std::ranges::any_of(parts, [](View part) { return part.empty() || part[0] == '-' || part[0] == '+'; }))
    return false;
  View count = parts.back();
  if (View("kmgtp").find(lower(count.back())) != View::npos) count.remove_suffix(1);
  return parts.size() < most || most == 1 || all_digits(count);
}
bool is_gpu_count(View text) {
  return all_parts(text, ",", [](View part) { return is_resource(part, 2); });
}
bool is_resources(View text) {
  return all_parts(text, ",", [](View part) {
    const bool named = part.starts_with("gres:") || part.starts_with("gres/");
    const View name = named ? part.substr(5) : part;
    return !name.empty() && !is_digit(name[0]) && is_resource(name, 3);
  });
}

constexpr View kSignals =
    "hup|int|quit|ill|trap|abrt|iot|bus|fpe|kill|usr1|segv|usr2|pipe|alrm|term|stkflt|chld|cld|cont|stop|"
    "tstp|"
    "ttin|ttou|urg|xcpu|xfsz|vtalrm|prof|winch|io|poll|pwr|sys";
bool is_signal(View text) {
  if (within(text, 1, 1000)) return true;
  std::string name = lower(text);
  if (name.starts_with("sig")) name = name.substr(3);
  if (name.starts_with("rtmin") || name.starts_with("rtmax")) {
    const View more = View(name).substr(5);
    return more.empty() || ((more[0] == '+' || more[0] == '-') && within(more.substr(1), 0, 64));
  }
  return is_listed(name, kSignals);
}
bool is_warning(View text, View letters) {
  if (const std::size_t colon = text.find(':'); colon != View::npos) {
    const View which = text.substr(0, colon);
    if (which.empty() || which.find_first_not_of(letters) != View::npos) return false;
    text.remove_prefix(colon + 1);
  }
  const std::size_t at = text.find('@');
  return is_signal(text.substr(0, at)) &&
         (at == View::npos || at + 1 == text.size() || within(text.substr(at + 1), 0, 65535));
}

bool is_distribution(View text) {
  const auto parts = split(text, ",");
  if (parts.size() > 2 || (parts.size() == 2 && !is_listed(parts[1], "pack|nopack"))) return false;
  const auto levels = split(parts[0], ":");
  if (levels.size() > 3) return false;
  if (levels.size() == 1 && is_listed(levels[0], "pack|nopack")) return true;
  for (std::size_t i = 0; i < levels.size(); ++i) {
    const View level = levels[i];
    if (i == 0 && lower(level).starts_with("plane=")) {
      if (!within(level.substr(6), 1, kMostInt)) return false;
    } else if (!is_listed(level, i == 0 ? "block|cyclic|arbitrary|plane|*" : "block|cyclic|fcyclic|*")) {
      return false;
    }
  }
  return true;
}

bool is_job_number(View text) {
  const std::size_t delay = text.find('+');
  if (delay != View::npos && !all_digits(text.substr(delay + 1))) return false;
  text = text.substr(0, delay);
  const std::size_t task = text.find('_');
  if (task != View::npos && text.substr(task + 1) != "*" && !all_digits(text.substr(task + 1))) return false;
  return all_digits(text.substr(0, task));
}
bool is_dependency(View text) {
  return all_parts(text, ",?", [](View part) {
    if (is_listed(part, "singleton")) return true;
    auto words = split(part, ":");
    if (!all_digits(words[0])) {
      if (!is_listed(words[0], "after|afterany|afterburstbuffer|aftercorr|afternotok|afterok|expand"))
        return false;
      words.erase(words.begin());
    }
    return !words.empty() && std::ranges::all_of(words, is_job_number);
  });
}

bool is_array(View text) {
  text = text.substr(0, text.find('%'));  // what follows is how many run at once; Slurm takes any text
  return all_parts(text, ",", [](View part) {
    const std::size_t step = part.find(':');
    if (step != View::npos && !within(part.substr(step + 1), 1, kMostInt)) return false;
    const View range = part.substr(0, step);
    const std::size_t dash = range.find('-');
    if (!all_digits(range.substr(0, dash))) return false;
    if (dash == View::npos) return step == View::npos;
    return all_digits(range.substr(dash + 1)) &&
           *whole(range.substr(0, dash)) <= *whole(range.substr(dash + 1));
  });
}

bool is_cores(View text) {
  return all_parts(text, ":", [](View part) { return part == "*" || is_node_range(part); });
}

bool is_frequency(View text) {
  return all_parts(text, "-:", [](View part) {
    return (!part.empty() && is_digit(part[0])) ||
           is_listed(
               part,
               "low|medium|high|highm1|conservative|ondemand|performance|powersave|schedutil|userspace");
  });
}

bool is_sampling(View text) {
  return all_parts(text, ",", [](View part) {
    const std::size_t equals = part.find('=');
    if (equals == View::npos) return all_digits(part);
    return is_listed(part.substr(0, equals), "task|energy|network|filesystem") &&
           all_digits(part.substr(equals + 1));
  });
}

// "verbose,TYPE..."; lists of numbers and masks follow a type.
bool is_binding(View text, View types) {
  for (const View part : split(text, ","))
    if (!is_listed(part, "verbose|v|quiet|q")) return is_listed(part.substr(0, part.find(':')), types);
  return true;
}

bool is_file(View text) {
  const auto status = Env::posix().status(Path(text));
  return status && status->type != FileStatus::Type::kFolder;
}

bool is_node_list(View text) {
  if (text.find('/') != View::npos) return is_file(text);
  try {
    expand_nodes(text);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// The length of the decimal number that `text` begins with; 0: none.
std::size_t decimal(View text) {
  std::size_t at = 0, digits = 0;
  for (; at < text.size() && (is_digit(text[at]) || text[at] == '.'); ++at) digits += is_digit(text[at]);
  if (digits == 0 || std::ranges::count(text.substr(0, at), '.') > 1) return 0;
  std::size_t end = at;
  if (end < text.size() && lower(text[end]) == 'e') {
    ++end;
    if (end < text.size() && (text[end] == '-' || text[end] == '+')) ++end;
    const std::size_t first = end;
    while (end < text.size() && is_digit(text[end])) ++end;
    if (end > first) at = end;
  }
  return at;
}

bool is_bytes(View text) {
  const std::size_t number = decimal(text);
  if (number == 0) return false;
  View unit = text.substr(number);
  if (unit.starts_with(' ')) unit.remove_prefix(1);
  std::string letters = lower(unit);
  if (letters.empty() || letters == "b") return true;
  return View("kmgtp").find(letters[0]) != View::npos &&
         is_one_of(View(letters).substr(1), {"", "b", "i", "ib"});
}

bool is_cpus(View text) {
  if (const std::size_t slash = text.find('/'); slash != View::npos)
    return all_digits(text.substr(0, slash)) && within(text.substr(slash + 1), 1, kMostInt);
  return decimal(text) == text.size() && !text.empty();
}

bool is_duration(View text) {
  if (text == "0" || text == "disable") return true;
  if (text.starts_with('+')) text.remove_prefix(1);
  if (text.empty()) return false;
  while (!text.empty()) {
    std::size_t number = 0;
    while (number < text.size() && (is_digit(text[number]) || text[number] == '.')) ++number;
    if (decimal(text.substr(0, number)) != number || number == 0) return false;
    text.remove_prefix(number);
    std::size_t unit = 0;
    while (unit < text.size() && !is_digit(text[unit]) && text[unit] != '.') ++unit;
    if (!is_one_of(text.substr(0, unit), {"ns", "us", "µs", "ms", "s", "m", "h"})) return false;
    text.remove_prefix(unit);
  }
  return true;
}

bool is_range(View text) {
  const std::size_t dash = text.find('-');
  if (dash == View::npos) return all_digits(text) && whole(text);
  const auto first = whole(text.substr(0, dash)), last = whole(text.substr(dash + 1));
  return dash > 0 && all_digits(text.substr(dash + 1)) && first && last && *first <= *last;
}

bool is_ulimit(View text) {
  if (text == "host") return true;  // podman's
  const std::size_t equals = text.find('=');
  if (equals == View::npos ||
      !is_listed(text.substr(0, equals),
                 "core|cpu|data|fsize|locks|memlock|msgqueue|nice|nofile|nproc|rss|rtprio|rttime|sigpending|"
                 "stack"))
    return false;
  const auto limits = split(text.substr(equals + 1), ":");
  if (limits.size() > 2) return false;
  const auto soft = whole(limits[0]), hard = whole(limits.back());
  return soft && hard && *soft >= -1 && *hard >= -1 && (*hard == -1 || (*soft != -1 && *soft <= *hard));
}

bool is_port_range(View text) {
  return is_range(text) && all_parts(text, "-", [](View port) { return within(port, 0, 65535); });
}
// "80-90/udp": what stands behind the '/' is gone in `text`.
bool takes_protocol(View& text) {
  const std::size_t slash = text.rfind('/');
  if (slash == View::npos) return true;
  const bool known = is_listed(text.substr(slash + 1), "tcp|udp|sctp");
  text = text.substr(0, slash);
  return known;
}
bool is_expose(View text) { return takes_protocol(text) && is_port_range(text); }

bool is_address(View given) {
  std::string text(given);
  if (text.starts_with('[') && text.ends_with(']')) text = text.substr(1, text.size() - 2);
  std::array<unsigned char, sizeof(in6_addr)> bytes{};
  return inet_pton(AF_INET, text.c_str(), bytes.data()) == 1 ||
         inet_pton(AF_INET6, text.c_str(), bytes.data()) == 1;
}

bool is_publish(View text) {
  if (!takes_protocol(text)) return false;
  const std::size_t inside = text.rfind(':');
  if (!is_port_range(inside == View::npos ? text : text.substr(inside + 1))) return false;
  if (inside == View::npos) return true;
  View outside = text.substr(0, inside);
  const std::size_t host = outside.rfind(':');
  const View port = host == View::npos ? outside : outside.substr(host + 1);
  return (port.empty() || is_port_range(port)) &&
         (host == View::npos || host == 0 || is_address(outside.substr(0, host)));
}

bool is_host(View text) {
  const std::size_t end = text.find_first_of(":=");
  return end != View::npos && end > 0 &&
         (text.substr(end + 1) == "host-gateway" || is_address(text.substr(end + 1)));
}

bool is_mac(View text) {
  const bool dotted = text.find('.') != View::npos;
  const auto parts = split(text, dotted ? "." : text.find('-') != View::npos ? "-" : ":");
  const auto is_hex = [&](View part) {
    return part.size() == (dotted ? 4u : 2u) && std::ranges::all_of(part, [](char c) {
             return is_digit(c) || (lower(c) >= 'a' && lower(c) <= 'f');
           });
  };
  const std::size_t bytes = parts.size() * (dotted ? 2 : 1);
  return (bytes == 6 || bytes == 8 || bytes == 20) && std::ranges::all_of(parts, is_hex);
}

bool is_permissions(View text) {
  return !text.empty() && text.size() <= 3 && text.find_first_not_of("rwm") == View::npos;
}
bool is_device(View text) {
  if (!text.starts_with('/')) {  // of the Container Device Interface
    const std::size_t slash = text.find('/'), equals = text.find('=');
    return slash != View::npos && slash > 0 && equals != View::npos && equals > slash + 1 &&
           equals + 1 < text.size();
  }
  const auto parts = split(text, ":");
  return parts.size() <= 3 && (parts.size() < 3 || is_permissions(parts[2])) &&
         (parts.size() < 2 || parts[1].starts_with('/') || (parts.size() == 2 && is_permissions(parts[1])));
}
bool is_device_rule(View text) {
  const auto words = split(text, " ");
  if (words.size() != 3 || !is_one_of(words[0], {"a", "b", "c"}) || !is_permissions(words[2])) return false;
  const auto numbers = split(words[1], ":");
  return numbers.size() == 2 &&
         std::ranges::all_of(numbers, [](View n) { return n == "*" || all_digits(n); });
}
bool is_of_device(View text, bool (*fits)(View)) {
  const std::size_t colon = text.rfind(':');
  return colon != View::npos && text.starts_with("/dev/") && fits(text.substr(colon + 1));
}

bool is_mount(View text) {
  return std::ranges::any_of(split(text, ","), [](View field) {
    for (const View key : {"target=", "destination=", "dst="})
      if (field.starts_with(key) && field.size() > key.size()) return true;
    return false;
  });
}

bool is_volume(View text) {
  const auto parts = split(text, ":");
  if (parts.size() > 3 || parts[0].empty()) return false;
  if (parts.size() == 1) return text.find('/') != View::npos || text.starts_with('.');
  if (!parts[1].starts_with('/') || parts[1] == "/") return false;
  return parts.size() < 3 || all_parts(parts[2], ",", [](View option) {
           return option.find('=') != View::npos ||
                  is_listed(
                      option,
                      "ro|rw|z|u|o|nocopy|copy|consistent|cached|delegated|shared|slave|private|rshared|"
                      "rslave|rprivate|unbindable|runbindable|bind|rbind|dev|nodev|exec|noexec|suid|nosuid|"
                      "idmap");
         });
}

bool is_container_name(View text) {
  const auto fits = [](char c) { return is_letter(c) || is_digit(c); };
  return !text.empty() && fits(text[0]) &&
         std::ranges::all_of(text, [&](char c) { return fits(c) || c == '_' || c == '.' || c == '-'; });
}

bool is_capability(View text) {
  std::string name = lower(text);
  if (name.starts_with("cap_")) name = name.substr(4);
  return is_listed(
      name,
      "all|audit_control|audit_read|audit_write|block_suspend|bpf|checkpoint_restore|chown|"
      "dac_override|dac_read_search|fowner|fsetid|ipc_lock|ipc_owner|kill|lease|linux_immutable|"
      "mac_admin|mac_override|mknod|net_admin|net_bind_service|net_broadcast|net_raw|perfmon|"
      "setfcap|setgid|setpcap|setuid|sys_admin|sys_boot|sys_chroot|sys_module|sys_nice|sys_pacct|"
      "sys_ptrace|sys_rawio|sys_resource|sys_time|sys_tty_config|syslog|wake_alarm");
}

bool is_gpus_of_docker(View text) {
  if (text.size() > 1 && text.front() == '"' && text.back() == '"') text = text.substr(1, text.size() - 2);
  if (text == "all" || within(text, -1, kMostInt)) return true;
  const View first = split(text, ",").front();
  return within(first, -1, kMostInt) ||
         is_listed(first, "device=|driver=|capabilities=|count=|options=|\"device=");
}

// NAME[:TAG][@DIGEST] with an optional registry in front. Files and transports of a runtime ("a.sif",
// "docker://...") are left to it.
bool is_image(View text) {
  const auto is_plain = [](char c) { return c > ' ' && c != 127; };
  if (text.empty() || !std::ranges::all_of(text, is_plain)) return false;
  if (text.find("://") != View::npos || text.ends_with(".sif") || text[0] == '/' || text[0] == '.')
    return true;
  View name = text.substr(0, text.find('@'));
  const std::size_t colon = name.rfind(':');
  if (colon != View::npos && name.find('/', colon) == View::npos) {
    if (colon + 1 == name.size()) return false;
    name = name.substr(0, colon);
  }
  const std::size_t slash = name.find('/');
  const View registry = slash == View::npos ? View() : name.substr(0, slash);
  const bool has_registry = registry.find_first_of(".:") != View::npos || registry == "localhost";
  if (has_registry) name = name.substr(slash + 1);
  return all_parts(name, "/", [](View part) {
    return !part.empty() && std::ranges::all_of(part, [](char c) {
      return (c >= 'a' && c <= 'z') || is_digit(c) || c == '_' || c == '-' || c == '.';
    });
  });
}

bool is_platform(View text) {
  const auto parts = split(text, "/");
  return parts.size() <= 3 && std::ranges::all_of(parts, [](View part) { return !part.empty(); });
}

bool is_umask(View text) {
  return !text.empty() && text.size() <= 4 && text.find_first_not_of("01234567") == View::npos;
}

bool is_quantity(View text) {
  std::size_t number = 0;
  while (number < text.size() && (is_digit(text[number]) || text[number] == '.')) ++number;
  const View unit = text.substr(number);
  if (number == 0 || decimal(text.substr(0, number)) != number) return false;
  if (is_one_of(unit, {"", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"}))
    return true;
  return lower(unit[0]) == 'e' && decimal(text) == text.size();
}

bool is_dns_name(View text) {
  return text.size() <= 253 && all_parts(text, ".", [](View part) {
           const auto fits = [](char c) { return (c >= 'a' && c <= 'z') || is_digit(c); };
           return !part.empty() && part.size() <= 63 && fits(part.front()) && fits(part.back()) &&
                  std::ranges::all_of(part, [&](char c) { return fits(c) || c == '-'; });
         });
}
bool is_label_name(View text) {
  const std::size_t slash = text.find('/');
  if (slash != View::npos && !is_dns_name(text.substr(0, slash))) return false;
  const View name = slash == View::npos ? text : text.substr(slash + 1);
  const auto fits = [](char c) { return is_letter(c) || is_digit(c); };
  return !name.empty() && name.size() <= 63 && fits(name.front()) && fits(name.back()) &&
         std::ranges::all_of(name, [&](char c) { return fits(c) || c == '-' || c == '_' || c == '.'; });
}

bool is_resource_name(View text) {
  const std::size_t slash = text.find('/');
  return slash != View::npos && slash > 0 && is_label_name(text);
}
bool is_pod_volume(View text) {
  const std::size_t colon = text.find(':');
  const View from = text.substr(0, colon);
  View inside = colon == View::npos ? from : text.substr(colon + 1);
  if (inside.ends_with(":ro")) inside.remove_suffix(3);
  const bool is_claim = from.starts_with("pvc/") && is_dns_name(from.substr(4));
  return (is_claim || from.starts_with('/')) && inside.starts_with('/') && inside.find(':') == View::npos;
}
bool is_secret_ref(View text) {
  const std::size_t equals = text.find('='), slash = text.find('/', equals);
  if (equals == View::npos) return is_dns_name(text);
  return is_variable_name(text.substr(0, equals)) && slash != View::npos && slash + 1 < text.size() &&
         is_dns_name(text.substr(equals + 1, slash - equals - 1));
}

struct Row {
  Form form;
  const char* what;
  bool (*fits)(View);
};

// clang-format off
constexpr Row kRows[] = {
    {Form::kCount, "a number from 1 on", [](View t) { return all_digits(t) && within(t, 1, kMostInt); }},
    {Form::kNumber, "a number from 0 on", [](View t) { return all_digits(t) && within(t, 0, kMost64); }},
    {Form::kInteger, "a whole number", [](View t) { return whole(t).has_value(); }},
    {Form::kFile, "a file of this machine", is_file},
    {Form::kNodes, "a number of nodes, such as 4, 2-4 or 1k", [](View t) { return all_parts(t, ",", is_node_range); }},
    {Form::kSlurmTime, "a time: minutes, or such as 1:30:00, 2-12, 2-12:00:00 or INFINITE", is_slurm_time},
    {Form::kMegabytes, "a size: megabytes, or such as 64G or 512M", is_megabytes},
    {Form::kMoment, "a moment, such as 16:00, now+1hour or 2026-12-24T12:00:00", is_moment},
    {Form::kGpuCount, "a number of GPUs, such as 8, a100:4 or a100:4,h100:2", is_gpu_count},
    {Form::kResources, "resources, such as gpu:8 or gpu:a100:4", is_resources},
    {Form::kWarning, "a signal and the seconds before the end, such as USR1@120", [](View t) { return is_warning(t, "R"); }},
    {Form::kBatchWarning, "a signal and the seconds before the end, such as B:USR1@120", [](View t) { return is_warning(t, "RB"); }},
    {Form::kSwitches, "a number of switches, such as 1 or 1@30:00", [](View t) { return within(t.substr(0, t.find('@')), 1, kMostInt); }},
    {Form::kDistribution, "a distribution, such as block:cyclic or plane=4", is_distribution},
    {Form::kDependency, "a dependency, such as afterok:123 or singleton", is_dependency},
    {Form::kArray, "numbers of tasks, such as 0-15, 1,3,5 or 0-15%4", is_array},
    {Form::kCores, "sockets, cores and threads, such as 2:8:1 or 2:*", is_cores},
    {Form::kOpenMode, "append or truncate", [](View t) { return !t.empty() && (lower(t[0]) == 'a' || lower(t[0]) == 't'); }},
    {Form::kFrequency, "a frequency, such as 1500000, low-high or performance", is_frequency},
    {Form::kSampling, "seconds between samples, such as 30 or task=30", is_sampling},
    {Form::kNodeList, "a list of nodes, such as n[01-16], or a file with one", is_node_list},
    {Form::kEnvironmentFile, "a file of this machine, or the number of a descriptor", [](View t) { return all_digits(t) || is_file(t); }},
    {Form::kBytes, "a size, such as 64g, 512m or 1073741824", is_bytes},
    {Form::kBytesOrAll, "a size, such as 64g, or -1", [](View t) { return t == "-1" || is_bytes(t); }},
    {Form::kCpus, "a number of cores, such as 8 or 1.5", is_cpus},
    {Form::kDuration, "a time, such as 30s or 1m30s", is_duration},
    {Form::kRanges, "numbers, such as 0-3,8", [](View t) { return all_parts(t, ",", is_range); }},
    {Form::kUlimit, "NAME=SOFT[:HARD], such as nofile=65536:65536 or memlock=-1", is_ulimit},
    {Form::kPublish, "[[ADDRESS:]PORT:]PORT[/tcp], such as 8080:80", is_publish},
    {Form::kExpose, "ports, such as 80 or 80-90/udp", is_expose},
    {Form::kHost, "NAME:ADDRESS, such as store:10.0.0.1", is_host},
    {Form::kAddress, "an IP address", is_address},
    {Form::kMac, "a MAC address", is_mac},
    {Form::kDevice, "/dev/NAME[:/dev/INSIDE][:rwm], or KIND=NAME such as nvidia.com/gpu=0", is_device},
    {Form::kDeviceRule, "a rule for devices, such as 'c 1:3 mr'", is_device_rule},
    {Form::kDeviceBytes, "/dev/NAME:SIZE, such as /dev/sda:1mb", [](View t) { return is_of_device(t, is_bytes); }},
    {Form::kDeviceNumber, "/dev/NAME:NUMBER", [](View t) { return is_of_device(t, all_digits); }},
    {Form::kMount, "fields such as type=bind,src=/data,dst=/data (--volume takes HOST:/INSIDE)", is_mount},
    {Form::kMountPath, "an absolute path, with options behind a ':'", [](View t) { return t.starts_with('/'); }},
    {Form::kAbsolute, "an absolute path", [](View t) { return t.starts_with('/'); }},
    {Form::kVolume, "HOST or HOST:/INSIDE or HOST:/INSIDE:ro; a relative INSIDE is no absolute path", is_volume},
    {Form::kAssignment, "NAME=VALUE", [](View t) { return t.find('=') != View::npos && t[0] != '='; }},
    {Form::kName, "a name of letters, digits, '_', '.' and '-'", is_container_name},
    {Form::kSignal, "a signal, such as TERM or 15", is_signal},
    {Form::kCapability, "a capability, such as SYS_PTRACE", is_capability},
    {Form::kGpusOfDocker, "all, a number, or device=0,2", is_gpus_of_docker},
    {Form::kSecurity, "NAME=VALUE or no-new-privileges", [](View t) { return t == "no-new-privileges" || t.find_first_of("=:") != View::npos; }},
    {Form::kPlatform, "OS/ARCHITECTURE, such as linux/amd64", is_platform},
    {Form::kImage, "an image, such as rocm/primus:v26.8: names are lower-case", is_image},
    {Form::kUmask, "an octal number, such as 0022", is_umask},
    {Form::kScore, "a number from -1000 to 1000", [](View t) { return within(t, -1000, 1000); }},
    {Form::kPercent, "a number from -1 to 100", [](View t) { return within(t, -1, 100); }},
    {Form::kQuantity, "a quantity, such as 128Gi, 500m or 1.5", is_quantity},
    {Form::kDnsName, "a name of lower-case letters, digits, '-' and '.'", is_dns_name},
    {Form::kResourceName, "DOMAIN/NAME, such as amd.com/gpu", is_resource_name},
    {Form::kPodVolume, "/HOST/PATH:/INSIDE or pvc/CLAIM:/INSIDE, and ':ro'", is_pod_volume},
    {Form::kSecretRef, "NAME=SECRET/KEY, or the name of a Secret", is_secret_ref},
    {Form::kLabelName, "the name of a label, such as kubernetes.io/hostname", is_label_name},
};
// clang-format on

std::string listed(View words) {
  std::string text;
  for (const View word : split(words, "|")) text += (text.empty() ? "" : ", ") + std::string(word);
  return text;
}

}  // namespace

std::optional<std::string> misfit(const ValueForm& form, std::string_view text) {
  const auto choose = [&](bool fits, std::string what) {
    return fits ? std::nullopt : std::optional(std::move(what));
  };
  switch (form.form) {
    case Form::kText:
      return std::nullopt;
    case Form::kChoice:
      return choose(is_listed(text, form.words), "one of " + listed(form.words));
    case Form::kChoices:
      return choose(is_listed_list(text, form.words), "some of " + listed(form.words));
    case Form::kBinding:
      return choose(is_binding(text, form.words), "a binding: one of " + listed(form.words));
    case Form::kLetters:
      return choose(!text.empty() && text.find_first_not_of(form.words) == View::npos,
                    fmt::format("letters among '{}'", form.words));
    default:
      break;
  }
  const auto* const row = std::ranges::find(kRows, form.form, &Row::form);
  return choose(row->fits(text), row->what);
}

void require_form(const ValueForm& form, std::string_view text, std::string_view what) {
  if (const auto wanted = misfit(form, text))
    throw invalid(fmt::format("{} must be {}, not '{}'", what, *wanted, text));
}

}  // namespace primus::launch
