// Reads and writes safetensors files, and the sharded folders that Hugging Face transformers loads and saves.
//
// A file is an 8-byte little-endian header length, a JSON header
// {"name":{"dtype","shape","data_offsets"},..., "__metadata__":{...}}, and the tensors' bytes
// (docs/formats/checkpoint.md). The reader holds to the checks of the Rust reference and refuses what it
// refuses: header over 100 MB or past the file's end, tensors that overlap or leave holes, sizes that
// contradict shape and dtype, bytes that no tensor claims. Beyond it, duplicate names, more than kMaxRank
// dimensions, and dtypes that Primus does not compute with are refused, by name.
//
// Errors: kInvalid (the file is corrupt or lies), kUnsupported (a dtype), FileError. Memory stays within
// twice the header, whatever it says. Thread-safety: readers are immutable after opening.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files/file.h"
#include "base/files/piece_writer.h"
#include "lm/checkpoint/tensor_source.h"
#include "tensor/dtype.h"

namespace primus {

// "F32", "BF16", ...: the dtype names of safetensors files.
std::string_view safetensors_name(DType dtype);
std::optional<DType> dtype_of_safetensors_name(std::string_view name);

// "[2, 3]", for messages.
std::string shape_text(std::span<const std::int64_t> shape);

// A tensor inside an open file; the spans live as long as its reader does, and is not moved.
struct TensorView {
  std::string_view name;
  DType dtype = DType::kF32;
  std::span<const std::int64_t> shape;  // outermost first; empty = a scalar
  std::span<const std::byte> data;      // row-major, little-endian, perhaps unaligned: copy, do not cast
  std::uint64_t file_offset = 0;        // of data, from the start of the file
  // Above 0: data holds a matrix by columns, the first elements of two columns so many elements apart.
  std::int64_t column_stride = 0;
};
// Copies elements from number `first` on, counted by rows, however the tensor lies.
void copy_elements(const TensorView& tensor, std::int64_t first, std::span<std::byte> out);

class SafetensorsFile {
 public:
  static constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
  static constexpr std::size_t kMaxRank = 8;

  static SafetensorsFile open(const Path& path, Env& env = Env::posix());
  // Parses bytes that the caller keeps alive; `name` is used in errors.
  static SafetensorsFile parse(std::span<const std::byte> file, std::string name);

  // Tensors in the order of their bytes.
  std::size_t size() const { return entries_.size(); }
  TensorView operator[](std::size_t i) const;
  std::optional<TensorView> find(std::string_view name) const;
  std::optional<std::uint32_t> index_of(std::string_view name) const;
  // "__metadata__", e.g. {"format": "pt"}.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // The 8-byte length and the JSON header.
  std::span<const std::byte> header() const { return bytes_.first(data_begin_); }
  std::span<const std::byte> bytes() const { return bytes_; }
  const std::string& name() const { return name_; }

 private:
  friend class HeaderParser;
  // 32 bytes, names and shapes in common pools: a header of 2 million tensors must not cost a gigabyte.
  struct Entry {
    std::uint64_t begin, end;  // relative to data_begin_
    std::uint32_t name_at, name_size, shape_at;
    DType dtype;
    std::uint8_t rank;
  };

  std::string name_;
  MappedFile file_;
  std::span<const std::byte> bytes_;
  std::size_t data_begin_ = 0;
  std::string names_;
  std::vector<std::int64_t> extents_;
  std::vector<Entry> entries_;
  std::vector<std::uint32_t> by_name_;  // into entries_, sorted by name
  std::map<std::string, std::string> metadata_;
};

// A model folder: model.safetensors, or model.safetensors.index.json and the shards it names.
class SafetensorsFolder {
 public:
  // Refuses shard names that are not plain, a shard that lacks a tensor the index lists there or holds
  // another, and a folder without either file, saying what to do.
  static SafetensorsFolder open(const Path& folder, Env& env = Env::posix());

  // Tensors, sorted by name.
  std::size_t size() const { return tensors_.size(); }
  TensorView operator[](std::size_t i) const { return files_[tensors_[i].file][tensors_[i].index]; }
  std::optional<TensorView> find(std::string_view name) const;
  // As find, but throws kInvalid naming the tensor and the nearest name there is.
  TensorView at(std::string_view name) const;
  // As at, and throws kInvalid when the shape is another.
  TensorView at(std::string_view name, std::span<const std::int64_t> shape) const;
  const std::vector<SafetensorsFile>& files() const { return files_; }
  const Path& folder() const { return folder_; }
  // What is odd but harmless: a total_size in the index that is not the tensors' (published models have
  // that).
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  struct Place {
    std::uint32_t file, index;
  };
  Path folder_;
  std::vector<SafetensorsFile> files_;
  std::vector<Place> tensors_;
  std::vector<std::string> warnings_;
};

// Whether a folder has weights at all, by the names of its files: model*.safetensors, an index of shards, or
// what open() refuses with a reason (pytorch_model*.bin, consolidated*.pth).
bool has_weights(const Path& folder, Env& env = Env::posix());

struct SafetensorsOptions {
  std::string stem = "model";  // model.safetensors, or model-00001-of-00003.safetensors
  std::uint64_t max_shard_bytes = 5'000'000'000;
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
};

// Where every byte of a folder will be, known before any is written: ranks that hold slices of a tensor write
// them in place, and a save knows what it needs. Deterministic in names, dtypes, shapes and their order.
struct SafetensorsLayout {
  struct Tensor {
    std::size_t source;         // index into the sources
    std::uint64_t file_offset;  // of its first byte
    std::uint64_t bytes;
  };
  struct Shard {
    std::string file;    // plain name
    std::string header;  // length, JSON, and spaces up to a multiple of 8
    std::vector<Tensor>
        tensors;          // in the order of their bytes: by dtype (wide first, so all are aligned), then name
    std::uint64_t bytes;  // of the whole file
  };
  std::vector<Shard> shards;
  std::string index_file;  // "model.safetensors.index.json", or empty for one shard
  std::string index;
  std::uint64_t bytes = 0;  // of all files together
};
SafetensorsLayout plan_safetensors(std::span<const TensorSource> sources,
                                   const SafetensorsOptions& options = {});

// What a process holds of a slab (AxisOrder) of which other processes hold the rest.
struct SharedSlab {
  std::size_t tensor;  // in the shard's order
  HeldRun part;        // of the tensor, within the slab
};

// What one process wrote of a shard.
struct WrittenShard {
  // CRC32C of each tensor, in the shard's order, with zeros in place of what other processes hold:
  // crc32c_merge() makes that of the whole tensor.
  std::vector<std::uint32_t> tensors;
  // Held and not written: a slab must be written whole, by who has put it together.
  std::vector<SharedSlab> shared;
  WrittenBytes bytes = {};
};

// Writes one model in two steps, the second by every process that holds a part of it. `written`, when given,
// is told the bytes of each piece as it goes.
//
// 1. Creates the shards in an existing folder, in their full size, with their headers, and the index. Of
// these, only the index is synced.
void create_shards(const Path& folder, const SafetensorsLayout& layout, Env& env = Env::posix(),
                   const std::function<void(std::uint64_t)>& written = {});
// 2. Writes what the sources hold to its places in the shards, and syncs the shards that it wrote to; with
// `sync_all` (one process must: for sizes and headers) all of them. Not the folder. Tensors are streamed:
// data in host memory is written from where it is, and `fill` gets one buffer of a few MB, or of a slab where
// the file has another order.
std::vector<WrittenShard> write_held(const Path& folder, std::span<const TensorSource> sources,
                                     const SafetensorsLayout& layout, bool sync_all, Env& env = Env::posix(),
                                     const std::function<void(std::uint64_t)>& written = {});

// Both steps, by a single process that holds everything.
std::vector<WrittenShard> write_safetensors(const Path& folder, std::span<const TensorSource> sources,
                                            const SafetensorsLayout& layout, Env& env = Env::posix(),
                                            const std::function<void(std::uint64_t)>& written = {});

// The same in one call, as an export: plans, writes under temporary names, replaces the old model files of
// that stem, syncs the folder.
void save_safetensors(const Path& folder, std::span<const TensorSource> sources,
                      const SafetensorsOptions& options = {}, Env& env = Env::posix());

}  // namespace primus
