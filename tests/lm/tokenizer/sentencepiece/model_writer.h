// Writes SentencePiece models, for tests.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

namespace primus {

inline const std::string kMark = "\xE2\x96\x81";

// These functions encode protocol buffers, as far as models need it.
inline std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 128; value >>= 7) bytes += static_cast<char>(value | 128);
  return bytes + static_cast<char>(value);
}
inline std::string number(int field, uint64_t value) {
  return varint(static_cast<uint64_t>(field) << 3) + varint(value);
}
inline std::string text(int field, const std::string& value) {
  return varint(static_cast<uint64_t>(field) << 3 | 2) + varint(value.size()) + value;
}
inline std::string real(int field, float value) {
  std::string bytes(4, '\0');
  std::memcpy(bytes.data(), &value, 4);
  return varint(static_cast<uint64_t>(field) << 3 | 5) + bytes;
}

enum PieceType { kNormal = 1, kUnknown, kControl, kUser, kUnused, kByte };
enum ModelType { kUnigram = 1, kBpe, kWord, kChar };

inline std::string piece(const std::string& surface, float score = 0, PieceType type = kNormal) {
  return text(1, text(1, surface) + real(2, score) + number(3, type));
}
inline std::string roles() {
  return piece("<unk>", 0, kUnknown) + piece("<s>", 0, kControl) + piece("</s>", 0, kControl);
}
inline std::string byte_pieces() {
  std::string pieces;
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", static_cast<unsigned>(byte));
    pieces += piece(name, 0, kByte);
  }
  return pieces;
}
// Turns off add_dummy_prefix, remove_extra_whitespaces and escape_whitespaces, so that text is unchanged.
inline const std::string kPlain = text(3, number(3, 0) + number(4, 0) + number(5, 0));
inline std::string trainer(ModelType type, bool byte_fallback = false) {
  return text(2, number(3, type) + number(35, byte_fallback));
}

}  // namespace primus
