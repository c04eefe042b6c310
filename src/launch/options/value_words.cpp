#include "launch/options/value_words.h"

#include <algorithm>
#include <charconv>

#include "base/files/file.h"

namespace primus::launch::forms {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
std::string lower(View text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(), [](char c) { return lower(c); });
  return out;
}
bool all_digits(View text) { return !text.empty() && std::ranges::all_of(text, is_digit); }

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

std::optional<std::int64_t> counted(View text) {
  std::int64_t factor = 1;
  if (!text.empty() && (lower(text.back()) == 'k' || lower(text.back()) == 'm')) {
    factor = lower(text.back()) == 'k' ? 1024 : 1024 * 1024;
    text.remove_suffix(1);
  }
  if (!all_digits(text) || text.size() > 9) return std::nullopt;
  return *whole(text) * factor;
}

namespace {

constexpr View kSignals =
    "hup|int|quit|ill|trap|abrt|iot|bus|fpe|kill|usr1|segv|usr2|pipe|alrm|term|stkflt|chld|cld|cont|stop|"
    "tstp|"
    "ttin|ttou|urg|xcpu|xfsz|vtalrm|prof|winch|io|poll|pwr|sys";

}  // namespace

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

bool is_file(View text) {
  const auto status = Env::posix().status(Path(text));
  return status && status->type != FileStatus::Type::kFolder;
}

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

}  // namespace primus::launch::forms
