#include "lm/tokenizer/sentencepiece/model.h"

#include <fmt/format.h>

#include <cstring>

#include "base/error.h"
#include "lm/tokenizer/text/unicode.h"

namespace primus::sentencepiece {

namespace {

// Reads the fields of a protocol buffer message.
class Message {
 public:
  Message(std::string_view bytes, std::string_view name) : bytes_(bytes), name_(name) {}

  // Moves to the next field; returns false at the end.
  bool next() {
    if (bytes_.empty()) return false;
    const std::uint64_t key = varint();
    field_ = key >> 3;
    wire_ = static_cast<int>(key & 7);
    switch (wire_) {
      case 0:
        number_ = varint();
        break;
      case 1:
        data_ = take(8);
        break;
      case 2:
        data_ = take(varint());
        break;
      case 5:
        data_ = take(4);
        break;
      default:
        fail("a field of an unknown kind");
    }
    return true;
  }
  std::uint64_t field() const { return field_; }

  bool boolean() const { return number() != 0; }
  std::uint64_t number() const {
    if (wire_ != 0) fail("a field must be a number");
    return number_;
  }
  float real() const {
    if (wire_ != 5) fail("a field must be a float");
    float value;
    std::memcpy(&value, data_.data(), sizeof value);
    return value;
  }
  std::string_view bytes() const {
    if (wire_ != 2) fail("a field must be bytes");
    return data_;
  }
  std::string text() const {
    if (!unicode::is_valid(bytes())) fail("a string is not UTF-8");
    return std::string(bytes());
  }
  Message message() const { return {bytes(), name_}; }

  [[noreturn]] void fail(std::string_view what) const {
    throw invalid(fmt::format("this is not a SentencePiece model: {}", what)).at(std::string(name_));
  }

 private:
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (bytes_.empty()) fail("it is cut off");
      const auto byte = static_cast<unsigned char>(bytes_.front());
      bytes_.remove_prefix(1);
      value |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    fail("a number is too long");
  }
  std::string_view take(std::uint64_t size) {
    if (size > bytes_.size()) fail("it is cut off");
    const std::string_view taken = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return taken;
  }

  std::string_view bytes_, name_;
  std::uint64_t field_ = 0;
  int wire_ = 0;
  std::uint64_t number_ = 0;
  std::string_view data_;
};

Piece parse_piece(Message message) {
  Piece piece;
  while (message.next()) {
    switch (message.field()) {
      case 1:
        piece.text = message.text();
        break;
      case 2:
        piece.score = message.real();
        break;
      case 3:
        if (message.number() < 1 || message.number() > 6) message.fail("a piece of an unknown type");
        piece.type = static_cast<PieceType>(message.number());
        break;
      default:
        break;
    }
  }
  return piece;
}

void parse_trainer(Message message, Model& model) {
  while (message.next()) {
    switch (message.field()) {
      case 3:
        if (message.number() < 1 || message.number() > 4) message.fail("a model of an unknown type");
        model.type = static_cast<ModelType>(message.number());
        break;
      case 24:
        model.treat_whitespace_as_suffix = message.boolean();
        break;
      case 35:
        model.byte_fallback = message.boolean();
        break;
      case 44:
        model.unk_surface = message.text();
        break;
      case 45:
        model.unk_piece = message.text();
        break;
      case 46:
        model.bos_piece = message.text();
        break;
      case 47:
        model.eos_piece = message.text();
        break;
      case 48:
        model.pad_piece = message.text();
        break;
      default:
        break;
    }
  }
}

NormalizerSpec parse_normalizer(Message message) {
  NormalizerSpec spec;
  while (message.next()) {
    switch (message.field()) {
      case 2:
        spec.precompiled_charsmap = message.bytes();
        break;
      case 3:
        spec.add_dummy_prefix = message.boolean();
        break;
      case 4:
        spec.remove_extra_whitespaces = message.boolean();
        break;
      case 5:
        spec.escape_whitespaces = message.boolean();
        break;
      default:
        break;
    }
  }
  return spec;
}

}  // namespace

bool looks_like_model(std::string_view bytes) {
  // The file begins with a piece (field 1, length-delimited), whose first field is its text (also field 1).
  return bytes.size() > 4 && bytes[0] == '\x0A' && bytes[2] == '\x0A';
}

Model parse_model(std::string_view bytes, std::string_view name) {
  Model model;
  Message message(bytes, name);
  bool has_trainer = false;
  while (message.next()) {
    switch (message.field()) {
      case 1:
        model.pieces.push_back(parse_piece(message.message()));
        break;
      case 2:
        parse_trainer(message.message(), model);
        has_trainer = true;
        break;
      case 3:
        model.normalizer = parse_normalizer(message.message());
        break;
      case 5:
        model.has_denormalizer = !parse_normalizer(message.message()).precompiled_charsmap.empty();
        break;
      default:
        break;
    }
  }
  if (model.pieces.empty()) message.fail("it has no pieces");
  // In a file, the settings follow the pieces. If the settings are missing, some pieces may be missing, too.
  if (!has_trainer) message.fail("it is cut off after its pieces");
  return model;
}

}  // namespace primus::sentencepiece
