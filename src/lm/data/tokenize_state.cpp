#include "lm/data/tokenize_state.h"

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace primus::data {

namespace {

using nlohmann::json;
constexpr int kStateVersion = 2;

TokenizeState parse(const json& j) {
  TokenizeState state;
  j.at("key").get_to(state.key);
  j.at("file").get_to(state.file);
  j.at("end").get_to(state.end);
  j.at("next_line").get_to(state.next_line);
  j.at("bytes").get_to(state.bytes);
  j.at("documents").get_to(state.documents);
  j.at("skipped_lines").get_to(state.skipped_lines);
  j.at("first_skipped").get_to(state.first_skipped);
  j.at("has_words").get_to(state.has_words);
  for (const json& writer : j.at("writers")) {
    state.writers.push_back({writer.at("sequences").get<std::int64_t>(),
                             writer.at("documents").get<std::int64_t>(),
                             writer.at("tokens").get<std::int64_t>()});
  }
  return state;
}

}  // namespace

std::optional<TokenizeState> load_state(const Path& file, Env& env) {
  if (!env.status(file)) return std::nullopt;
  try {
    constexpr std::uint64_t kLimit = 64U << 20;
    const json j = json::parse(read_file(file, kLimit, env));
    if (j.at("version").get<int>() != kStateVersion) return std::nullopt;
    return parse(j);
  } catch (const json::exception&) {
    return std::nullopt;
  }
}

void save_state(const TokenizeState& state, const Path& file, Env& env) {
  json j = {{"version", kStateVersion},
            {"key", state.key},
            {"file", state.file},
            {"end", state.end},
            {"next_line", state.next_line},
            {"bytes", state.bytes},
            {"documents", state.documents},
            {"skipped_lines", state.skipped_lines},
            {"first_skipped", state.first_skipped},
            {"has_words", state.has_words},
            {"writers", json::array()}};
  for (const auto& writer : state.writers) {
    j["writers"].push_back(
        {{"sequences", writer.sequences}, {"documents", writer.documents}, {"tokens", writer.tokens}});
  }
  // Replaces invalid UTF-8, which a file name in an error message may contain.
  write_file_atomic(file, j.dump(2, ' ', false, json::error_handler_t::replace) + "\n", env);
}

}  // namespace primus::data
