#include "lm/data/made_by.h"

#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/text/json_text.h"
#include "lm/tokenizer/simple.h"

namespace primus::data {
namespace {

constexpr const char* kExtension = ".tokenizer.json";
Path note_of(const Path& prefix) { return prefix.string() + kExtension; }

std::string hex(std::uint64_t fingerprint) { return fmt::format("{:016x}", fingerprint); }

struct Note {
  std::string tokenizer, fingerprint;  // name of the tokenizer, and its fingerprint in hex()
  // Returns a text such as "HuggingFaceTokenizer 89abcdef". The digits distinguish tokenizers with the same
  // name.
  std::string describe() const { return tokenizer + " " + fingerprint.substr(0, 8); }
};

// Reads the note at `prefix`. Returns nullopt if there is no note, or if the note belongs to other data than
// `source`.
std::optional<Note> read_note(const Path& prefix, const TokenSource& source, Env& env) {
  constexpr std::uint64_t kMaxBytes = 64 << 10;
  const Path file = note_of(prefix);
  if (!env.status(file)) return std::nullopt;
  const nlohmann::json json = parse_json_object(read_file(file, kMaxBytes, env), file.string());
  if (json.value("data", nlohmann::json()) != hex(source.fingerprint())) return std::nullopt;
  const nlohmann::json fingerprint = json.value("fingerprint", nlohmann::json());
  const nlohmann::json name = json.value("tokenizer", nlohmann::json("a tokenizer"));
  return Note{name.is_string() ? name.get<std::string>() : name.dump(),
              fingerprint.is_string() ? fingerprint.get<std::string>() : fingerprint.dump()};
}

void attach_note(IndexedDatasetWriter& writer, const Note& note) {
  writer.attach(kExtension, json_text({{"tokenizer", note.tokenizer},
                                       {"fingerprint", note.fingerprint},
                                       {"data", hex(writer.completed()->fingerprint())}}) +
                                "\n");
}

}  // namespace

void attach_made_by(IndexedDatasetWriter& writer, const Tokenizer& tokenizer) {
  attach_note(writer, {std::string(tokenizer.name()), hex(tokenizer.fingerprint())});
}

void check_made_by(const Path& prefix, const TokenSource& source, const Tokenizer& tokenizer) {
  if (tokenizer.name() == "NullTokenizer") return;
  const std::optional<Note> made_by = read_note(prefix, source, Env::posix());
  const Note used{std::string(tokenizer.name()), hex(tokenizer.fingerprint())};
  if (!made_by || made_by->fingerprint == used.fingerprint) return;
  std::uint64_t fingerprint = 0;
  const char* const end = made_by->fingerprint.data() + made_by->fingerprint.size();
  constexpr int kHexadecimal = 16;
  const auto read = std::from_chars(made_by->fingerprint.data(), end, fingerprint, kHexadecimal);
  if (read.ptr == end && make_same_ids(fingerprint, tokenizer.fingerprint())) return;
  throw invalid(fmt::format("'{}' was tokenized with another tokenizer ({}) than the one in use ({})",
                            prefix.string(), made_by->describe(), used.describe()),
                "use that tokenizer, or tokenize the data again with 'primus data tokenize'; to train on it "
                "anyway, set allow_tokenizer_change=true")
      .at(note_of(prefix).string());
}

void MadeBy::add(const Path& prefix, const TokenSource& source, Env& env) {
  const std::optional<Note> note = read_note(prefix, source, env);
  if (!note) {
    known_ = false;
  } else if (first_.empty()) {
    name_ = note->tokenizer;
    fingerprint_ = note->fingerprint;
    first_ = prefix;
  } else if (note->fingerprint != fingerprint_) {
    throw invalid(
        fmt::format("'{}' was tokenized with another tokenizer ({}) than '{}' ({})", prefix.string(),
                    note->describe(), first_.string(), Note{name_, fingerprint_}.describe()),
        "tokenize both again with one tokenizer ('primus data tokenize')")
        .at(note_of(prefix).string());
  }
}

void MadeBy::attach(IndexedDatasetWriter& writer) const {
  if (known_ && !first_.empty()) attach_note(writer, {name_, fingerprint_});
}

}  // namespace primus::data
