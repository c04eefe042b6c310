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

bool is_name(char c) { return is_word(c) || c == '_' || c == '-' || c == '.'; }

// Characters that end a word of YAML, JSON (also of JSON in a string of JSON), a log or a command.
bool ends_word(char c) {
  return static_cast<unsigned char>(c) <= ' ' ||
         std::string_view("\"',()[]{}<>;\\").find(c) != std::string_view::npos;
}

// Returns the end of quotes, spaces and backslashes from `at`.
std::size_t skip(std::string_view text, std::size_t at, std::string_view characters) {
  return std::min(text.find_first_not_of(characters, at), text.size());
}

std::size_t end_of_word(std::string_view text, std::size_t at) {
  while (at < text.size() && !ends_word(text[at])) ++at;
  return at;
}

// In a text, a "key" alone is rather a setting: "unknown key: lr".
bool names_secret(std::string_view name) { return is_secret_name(name) && !is_one_of(name, {"key", "Key"}); }

bool is_plain_value(std::string_view word) {
  return is_one_of(word, {"true", "false", "null", "None"}) ||
         word.find_first_not_of("0123456789.+-eE") == std::string_view::npos;
}

// Returns the position of the value of the name that ends at `end`: after "=", ":", or the space after an
// option; npos if no value follows on this line.
std::size_t value_after(std::string_view text, std::string_view name, std::size_t end) {
  std::size_t at = skip(text, end, "\\\"' ");
  if (at < text.size() && (text[at] == '=' || text[at] == ':')) {
    at = skip(text, at + 1, "\\\"' ");
  } else if (!name.starts_with("--") || at == end) {
    return std::string_view::npos;
  } else {
    at = skip(text, at, ",\\\"' ");  // a list of words: ["--token", "word"]
  }
  // A \n in a string of JSON, a list or an object is no value of this name.
  const bool none = at == text.size() || text[at] == '\n' || text[at] == '{' || text[at] == '[' ||
                    (text[at] == 'n' && text[at - 1] == '\\');
  return none ? std::string_view::npos : at;
}

// Returns the end of the value at `at`: a value in quotes ends at the same quote of its line.
std::size_t end_of_value(std::string_view text, std::size_t at) {
  const char before = text[at - 1];
  const std::size_t word = end_of_word(text, at);
  if (before != '"' && before != '\'') return word;
  const std::size_t line = std::min(text.find('\n', at), text.size());
  std::size_t quote = text.substr(0, line).find(before, at);
  if (quote == std::string_view::npos) return word;
  while (quote > at && text[quote - 1] == '\\') --quote;
  return quote;
}

}  // namespace

std::string without_secrets(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    if (ends_word(text[at])) {
      out += text[at++];
      continue;
    }
    const std::size_t end = end_of_word(text, at);
    const std::string_view word = text.substr(at, end - at);
    // The first name in the word: "hf_token:" or "--password", with its value in the next word.
    std::size_t name_end = at;
    while (name_end < end && is_name(text[name_end])) ++name_end;
    const std::string_view name = text.substr(at, name_end - at);
    const std::size_t value = names_secret(name) ? value_after(text, name, name_end) : std::string_view::npos;
    if (value != std::string_view::npos && value >= end) {
      const std::size_t value_end = end_of_value(text, value);
      const std::string_view words = text.substr(value, value_end - value);
      out += text.substr(at, value - at);
      // "Bearer word": the scheme is followed by the secret.
      const bool scheme = is_one_of(words, {"Bearer", "Basic"});
      if (scheme) out += words;
      if (!scheme) out += is_plain_value(words) ? words : kRedacted;
      at = value_end;
      if (scheme) {
        const std::size_t token = skip(text, at, " "), token_end = end_of_word(text, token);
        out += text.substr(at, token - at);
        if (token_end > token) out += kRedacted;
        at = token_end;
      }
      continue;
    }
    if (is_one_of(word, {"Bearer", "Basic"}) && end + 1 < text.size() && text[end] == ' ') {
      const std::size_t token_end = end_of_word(text, end + 1);
      out += word;
      out += ' ';
      if (token_end - end > 8) {
        out += kRedacted;
      } else {
        out += text.substr(end + 1, token_end - end - 1);
      }
      at = token_end;
      continue;
    }
    if (is_secret_value(word)) {
      out += kRedacted;
    } else {
      out += word;
    }
    at = end;
  }
  return out;
}

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
