#include "lm/data/made_by.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text/json_text.h"

namespace primus::data {
namespace {

Path note_of(const Path& prefix) { return prefix.string() + ".tokenizer.json"; }

std::string hex(std::uint64_t fingerprint) { return fmt::format("{:016x}", fingerprint); }

}  // namespace

void write_made_by(const Path& prefix, const Tokenizer& tokenizer, Env& env) {
  const auto data = IndexedDataset::open(prefix, env);
  write_file_atomic(note_of(prefix),
                    json_text({{"tokenizer", std::string(tokenizer.name())},
                               {"fingerprint", hex(tokenizer.fingerprint())},
                               {"data", hex(data->fingerprint())}}) +
                        "\n",
                    env);
}

void check_made_by(const Path& prefix, const TokenSource& source, const Tokenizer& tokenizer) {
  constexpr std::uint64_t kMostBytes = 64 << 10;
  const Path note = note_of(prefix);
  if (tokenizer.name() == "NullTokenizer" || !Env::posix().status(note)) return;
  const nlohmann::json json = parse_json_object(read_file(note, kMostBytes), note.string());
  if (json.value("data", nlohmann::json()) != hex(source.fingerprint())) return;
  const nlohmann::json made_by = json.value("fingerprint", nlohmann::json());
  if (made_by == hex(tokenizer.fingerprint())) return;
  const nlohmann::json name = json.value("tokenizer", nlohmann::json("another tokenizer"));
  throw invalid(fmt::format("the ids of '{}' were made by another tokenizer ({}) than the one in use ({})",
                            prefix.string(), name.is_string() ? name.get<std::string>() : name.dump(),
                            tokenizer.name()),
                "name that tokenizer (tokenizer_model, tokenizer_type), or make the data again with 'primus "
                "data tokenize'; allow_tokenizer_change=true trains on them on purpose")
      .at(note.string());
}

}  // namespace primus::data
