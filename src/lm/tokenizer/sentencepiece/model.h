// The contents of a SentencePiece .model file (protocol buffer ModelProto of google/sentencepiece).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace primus::sentencepiece {

enum class PieceType { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

struct Piece {
  std::string text;
  float score = 0;
  PieceType type = PieceType::kNormal;
};

enum class ModelType { kUnigram = 1, kBpe = 2, kWord = 3, kChar = 4 };

// Initial values of the members are the defaults of the format.
struct NormalizerSpec {
  std::string precompiled_charsmap;
  bool add_dummy_prefix = true;  // whether a space is added before the text
  // Whether spaces at both ends are removed, and consecutive spaces are replaced by one.
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;  // whether spaces are replaced by U+2581
};

struct Model {
  std::vector<Piece> pieces;  // pieces indexed by id
  ModelType type = ModelType::kUnigram;
  bool byte_fallback = false;
  bool treat_whitespace_as_suffix = false;
  std::string unk_piece = "<unk>", bos_piece = "<s>", eos_piece = "</s>", pad_piece = "<pad>";
  std::string unk_surface = " \xE2\x81\x87 ";
  NormalizerSpec normalizer;
  bool has_denormalizer = false;
};

// Returns whether `bytes` look like a .model file, and not like JSON or a list of ranks.
bool looks_like_model(std::string_view bytes);

// Parses a .model file. Throws Error(kInvalid), which names `name`, for bytes that are not a ModelProto.
// Unknown fields are ignored.
Model parse_model(std::string_view bytes, std::string_view name);

}  // namespace primus::sentencepiece
