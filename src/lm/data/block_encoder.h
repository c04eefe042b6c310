// Turns blocks of text into tokens. Each worker thread of tokenize_corpus() has its own BlockEncoder. Private
// to lm/data.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "lm/data/corpus.h"
#include "lm/data/json_lines.h"
#include "lm/data/text_check.h"
#include "lm/data/tokenize.h"

namespace primus::data {

// The tokens of one block that come from one JSON key.
struct EncodedKey {
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> lengths;       // number of tokens of each sequence
  std::vector<std::size_t> document_ends;  // for each document: the number of sequences up to its end
};

struct EncodedBlock {
  std::vector<EncodedKey> keys;
  std::uint64_t skipped_lines = 0;
  std::string first_skipped;
  bool has_words = false;  // whether at least one text is more than white space

  void clear() {
    for (EncodedKey& key : keys) {
      key.tokens.clear();
      key.lengths.clear();
      key.document_ends.clear();
    }
    skipped_lines = 0;
    first_skipped.clear();
    has_words = false;
  }
};

// Encodes blocks; one encoder per worker.
class BlockEncoder {
 public:
  BlockEncoder(const TokenizeOptions& options, const Tokenizer& tokenizer)
      : options_(options), tokenizer_(tokenizer), lines_(options.json_keys, options.skip_bad, options.hints) {
    if (options.append_eod) eod_ = tokenizer.special_ids().eod;
  }

  // Removes broken lines from a block of plain text.
  void encode(TextBlock& block, const InputFile& file, EncodedBlock& out) {
    out.keys.resize(options_.json_keys.size());
    out.clear();
    if (file.kind == InputKind::kText) {
      BrokenLines broken =
          require_utf8(block, file.path.string(), options_.skip_bad, options_.hints.skip_bad);
      out.skipped_lines = broken.count;
      out.first_skipped = std::move(broken.first);
      out.has_words = holds_words(block.text);
      try {
        encode_parts(block, out.keys.front());
      } catch (Error& error) {  // a tokenizer may refuse some texts
        if (error.location().empty()) error.at(fmt::format("{}:{}", file.path.string(), block.first_line));
        throw;
      }
    } else {
      encode_lines(block, file.path.string(), out);
    }
  }

 private:
  void encode_parts(const TextBlock& block, EncodedKey& out) {
    const Tokenizer::Frame& frame = tokenizer_.frame();
    std::size_t begin = 0;
    for (std::size_t part = 0; part < block.parts.size(); ++part) {
      const std::size_t end = block.parts[part], before = out.tokens.size();
      // All parts of a file are one text: only the first part gets BOS, and only the last part gets EOS.
      if (options_.add_special && block.begins_file && part == 0) append(frame.before, out);
      tokenizer_.encode(std::string_view(block.text).substr(begin, end - begin), false, out.tokens);
      if (options_.add_special && block.ends_file && part + 1 == block.parts.size()) append(frame.after, out);
      end_sequence(before, out);
      begin = end;
    }
    if (block.ends_file) end_document(!out.lengths.empty(), out);
  }

  static bool holds_words(std::string_view text) {
    return text.find_first_not_of(" \t\n\v\f\r") != std::string_view::npos;
  }

  static void append(const std::vector<std::int32_t>& ids, EncodedKey& out) {
    out.tokens.insert(out.tokens.end(), ids.begin(), ids.end());
  }

  void encode_lines(const TextBlock& block, const std::string& name, EncodedBlock& out) {
    lines_.read(block, name, [&](std::span<const JsonTexts> keys) {
      for (std::size_t key = 0; key < keys.size(); ++key) {
        const std::size_t before = out.keys[key].lengths.size();
        for (const std::string& text : keys[key].strings()) {
          out.has_words = out.has_words || holds_words(text);
          add_sequence(text, out.keys[key]);
        }
        end_document(out.keys[key].lengths.size() > before, out.keys[key]);
      }
    });
    out.skipped_lines = lines_.skipped();
    out.first_skipped = lines_.first_skipped();
  }

  void add_sequence(std::string_view text, EncodedKey& out) {
    const std::size_t before = out.tokens.size();
    tokenizer_.encode(text, options_.add_special, out.tokens);
    end_sequence(before, out);
  }

  // Ends the sequence that began at out.tokens[begin], unless it is empty.
  static void end_sequence(std::size_t begin, EncodedKey& out) {
    const std::size_t count = out.tokens.size() - begin;
    if (count > 0) out.lengths.push_back(checked_cast<std::int32_t>(count, "tokens in one sequence"));
  }

  void end_document(bool has_tokens, EncodedKey& out) {
    if (eod_ && has_tokens) {
      out.tokens.push_back(*eod_);
      ++out.lengths.back();
    }
    out.document_ends.push_back(out.lengths.size());
  }

  const TokenizeOptions& options_;
  const Tokenizer& tokenizer_;
  std::optional<std::int32_t> eod_;
  JsonLines lines_;
};

}  // namespace primus::data
