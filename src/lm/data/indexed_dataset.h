// Megatron's indexed data sets: tokens in PREFIX.bin, their offsets in PREFIX.idx (docs/formats/megatron.md).
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files/file.h"

namespace primus::data {

// A numbered list of token sequences. Thread-safe.
class TokenSource {
 public:
  virtual ~TokenSource() = default;
  virtual std::int64_t sequences() const = 0;
  virtual std::int32_t length(std::int64_t sequence) const = 0;
  // Reads tokens [offset, offset + out.size()) of a sequence; the range must lie inside the sequence. Throws
  // Error(kInvalid) for a token that does not fit in int32.
  virtual void read(std::int64_t sequence, std::int64_t offset, std::span<std::int32_t> out) const = 0;
  virtual std::string name() const = 0;
  // Returns a hash of the tokens and of their division into sequences and documents. The hash does not depend
  // on the path.
  virtual std::uint64_t fingerprint() const = 0;
  // Throws Error(kInvalid) if the files changed since they were opened; the caller must then discard all data
  // that it read.
  virtual void check_unchanged() const {}
};

// Storage type of a token. The values are the codes in the .idx file.
enum class TokenType : std::uint8_t { kU8 = 1, kI8 = 2, kI16 = 3, kI32 = 4, kI64 = 5, kU16 = 8 };
int token_size(TokenType type);               // Returns the size of a token in bytes.
std::string_view token_name(TokenType type);  // Returns the type's name, such as "uint16".
// Returns the token type that Megatron's writer chooses for a vocabulary of this size.
TokenType token_type_for(std::int64_t vocab_size);

// Reads one data set through memory maps. Opening checks the complete index without keeping a copy in memory,
// and refuses an index with more tokens than the data file. Another process may truncate or overwrite open
// files. Data that was read is therefore valid only after check_unchanged() has returned.
class IndexedDataset final : public TokenSource {
 public:
  // Opens PREFIX.bin and PREFIX.idx. Throws Error(kInvalid) for a missing, truncated or inconsistent file;
  // FileError if the system refuses access.
  static std::shared_ptr<const IndexedDataset> open(const Path& prefix, Env& env = Env::posix());
  // Opens files that are already mapped; `prefix` names them in messages.
  static std::shared_ptr<const IndexedDataset> open(const Path& prefix, MappedFile index, MappedFile data);
  static bool exists(const Path& prefix, Env& env = Env::posix());
  // Throws Error(kInvalid) if the path is a folder with such files. The message names the prefix of one pair.
  static void refuse_folder(const Path& path);

  std::int64_t sequences() const override { return sequences_; }
  std::int32_t length(std::int64_t sequence) const override { return load<std::int32_t>(lengths_, sequence); }
  void read(std::int64_t sequence, std::int64_t offset, std::span<std::int32_t> out) const override;
  std::string name() const override { return prefix_.string(); }
  // If the .bin is larger than 256 MiB, the hash covers only 64 MiB: 4096 evenly spaced blocks, including the
  // first and the last bytes.
  std::uint64_t fingerprint() const override;
  void check_unchanged() const override;

  std::int64_t documents() const { return documents_; }
  // Returns the first sequence of document `document`, or the number of sequences if `document` is
  // the number of documents.
  std::int64_t document_start(std::int64_t document) const {
    return load<std::int64_t>(document_starts_, document);
  }
  std::int64_t tokens() const { return tokens_; }
  TokenType token_type() const { return type_; }
  std::int64_t data_bytes() const {
    return static_cast<std::int64_t>(data_.bytes().size());
  }  // size of PREFIX.bin
  // Returns the tokens of a sequence in the file's storage type.
  std::span<const std::byte> bytes(std::int64_t sequence) const;

 private:
  IndexedDataset() = default;
  // Returns the bytes [offset, offset + size) of a sequence. The bytes lie within the file even if the index
  // has changed since opening.
  std::span<const std::byte> bytes(std::int64_t sequence, std::int64_t offset, std::int64_t size) const;
  void check() const;
  // Copies the value, because the index's arrays are not aligned.
  template <class T>
  static T load(const std::byte* base, std::int64_t i) {
    T value;
    std::memcpy(&value, base + static_cast<std::size_t>(i) * sizeof(T), sizeof(T));
    return value;
  }

  Path prefix_;
  MappedFile index_, data_;
  TokenType type_ = TokenType::kU16;
  std::int64_t sequences_ = 0, documents_ = 0, tokens_ = 0;
  const std::byte* lengths_ = nullptr;
  const std::byte* pointers_ = nullptr;
  const std::byte* document_starts_ = nullptr;
};

// Calls refuse_existing for PREFIX.bin and PREFIX.idx.
void refuse_existing_dataset(const Path& prefix, Existing existing, Env& env);

// Throws Error(kInvalid) if one of `tokens` is outside the vocabulary; the message describes the first such
// token. `tokens` are part of sequence `sequence` of the source, from position `offset` on; the message gives
// the position as `data inspect` counts it. `description` names the data.
void check_vocabulary(const TokenSource& source, std::int64_t sequence, std::int64_t offset,
                      std::span<const std::int32_t> tokens, std::int64_t vocab_size,
                      std::string_view description);

// Writes a data set, byte for byte as Megatron's builder does. finish() renames the complete and synced files
// to their final names, the index last. An object that is destroyed before finish() removes its files. Memory
// is bounded, because lengths and documents are written to temporary files, as the tokens are. Not
// thread-safe.
class IndexedDatasetWriter {
 public:
  struct Progress {
    std::int64_t sequences = 0, documents = 0, tokens = 0;
  };

  IndexedDatasetWriter(Path prefix, TokenType type, Env& env = Env::posix());
  // Creates a writer for work that may be interrupted. The temporary files are named `temporary` plus an
  // extension. The new writer continues after the state `from`, which save() of an earlier writer returned.
  // Throws Error(kInvalid) if the files hold less data than `from` says.
  IndexedDatasetWriter(Path prefix, TokenType type, Path temporary, Progress from, Env& env = Env::posix());
  ~IndexedDatasetWriter();
  IndexedDatasetWriter(const IndexedDatasetWriter&) = delete;
  IndexedDatasetWriter& operator=(const IndexedDatasetWriter&) = delete;

  // Appends a sequence. Throws Error(kInvalid) for a token that does not fit the storage type.
  void add_sequence(std::span<const std::int32_t> tokens);
  // Ends a document. The document consists of the sequences added since the last call, and may be empty.
  void end_document();
  // Appends documents [first, last) of another data set with the same token type.
  void append(const IndexedDataset& other, std::int64_t first, std::int64_t last);
  // Syncs all added data to disk. A later writer can resume from the returned state.
  Progress save();
  // Makes the destructor keep the temporary files.
  void keep_unfinished() { keep_ = true; }
  // Completes and syncs the temporary .bin and .idx; nothing can be added afterwards. The later steps need no
  // disk space. A caller that writes several data sets completes all of them before it renames any. If the
  // disk becomes full, no data set gets its final name.
  void complete();
  // Opens the data set under its temporary names. complete() must have been called.
  std::shared_ptr<const IndexedDataset> completed() const;
  // Adds one further file, named PREFIX plus `extension`. complete() must have been called. finish() renames
  // this file and the .bin to their final names before it renames the index.
  void attach(const char* extension, std::string_view contents);
  // Renames the files to their final names. complete() must have been called.
  void finish();

  std::int64_t sequences() const { return progress_.sequences; }
  std::int64_t documents() const { return progress_.documents; }
  std::int64_t tokens() const { return progress_.tokens; }

 private:
  // A temporary file that is written through a buffer.
  struct Stream {
    std::unique_ptr<File> file;
    std::string buffer;
    void flush();
    void flush_if_large() {
      if (buffer.size() >= std::size_t{1} << 20) flush();
    }
  };

  void open(Stream& stream, const char* extension, std::int64_t size);
  Path temporary(const char* extension) const { return temporary_.string() + extension; }
  void add_length(std::size_t tokens);
  void write_index();
  void remove_temporaries();

  Env& env_;
  Path prefix_, temporary_;
  TokenType type_;
  Progress progress_;
  Stream data_, lengths_, documents_;
  const char* attached_ = nullptr;  // extension of the file that attach() added; null: none
  bool keep_ = false, complete_ = false, finished_ = false;
};

}  // namespace primus::data
