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

// Numbered sequences of tokens. Thread-safe.
class TokenSource {
 public:
  virtual ~TokenSource() = default;
  virtual std::int64_t sequences() const = 0;
  virtual std::int32_t length(std::int64_t sequence) const = 0;
  // Reads tokens [offset, offset + out.size()) of a sequence; the range must lie inside the sequence.
  // Error(kInvalid) for a token that does not fit in int32.
  virtual void read(std::int64_t sequence, std::int64_t offset, std::span<std::int32_t> out) const = 0;
  virtual std::string name() const = 0;
  // A hash of the tokens and of their division into sequences and documents; independent of the path.
  virtual std::uint64_t fingerprint() const = 0;
  // Error(kInvalid) if the files changed since they were opened; data read before must then be discarded.
  virtual void check_unchanged() const {}
};

// Storage type of a token; the numbers are the format's codes.
enum class TokenType : std::uint8_t { kU8 = 1, kI8 = 2, kI16 = 3, kI32 = 4, kI64 = 5, kU16 = 8 };
int token_size(TokenType type);               // size of a token in bytes
std::string_view token_name(TokenType type);  // Returns the type's name, such as "uint16".
// The type that Megatron's writer chooses for a vocabulary.
TokenType token_type_for(std::int64_t vocab_size);

// Reads one data set through memory maps. Opening checks the complete index without keeping a copy in memory,
// and refuses an index with more tokens than the data file. Another process may truncate or overwrite the
// files meanwhile: data that was read is valid only once check_unchanged() returned.
class IndexedDataset final : public TokenSource {
 public:
  // Error(kInvalid) for a missing, truncated or inconsistent file; FileError.
  static std::shared_ptr<const IndexedDataset> open(const Path& prefix, Env& env = Env::posix());
  // Opens files that are already in memory; `prefix` is their name in messages.
  static std::shared_ptr<const IndexedDataset> open(const Path& prefix, MappedFile index, MappedFile data);
  static bool exists(const Path& prefix, Env& env = Env::posix());

  std::int64_t sequences() const override { return sequences_; }
  std::int32_t length(std::int64_t sequence) const override { return load<std::int32_t>(lengths_, sequence); }
  void read(std::int64_t sequence, std::int64_t offset, std::span<std::int32_t> out) const override;
  std::string name() const override { return prefix_.string(); }
  // For a .bin over 256 MiB, hashes only 64 MiB of it: 4096 pieces, evenly spread from the first byte to the
  // last.
  std::uint64_t fingerprint() const override;
  void check_unchanged() const override;

  std::int64_t documents() const { return documents_; }
  // Returns the first sequence of a document. `document` is in [0, documents]; for `documents` the result is
  // the number of sequences.
  std::int64_t document_start(std::int64_t document) const {
    return load<std::int64_t>(document_starts_, document);
  }
  std::int64_t tokens() const { return tokens_; }
  TokenType token_type() const { return type_; }
  std::int64_t data_bytes() const {
    return static_cast<std::int64_t>(data_.bytes().size());
  }  // size of PREFIX.bin
  // The tokens of a sequence in the file's storage type.
  std::span<const std::byte> bytes(std::int64_t sequence) const;

 private:
  IndexedDataset() = default;
  // Bytes [offset, offset + size) of a sequence. These bytes are within the file even if the index has
  // changed since it was opened.
  std::span<const std::byte> bytes(std::int64_t sequence, std::int64_t offset, std::int64_t size) const;
  void check() const;
  // Copies, because the index's arrays are not aligned.
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

// Throws Error(kInvalid) for the first of `tokens` beyond the vocabulary. `tokens` begin at `offset` of the
// source's `sequence`; the message gives the position in the numbering of `data inspect`. `description` names
// the data.
void check_vocabulary(const TokenSource& source, std::int64_t sequence, std::int64_t offset,
                      std::span<const std::int32_t> tokens, std::int64_t vocab_size,
                      std::string_view description);

// Writes a data set, byte for byte as Megatron's builder does. finish() gives the complete and synced files
// their names, the index last. An object that is destroyed before finish() removes its files. Memory is
// bounded, because lengths and documents also go to temporary files. Not thread-safe.
class IndexedDatasetWriter {
 public:
  struct Progress {
    std::int64_t sequences = 0, documents = 0, tokens = 0;
  };

  IndexedDatasetWriter(Path prefix, TokenType type, Env& env = Env::posix());
  // Creates a writer for work that may be interrupted. The temporary files are named `temporary` plus an
  // extension. The writer continues after the data that an earlier writer saved when its save() returned
  // `from`. Throws Error(kInvalid) if the files hold less.
  IndexedDatasetWriter(Path prefix, TokenType type, Path temporary, Progress from, Env& env = Env::posix());
  ~IndexedDatasetWriter();
  IndexedDatasetWriter(const IndexedDatasetWriter&) = delete;
  IndexedDatasetWriter& operator=(const IndexedDatasetWriter&) = delete;

  // Error(kInvalid) for a token that the type cannot hold.
  void add_sequence(std::span<const std::int32_t> tokens);
  // Ends a document: the sequences added since the last call. A document may have no sequences.
  void end_document();
  // Appends documents [first, last) of another data set of the same type.
  void append(const IndexedDataset& other, std::int64_t first, std::int64_t last);
  // Syncs everything added so far to disk, so that another writer can resume from this state.
  Progress save();
  // After this call the destructor keeps the temporary files.
  void keep_unfinished() { keep_ = true; }
  // No more data can be added: completes and syncs the temporary .bin and .idx. The later steps need no disk
  // space, so either all or none of several data sets get their final names.
  void complete();
  // After complete(): opens the data set under its temporary names.
  std::shared_ptr<const IndexedDataset> completed() const;
  // After complete(): adds one further file, named PREFIX plus `extension`. finish() renames this file and
  // the .bin to their final names before it renames the index.
  void attach(const char* extension, std::string_view contents);
  // After complete(): renames the files to their final names.
  void finish();

  std::int64_t sequences() const { return progress_.sequences; }
  std::int64_t documents() const { return progress_.documents; }
  std::int64_t tokens() const { return progress_.tokens; }

 private:
  // One temporary file, written through a buffer.
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
  const char* attached_ = nullptr;  // extension of the attached file; null: none
  bool keep_ = false, complete_ = false, finished_ = false;
};

}  // namespace primus::data
