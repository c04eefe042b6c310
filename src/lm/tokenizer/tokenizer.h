// Converts text to token ids and back. Training, generation and the data tools use this interface.
//
// Implementations: Hugging Face tokenizer.json (huggingface.h), SentencePiece .model (sentencepiece.h),
// tiktoken rank files (tiktoken.h), and the built-in byte and null tokenizers (simple.h). If a file uses a
// component that is not supported, loading fails with an error that names the component; ids are never
// approximated.
//
// Text is UTF-8. Invalid UTF-8 is not an error: each maximal invalid part becomes U+FFFD before encoding, as
// when a file is read with "errors=replace" (only the byte tokenizer encodes the raw bytes). decode() always
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

// Ids of tokens with a special role; nullopt if the tokenizer has no token for the role.
struct SpecialIds {
  std::optional<std::int32_t> bos;  // token that begins a text
  std::optional<std::int32_t> eos;  // token that ends a text
  std::optional<std::int32_t> pad;  // token with which a sequence is padded; never predicted
  // token that ends a document in a training corpus (the name is Megatron's); usually the same as eos
  std::optional<std::int32_t> eod;
  std::optional<std::int32_t> unk;  // token for text that cannot be expressed by other tokens
};

// Chat templates (Jinja) that came with a tokenizer, as transformers finds them.
struct ChatTemplates {
  struct Named {
    std::string name, source;
  };
  std::vector<Named> all;  // without duplicate names; the template "default" is used if no other is named
  std::string file;        // path of the file with the default template; empty if there is none
  // The texts of special tokens, under the names by which templates use them ("bos_token").
  std::vector<std::pair<std::string, std::string>> tokens;

  // Returns the template's source; empty if there is no template of this name.
  std::string_view source(std::string_view name = "default") const;
  // Sets the text of a special token, unless it is already set.
  void set_token(std::string_view name, std::string text);
};

class Decoding;  // state of a conversion from ids to text (decoding.h)

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Returns the tokenizer_type with which this tokenizer was loaded, e.g. "HuggingFaceTokenizer".
  virtual std::string_view name() const = 0;
  // Returns the largest id plus 1, including added and special tokens.
  virtual std::int32_t vocab_size() const = 0;
  virtual const SpecialIds& special_ids() const = 0;

  // Appends the ids of `text`. With `add_special`, adds the ids of frame() before and after them. Special
  // tokens that are spelled out in the text are always recognized, as in Hugging Face.
  void encode(std::string_view text, bool add_special, std::vector<std::int32_t>& ids) const;
  std::vector<std::int32_t> encode(std::string_view text, bool add_special = true) const;

  // The ids that the tokenizer itself adds before and after a text (BOS for Llama 3, none for GPT-2).
  struct Frame {
    std::vector<std::int32_t> before, after;
  };
  const Frame& frame() const { return frame_; }

  // Returns the text of `ids`. Throws Error(kInvalid) for an id outside [0, vocab_size). `skip_special`:
  // whether special tokens are omitted.
  std::string decode(std::span<const std::int32_t> ids, bool skip_special = true) const;

  // Returns a token as it is written in the vocabulary, for display ("Ġthe", "<|eot_id|>").
  virtual std::string token_text(std::int32_t id) const = 0;
  // Returns the id of a token, given as it is written in the vocabulary.
  virtual std::optional<std::int32_t> token_id(std::string_view token) const = 0;
  virtual bool is_special(std::int32_t id) const = 0;

  // Returns a hash of everything that affects the ids of a text. All processes on all machines compute the
  // same hash. The names of cached tokenized data contain it.
  virtual std::uint64_t fingerprint() const = 0;

  // Writes to a model folder the files from which transformers loads this tokenizer: tokenizer.json,
  // tokenizer_config.json, tokenizer.model and so on. Each file is replaced atomically. Throws
  // Error(kUnsupported) if this kind of tokenizer has no such files.
  virtual void save(const std::filesystem::path& folder) const = 0;

  // Returns the chat templates that came with the tokenizer (chat_template.jinja, tokenizer_config.json ...).
  const ChatTemplates& chat_templates() const { return chat_templates_; }
  // Returns the default chat template; empty if there is none.
  std::string_view chat_template() const { return chat_templates_.source(); }
  // Sets the chat templates that were found next to the tokenizer file.
  void set_chat_templates(ChatTemplates templates) { chat_templates_ = std::move(templates); }

  // Returns notes to show to the user once: ignored settings in the tokenizer's files (truncation), and a
  // tokenizer_type that does not match the file.
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
  ChatTemplates chat_templates_;
};

// Decodes token by token during generation. push() returns only complete UTF-8 characters. The concatenation
// of all returned texts, including that of finish(), equals decode() of the same ids. Each stream needs its
// own object; not thread-safe. The tokenizer must outlive the decoder.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = true);
  ~StreamDecoder();

  // Decodes one token and returns the characters that are now complete; may be empty.
  std::string push(std::int32_t id);
  // Returns the remaining text, in which an incomplete character becomes U+FFFD, and starts a new stream.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_;
  std::unique_ptr<Decoding> decoding_;
};

// The tokenizer_type and tokenizer_model to load, with the names that Megatron and AMD Primus use.
//   HuggingFaceTokenizer, GPT2BPETokenizer, Llama3Tokenizer, and AMD Primus's types named after models
//                    `model`: a tokenizer.json, or a model folder that contains it, or a folder with
//                    vocab.json and merges.txt
//   GPT2BPETokenizer   also accepts the two files `vocab_file` and `merge_file` in place of `model`
//   Llama2Tokenizer, SentencePieceTokenizer, GPTSentencePieceTokenizer   a SentencePiece .model or its folder
//   TikTokenizer     a tiktoken rank file
//   NullTokenizer    the number of ids in decimal: text is numbers separated by spaces, the last id ends
//                    documents
//   ByteTokenizer    `model` is empty: ids are the 256 byte values, and id 256, which ends documents
// The Hugging Face, SentencePiece and tiktoken formats are recognised from the file's content, also if `type`
// is empty. If `type` and `model` are empty, the byte tokenizer is loaded. notes() reports if
// HuggingFaceTokenizer or GPT2BPETokenizer, the types of most presets, name a file of another kind. Errors:
// kInvalid for an unknown type, for a SentencePiece or TikTokenizer type with a file of another kind, and for
// a missing or broken file, which the message names; kUnsupported for an unsupported component, which the
// message names; FileError if the file cannot be read.
struct TokenizerSource {
  std::string type, model;
  std::string vocab_file, merge_file;
};
std::unique_ptr<const Tokenizer> load_tokenizer(const TokenizerSource& source);
inline std::unique_ptr<const Tokenizer> load_tokenizer(std::string_view type, const std::string& model) {
  return load_tokenizer({std::string(type), model, {}, {}});
}
// Returns whether a folder has files that load_tokenizer() would use.
bool has_tokenizer_files(const std::filesystem::path& folder);

}  // namespace primus
