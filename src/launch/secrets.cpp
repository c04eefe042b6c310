#include "launch/secrets.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/error.h"

namespace primus::launch {
namespace {

bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

char upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; }
bool is_letter(char c) { return (upper(c) >= 'A' && upper(c) <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

bool is_secret_name(std::string_view name) {
  std::vector<std::string> words(1);
  for (const char c : name) {
    if (c == '_' || c == '-') {
      words.emplace_back();
    } else {
      words.back() += upper(c);
    }
  }
  const std::string& last = words.back();
  if (is_one_of(last, {"FILE", "PATH", "DIR"})) return false;
  if (is_one_of(last, {"KEY", "APIKEY", "PAT"})) return true;
  return std::any_of(words.begin(), words.end(), [](const std::string& word) {
    return is_one_of(word, {"TOKEN", "SECRET", "SECRETS", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL",
                            "CREDENTIALS", "APIKEY"});
  });
}

std::string shown_value(std::string_view name, std::string_view value) {
  if (is_secret_name(name)) return std::string(kRedacted);
  const std::size_t scheme = value.find("://");
  if (scheme != std::string_view::npos) {
    const std::string_view authority =
        value.substr(scheme + 3, value.substr(scheme + 3).find_first_of("/?# "));
    const std::size_t at = authority.rfind('@');
    if (at != std::string_view::npos && authority.substr(0, at).find(':') != std::string_view::npos) {
      return std::string(kRedacted);
    }
  }
  return std::string(value);
}

bool is_variable_name(std::string_view name) {
  return !name.empty() && is_letter(name[0]) &&
         std::all_of(name.begin(), name.end(), [](char c) { return is_letter(c) || is_digit(c); });
}

Assignment parse_assignment(std::string_view text, std::string_view option) {
  const std::size_t equals = text.find('=');
  const std::string_view name = text.substr(0, equals);
  if (equals == std::string_view::npos) {
    throw invalid(fmt::format("{} needs NAME=VALUE, not '{}'", option, text));
  }
  if (!is_variable_name(name)) {
    throw invalid(fmt::format("{}: '{}' is not the name of a variable", option, name),
                  "a name has letters, digits and '_', and does not begin with a digit");
  }
  return {std::string(name), std::string(text.substr(equals + 1))};
}

}  // namespace primus::launch
