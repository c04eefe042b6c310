#include "lm/data/indexed_dataset.h"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "base/checked.h"
#include "base/error.h"

namespace primus::data {

static_assert(std::endian::native == std::endian::little, "the files are little-endian");

namespace {

constexpr std::string_view kMagic{"MMIDIDX\0\0", 9};
constexpr std::uint64_t kVersion = 1;
constexpr std::size_t kHeader = 34;

Path with_extension(const Path& prefix, const char* extension) { return prefix.string() + extension; }

template <class T>
void append_bytes(std::string& out, const T& value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

Error broken(const Path& prefix, std::string what) {
  return invalid(std::move(what), "make the data set again, or copy it again").at(prefix.string() + ".idx");
}

template <class T>
void widen(const std::byte* from, std::span<std::int32_t> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, from + i * sizeof(T), sizeof(T));
    out[i] = static_cast<std::int32_t>(value);
  }
}

template <class T>
void narrow(std::span<const std::int32_t> tokens, std::string& out) {
  const std::size_t before = out.size();
  out.resize(before + tokens.size() * sizeof(T));
  char* to = out.data() + before;
  for (const std::int32_t token : tokens) {
    const T value = static_cast<T>(token);
    std::memcpy(to, &value, sizeof(T));
    to += sizeof(T);
  }
}

bool holds(TokenType type, std::int32_t token) {
  switch (type) {
    case TokenType::kU8:
      return std::in_range<std::uint8_t>(token);
    case TokenType::kI8:
      return std::in_range<std::int8_t>(token);
    case TokenType::kI16:
      return std::in_range<std::int16_t>(token);
    case TokenType::kU16:
      return std::in_range<std::uint16_t>(token);
    case TokenType::kI32:
    case TokenType::kI64:
      return true;
  }
  return false;
}

}  // namespace

int token_size(TokenType type) {
  switch (type) {
    case TokenType::kU8:
    case TokenType::kI8:
      return 1;
    case TokenType::kI16:
    case TokenType::kU16:
      return 2;
    case TokenType::kI32:
      return 4;
    case TokenType::kI64:
      return 8;
  }
  return 0;
}

std::string_view token_name(TokenType type) {
  switch (type) {
    case TokenType::kU8:
      return "uint8";
    case TokenType::kI8:
      return "int8";
    case TokenType::kI16:
      return "int16";
    case TokenType::kU16:
      return "uint16";
    case TokenType::kI32:
      return "int32";
    case TokenType::kI64:
      return "int64";
  }
  return "";
}

TokenType token_type_for(std::int64_t vocab_size) {
  return vocab_size < 65500 ? TokenType::kU16 : TokenType::kI32;
}

bool IndexedDataset::exists(const Path& prefix, Env& env) {
  return env.status(with_extension(prefix, ".idx")).has_value() &&
         env.status(with_extension(prefix, ".bin")).has_value();
}

void IndexedDataset::refuse_folder(const Path& path) {
  const auto status = Env::posix().status(path);
  if (!status || status->type != FileStatus::Type::kFolder) return;
  for (const std::string& name : Env::posix().list(path)) {
    if (!name.ends_with(".idx")) continue;
    throw invalid(fmt::format("the folder '{}' holds tokenized data", path.string()),
                  fmt::format("set the data path to the common prefix of a .bin and an .idx file: {}",
                              (path / Path(name).stem()).string()));
  }
}

std::shared_ptr<const IndexedDataset> IndexedDataset::open(const Path& prefix, Env& env) {
  for (const char* extension : {".idx", ".bin"}) {
    const auto status = env.status(with_extension(prefix, extension));
    if (status && status->type == FileStatus::Type::kFile) continue;
    const std::string name = prefix.string();
    const bool has_extension = name.ends_with(".bin") || name.ends_with(".idx");
    const auto text = env.status(prefix);
    if (!has_extension && text && text->type == FileStatus::Type::kFile) {
      throw invalid(fmt::format("'{}' is a file, not the prefix of a data set (.bin and .idx)", name),
                    fmt::format("if it is text: primus data tokenize --input {} --output-prefix NAME "
                                "--tokenizer FILE makes a data set of it",
                                name));
    }
    throw invalid(fmt::format("data file '{}{}' does not exist", name, extension),
                  has_extension ? "leave out the extension: " + name.substr(0, name.size() - 4)
                                : "a data path names both files without extension, e.g. "
                                  "data/books_text_document");
  }
  return open(prefix, env.map(with_extension(prefix, ".idx")), env.map(with_extension(prefix, ".bin")));
}

std::shared_ptr<const IndexedDataset> IndexedDataset::open(const Path& prefix, MappedFile mapped_index,
                                                           MappedFile mapped_data) {
  std::shared_ptr<IndexedDataset> result(new IndexedDataset());
  IndexedDataset& d = *result;
  d.prefix_ = prefix;
  d.index_ = std::move(mapped_index);
  d.data_ = std::move(mapped_data);
  d.index_.tolerate_truncation();
  d.data_.tolerate_truncation();
  const std::span<const std::byte> index = d.index_.bytes();
  if (index.size() < kHeader)
    throw broken(prefix, fmt::format("the index is only {} bytes long", index.size()));
  if (std::memcmp(index.data(), kMagic.data(), kMagic.size()) != 0) {
    throw broken(prefix, "this is not an index of a data set (it does not begin with MMIDIDX)");
  }
  const std::byte* const p = index.data();
  if (const auto version = load<std::uint64_t>(p + 9, 0); version != kVersion) {
    throw broken(prefix, fmt::format("the index has format version {}, not {}", version, kVersion));
  }
  d.type_ = TokenType(std::to_integer<std::uint8_t>(p[17]));
  if (token_size(d.type_) == 0) {
    throw broken(prefix,
                 fmt::format("the index names the data type {}, which is not a token type", int(d.type_)));
  }
  d.sequences_ =
      checked_cast<std::int64_t>(load<std::uint64_t>(p + 18, 0), "sequences in " + prefix.string() + ".idx");
  const auto starts =
      checked_cast<std::int64_t>(load<std::uint64_t>(p + 26, 0), "documents in " + prefix.string() + ".idx");
  const std::int64_t needed =
      checked_add(checked_add(checked_mul<std::int64_t>(d.sequences_, 12, "index size"),
                              checked_mul<std::int64_t>(starts, 8, "index size"), "index size"),
                  static_cast<std::int64_t>(kHeader), "index size");
  const auto size = static_cast<std::int64_t>(index.size());
  if (d.sequences_ > 0 && size - d.sequences_ == needed) {
    throw unsupported("multimodal data sets are not supported").at(prefix.string() + ".idx");
  }
  if (size != needed || starts < 1) {
    throw broken(prefix,
                 fmt::format("the index has {} bytes, but {} sequences and {} document entries need {}", size,
                             d.sequences_, starts, needed));
  }
  d.documents_ = starts - 1;
  d.lengths_ = p + kHeader;
  d.pointers_ = d.lengths_ + 4 * d.sequences_;
  d.document_starts_ = d.pointers_ + 8 * d.sequences_;
  d.check();
  // The number of tokens must not exceed the file size. Otherwise sequences could overlap, and a pass over
  // all sequences would take very long.
  const std::int64_t room = d.data_bytes() / token_size(d.type_);
  for (std::int64_t i = 0; i < d.sequences_; ++i) {
    d.tokens_ += d.length(i);
    if (d.tokens_ > room) {
      throw broken(prefix,
                   fmt::format("the sequences up to {} hold {} tokens, but '{}.bin' only {}: they lie "
                               "over each other",
                               i, d.tokens_, prefix.string(), room));
    }
  }
  d.check_unchanged();
  return result;
}

void IndexedDataset::check() const {
  const auto size = static_cast<std::int64_t>(data_.bytes().size());
  const std::int64_t item = token_size(type_);
  for (std::int64_t i = 0; i < sequences_; ++i) {
    const std::int64_t pointer = load<std::int64_t>(pointers_, i);
    const std::int64_t bytes = std::int64_t{length(i)} * item;
    if (bytes < 0) throw broken(prefix_, fmt::format("sequence {} has the length {}", i, length(i)));
    if (pointer < 0 || pointer > size || bytes > size - pointer) {
      throw broken(prefix_,
                   fmt::format("sequence {} lies at bytes {} to {}, but '{}.bin' has {}", i, pointer,
                               static_cast<std::uint64_t>(pointer) + static_cast<std::uint64_t>(bytes),
                               prefix_.string(), size));
    }
  }
  std::int64_t previous = 0;
  for (std::int64_t i = 0; i <= documents_; ++i) {
    const std::int64_t start = document_start(i);
    if (start < previous || start > sequences_ || (i == 0 && start != 0)) {
      throw broken(prefix_, fmt::format("document {} begins at sequence {} of {}", i, start, sequences_));
    }
    previous = start;
  }
  if (previous != sequences_) {
    throw broken(prefix_, fmt::format("the documents end at sequence {} of {}", previous, sequences_));
  }
}

void IndexedDataset::read(std::int64_t sequence, std::int64_t offset, std::span<std::int32_t> out) const {
  const std::int64_t item = token_size(type_);
  const std::byte* from = bytes(sequence, offset * item, std::ssize(out) * item).data();
  switch (type_) {
    case TokenType::kU8:
      return widen<std::uint8_t>(from, out);
    case TokenType::kI8:
      return widen<std::int8_t>(from, out);
    case TokenType::kI16:
      return widen<std::int16_t>(from, out);
    case TokenType::kU16:
      return widen<std::uint16_t>(from, out);
    case TokenType::kI32:
      return widen<std::int32_t>(from, out);
    case TokenType::kI64:
      break;
  }
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto value = load<std::int64_t>(from, static_cast<std::int64_t>(i));
    if (!std::in_range<std::int32_t>(value)) {
      throw invalid(fmt::format("sequence {} of '{}' has the token {}", sequence, name(), value));
    }
    out[i] = static_cast<std::int32_t>(value);
  }
}

std::span<const std::byte> IndexedDataset::bytes(std::int64_t sequence) const {
  return bytes(sequence, 0, std::int64_t{length(sequence)} * token_size(type_));
}

// open() has checked the index, but another process may have overwritten the index since.
std::span<const std::byte> IndexedDataset::bytes(std::int64_t sequence, std::int64_t offset,
                                                 std::int64_t size) const {
  const std::span<const std::byte> all = data_.bytes();
  const auto pointer = load<std::uint64_t>(pointers_, sequence);
  const auto first = static_cast<std::uint64_t>(offset), count = static_cast<std::uint64_t>(size);
  if (pointer > all.size() || first > all.size() - pointer || count > all.size() - pointer - first) {
    check_unchanged();
    throw broken(prefix_, fmt::format("sequence {} lies beyond the end of '{}.bin'", sequence, name()));
  }
  return all.subspan(pointer + first, count);
}

std::uint64_t IndexedDataset::fingerprint() const {
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  const auto add = [&state](const std::byte* bytes, std::int64_t size) {
    XXH3_64bits_update(&state, bytes, static_cast<std::size_t>(size));
  };
  const std::array<std::int64_t, 4> numbers = {token_size(type_), sequences_, documents_, data_bytes()};
  XXH3_64bits_update(&state, numbers.data(), sizeof numbers);
  add(lengths_, 4 * sequences_);
  add(document_starts_, 8 * (documents_ + 1));
  constexpr std::int64_t kRead = std::int64_t{256} << 20, kPiece = 16 << 10, kPieces = 4096;
  const std::byte* const data = data_.bytes().data();
  if (data_bytes() <= kRead) {
    add(data, data_bytes());
  } else {
    const std::int64_t last = data_bytes() - kPiece;  // offset of the last of the hashed blocks
    for (std::int64_t i = 0; i < kPieces; ++i) add(data + last / (kPieces - 1) * i, kPiece);
    add(data + last, kPiece);
  }
  check_unchanged();
  return XXH3_64bits_digest(&state);
}

void IndexedDataset::check_unchanged() const {
  index_.check_unchanged();
  data_.check_unchanged();
}

void refuse_existing_dataset(const Path& prefix, Existing existing, Env& env) {
  for (const char* extension : {".bin", ".idx"}) {
    refuse_existing(with_extension(prefix, extension), existing, env);
  }
}

void check_vocabulary(const TokenSource& source, std::int64_t sequence, std::int64_t offset,
                      std::span<const std::int32_t> tokens, std::int64_t vocab_size,
                      std::string_view description) {
  const auto beyond =
      std::ranges::find_if(tokens, [&](std::int32_t token) { return token < 0 || token >= vocab_size; });
  if (beyond == tokens.end()) return;
  // In sources without documents (mock data), each sequence counts as a document.
  std::int64_t document = sequence, position = offset + (beyond - tokens.begin());
  if (const auto* const indexed = dynamic_cast<const IndexedDataset*>(&source)) {
    std::int64_t end = indexed->documents();
    for (document = 0; end - document > 1;) {
      const std::int64_t middle = document + (end - document) / 2;
      (indexed->document_start(middle) <= sequence ? document : end) = middle;
    }
    for (std::int64_t i = indexed->document_start(document); i < sequence; ++i)
      position += indexed->length(i);
  }
  throw invalid(fmt::format("{}: document {} has the token {} at position {}, outside the vocabulary of {}",
                            description, document, *beyond, position, vocab_size),
                fmt::format("the data may belong to another tokenizer; 'primus data inspect {} "
                            "--tokenizer-type NullTokenizer --tokenizer {}' counts such tokens",
                            source.name(), vocab_size));
}

namespace {

constexpr const char* kDataFile = ".bin";
constexpr const char* kLengthsFile = ".lengths";  // file of int32 values, the same type as in the index
// File of int64 values, the same type as in the index, without the leading 0.
constexpr const char* kDocumentsFile = ".documents";
constexpr const char* kIndexFile = ".idx";

Path folder_of(const Path& path) { return path.has_parent_path() ? path.parent_path() : Path("."); }

// Calls use(bytes) for consecutive sections of a file. The size of a section is a multiple of eight bytes.
template <class Use>
void for_each_piece(Env& env, const Path& path, const Use& use) {
  const auto file = env.open(path, OpenMode::kRead);
  std::vector<std::byte> piece(std::size_t{1} << 20);
  for (std::uint64_t offset = 0;;) {
    const std::size_t count = file->read_at(piece, offset);
    if (count == 0) return;
    use(std::span<const std::byte>(piece).first(count));
    offset += count;
  }
}

}  // namespace

IndexedDatasetWriter::IndexedDatasetWriter(Path prefix, TokenType type, Env& env)
    : IndexedDatasetWriter(prefix, type, fmt::format("{}.tmp-{}", prefix.string(), ::getpid()), {}, env) {}

IndexedDatasetWriter::IndexedDatasetWriter(Path prefix, TokenType type, Path temporary, Progress from,
                                           Env& env)
    : env_(env), prefix_(std::move(prefix)), temporary_(std::move(temporary)), type_(type), progress_(from) {
  for (const Path& path : {prefix_, temporary_}) {
    if (path.has_parent_path()) make_folders(path.parent_path(), env_);
  }
  open(data_, kDataFile, checked_mul<std::int64_t>(from.tokens, token_size(type_), "bytes of tokens"));
  open(lengths_, kLengthsFile, checked_mul<std::int64_t>(from.sequences, 4, "bytes of lengths"));
  open(documents_, kDocumentsFile, checked_mul<std::int64_t>(from.documents, 8, "bytes of documents"));
}

void IndexedDatasetWriter::open(Stream& stream, const char* extension, std::int64_t size) {
  const Path path = temporary(extension);
  if (size == 0) {
    stream.file = env_.open(path, OpenMode::kWrite);
    return;
  }
  const auto status = env_.status(path);
  if (!status || status->size < static_cast<std::uint64_t>(size)) {
    throw invalid(fmt::format("'{}' holds fewer than the {} saved bytes", path.string(), size));
  }
  stream.file = env_.open(path, OpenMode::kAppend);
  stream.file->truncate(static_cast<std::uint64_t>(size));
}

IndexedDatasetWriter::~IndexedDatasetWriter() {
  if (finished_ || keep_) return;
  for (Stream* stream : {&data_, &lengths_, &documents_}) stream->file.reset();
  try {
    remove_temporaries();
  } catch (const std::exception&) {
    // Ignores this error, because the earlier error is more important.
  }
}

void IndexedDatasetWriter::remove_temporaries() {
  for (const char* extension : {kDataFile, kLengthsFile, kDocumentsFile, kIndexFile, attached_}) {
    if (extension && env_.status(temporary(extension))) env_.remove_file(temporary(extension));
  }
}

void IndexedDatasetWriter::Stream::flush() {
  if (!buffer.empty()) file->append(as_bytes(buffer));
  buffer.clear();
}

void IndexedDatasetWriter::add_length(std::size_t tokens) {
  append_bytes(lengths_.buffer, checked_cast<std::int32_t>(tokens, "tokens in one sequence"));
  lengths_.flush_if_large();
  ++progress_.sequences;
  progress_.tokens += static_cast<std::int64_t>(tokens);
}

void IndexedDatasetWriter::add_sequence(std::span<const std::int32_t> tokens) {
  for (const std::int32_t token : tokens) {
    if (!holds(type_, token)) {
      throw invalid(fmt::format("the token {} does not fit {} tokens", token, token_name(type_)));
    }
  }
  add_length(tokens.size());
  switch (type_) {
    case TokenType::kU8:
      narrow<std::uint8_t>(tokens, data_.buffer);
      break;
    case TokenType::kI8:
      narrow<std::int8_t>(tokens, data_.buffer);
      break;
    case TokenType::kI16:
      narrow<std::int16_t>(tokens, data_.buffer);
      break;
    case TokenType::kU16:
      narrow<std::uint16_t>(tokens, data_.buffer);
      break;
    case TokenType::kI32:
      narrow<std::int32_t>(tokens, data_.buffer);
      break;
    case TokenType::kI64:
      narrow<std::int64_t>(tokens, data_.buffer);
      break;
  }
  data_.flush_if_large();
}

void IndexedDatasetWriter::end_document() {
  append_bytes(documents_.buffer, progress_.sequences);
  documents_.flush_if_large();
  ++progress_.documents;
}

void IndexedDatasetWriter::append(const IndexedDataset& other, std::int64_t first, std::int64_t last) {
  if (other.token_type() != type_) {
    throw invalid(fmt::format("'{}' holds {} tokens, not {}", other.name(), token_name(other.token_type()),
                              token_name(type_)),
                  "only data sets with the same token type can be joined");
  }
  for (std::int64_t document = first; document < last; ++document) {
    const std::int64_t end = other.document_start(document + 1);
    if (end > other.sequences())
      other.check_unchanged();  // the range was valid when the data set was opened; now it is not, so the
                                // files have probably changed
    for (std::int64_t i = other.document_start(document); i < end; ++i) {
      const std::span<const std::byte> bytes = other.bytes(i);
      add_length(static_cast<std::size_t>(other.length(i)));
      data_.buffer.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      data_.flush_if_large();
    }
    end_document();
  }
  other.check_unchanged();
}

IndexedDatasetWriter::Progress IndexedDatasetWriter::save() {
  for (Stream* stream : {&data_, &lengths_, &documents_}) {
    stream->flush();
    stream->file->sync();
  }
  return progress_;
}

void IndexedDatasetWriter::write_index() {
  const auto index = env_.open(temporary(kIndexFile), OpenMode::kWrite);
  std::string header(kMagic);
  append_bytes(header, kVersion);
  append_bytes(header, static_cast<std::uint8_t>(type_));
  append_bytes(header, static_cast<std::uint64_t>(progress_.sequences));
  append_bytes(header, static_cast<std::uint64_t>(progress_.documents) + 1);
  index->append(as_bytes(header));
  const auto copy = [&index](std::span<const std::byte> piece) { index->append(piece); };
  for_each_piece(env_, temporary(kLengthsFile), copy);
  // A sequence's pointer is the sum of the lengths before it.
  std::int64_t pointer = 0;
  std::vector<std::int64_t> pointers;
  for_each_piece(env_, temporary(kLengthsFile), [&](std::span<const std::byte> piece) {
    pointers.clear();
    for (std::size_t at = 0; at + sizeof(std::int32_t) <= piece.size(); at += sizeof(std::int32_t)) {
      std::int32_t length;
      std::memcpy(&length, piece.data() + at, sizeof length);
      pointers.push_back(pointer);
      pointer += std::int64_t{length} * token_size(type_);
    }
    index->append(std::as_bytes(std::span(pointers)));
  });
  constexpr std::int64_t kFirstDocument = 0;
  index->append(std::as_bytes(std::span(&kFirstDocument, 1)));
  for_each_piece(env_, temporary(kDocumentsFile), copy);
  index->sync();
  index->close();
}

void IndexedDatasetWriter::complete() {
  if (complete_) return;
  save();
  for (Stream* stream : {&data_, &lengths_, &documents_}) stream->file->close();
  write_index();
  complete_ = true;
}

std::shared_ptr<const IndexedDataset> IndexedDatasetWriter::completed() const {
  return IndexedDataset::open(temporary_, env_);
}

void IndexedDatasetWriter::attach(const char* extension, std::string_view contents) {
  const auto file = env_.open(temporary(extension), OpenMode::kWrite);
  file->append(as_bytes(contents));
  file->sync();
  file->close();
  attached_ = extension;
}

void IndexedDatasetWriter::finish() {
  complete();
  const Path index = with_extension(prefix_, kIndexFile), folder = folder_of(prefix_);
  // Removes the old index first and renames the new one last, so that an index always matches the data file,
  // even after a power failure.
  if (env_.status(index)) {
    env_.remove_file(index);
    env_.sync_folder(folder);
  }
  std::vector<std::pair<Path, Path>> renamed;
  const auto rename = [&](const char* extension) {
    const Path from = temporary(extension), to = with_extension(prefix_, extension);
    env_.rename(from, to);
    renamed.emplace_back(from, to);
  };
  try {
    rename(kDataFile);
    if (attached_) rename(attached_);
    env_.sync_folder(folder);
    rename(kIndexFile);
  } catch (const FileError&) {
    try {
      for (const auto& [from, to] : renamed) env_.rename(to, from);
    } catch (const FileError&) {
      // The files remain, but without an index they are not a data set.
    }
    throw;
  }
  finished_ = true;
  env_.sync_folder(folder);
  remove_temporaries();
}

}  // namespace primus::data
