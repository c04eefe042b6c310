#include "launch/container/container_values.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

namespace primus::launch::forms {

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

double value_of_bytes(View text) {
  const std::size_t number = decimal(text);
  const double value = std::stod(std::string(text.substr(0, number)));
  View unit = text.substr(number);
  if (unit.starts_with(' ')) unit.remove_prefix(1);
  const std::size_t power = unit.empty() ? View::npos : View("kmgtp").find(lower(unit[0]));
  return power == View::npos ? value : std::ldexp(value, 10 * static_cast<int>(power + 1));
}

bool is_cpus(View text) {
  if (const std::size_t slash = text.find('/'); slash != View::npos)
    return all_digits(text.substr(0, slash)) && within(text.substr(slash + 1), 1, kMaxInt);
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
  if (text == "host") return true;  // "host" is valid only for podman
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

namespace {

bool is_port_range(View text) {
  return is_range(text) && all_parts(text, "-", [](View port) { return within(port, 0, 65535); });
}

// Accepts "80-90/udp" and removes the '/' and protocol from `text`.
bool takes_protocol(View& text) {
  const std::size_t slash = text.rfind('/');
  if (slash == View::npos) return true;
  const bool known = is_listed(text.substr(slash + 1), "tcp|udp|sctp");
  text = text.substr(0, slash);
  return known;
}

}  // namespace

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

namespace {

bool is_permissions(View text) {
  return !text.empty() && text.size() <= 3 && text.find_first_not_of("rwm") == View::npos;
}

}  // namespace

bool is_device(View text) {
  if (!text.starts_with('/')) {  // a Container Device Interface name
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
  if (text == "all" || within(text, -1, kMaxInt)) return true;
  const View first = split(text, ",").front();
  return within(first, -1, kMaxInt) ||
         is_listed(first, "device=|driver=|capabilities=|count=|options=|\"device=");
}

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

}  // namespace primus::launch::forms
