// Reads and writes safetensors files and sharded folders in the layout of Hugging Face transformers.
//
// A file is an 8-byte little-endian header length, a JSON header
// {"name":{"dtype","shape","data_offsets"},..., "__metadata__":{...}}, and the tensors' bytes
// (docs/formats/checkpoint.md). The reader makes the checks of the Rust reference implementation and refuses
// the same files: a header over 100 MB or past the file's end, tensors that overlap or leave holes, sizes
// that contradict shape and dtype, and trailing bytes. The reader also refuses duplicate tensor names, more
// than kMaxRank dimensions, and dtypes that Primus does not support.
//
// Errors: kInvalid (a corrupt or inconsistent file), kUnsupported (a dtype), FileError. Memory use is at most
// twice the header, whatever its content. Thread-safety: readers are immutable after opening.
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

// Returns the name of a dtype in safetensors files: "F32", "BF16", ...
std::string_view safetensors_name(DType dtype);
std::optional<DType> dtype_of_safetensors_name(std::string_view name);

// Returns the shape as text for messages: "[2, 3]".
std::string shape_text(std::span<const std::int64_t> shape);

// A tensor inside an open file. The spans are valid as long as the reader exists and is not moved.
struct TensorView {
  std::string_view name;
  DType dtype = DType::kF32;
  std::span<const std::int64_t> shape;  // extents, outermost first; empty for a scalar
  // Elements in row-major order, little-endian. The elements may be unaligned: copy elements instead of
  // casting the pointer.
  std::span<const std::byte> data;
  std::uint64_t file_offset = 0;  // offset of `data` from the start of the file
  // If above 0, `data` is a matrix stored by columns, and consecutive columns start column_stride elements
  // apart.
  std::int64_t column_stride = 0;
};
// Copies elements to `out`, beginning with element `first`. Elements are counted in row-major order, whatever
// the layout of `tensor`.
void copy_elements(const TensorView& tensor, std::int64_t first, std::span<std::byte> out);

class SafetensorsFile {
 public:
  static constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
  static constexpr std::size_t kMaxRank = 8;

  static SafetensorsFile open(const Path& path, Env& env = Env::posix());
  // Parses the bytes of a file; the caller must keep the bytes alive. `name` names the file in error
  // messages.
  static SafetensorsFile parse(std::span<const std::byte> file, std::string name);

  // Returns the number of tensors. Tensors are numbered in file order.
  std::size_t size() const { return entries_.size(); }
  TensorView operator[](std::size_t i) const;
  std::optional<TensorView> find(std::string_view name) const;
  std::optional<std::uint32_t> index_of(std::string_view name) const;
  // Returns the entry "__metadata__" of the header, e.g. {"format": "pt"}.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // Returns the header of the file: the 8-byte length and the JSON text.
  std::span<const std::byte> header() const { return bytes_.first(data_begin_); }
  std::span<const std::byte> bytes() const { return bytes_; }
  const std::string& name() const { return name_; }
  // Returns the file with its tensors renamed. Throws kInvalid if two tensors get the same name.
  SafetensorsFile renamed(const std::function<std::string(std::string_view name)>& new_name) &&;

 private:
  // Fills and sorts by_name_. Returns a tensor whose name another tensor also has, if there is one.
  std::optional<std::uint32_t> sort_names();

  friend class HeaderParser;
  // One tensor, in 32 bytes. Names and shapes are in shared pools, so that a header of 2 million tensors does
  // not need a gigabyte.
  struct Entry {
    std::uint64_t begin, end;  // begin and end of the tensor's bytes, relative to data_begin_
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
  std::vector<std::uint32_t> by_name_;  // indices into entries_, sorted by name
  std::map<std::string, std::string> metadata_;
};

// A model folder with either model.safetensors, or model.safetensors.index.json and the shards named in this
// index.
class SafetensorsFolder {
 public:
  // Opens a folder. Refuses shard names that contain a folder, shards whose tensors differ from the index,
  // and a folder without model.safetensors and without an index. The error message says what to do.
  static SafetensorsFolder open(const Path& folder, Env& env = Env::posix());

  // Opens a model's folder together with the adapters of a PEFT folder (adapter_model.safetensors). The
  // adapters' tensors get the names that they have within the model, without PEFT's "base_model.model.". If
  // both folders have a tensor, such as that of a module trained without adapters, the PEFT folder's tensor
  // is used.
  static SafetensorsFolder open_adapted(const Path& folder, const Path& adapters, Env& env = Env::posix());

  // Returns the number of tensors. Tensors are numbered in the order of their names.
  std::size_t size() const { return tensors_.size(); }
  TensorView operator[](std::size_t i) const { return files_[tensors_[i].file][tensors_[i].index]; }
  std::optional<TensorView> find(std::string_view name) const;
  // Like find(), but throws kInvalid with the tensor's name and the nearest existing name.
  TensorView at(std::string_view name) const;
  // Like at(name), but also throws kInvalid if the tensor's shape is not `shape`.
  TensorView at(std::string_view name, std::span<const std::int64_t> shape) const;
  const std::vector<SafetensorsFile>& files() const { return files_; }
  const Path& folder() const { return folder_; }
  // Returns inconsistencies that do not prevent loading: the index states a total_size that differs from the
  // tensors' size, as in some published models; the folder also contains a single model file that the index
  // does not name; or the folder contains PEFT adapters, which are not read.
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

// Returns whether a folder contains weights, judged by file names: model*.safetensors, an index of shards, or
// files that open() refuses with a reason (pytorch_model*.bin, consolidated*.pth).
bool has_weights(const Path& folder, Env& env = Env::posix());

struct SafetensorsOptions {
  std::string stem = "model";  // prefix of the file names: model.safetensors, or
                               // model-00001-of-00003.safetensors
  std::uint64_t max_shard_bytes = 5'000'000'000;
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
};

// The location of every byte in the files of a folder, planned before any byte is written. With the plan,
// ranks write their slices of a tensor in place, and the required disk space is known before a save starts.
// The plan depends only on names, dtypes, shapes and their order.
struct SafetensorsLayout {
  struct Tensor {
    std::size_t source;         // index of the tensor in the list of sources
    std::uint64_t file_offset;  // offset of the tensor's first byte
    std::uint64_t bytes;
  };
  struct Shard {
    std::string file;    // file name without a folder
    std::string header;  // length, JSON, and padding spaces to a multiple of 8
    std::vector<Tensor>
        // Tensors in the order of their bytes: sorted by dtype, wide types first so that all tensors are
        // aligned, then by name.
        tensors;
    std::uint64_t bytes;  // size of the complete file
  };
  std::vector<Shard> shards;
  std::string index_file;  // "model.safetensors.index.json"; empty if there is one shard
  std::string index;
  std::uint64_t bytes = 0;  // total size of all files
};
SafetensorsLayout plan_safetensors(std::span<const TensorSource> sources,
                                   const SafetensorsOptions& options = {});

// The elements of a slab (AxisOrder) that this process holds, where other processes hold the slab's other
// elements.
struct SharedSlab {
  std::size_t tensor;  // index of the tensor in the shard
  HeldRun part;        // range of elements that this process holds, within the slab
};

// The data that one process wrote to one shard.
struct WrittenShard {
  // CRC32C of each tensor of the shard, computed with zeros in place of the bytes that other processes hold.
  // crc32c_merge() combines the CRC32C values of all processes into the checksum of the complete tensor.
  std::vector<std::uint32_t> tensors;
  // Slabs that this process holds only partly and therefore did not write. One process must assemble and
  // write each such slab.
  std::vector<SharedSlab> shared;
  WrittenBytes bytes = {};
};

// create_shards() and write_held() write one model in two steps. One process calls create_shards(); then
// every process that holds data of the model calls write_held(). `written`, if given, is called with a byte
// count after each write.
//
// Step 1: creates the shards in an existing folder, in their full size and with their headers, and creates
// the index. Only the index is synced to disk.
void create_shards(const Path& folder, const SafetensorsLayout& layout, Env& env = Env::posix(),
                   const std::function<void(std::uint64_t)>& written = {});
// Step 2: writes the data of the sources to the shards, and syncs the written shards. With `sync_all`, syncs
// all shards; one process must set this, so that sizes and headers reach the disk. Does not sync the folder.
// Tensors are streamed. Host data is written without a copy. `fill` is called with a buffer of a few MB, or
// for one slab if the file's element order differs from memory.
std::vector<WrittenShard> write_held(const Path& folder, std::span<const TensorSource> sources,
                                     const SafetensorsLayout& layout, bool sync_all, Env& env = Env::posix(),
                                     const std::function<void(std::uint64_t)>& written = {});

// Runs both steps in one process that holds the complete model.
std::vector<WrittenShard> write_safetensors(const Path& folder, std::span<const TensorSource> sources,
                                            const SafetensorsLayout& layout, Env& env = Env::posix(),
                                            const std::function<void(std::uint64_t)>& written = {});

// Exports a model in one call: plans the files, writes them under temporary names, replaces existing model
// files with the same stem, and syncs the folder.
void save_safetensors(const Path& folder, std::span<const TensorSource> sources,
                      const SafetensorsOptions& options = {}, Env& env = Env::posix());

}  // namespace primus
