#include "base/text/secrets.h"

#include <algorithm>
#include <initializer_list>
#include <vector>

namespace primus {
namespace {

bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }
bool is_lower(char c) { return c >= 'a' && c <= 'z'; }
bool is_word(char c) { return is_upper(c) || is_lower(c) || (c >= '0' && c <= '9'); }
char upper(char c) { return is_lower(c) ? static_cast<char>(c - 'a' + 'A') : c; }

// Splits a name into words: "my-api_key" and "myApiKey" give MY, API, KEY.
std::vector<std::string> words_of(std::string_view name) {
  std::vector<std::string> words(1);
  for (std::size_t i = 0; i < name.size(); ++i) {
    const bool begins = i > 0 && is_lower(name[i - 1]) && is_upper(name[i]);
    if (!is_word(name[i]) || begins) words.emplace_back();
    if (is_word(name[i])) words.back() += upper(name[i]);
  }
  return words;
}

// Detects a URL with a password or, for http, with a token as the user name.
bool has_login(std::string_view value) {
  for (std::size_t scheme = value.find("://"); scheme != std::string_view::npos;
       scheme = value.find("://", scheme + 3)) {
    const std::string_view rest = value.substr(scheme + 3);
    const std::string_view authority = rest.substr(0, rest.find_first_of("/?# ,;\"'"));
    const std::size_t at = authority.rfind('@');
    if (at == std::string_view::npos || at == 0) continue;
    const std::string_view before = value.substr(0, scheme);
    if (authority.substr(0, at).find(':') != std::string_view::npos || before.ends_with("http") ||
        before.ends_with("https"))
      return true;
  }
  return false;
}

// Detects "--token=word", "a=1&sig=word", "AccountKey=word;", "--password word".
bool assigns_secret(std::string_view value) {
  for (std::size_t at = 0; at < value.size();) {
    std::size_t end = at;
    while (end < value.size() && (is_word(value[end]) || value[end] == '_' || value[end] == '-')) ++end;
    const std::string_view name = value.substr(at, end - at);
    const bool has_value =
        end + 1 < value.size() && (value[end] == '=' || (value[end] == ':' && value[end + 1] != '/') ||
                                   (value[end] == ' ' && name.starts_with("--")));
    if (has_value && (is_secret_name(name) || is_one_of(words_of(name).back(), {"SIG", "SIGNATURE"})))
      return true;
    at = end + 1;
  }
  return false;
}

bool looks_like_token(std::string_view value) {
  constexpr std::size_t kMin = 16;  // characters after the prefix
  for (const std::string_view begin :
       {"hf_", "ghp_", "gho_", "ghs_", "github_pat_", "glpat-", "sk-", "xoxb-", "xoxp-", "AKIA", "eyJ"}) {
    if (!value.starts_with(begin)) continue;
    const std::string_view rest = value.substr(begin.size());
    const auto fits = [](char c) { return is_word(c) || c == '_' || c == '-' || c == '.'; };
    if (rest.size() >= kMin && std::all_of(rest.begin(), rest.end(), fits)) return true;
  }
  return value.starts_with("Bearer ") || value.starts_with("Basic ");
}

}  // namespace

bool is_secret_name(std::string_view name) {
  const std::vector<std::string> words = words_of(name);
  const std::string& last = words.back();
  if (is_one_of(last, {"FILE", "PATH", "DIR", "SOCK", "SOCKET"})) return false;
  if (is_one_of(last, {"KEY", "APIKEY", "PAT"})) return true;
  // PWD is the current folder, and PASS may be a number of passes. Therefore only longer names that end with
  // these words are secret.
  if (words.size() > 1 && is_one_of(last, {"PWD", "PASS"})) return true;
  return std::any_of(words.begin(), words.end(), [](const std::string& word) {
    return is_one_of(
        word, {"TOKEN", "SECRET",  "SECRETS",    "PASSWORD",    "PASSWD",        "PASSPHRASE", "APIKEY",
               "CREDS", "CRED",    "CREDENTIAL", "CREDENTIALS", "AUTH",          "BEARER",     "COOKIE",
               "SAS",   "COOKIES", "NETRC",      "JWT",         "AUTHORIZATION", "WEBHOOK"});
  });
}

bool is_secret_value(std::string_view value) {
  return has_login(value) || assigns_secret(value) || looks_like_token(value);
}

bool is_secret(std::string_view name, std::string_view value) {
  return is_secret_name(name) || is_secret_value(value);
}

std::string shown_value(std::string_view name, std::string_view value) {
  return std::string(is_secret(name, value) ? kRedacted : value);
}

}  // namespace primus
