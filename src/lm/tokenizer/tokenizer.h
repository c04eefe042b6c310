// Text to token ids and back: the interface that training, generation and the data tools share.
//
// Implementations: Hugging Face tokenizer.json (huggingface.h), SentencePiece .model (sentencepiece.h),
// tiktoken rank files (tiktoken.h), and the built-in byte and null tokenizers (simple.h). A component that an
// implementation does not support is named and refused when the tokenizer is loaded; nothing is approximated.
//
// Text is UTF-8. Bytes that are not valid UTF-8 never fail: each maximal invalid part becomes U+FFFD before
// encoding, as it would when a file is read with "errors=replace" (the byte tokenizer alone keeps raw bytes).
// decode() always returns valid UTF-8, with U+FFFD where the tokens do not form it (again, not for the byte
// tokenizer).
//
// Thread-safety: every const method may be called from any number of threads at once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace primus {

// Ids with a role. Absent where the tokenizer does not define the role.
struct SpecialIds {
  std::optional<std::int32_t> bos;  // begins a text
  std::optional<std::int32_t> eos;  // ends a text
  std::optional<std::int32_t> pad;  // fills a sequence; never predicted
  std::optional<std::int32_t> eod;  // ends a document in a training corpus (Megatron's name); usually eos
  std::optional<std::int32_t> unk;  // stands for what the vocabulary cannot express
};

class Decoding;  // decoding.h: how an implementation turns ids into text

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // The tokenizer_type it was loaded as, e.g. "HuggingFaceTokenizer".
  virtual std::string_view name() const = 0;
  // One past the largest id, added and special tokens included.
  virtual std::int32_t vocab_size() const = 0;
  virtual const SpecialIds& special_ids() const = 0;

  // Appends the ids of `text`. `add_special`: with the ids of frame() around them. Special tokens that are
  // spelled out in the text are recognised either way, as Hugging Face does.
  void encode(std::string_view text, bool add_special, std::vector<std::int32_t>& ids) const;
  std::vector<std::int32_t> encode(std::string_view text, bool add_special = true) const;

  // What the tokenizer's own post-processing puts around a text (bos for Llama 3, nothing for GPT-2).
  struct Frame {
    std::vector<std::int32_t> before, after;
  };
  const Frame& frame() const { return frame_; }

  // Throws Error(kInvalid) for an id outside [0, vocab_size). `skip_special` leaves special tokens out.
  std::string decode(std::span<const std::int32_t> ids, bool skip_special = true) const;

  // The token as written in the vocabulary, for people to look at ("Ġthe", "<|eot_id|>").
  virtual std::string token_text(std::int32_t id) const = 0;
  // The id of a token as written in the vocabulary.
  virtual std::optional<std::int32_t> token_id(std::string_view token) const = 0;
  virtual bool is_special(std::int32_t id) const = 0;

  // A hash of everything that decides the ids of a text, the same in every process: names caches of tokenised
  // data.
  virtual std::uint64_t fingerprint() const = 0;

  // Writes what transformers needs to load this tokenizer from a model folder (tokenizer.json,
  // tokenizer_config.json, tokenizer.model ...; each file replaced atomically). Error(kUnsupported) where the
  // kind has no such form.
  virtual void save(const std::filesystem::path& folder) const = 0;

  // The Jinja chat template that came with the tokenizer (tokenizer_config.json, chat_template.jinja), or
  // empty.
  virtual std::string_view chat_template() const { return chat_template_; }
  // Kinds whose own file has none use the one next to it.
  void set_chat_template(std::string jinja) { chat_template_ = std::move(jinja); }

  // For the user to see once: what in its files was understood and is ignored (truncation settings), and
  // whether its type is named wrongly.
  const std::vector<std::string>& notes() const { return notes_; }
  void add_note(std::string note) { notes_.push_back(std::move(note)); }

 protected:
  friend class StreamDecoder;
  virtual void encode_text(std::string_view text, std::vector<std::int32_t>& ids) const = 0;
  virtual std::unique_ptr<Decoding> new_decoding() const = 0;
  void check_id(std::int32_t id) const;
  Frame frame_;
  std::vector<std::string> notes_;

 private:
  std::string chat_template_;
};

// Decodes token by token, as they are generated: what push() returns is always whole UTF-8 characters, and
// the concatenation of all returned text, finish() included, equals decode() of the same ids. One per stream;
// not thread-safe. The tokenizer must outlive it.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = true);
  ~StreamDecoder();

  // The text that became complete with this token; may be empty.
  std::string push(std::int32_t id);
  // What was still held back: an unfinished character becomes U+FFFD. Starts a new stream.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_;
  std::unique_ptr<Decoding> decoding_;
};

// Loads a tokenizer by tokenizer_type and tokenizer_model as Megatron and Primus name them.
//   HuggingFaceTokenizer, GPT2BPETokenizer, Llama3Tokenizer, and the model-named types that Primus adds
//                    `model`: a tokenizer.json, or the model folder that holds one, or vocab.json and
//                    merges.txt
//   GPT2BPETokenizer instead of `model` the two files by themselves, `vocab_file` and `merge_file`
//   Llama2Tokenizer, SentencePieceTokenizer, GPTSentencePieceTokenizer   a SentencePiece .model or its folder
//   TikTokenizer     a tiktoken rank file
//   NullTokenizer    the number of ids in decimal: text is numbers with spaces between, the last id ends
//                    documents
//   ByteTokenizer    empty: 256 byte values, and id 256 that ends documents
// What the file holds decides between the first three kinds; an empty `type` means just that, and the byte
// tokenizer where `model` is empty too. notes() says where HuggingFaceTokenizer or GPT2BPETokenizer, the
// types of most presets, name a file of another kind. Errors: kInvalid for an unknown type, a SentencePiece
// or TikTokenizer type with a file of another kind, a missing or broken file (with its name), kUnsupported
// naming the component that is not supported; FileError where it cannot be read.
struct TokenizerSource {
  std::string type, model;
  std::string vocab_file, merge_file;
};
std::unique_ptr<const Tokenizer> load_tokenizer(const TokenizerSource& source);
inline std::unique_ptr<const Tokenizer> load_tokenizer(std::string_view type, const std::string& model) {
  return load_tokenizer({std::string(type), model, {}, {}});
}
// Whether a folder holds files that load_tokenizer would look at.
bool has_tokenizer_files(const std::filesystem::path& folder);

}  // namespace primus
