// Text to token ids and back: the interface used by training, generation and the data tools.
//
// Implementations: Hugging Face tokenizer.json (huggingface.h), SentencePiece .model (sentencepiece.h),
// tiktoken rank files (tiktoken.h), and the built-in byte and null tokenizers (simple.h). If a file uses a
// component that is not supported, loading fails with the component's name; nothing is approximated.
//
// Text is UTF-8. Invalid UTF-8 is no error: each maximal invalid part becomes U+FFFD before encoding, as when
// a file is read with "errors=replace" (only the byte tokenizer encodes the raw bytes). decode() always
// returns valid UTF-8, with U+FFFD for tokens that do not form valid UTF-8.
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

// Ids with a role. nullopt if the tokenizer does not define the role.
struct SpecialIds {
  std::optional<std::int32_t> bos;  // token that begins a text
  std::optional<std::int32_t> eos;  // token that ends a text
  std::optional<std::int32_t> pad;  // token that fills a sequence; never predicted
  // Token that ends a document in a training corpus (Megatron's name); usually eos.
  std::optional<std::int32_t> eod;
  std::optional<std::int32_t> unk;  // token for text that the vocabulary cannot express
};

class Decoding;  // state of a conversion from ids to text (decoding.h)

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // The tokenizer_type with which this tokenizer was loaded, e.g. "HuggingFaceTokenizer".
  virtual std::string_view name() const = 0;
  // Largest id plus 1, including added and special tokens.
  virtual std::int32_t vocab_size() const = 0;
  virtual const SpecialIds& special_ids() const = 0;

  // Appends the ids of `text`. `add_special` adds the ids of frame() before and after them. In both cases
  // special tokens spelled out in the text are recognised, as in Hugging Face.
  void encode(std::string_view text, bool add_special, std::vector<std::int32_t>& ids) const;
  std::vector<std::int32_t> encode(std::string_view text, bool add_special = true) const;

  // Ids that the tokenizer's own post-processing adds before and after a text (BOS for Llama 3, none for
  // GPT-2).
  struct Frame {
    std::vector<std::int32_t> before, after;
  };
  const Frame& frame() const { return frame_; }

  // Throws Error(kInvalid) for an id outside [0, vocab_size). `skip_special` omits special tokens.
  std::string decode(std::span<const std::int32_t> ids, bool skip_special = true) const;

  // The token as written in the vocabulary, for display ("Ġthe", "<|eot_id|>").
  virtual std::string token_text(std::int32_t id) const = 0;
  // The id of a token as written in the vocabulary.
  virtual std::optional<std::int32_t> token_id(std::string_view token) const = 0;
  virtual bool is_special(std::int32_t id) const = 0;

  // A hash of everything that the ids of a text depend on. Processes on all machines compute the same hash.
  // It is part of the cache names of tokenized data.
  virtual std::uint64_t fingerprint() const = 0;

  // Writes to a model folder the files from which transformers loads this tokenizer (tokenizer.json,
  // tokenizer_config.json, tokenizer.model ...; each file is replaced atomically). Error(kUnsupported) if
  // this kind of tokenizer has no such files.
  virtual void save(const std::filesystem::path& folder) const = 0;

  // The Jinja chat template that came with the tokenizer (tokenizer_config.json, chat_template.jinja); may be
  // empty.
  virtual std::string_view chat_template() const { return chat_template_; }
  // Sets the template from a file next to the tokenizer file, for kinds whose own file format has no
  // template.
  void set_chat_template(std::string jinja) { chat_template_ = std::move(jinja); }

  // Notes to show to the user once: ignored settings in the tokenizer's files (truncation), and a wrong
  // tokenizer_type.
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

// Decodes token by token during generation. push() returns only complete UTF-8 characters, and the
// concatenation of all returned text, including finish(), equals decode() of the same ids. One per stream;
// not thread-safe. The tokenizer must outlive the decoder.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = true);
  ~StreamDecoder();

  // Returns the text that this token completes; may be empty.
  std::string push(std::int32_t id);
  // Returns the remaining text: an unfinished character becomes U+FFFD. Starts a new stream.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_;
  std::unique_ptr<Decoding> decoding_;
};

// Loads a tokenizer by tokenizer_type and tokenizer_model, with the names of Megatron and AMD Primus.
//   HuggingFaceTokenizer, GPT2BPETokenizer, Llama3Tokenizer, and AMD Primus's types named after models
//                    `model`: a tokenizer.json, or the model folder that holds one, or vocab.json and
//                    merges.txt
//   GPT2BPETokenizer instead of `model` also the two files `vocab_file` and `merge_file`
//   Llama2Tokenizer, SentencePieceTokenizer, GPTSentencePieceTokenizer   a SentencePiece .model or its folder
//   TikTokenizer     a tiktoken rank file
//   NullTokenizer    the number of ids in decimal: text is numbers separated by spaces, the last id ends
//                    documents
//   ByteTokenizer    empty: 256 byte values, and id 256, which ends documents
// The file's content decides among the Hugging Face, SentencePiece and tiktoken formats. An empty `type`
// means the same, or the byte tokenizer if `model` is empty too. notes() reports if HuggingFaceTokenizer or
// GPT2BPETokenizer, the types of most presets, name a file of another kind. Errors: kInvalid for an unknown
// type, a SentencePiece or TikTokenizer type with a file of another kind, a missing or broken file (with its
// name); kUnsupported naming the unsupported component; FileError if the file cannot be read.
struct TokenizerSource {
  std::string type, model;
  std::string vocab_file, merge_file;
};
std::unique_ptr<const Tokenizer> load_tokenizer(const TokenizerSource& source);
inline std::unique_ptr<const Tokenizer> load_tokenizer(std::string_view type, const std::string& model) {
  return load_tokenizer({std::string(type), model, {}, {}});
}
// Whether a folder has files that load_tokenizer would use.
bool has_tokenizer_files(const std::filesystem::path& folder);

}  // namespace primus
