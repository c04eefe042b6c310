// Plans and writes safetensors files: plan_safetensors, write_safetensors, save_safetensors.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "base/checked.h"
#include "base/files/crc32c.h"
#include "base/files/piece_writer.h"
#include "lm/checkpoint/safetensors.h"

namespace primus {
namespace {

// Number of bytes read at a time. The number is small enough that the bytes stay in the CPU cache between
// checksum and write.
constexpr std::uint64_t kReadBytes = 256U << 10;

// Returns the dtype's place in the reference implementation's order: wide types first, so that every tensor
// is aligned to its element.
int write_order(DType dtype) {
  constexpr std::array kOrder = {DType::kI64,  DType::kF64, DType::kF32,  DType::kI32,
                                 DType::kBF16, DType::kF16, DType::kU16,  DType::kI16,
                                 DType::kI8,   DType::kU8,  DType::kBool, DType::kF8E4M3};
  return static_cast<int>(std::ranges::find(kOrder, dtype) - kOrder.begin());
}

std::string quoted(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    throw invalid("a tensor name or metadata entry is not UTF-8", "rename it");
  }
}

std::string header_of(std::span<const TensorSource> sources,
                      const std::vector<SafetensorsLayout::Tensor>& tensors,
                      const std::map<std::string, std::string>& metadata) {
  std::string json = "{";
  if (!metadata.empty()) {
    json += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) json += quoted(key) + ":" + quoted(value) + ",";
    json.back() = '}';
    json += ',';
  }
  std::uint64_t at = 0;
  for (const auto& tensor : tensors) {
    const TensorSource& source = sources[tensor.source];
    json += fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}},)", quoted(source.name),
                        safetensors_name(source.dtype), fmt::join(source.shape, ","), at, at + tensor.bytes);
    at += tensor.bytes;
  }
  if (json.back() == ',') json.pop_back();
  json += '}';
  json.append((8 - json.size() % 8) % 8, ' ');
  if (json.size() > SafetensorsFile::kMaxHeaderBytes) {
    throw invalid("too many tensors for one safetensors file", "lower the shard size");
  }
  std::string length(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(json.size() >> (8 * i) & 0xffU);
  return length + json;
}

std::string index_of(std::span<const TensorSource> sources, const SafetensorsLayout& layout) {
  nlohmann::json weight_map = nlohmann::json::object();
  std::uint64_t total = 0;
  for (const auto& shard : layout.shards) {
    for (const auto& tensor : shard.tensors) {
      weight_map[sources[tensor.source].name] = shard.file;
      total += tensor.bytes;
    }
  }
  const nlohmann::json index = {{"metadata", {{"total_size", total}}}, {"weight_map", std::move(weight_map)}};
  // Writes the format of transformers: indented by two spaces, sorted, in ASCII.
  return index.dump(2, ' ', true) + "\n";
}

// Splits tensors into shards, in the caller's order. A new shard begins where the next tensor would exceed
// the size limit.
std::vector<std::vector<std::size_t>> split(std::span<const TensorSource> sources,
                                            std::uint64_t max_shard_bytes) {
  std::vector<std::vector<std::size_t>> shards(1);
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const std::uint64_t size = sources[i].bytes();
    if (!shards.back().empty() && checked_add(bytes, size, "shard size") > max_shard_bytes) {
      shards.emplace_back();
      bytes = 0;
    }
    shards.back().push_back(i);
    bytes += size;
  }
  return shards;
}

// Writes the elements of a tensor that this process holds. The tensor begins at `offset` of the file.
class TensorWriter {
 public:
  TensorWriter(PieceWriter& file, std::uint64_t offset, const TensorSource& source,
               std::vector<std::byte>& buffer, const std::function<void(std::uint64_t)>& written)
      : file_(file),
        offset_(offset),
        source_(source),
        buffer_(buffer),
        written_(written),
        element_(static_cast<std::uint64_t>(size_of(source.dtype))),
        runs_(source.held()) {}

  // Returns the checksum of the complete tensor, with zeros in place of data held by other processes.
  std::uint32_t write() {
    if (source_.order.same()) {
      write_runs();
    } else {
      write_slabs();
    }
    skip_to(source_.bytes());
    return crc_;
  }

  // Returns this process's parts of the slabs (AxisOrder) that it holds only partly. write() skips these
  // slabs.
  const std::vector<HeldRun>& shared() const { return shared_; }

 private:
  std::uint64_t bytes_of(std::int64_t elements) const {
    return static_cast<std::uint64_t>(elements) * element_;
  }

  // If the source has a `fill` function, this function copies long ranges directly to the write buffer.
  // Writes at most `left` bytes of the held data, beginning at offset `read`. Returns the number of bytes
  // written.
  std::uint64_t fill_room(std::uint64_t read, std::uint64_t left) {
    if (source_.data != nullptr || left < kReadBytes) return 0;
    const std::span<std::byte> room = file_.room(offset_ + at_);
    const std::uint64_t bytes = std::min<std::uint64_t>(left, room.size() / element_ * element_);
    if (bytes == 0) return 0;
    const auto part = room.first(bytes);
    source_.fill(read, part);
    crc_ = crc32c(crc_, part);
    file_.advance(bytes);
    at_ += bytes;
    if (written_) written_(bytes);
    return bytes;
  }

  // Reads data of many ranges at once, because ranges may be short.
  void write_runs() {
    std::span<const std::byte> piece;
    const std::uint64_t bytes = bytes_of(elements(runs_));
    std::uint64_t read = 0;
    for_each_run(runs_, [&](ElementRun run, std::int64_t) {
      skip_to(bytes_of(run.begin));
      for (std::uint64_t left = bytes_of(run.size()); left > 0;) {
        if (const std::uint64_t filled = piece.empty() ? fill_room(read, left) : 0; filled > 0) {
          read += filled;
          left -= filled;
          continue;
        }
        if (piece.empty()) {
          piece = source_.read(read, std::min(kReadBytes, bytes - read), buffer_);
          read += piece.size();
        }
        const auto part = piece.first(std::min<std::uint64_t>(left, piece.size()));
        crc_ = crc32c(crc_, part);
        put(part, at_);
        at_ += part.size();
        left -= part.size();
        piece = piece.subspan(part.size());
      }
    });
  }

  void write_slabs() {
    const std::int64_t slab = source_.order.slab_elements();
    std::vector<HeldRun> parts;  // held parts of the slab that begins at element `first`
    std::int64_t first = 0;
    const auto write = [&] {
      if (!parts.empty()) write_slab(first, slab, parts);
      parts.clear();
    };
    for_each_run(runs_, [&](ElementRun run, std::int64_t before) {
      for (std::int64_t begin = run.begin; begin < run.end;) {
        if (begin / slab * slab != first) {
          write();
          first = begin / slab * slab;
        }
        const std::int64_t end = std::min(first + slab, run.end);
        parts.push_back({.run = {begin, end}, .before = before + begin - run.begin});
        begin = end;
      }
    });
    write();
  }

  // Writes the elements of the slab [first, first + slab) that this process holds, in memory order.
  void write_slab(std::int64_t first, std::int64_t slab, const std::vector<HeldRun>& parts) {
    skip_to(bytes_of(first));
    published_.assign(bytes_of(slab), std::byte{0});
    const auto memory_of = [&](const HeldRun& part) {
      return source_.read(bytes_of(part.before), bytes_of(part.run.size()), buffer_);
    };
    if (parts.front().run.size() == slab) {
      to_file_order(source_.order, element_, memory_of(parts.front()), published_);
      put(published_, at_);
    } else {
      // In the file, the elements of a part are spread over the slab, between elements of other processes.
      for (const HeldRun& part : parts) {
        const auto memory = memory_of(part);
        shared_.push_back(part);
        walk_slab(source_.order, [&](std::int64_t in_file, std::int64_t in_memory) {
          const std::int64_t at = first + in_memory;
          if (at < part.run.begin || at >= part.run.end) return;
          std::memcpy(published_.data() + bytes_of(in_file), memory.data() + bytes_of(at - part.run.begin),
                      element_);
        });
      }
    }
    crc_ = crc32c(crc_, published_);
    at_ += published_.size();
  }

  void put(std::span<const std::byte> data, std::uint64_t at) {
    file_.write(data, offset_ + at);
    if (written_) written_(data.size());
  }

  // Skips bytes that other processes write.
  void skip_to(std::uint64_t at) {
    crc_ = crc32c_zeros(crc_, at - at_);
    at_ = at;
  }

  PieceWriter& file_;
  std::uint64_t offset_;
  const TensorSource& source_;
  std::vector<std::byte>& buffer_;
  const std::function<void(std::uint64_t)>& written_;
  std::uint64_t element_;
  HeldRuns runs_;
  std::vector<std::byte> published_;  // a complete slab in file order
  std::vector<HeldRun> shared_;
  std::uint64_t at_ = 0;  // number of the tensor's bytes that crc_ covers
  std::uint32_t crc_ = 0;
};

// Matches model.safetensors, model-00001-of-00002.safetensors and model.safetensors.index.json, for the stem
// "model".
bool is_model_file(std::string_view name, std::string_view stem) {
  if (!name.starts_with(stem)) return false;
  name.remove_prefix(stem.size());
  return name == ".safetensors" || name == ".safetensors.index.json" ||
         (name.starts_with("-") && name.find("-of-") != name.npos && name.ends_with(".safetensors"));
}

}  // namespace

SafetensorsLayout plan_safetensors(std::span<const TensorSource> sources, const SafetensorsOptions& options) {
  std::set<std::string_view> names;
  for (const auto& source : sources) {
    if (!names.insert(source.name).second) {
      throw invalid(fmt::format("tensor '{}' is given twice", source.name), "give tied weights once");
    }
    if (source.name == "__metadata__")
      throw invalid("a tensor must not be named '__metadata__'", "rename it");
    if (source.shape.size() > SafetensorsFile::kMaxRank) {
      throw invalid(
          fmt::format("tensor '{}' has more than {} dimensions", source.name, SafetensorsFile::kMaxRank));
    }
  }
  SafetensorsLayout layout;
  const auto shards = split(sources, options.max_shard_bytes);
  for (std::size_t number = 1; number <= shards.size(); ++number) {
    SafetensorsLayout::Shard shard;
    shard.file = shards.size() == 1
                     ? fmt::format("{}.safetensors", options.stem)
                     : fmt::format("{}-{:05}-of-{:05}.safetensors", options.stem, number, shards.size());
    auto order = shards[number - 1];
    std::ranges::sort(order, [&](std::size_t a, std::size_t b) {
      const int order_a = write_order(sources[a].dtype), order_b = write_order(sources[b].dtype);
      return order_a != order_b ? order_a < order_b : sources[a].name < sources[b].name;
    });
    for (const std::size_t source : order) {
      shard.tensors.push_back({.source = source, .file_offset = 0, .bytes = sources[source].bytes()});
    }
    shard.header = header_of(sources, shard.tensors, options.metadata);
    shard.bytes = shard.header.size();
    for (auto& tensor : shard.tensors) {
      tensor.file_offset = shard.bytes;
      shard.bytes = checked_add(shard.bytes, tensor.bytes, "file size");
    }
    layout.bytes = checked_add(layout.bytes, shard.bytes, "model size");
    layout.shards.push_back(std::move(shard));
  }
  if (layout.shards.size() > 1) {
    layout.index_file = options.stem + ".safetensors.index.json";
    layout.index = index_of(sources, layout);
    layout.bytes += layout.index.size();
  }
  return layout;
}

void create_shards(const Path& folder, const SafetensorsLayout& layout, Env& env,
                   const std::function<void(std::uint64_t)>& written) {
  for (const auto& shard : layout.shards) {
    const auto file = env.open(folder / shard.file, OpenMode::kWrite);
    file->append(as_bytes(shard.header));
    file->truncate(shard.bytes);
    file->close();
    if (written) written(shard.header.size());
  }
  if (layout.index_file.empty()) return;
  write_file(folder / layout.index_file, layout.index, env);
  if (written) written(layout.index.size());
}

std::vector<WrittenShard> write_held(const Path& folder, std::span<const TensorSource> sources,
                                     const SafetensorsLayout& layout, bool sync_all, Env& env,
                                     const std::function<void(std::uint64_t)>& written) {
  std::vector<WrittenShard> shards;
  std::vector<std::byte> buffer;
  PieceWriter pieces;
  for (const auto& shard : layout.shards) {
    WrittenShard& result = shards.emplace_back();
    const bool holds = std::ranges::any_of(
        shard.tensors, [&](const auto& tensor) { return !sources[tensor.source].held().empty(); });
    const auto file = holds || sync_all ? env.open(folder / shard.file, OpenMode::kUpdate) : nullptr;
    if (file) pieces.start(*file);
    const WrittenBytes before = pieces.written();
    for (const auto& tensor : shard.tensors) {
      const TensorSource& source = sources[tensor.source];
      if (source.held().empty()) {
        result.tensors.push_back(crc32c_zeros(0, tensor.bytes));
        continue;
      }
      TensorWriter writer(pieces, tensor.file_offset, source, buffer, written);
      const std::size_t number = result.tensors.size();
      result.tensors.push_back(writer.write());
      for (const HeldRun& part : writer.shared()) result.shared.push_back({.tensor = number, .part = part});
    }
    if (!file) continue;
    pieces.flush();
    result.bytes = {pieces.written().all - before.all, pieces.written().direct - before.direct};
    file->sync();
    file->close();
  }
  return shards;
}

std::vector<WrittenShard> write_safetensors(const Path& folder, std::span<const TensorSource> sources,
                                            const SafetensorsLayout& layout, Env& env,
                                            const std::function<void(std::uint64_t)>& written) {
  create_shards(folder, layout, env, written);
  return write_held(folder, sources, layout, true, env, written);
}

void save_safetensors(const Path& folder, std::span<const TensorSource> sources,
                      const SafetensorsOptions& options, Env& env) {
  const SafetensorsLayout layout = plan_safetensors(sources, options);
  make_folders(folder, env);
  const Path temporary = folder / (".tmp-" + options.stem);
  remove_tree(temporary, env);
  env.make_folder(temporary);
  try {
    write_safetensors(temporary, sources, layout, env);
  } catch (const Error&) {
    try_remove_tree(temporary, env);
    throw;
  }
  // The index is removed first and created last, so that shards of two models are never read as one model.
  std::vector<std::string> old = env.list(folder);
  std::erase_if(old, [&](const std::string& name) { return !is_model_file(name, options.stem); });
  std::stable_partition(old.begin(), old.end(),
                        [](const std::string& name) { return name.ends_with(".json"); });
  for (const auto& name : old) env.remove_file(folder / name);
  for (const auto& shard : layout.shards) env.rename(temporary / shard.file, folder / shard.file);
  if (!layout.index_file.empty()) env.rename(temporary / layout.index_file, folder / layout.index_file);
  env.remove_folder(temporary);
  env.sync_folder(folder);
}

}  // namespace primus
