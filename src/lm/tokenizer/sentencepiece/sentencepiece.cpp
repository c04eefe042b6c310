#include "lm/tokenizer/sentencepiece/sentencepiece.h"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/files/file.h"
#include "lm/tokenizer/decoding.h"
#include "lm/tokenizer/sentencepiece/encoder.h"
#include "lm/tokenizer/sentencepiece/normalizer.h"
#include "lm/tokenizer/text/unicode.h"

namespace primus {

using namespace sentencepiece;

namespace {

// The byte of a piece "<0xE4>", or -1.
int parse_byte_piece(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || !text.ends_with('>')) return -1;
  unsigned char byte = 0;
  const auto result = std::from_chars(text.data() + 3, text.data() + 5, byte, 16);
  return result.ec == std::errc() && result.ptr == text.data() + 5 ? byte : -1;
}

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(std::string bytes, const std::string& path, std::string type)
      : bytes_(std::move(bytes)), type_(std::move(type)), model_(parse_model(bytes_, path)) {
    try {
      build();
    } catch (Error& error) {
      if (error.location().empty()) error.at(path);
      throw;
    }
  }

  std::string_view name() const override { return type_; }
  int32_t vocab_size() const override { return static_cast<int32_t>(model_.pieces.size()); }
  const SpecialIds& special_ids() const override { return special_ids_; }
  std::string token_text(int32_t id) const override {
    check_id(id);
    return piece(id).text;
  }
  std::optional<int32_t> token_id(std::string_view token) const override {
    const auto it = ids_.find(std::string(token));
    return it == ids_.end() ? std::nullopt : std::optional(it->second);
  }
  bool is_special(int32_t id) const override { return piece(id).type == PieceType::kControl; }
  uint64_t fingerprint() const override { return XXH3_64bits(bytes_.data(), bytes_.size()); }

  void save(const std::filesystem::path& folder) const override {
    nlohmann::json config = {{"tokenizer_class", "LlamaTokenizer"},
                             {"add_bos_token", false},
                             {"add_eos_token", false},
                             {"clean_up_tokenization_spaces", false},
                             {"legacy", true}};
    const auto role = [&](const char* key, std::optional<int32_t> id) {
      config[key] = nullptr;
      if (id) config[key] = piece(*id).text;
    };
    role("bos_token", special_ids_.bos);
    role("eos_token", special_ids_.eos);
    role("pad_token", special_ids_.pad);
    role("unk_token", special_ids_.unk);
    make_folders(folder);
    write_file_atomic(folder / "tokenizer.model", bytes_);
    write_file_atomic(folder / "tokenizer_config.json", config.dump(2) + "\n");
  }

 protected:
  void encode_text(std::string_view text, std::vector<int32_t>& ids) const override {
    std::string repaired, normalized;
    normalizer_->normalize(unicode::valid_or_repaired(text, repaired), normalized);
    std::vector<Segment> segments;
    encoder_->encode(normalized, segments);
    size_t at = 0;
    bool after_unknown = false;
    for (const Segment& segment : segments) {
      if (segment.id != Segment::kUnknown) {
        ids.push_back(segment.id);
      } else if (model_.byte_fallback) {
        for (const char byte : std::string_view(normalized).substr(at, segment.length)) {
          ids.push_back(byte_ids_[static_cast<unsigned char>(byte)]);
        }
      } else if (!after_unknown) {
        ids.push_back(*special_ids_.unk);  // one for a run of unknown characters
      }
      after_unknown = segment.id == Segment::kUnknown;
      at += segment.length;
    }
  }

  std::unique_ptr<Decoding> new_decoding() const override { return std::make_unique<State>(*this); }

 private:
  // Undoes what normalisation did to spaces, and joins bytes to characters.
  class State final : public Decoding {
   public:
    explicit State(const SentencePieceTokenizer& tokenizer) : tokenizer_(tokenizer) {}

    void push(int32_t id, std::string& out) override {
      const Piece& piece = tokenizer_.piece(id);
      if (piece.type == PieceType::kByte) {
        bytes_ += static_cast<char>(parse_byte_piece(piece.text));
        give_bytes(out, /*all=*/false);
        return;
      }
      give_bytes(out, /*all=*/true);
      if (space_taken_ || anything_given_) at_start_ = false;
      space_taken_ = false;
      if (piece.type == PieceType::kControl) return give(piece.text, out);
      if (piece.type == PieceType::kUnknown) return give(tokenizer_.model_.unk_surface, out);
      std::string_view text = piece.text;
      const NormalizerSpec& rules = tokenizer_.model_.normalizer;
      if (at_start_ && (rules.add_dummy_prefix || rules.remove_extra_whitespaces) &&
          text.starts_with(kSpaceMark)) {
        text.remove_prefix(kSpaceMark.size());
        // Where extra spaces are removed, all of them at the start go.
        space_taken_ = !rules.remove_extra_whitespaces;
      }
      for (size_t mark; (mark = text.find(kSpaceMark)) != std::string_view::npos;) {
        give(text.substr(0, mark), out);
        give(" ", out);
        text.remove_prefix(mark + kSpaceMark.size());
      }
      give(text, out);
    }

    void finish(std::string& out) override {
      give_bytes(out, /*all=*/true);
      at_start_ = true;
      space_taken_ = anything_given_ = false;
    }

   private:
    void give(std::string_view text, std::string& out) {
      anything_given_ |= !text.empty();
      out += text;
    }

    // Gives the characters that the bytes form; each byte that belongs to none becomes U+FFFD. Unless `all`,
    // what further bytes may complete is held back.
    void give_bytes(std::string& out, bool all) {
      std::string_view rest = bytes_;
      while (!rest.empty()) {
        size_t incomplete = 0;
        const size_t valid = unicode::valid_prefix(rest, &incomplete);
        give(rest.substr(0, valid), out);
        rest.remove_prefix(valid);
        if (rest.empty() || (!all && incomplete > 0)) break;
        give(unicode::kReplacement, out);
        rest.remove_prefix(1);
      }
      bytes_ = std::string(rest);
    }

    const SentencePieceTokenizer& tokenizer_;
    std::string bytes_;         // of byte pieces, not given out
    bool at_start_ = true;      // a leading space is still to be dropped
    bool space_taken_ = false;  // the last piece gave its leading space for that
    bool anything_given_ = false;
  };

  const Piece& piece(int32_t id) const { return model_.pieces[static_cast<size_t>(id)]; }

  void build() {
    if (model_.treat_whitespace_as_suffix)
      throw unsupported("spaces behind words (treat_whitespace_as_suffix) are not supported");
    if (model_.has_denormalizer) throw unsupported("denormalisation rules are not supported");
    byte_ids_.fill(-1);
    for (int32_t id = 0; id < vocab_size(); ++id) {
      const Piece& p = piece(id);
      if (p.text.empty()) throw invalid(fmt::format("the piece {} is empty", id));
      if (!ids_.emplace(p.text, id).second)
        throw invalid(fmt::format("the piece '{}' is defined twice", p.text));
      if (p.type == PieceType::kUserDefined) user_defined_.add(p.text, id);
      if (p.type == PieceType::kUnknown) {
        if (special_ids_.unk) throw invalid("it has two unknown pieces");
        special_ids_.unk = id;
      }
      if (p.type == PieceType::kByte) {
        const int byte = parse_byte_piece(p.text);
        if (byte < 0) throw invalid(fmt::format("the byte piece '{}' names no byte", p.text));
        byte_ids_[static_cast<size_t>(byte)] = id;
      }
    }
    if (!special_ids_.unk) throw invalid("it has no unknown piece");
    if (model_.byte_fallback && std::find(byte_ids_.begin(), byte_ids_.end(), -1) != byte_ids_.end()) {
      throw invalid("byte fallback without a piece for each byte");
    }
    const auto control = [this](const std::string& text) -> std::optional<int32_t> {
      const auto id = token_id(text);
      return id && is_special(*id) ? id : std::nullopt;
    };
    special_ids_.bos = control(model_.bos_piece);
    special_ids_.eos = special_ids_.eod = control(model_.eos_piece);
    special_ids_.pad = control(model_.pad_piece);
    normalizer_.emplace(model_.normalizer, user_defined_);
    switch (model_.type) {
      case ModelType::kBpe:
        encoder_ = make_bpe_encoder(model_.pieces);
        break;
      case ModelType::kUnigram:
        encoder_ = make_unigram_encoder(model_.pieces);
        break;
      case ModelType::kWord:
        throw unsupported("SentencePiece word models are not supported");
      case ModelType::kChar:
        throw unsupported("SentencePiece character models are not supported");
    }
  }

  std::string bytes_, type_;
  Model model_;
  std::unordered_map<std::string, int32_t> ids_;
  std::array<int32_t, 256> byte_ids_;
  SpecialIds special_ids_;
  ByteTrie user_defined_;
  std::optional<Normalizer> normalizer_;
  std::unique_ptr<Encoder> encoder_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(std::string bytes, const std::string& path,
                                                        std::string type) {
  return std::make_unique<SentencePieceTokenizer>(std::move(bytes), path, std::move(type));
}

}  // namespace primus
