// load_tokenizer: chooses the implementation for the user's tokenizer_type and tokenizer_model.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/files/file.h"
#include "lm/tokenizer/huggingface/gpt2_files.h"
#include "lm/tokenizer/huggingface/huggingface.h"
#include "lm/tokenizer/huggingface/side_files.h"
#include "lm/tokenizer/sentencepiece/model.h"
#include "lm/tokenizer/sentencepiece/sentencepiece.h"
#include "lm/tokenizer/simple.h"
#include "lm/tokenizer/tiktoken/tiktoken.h"
#include "lm/tokenizer/tokenizer.h"

namespace primus {

namespace {

// Types that need a file: first Megatron's names, then the names that AMD Primus adds for its models.
constexpr std::array<std::string_view, 17> kFileTypes = {
    "HuggingFaceTokenizer", "SentencePieceTokenizer", "GPTSentencePieceTokenizer", "TikTokenizer",
    "GPT2BPETokenizer",     "Llama2Tokenizer",        "Llama3Tokenizer",           "Llama4Tokenizer",
    "DeepSeekV2Tokenizer",  "DeepSeekV3Tokenizer",    "MixtralTokenizer",          "MistralTokenizer",
    "Qwen2Tokenizer",       "Qwen3Tokenizer",         "GptOssTokenizer",           "MultimodalTokenizer",
    "Lfm2Tokenizer"};

std::unique_ptr<const Tokenizer> load_null(const std::string& model) {
  std::int32_t size = 0;
  const auto result = std::from_chars(model.data(), model.data() + model.size(), size);
  if (result.ec != std::errc() || result.ptr != model.data() + model.size()) {
    throw invalid(fmt::format("NullTokenizer needs the number of its ids{}",
                              model.empty() ? "" : fmt::format(", not '{}'", model)),
                  "set it as vocab_size or tokenizer_model, e.g. 131072");
  }
  return make_null_tokenizer(size);
}

bool is_file(const Path& path) {
  const auto status = Env::posix().status(path);
  return status && status->type == FileStatus::Type::kFile;
}

// The formats of tokenizer files, and their names in messages.
enum class Kind { kSentencePiece, kTiktoken, kHuggingFace };
constexpr std::array<std::string_view, 3> kKindNames = {"a SentencePiece model", "a tiktoken vocabulary",
                                                        "a Hugging Face tokenizer.json"};

Kind kind_of(std::string_view bytes) {
  if (sentencepiece::looks_like_model(bytes)) return Kind::kSentencePiece;
  if (looks_like_tiktoken(bytes)) return Kind::kTiktoken;
  const std::size_t first = bytes.find_first_not_of(" \t\r\n");
  if (first != std::string_view::npos && bytes[first] == '{') return Kind::kHuggingFace;
  throw invalid(bytes.empty() ? "the tokenizer file is empty" : "this is not a tokenizer file",
                "use a tokenizer.json, a SentencePiece .model, or a tiktoken rank file");
}

// Returns the kind of file that a type requires, or nullopt for types that were published in several formats.
std::optional<Kind> kind_named(std::string_view type) {
  if (type == "SentencePieceTokenizer" || type == "GPTSentencePieceTokenizer" || type == "Llama2Tokenizer")
    return Kind::kSentencePiece;
  if (type == "TikTokenizer") return Kind::kTiktoken;
  if (type == "HuggingFaceTokenizer" || type == "GPT2BPETokenizer") return Kind::kHuggingFace;
  return std::nullopt;
}

std::unique_ptr<Tokenizer> load_kind(Kind kind, std::string_view type, const Path& path, std::string bytes) {
  const auto type_or = [type](std::string_view usual) { return std::string(type.empty() ? usual : type); };
  switch (kind) {
    case Kind::kSentencePiece:
      return make_sentencepiece_tokenizer(std::move(bytes), path.string(), type_or("SentencePieceTokenizer"),
                                          read_side_files(path.parent_path()));
    case Kind::kTiktoken:
      return make_tiktoken_tokenizer(std::move(bytes), path.string(), type_or("TikTokenizer"));
    case Kind::kHuggingFace:
      break;
  }
  return make_huggingface_tokenizer(read_huggingface_files(path, std::move(bytes)),
                                    type_or("HuggingFaceTokenizer"));
}

std::unique_ptr<const Tokenizer> load_file(std::string_view type, const Path& path) {
  std::string bytes = read_file(path);
  try {
    const Kind kind = kind_of(bytes), named = kind_named(type).value_or(kind);
    const std::string mismatch =
        fmt::format("tokenizer_type {} expects {}, but this is {}", type,
                    kKindNames[static_cast<std::size_t>(named)], kKindNames[static_cast<std::size_t>(kind)]);
    // Llama2Tokenizer may name a tokenizer.json, because AMD Primus loads this type from Hugging Face
    // folders.
    const bool noted =
        named == Kind::kHuggingFace || (type == "Llama2Tokenizer" && kind == Kind::kHuggingFace);
    if (named != kind && !noted)
      throw invalid(mismatch,
                    "omit tokenizer_type (or set it to null) to detect the type, or name the intended file");
    auto tokenizer = load_kind(kind, type, path, std::move(bytes));
    if (kind == Kind::kTiktoken)
      tokenizer->set_chat_templates(parse_side_files(read_side_files(path.parent_path())).chat_templates);
    // Tells the user of the mismatch, because transformers reads such files with different results.
    if (named != kind)
      tokenizer->add_note(fmt::format("{}: {}; it is read as such", path.string(), mismatch));
    return tokenizer;
  } catch (Error& error) {
    if (error.location().empty()) error.at(path.string());
    if (error.hint().empty()) {
      error.add_hint(
          error.kind() == ErrorKind::kUnsupported
              ? "docs/formats/tokenizers.md lists the supported features; many models come with another "
                "tokenizer file as well"
              : "the file is damaged or cut off: copy or download it again");
    }
    throw;
  }
}

// Returns the tokenizer file of a model folder, or nullopt. If the folder has two tokenizer files, the type
// selects one.
std::optional<Path> file_in_folder(std::string_view type, const Path& folder) {
  const bool prefers_model =
      type == "Llama2Tokenizer" || type.find("SentencePiece") != std::string_view::npos;
  const std::array<Path, 3> names = {folder / (prefers_model ? "tokenizer.model" : "tokenizer.json"),
                                     folder / (prefers_model ? "tokenizer.json" : "tokenizer.model"),
                                     folder / "original" / "tokenizer.model"};
  for (const Path& name : names) {
    if (is_file(name)) return name;
  }
  return std::nullopt;
}

std::unique_ptr<const Tokenizer> load_folder(std::string_view type, const Path& folder) {
  if (const auto file = file_in_folder(type, folder)) return load_file(type, *file);
  if (has_gpt2_files(folder)) {
    return make_huggingface_tokenizer(read_gpt2_folder(folder),
                                      std::string(type.empty() ? "GPT2BPETokenizer" : type));
  }
  throw invalid(
      fmt::format("'{}' contains no tokenizer.json, no tokenizer.model, and no vocab.json with merges.txt",
                  folder.string()),
      "set tokenizer_model to a tokenizer file, or to the model folder that holds one");
}

std::unique_ptr<const Tokenizer> load_vocab_and_merges(const TokenizerSource& source) {
  if (!source.type.empty() && source.type != "GPT2BPETokenizer") {
    throw invalid(fmt::format("{} does not use vocab_file and merge_file", source.type),
                  "they belong to GPT2BPETokenizer");
  }
  if (source.vocab_file.empty() || source.merge_file.empty()) {
    throw invalid(fmt::format("a {} file is given without a {} file",
                              source.vocab_file.empty() ? "merge" : "vocabulary",
                              source.vocab_file.empty() ? "vocabulary" : "merge"),
                  "GPT2BPETokenizer needs both: vocab_file (vocab.json) and merge_file (merges.txt)");
  }
  if (!source.model.empty()) {
    throw invalid("the tokenizer is given twice: as tokenizer_model, and as vocab_file and merge_file",
                  "leave one of them out");
  }
  return make_huggingface_tokenizer(read_gpt2_files(source.vocab_file, source.merge_file),
                                    "GPT2BPETokenizer");
}

}  // namespace

bool has_tokenizer_files(const std::filesystem::path& folder) {
  return file_in_folder({}, folder).has_value() || has_gpt2_files(folder);
}

std::unique_ptr<const Tokenizer> load_tokenizer(const TokenizerSource& source) {
  const auto& [type, model, vocab_file, merge_file] = source;
  if (!vocab_file.empty() || !merge_file.empty()) return load_vocab_and_merges(source);
  if (type == "ByteTokenizer" || type == "byte" || (type.empty() && model.empty()))
    return make_byte_tokenizer();
  if (type == "NullTokenizer") return load_null(model);
  if (!type.empty() && std::find(kFileTypes.begin(), kFileTypes.end(), type) == kFileTypes.end()) {
    throw invalid(fmt::format("unknown tokenizer_type '{}'", type),
                  fmt::format("choose one of ByteTokenizer, NullTokenizer, {}", fmt::join(kFileTypes, ", ")));
  }
  if (model.empty()) {
    throw invalid(fmt::format("{} needs a tokenizer_model", type),
                  type == "GPT2BPETokenizer"
                      ? "set it to a tokenizer file or a model folder, or set vocab_file and merge_file"
                      : "set it to a tokenizer file or a model folder");
  }
  if (!Env::posix().status(model)) {
    throw invalid(fmt::format("the tokenizer_model '{}' does not exist", model),
                  "Primus downloads nothing: give a tokenizer file, or a model folder on this machine");
  }
  return is_file(model) ? load_file(type, model) : load_folder(type, model);
}

}  // namespace primus
