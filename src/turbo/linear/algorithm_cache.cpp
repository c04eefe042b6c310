#include "turbo/linear/algorithm_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/file.h"
#include "base/files/file_lock.h"
#include "base/text/json_text.h"

namespace primus::turbo {
namespace {

constexpr std::uint64_t kLimit = 4 << 20;
constexpr int kFormat = 2;
constexpr std::size_t kDigits = 16;  // number of hexadecimal digits per word

std::string file_name(const std::string& device, const std::string& library) {
  std::string name = "matmul-" + device + "-" + library + ".json";
  std::replace_if(
      name.begin(), name.end(),
      [](char c) {
        return !((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
                 c == '-');
      },
      '_');
  return name;
}

// Returns the choices of the file, or an empty object if the file does not have our format.
nlohmann::json read_choices(const Path& file) {
  try {
    if (Env::posix().status(file)) {
      auto json = nlohmann::json::parse(read_file(file, kLimit), nullptr, false);
      if (json.is_object() && json.value("format", nlohmann::json()) == kFormat) {
        const auto choices = json.find("choices");
        if (choices != json.end() && choices->is_object()) return *choices;
      }
    }
  } catch (const Error&) {
    return nlohmann::json::object();
  }
  return nlohmann::json::object();
}

std::optional<AlgorithmWords> parse_words(const nlohmann::json& value) {
  if (!value.is_string()) return std::nullopt;
  const auto& text = value.get_ref<const std::string&>();
  AlgorithmWords words{};
  if (text.size() != kDigits * words.size()) return std::nullopt;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const char* const begin = text.data() + i * kDigits;
    const auto [end, failure] = std::from_chars(begin, begin + kDigits, words[i], 16);
    if (failure != std::errc() || end != begin + kDigits) return std::nullopt;
  }
  return words;
}

std::optional<AlgorithmChoice> parse_choice(const nlohmann::json& entry) {
  if (!entry.is_object()) return std::nullopt;
  const auto words = entry.find("algorithm"), time = entry.find("microseconds"),
             next_time = entry.find("next_microseconds"), of = entry.find("of");
  for (const auto& member : {words, time, next_time, of}) {
    if (member == entry.end()) return std::nullopt;
  }
  const std::optional<AlgorithmWords> algorithm = parse_words(*words);
  if (!algorithm || !time->is_number() || !next_time->is_number() || !of->is_number_integer()) {
    return std::nullopt;
  }
  constexpr std::int64_t kMax = 1 << 20;
  const auto microseconds = time->get<double>(), next = next_time->get<double>();
  const auto count = of->get<std::int64_t>();
  if (!std::isfinite(microseconds) || microseconds <= 0 || !std::isfinite(next) || next < 0 || count < 1 ||
      count > kMax) {
    return std::nullopt;
  }
  return AlgorithmChoice{*algorithm, microseconds, next, static_cast<int>(count)};
}

}  // namespace

AlgorithmCache::AlgorithmCache(const std::string& folder, const std::string& device,
                               const std::string& library)
    : file_((Path(folder) / file_name(device, library)).string()) {}

std::optional<AlgorithmChoice> AlgorithmCache::choose(
    const std::string& key, const std::function<bool(const AlgorithmChoice&)>& usable,
    const std::function<std::optional<AlgorithmChoice>()>& measure) {
  const std::lock_guard guard(mutex_);
  if (const auto at = known_.find(key); at != known_.end()) return at->second;
  std::optional<AlgorithmChoice> choice = kept(key);
  if (!choice || !usable(*choice)) {
    std::optional<FileLock> lock;
    try {
      make_folders(Path(file_).parent_path());
      lock = FileLock::wait(Path(file_ + ".lock"));
    } catch (const Error&) {
      lock.reset();  // continues without a lock, because no process can write to this file
    }
    // Another process may have measured while this process waited.
    choice = kept(key);
    if (!choice || !usable(*choice)) {
      choice = measure();
      if (choice) keep(key, *choice);
    }
  }
  if (choice) known_.emplace(key, *choice);
  return choice;
}

std::optional<AlgorithmChoice> AlgorithmCache::kept(const std::string& key) const {
  const nlohmann::json choices = read_choices(file_);
  const auto at = choices.find(key);
  return at == choices.end() ? std::nullopt : parse_choice(*at);
}

void AlgorithmCache::keep(const std::string& key, const AlgorithmChoice& choice) const {
  nlohmann::json choices = read_choices(file_);
  std::string words;
  for (const std::uint64_t word : choice.algorithm) words += fmt::format("{:016x}", word);
  choices[key] = {{"algorithm", words},
                  {"microseconds", choice.microseconds},
                  {"next_microseconds", choice.next_microseconds},
                  {"of", choice.of}};
  try {
    const nlohmann::json document{{"format", kFormat}, {"choices", choices}};
    write_file_atomic(file_, json_text(document) + "\n");
  } catch (const Error&) {
    return;  // this is harmless, because the next process measures again
  }
}

}  // namespace primus::turbo
