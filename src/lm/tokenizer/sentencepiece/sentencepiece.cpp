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
#include "lm/tokenizer/huggingface/added_vocabulary.h"
#include "lm/tokenizer/sentencepiece/encoder.h"
#include "lm/tokenizer/sentencepiece/normalizer.h"
#include "lm/tokenizer/text/unicode.h"

namespace primus {

using namespace sentencepiece;

namespace {

// Returns the byte of a piece "<0xE4>", or -1.
int parse_byte_piece(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || !text.ends_with('>')) return -1;
  unsigned char byte = 0;
  const auto result = std::from_chars(text.data() + 3, text.data() + 5, byte, 16);
  return result.ec == std::errc() && result.ptr == text.data() + 5 ? byte : -1;
}

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(std::string bytes, const std::string& path, std::string type, SideFiles side)
      : bytes_(std::move(bytes)),
        type_(std::move(type)),
        side_(std::move(side)),
        model_(parse_model(bytes_, path)) {
    const SideSettings settings = parse_side_files(side_);
    try {
      build();
      add_tokens(settings, path);
      take_roles(settings);
    } catch (Error& error) {
      if (error.location().empty()) error.at(path);
      throw;
    }
  }

  std::string_view name() const override { return type_; }
  std::int32_t vocab_size() const override { return pieces() + added_count_; }
  const SpecialIds& special_ids() const override { return special_ids_; }
  std::string token_text(std::int32_t id) const override {
    check_id(id);
    return text_of(id);
  }
  std::optional<std::int32_t> token_id(std::string_view token) const override {
    if (const auto id = added_ ? added_->find(token) : std::nullopt) return id;
    return piece_id(token);
  }
  bool is_special(std::int32_t id) const override {
    const AddedToken* token = added_ ? added_->token(id) : nullptr;
    return token != nullptr ? token->special : id < pieces() && piece(id).type == PieceType::kControl;
  }
  std::uint64_t fingerprint() const override {
    const std::uint64_t of_file = XXH3_64bits(bytes_.data(), bytes_.size());
    if (!added_ && special_ids_.eod == model_eos_) return of_file;
    std::string text = fmt::format("{} {}", special_ids_.eod.value_or(-1), continues_);
    if (added_) {
      for (const auto& [id, token] : added_->tokens()) {
        text += fmt::format(" {}:{} {:d}{:d}{:d}{:d}{:d}", id, token.content, token.special, token.normalized,
                            token.single_word, token.lstrip, token.rstrip);
      }
    }
    return XXH3_64bits_withSeed(text.data(), text.size(), of_file);
  }

  void save(const std::filesystem::path& folder) const override {
    make_folders(folder);
    write_file_atomic(folder / "tokenizer.model", bytes_);
    nlohmann::json config = {{"tokenizer_class", "LlamaTokenizer"},
                             {"add_bos_token", false},
                             {"add_eos_token", false},
                             {"clean_up_tokenization_spaces", false},
                             {"legacy", true}};
    for (const auto& [key, id] : roles_of(special_ids_)) {
      config[key] = nullptr;
      if (id) config[key] = text_of(*id);
    }
    side_.save(folder, config.dump(2) + "\n");
  }

 protected:
  void encode_text(std::string_view text, std::vector<std::int32_t>& ids) const override {
    std::string repaired;
    text = unicode::valid_or_repaired(text, repaired);
    if (!added_) return encode_stretch(text, false, ids);
    matcher_.split(text, [&](std::string_view part, std::int32_t id) {
      if (id >= 0) {
        ids.push_back(id);
      } else {
        // If the part starts with a blank, this blank replaces the dummy prefix.
        const bool blank = !model_.normalizer.remove_extra_whitespaces &&
                           (part.starts_with(' ') || part.starts_with(kSpaceMark));
        encode_stretch(part, blank || (continues_ && part.data() != text.data()), ids);
      }
    });
  }

  std::unique_ptr<Decoding> new_decoding() const override { return std::make_unique<State>(*this); }

 private:
  // Appends the ids of a text, or of the text between two added tokens.
  void encode_stretch(std::string_view text, bool continues, std::vector<std::int32_t>& ids) const {
    std::string normalized;
    normalizer_->normalize(text, normalized, continues);
    std::vector<Segment> segments;
    encoder_->encode(normalized, segments);
    std::size_t at = 0;
    bool after_unknown = false;
    for (const Segment& segment : segments) {
      if (segment.id != Segment::kUnknown) {
        ids.push_back(segment.id);
      } else if (model_.byte_fallback) {
        for (const char byte : std::string_view(normalized).substr(at, segment.length)) {
          ids.push_back(byte_ids_[static_cast<unsigned char>(byte)]);
        }
      } else if (!after_unknown) {
        ids.push_back(*special_ids_.unk);  // a run of unknown characters gets one id
      }
      after_unknown = segment.id == Segment::kUnknown;
      at += segment.length;
    }
  }

  // Restores the spaces that normalisation changed, and joins bytes to characters.
  class State final : public Decoding {
   public:
    explicit State(const SentencePieceTokenizer& tokenizer) : tokenizer_(tokenizer) {}

    void push(std::int32_t id, std::string& out) override {
      if (id >= tokenizer_.pieces()) {
        emit_bytes(out, /*all=*/true);
        return give(tokenizer_.text_of(id), out);
      }
      const Piece& piece = tokenizer_.piece(id);
      if (piece.type == PieceType::kByte) {
        bytes_ += static_cast<char>(parse_byte_piece(piece.text));
        emit_bytes(out, /*all=*/false);
        return;
      }
      emit_bytes(out, /*all=*/true);
      if (space_taken_ || anything_given_) at_start_ = false;
      space_taken_ = false;
      if (piece.type == PieceType::kControl) return give(piece.text, out);
      if (piece.type == PieceType::kUnknown) return give(tokenizer_.model_.unk_surface, out);
      std::string_view text = piece.text;
      const NormalizerSpec& rules = tokenizer_.model_.normalizer;
      if (at_start_ && (rules.add_dummy_prefix || rules.remove_extra_whitespaces) &&
          text.starts_with(kSpaceMark)) {
        text.remove_prefix(kSpaceMark.size());
        // If extra spaces are removed, all leading spaces are dropped.
        space_taken_ = !rules.remove_extra_whitespaces;
      }
      for (std::size_t mark; (mark = text.find(kSpaceMark)) != std::string_view::npos;) {
        give(text.substr(0, mark), out);
        give(" ", out);
        text.remove_prefix(mark + kSpaceMark.size());
      }
      give(text, out);
    }

    void finish(std::string& out) override {
      emit_bytes(out, /*all=*/true);
      at_start_ = true;
      space_taken_ = anything_given_ = false;
    }

   private:
    void give(std::string_view text, std::string& out) {
      anything_given_ |= !text.empty();
      out += text;
    }

    // Outputs the characters that the bytes form; bytes that belong to no character become U+FFFD. Unless
    // `all`, holds back an incomplete character.
    void emit_bytes(std::string& out, bool all) {
      std::string_view rest = bytes_;
      while (!rest.empty()) {
        std::size_t incomplete = 0;
        const std::size_t valid = unicode::valid_prefix(rest, &incomplete);
        give(rest.substr(0, valid), out);
        rest.remove_prefix(valid);
        if (rest.empty() || (!all && incomplete > 0)) break;
        give(unicode::kReplacement, out);
        rest.remove_prefix(1);
      }
      bytes_ = std::string(rest);
    }

    const SentencePieceTokenizer& tokenizer_;
    std::string bytes_;         // bytes from byte pieces that have not been output yet
    bool at_start_ = true;      // whether a leading space must still be dropped
    bool space_taken_ = false;  // whether the leading space was dropped from the last piece
    bool anything_given_ = false;
  };

  std::int32_t pieces() const { return static_cast<std::int32_t>(model_.pieces.size()); }
  const Piece& piece(std::int32_t id) const { return model_.pieces[static_cast<std::size_t>(id)]; }
  std::optional<std::int32_t> piece_id(std::string_view text) const {
    const auto it = ids_.find(std::string(text));
    return it == ids_.end() ? std::nullopt : std::optional(it->second);
  }
  // Returns "" for an id in a gap between added tokens.
  std::string text_of(std::int32_t id) const {
    if (id < pieces()) return piece(id).text;
    const AddedToken* token = added_->token(id);
    return token != nullptr ? token->content : std::string();
  }

  // Adds the tokens of the side files. Does nothing if the model has all of these tokens.
  void add_tokens(const SideSettings& settings, const std::string& path) {
    AddedVocabulary added([this](std::string_view text) { return piece_id(text); }, pieces());
    for (const AddedToken& token : settings.described) added.add(token);
    for (const AddedToken& token : settings.named) {
      if (!added.find(token.content)) added.add(token);
    }
    if (added.tokens().empty() || added.tokens().rbegin()->first < pieces()) return;
    std::vector<AddedToken> tokens;
    std::vector<std::string> contents;
    for (const auto& [id, token] : added.tokens()) {
      if (token.content.size() > AddedTokenMatcher::kMaxTokenBytes) {
        throw unsupported(fmt::format("the added token {} has more than {} bytes, which is not supported", id,
                                      AddedTokenMatcher::kMaxTokenBytes));
      }
      tokens.push_back(token);
      contents.push_back(token.content);
    }
    added_count_ = added.tokens().rbegin()->first + 1 - pieces();
    continues_ = !settings.legacy;
    if (std::string remark = added.remark(); !remark.empty()) add_note(fmt::format("{}: {}", path, remark));
    matcher_ = AddedTokenMatcher(std::move(tokens), contents);
    added_.emplace(std::move(added));
  }

  void take_roles(const SideSettings& settings) {
    model_eos_ = special_ids_.eos;
    const auto take = [this](const std::optional<std::string>& text, std::optional<std::int32_t>& role) {
      if (const auto id = text ? token_id(*text) : std::nullopt) role = id;
    };
    take(settings.bos, special_ids_.bos);
    take(settings.eos, special_ids_.eos);
    take(settings.pad, special_ids_.pad);
    special_ids_.eod = special_ids_.eos;
    // Sets the usual tokens even if no file names them, as transformers' class for these models does.
    ChatTemplates templates = settings.chat_templates;
    for (const auto& [key, id] : roles_of(special_ids_))
      if (id) templates.set_token(key, text_of(*id));
    set_chat_templates(std::move(templates));
  }

  void build() {
    if (model_.treat_whitespace_as_suffix)
      throw unsupported("spaces after words (treat_whitespace_as_suffix) are not supported");
    if (model_.has_denormalizer) throw unsupported("denormalisation rules are not supported");
    byte_ids_.fill(-1);
    for (std::int32_t id = 0; id < vocab_size(); ++id) {
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
        if (byte < 0) throw invalid(fmt::format("the byte piece '{}' does not name a byte", p.text));
        byte_ids_[static_cast<std::size_t>(byte)] = id;
      }
    }
    if (!special_ids_.unk) throw invalid("it has no unknown piece");
    if (model_.byte_fallback && std::find(byte_ids_.begin(), byte_ids_.end(), -1) != byte_ids_.end()) {
      throw invalid("byte fallback without a piece for each byte");
    }
    const auto control = [this](const std::string& text) -> std::optional<std::int32_t> {
      const auto id = piece_id(text);
      return id && piece(*id).type == PieceType::kControl ? id : std::nullopt;
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
  SideFiles side_;
  Model model_;
  std::unordered_map<std::string, std::int32_t> ids_;
  std::array<std::int32_t, 256> byte_ids_;
  SpecialIds special_ids_;
  ByteTrie user_defined_;
  std::optional<Normalizer> normalizer_;
  std::unique_ptr<Encoder> encoder_;
  std::optional<AddedVocabulary> added_;
  AddedTokenMatcher matcher_;
  std::int32_t added_count_ = 0;  // number of ids after the ids of the pieces
  bool continues_ = false;        // whether text after an added token gets no dummy prefix
  std::optional<std::int32_t> model_eos_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(std::string bytes, const std::string& path,
                                                        std::string type, SideFiles side) {
  return std::make_unique<SentencePieceTokenizer>(std::move(bytes), path, std::move(type), std::move(side));
}

}  // namespace primus
