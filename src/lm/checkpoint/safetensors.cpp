#include "lm/checkpoint/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/text/excerpt.h"
#include "base/text/json_reader.h"

namespace primus {
namespace {

constexpr std::size_t kLengthBytes = 8;
constexpr std::size_t kMaxMetadata = 65536;  // max number of metadata entries; a limit is needed because an
                                             // entry uses more memory than its text

constexpr std::array<std::pair<std::string_view, DType>, 12> kDTypes{{{"F64", DType::kF64},
                                                                      {"F32", DType::kF32},
                                                                      {"F16", DType::kF16},
                                                                      {"BF16", DType::kBF16},
                                                                      {"I64", DType::kI64},
                                                                      {"I32", DType::kI32},
                                                                      {"I16", DType::kI16},
                                                                      {"I8", DType::kI8},
                                                                      {"U16", DType::kU16},
                                                                      {"U8", DType::kU8},
                                                                      {"BOOL", DType::kBool},
                                                                      {"F8_E4M3", DType::kF8E4M3}}};

// Types of the format that Primus does not support.
constexpr std::array<std::string_view, 9> kForeignDTypes = {
    "U64", "U32", "C64", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F4", "F6_E2M3"};

constexpr std::string_view kIncomplete =
    "perhaps an incomplete download or a disk that was full; get the file again";
constexpr std::string_view kCorrupt = "the file is corrupt or was written by a faulty tool; get it again";

}  // namespace

std::string_view safetensors_name(DType dtype) {
  for (const auto& [name, type] : kDTypes) {
    if (type == dtype) return name;
  }
  return "?";
}

std::optional<DType> dtype_of_safetensors_name(std::string_view name) {
  for (const auto& [known, type] : kDTypes) {
    if (known == name) return type;
  }
  return std::nullopt;
}

std::string shape_text(std::span<const std::int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

// Fills a SafetensorsFile from its bytes. The order of the checks matters: a check may rely on the checks
// before it.
class HeaderParser {
 public:
  explicit HeaderParser(SafetensorsFile& file) : file_(file) {}

  void parse() {
    const std::string_view text = header_text();
    reserve(text);
    const std::string place = file_.name_ + " (header)";
    JsonReader json(text, place, {.hint = kCorrupt});
    json.object([&](std::string_view key) {
      if (key == "__metadata__") {
        metadata(json);
      } else {
        tensor(json, key);
      }
    });
    json.finish();
    sort_by_bytes();
    check_bytes();
    index_names();
  }

 private:
  [[noreturn]] void refuse(const std::string& what, std::string_view hint) const {
    throw invalid(fmt::format("'{}' is not a valid safetensors file: {}", file_.name_, what),
                  std::string(hint));
  }

  std::string_view header_text() {
    const auto bytes = file_.bytes_;
    if (bytes.size() < kLengthBytes) {
      refuse(fmt::format("it has {} bytes, too few for its 8-byte header length", bytes.size()), kIncomplete);
    }
    std::uint64_t length = 0;
    for (std::size_t i = 0; i < kLengthBytes; ++i)
      length |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
    const std::uint64_t rest = bytes.size() - kLengthBytes;
    if (length > SafetensorsFile::kMaxHeaderBytes) {
      refuse(fmt::format("it claims a header of {} bytes; at most {} are allowed", length,
                         SafetensorsFile::kMaxHeaderBytes),
             "is this a safetensors file? Other formats (.bin, .pt, .gguf) must be converted first");
    }
    if (length > rest) {
      refuse(fmt::format("it claims a header of {} bytes, but only {} follow", length, rest), kIncomplete);
    }
    file_.data_begin_ = kLengthBytes + length;
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, length);
    if (!text.starts_with('{')) refuse("its header does not begin with '{'", kCorrupt);
    return text;
  }

  // Allocates memory once, because a growing array would need memory for its old and its new copy at the same
  // time. The estimates are upper bounds; memory that is not touched costs nothing.
  void reserve(std::string_view text) {
    // Size of the shortest entry: {"":{"dtype":"U8","shape":[],"data_offsets":[0,0]}.
    constexpr std::size_t kMinTensor = 50;
    const auto count = [&](char c) { return static_cast<std::size_t>(std::ranges::count(text, c)); };
    const std::size_t tensors = std::min(count('{'), text.size() / kMinTensor + 1);
    file_.entries_.reserve(tensors);
    file_.extents_.reserve(std::min(count(',') + 1, tensors * SafetensorsFile::kMaxRank));
  }

  void metadata(JsonReader& json) {
    if (seen_metadata_) refuse("__metadata__ is given twice", kCorrupt);
    seen_metadata_ = true;
    if (json.read_null()) return;  // null means no metadata, as in the reference implementation
    json.object([&](std::string_view key) {
      std::string name(key), value = json.read_string();
      if (file_.metadata_.size() == kMaxMetadata) refuse("too many entries in __metadata__", kCorrupt);
      if (!file_.metadata_.emplace(name, std::move(value)).second) {
        refuse(fmt::format("__metadata__ gives '{}' twice", excerpt(name)), kCorrupt);
      }
    });
  }

  void tensor(JsonReader& json, std::string_view name) {
    SafetensorsFile::Entry entry{};
    entry.name_at = static_cast<std::uint32_t>(file_.names_.size());
    entry.name_size = static_cast<std::uint32_t>(name.size());
    entry.shape_at = static_cast<std::uint32_t>(file_.extents_.size());
    file_.names_ += name;
    bool has_dtype = false, has_shape = false, has_offsets = false;
    const auto once = [&](bool& seen) {
      if (std::exchange(seen, true))
        refuse(fmt::format("a field of tensor '{}' is given twice", of(entry)), kCorrupt);
    };
    json.object([&](std::string_view key) {
      if (key == "dtype") {
        once(has_dtype);
        entry.dtype = dtype(json.read_string(), entry);
      } else if (key == "shape") {
        once(has_shape);
        json.array([&] {
          if (entry.rank == SafetensorsFile::kMaxRank) {
            refuse(
                fmt::format("tensor '{}' has more than {} dimensions", of(entry), SafetensorsFile::kMaxRank),
                "Primus does not support such tensors");
          }
          ++entry.rank;
          file_.extents_.push_back(json.read_size());
        });
      } else if (key == "data_offsets") {
        once(has_offsets);
        offsets(json, entry);
      } else {
        json.skip();
      }
    });
    if (!has_dtype || !has_shape || !has_offsets) {
      refuse(fmt::format("tensor '{}' lacks its {}", of(entry),
                         !has_dtype   ? "dtype"
                         : !has_shape ? "shape"
                                      : "data_offsets"),
             kCorrupt);
    }
    file_.entries_.push_back(entry);
  }

  DType dtype(const std::string& text, const SafetensorsFile::Entry& entry) const {
    if (const auto known = dtype_of_safetensors_name(text)) return *known;
    if (std::ranges::find(kForeignDTypes, text) != kForeignDTypes.end()) {
      throw unsupported(fmt::format("tensor '{}' of '{}' is stored as {}, which Primus cannot read",
                                    of(entry), file_.name_, text),
                        "convert the model to BF16 or F32 first (transformers: from_pretrained(..., "
                        "dtype=...), save_pretrained)");
    }
    refuse(fmt::format("tensor '{}' has the unknown dtype '{}'", of(entry), excerpt(text)), kCorrupt);
  }

  void offsets(JsonReader& json, SafetensorsFile::Entry& entry) const {
    int count = 0;
    json.array([&] {
      const std::uint64_t offset = json.read_unsigned();
      if (count == 0) entry.begin = offset;
      if (count == 1) entry.end = offset;
      ++count;
    });
    if (count != 2)
      refuse(fmt::format("data_offsets of tensor '{}' are not two numbers", of(entry)), kCorrupt);
  }

  void sort_by_bytes() {
    std::ranges::sort(file_.entries_, [&](const auto& a, const auto& b) {
      if (a.begin != b.begin) return a.begin < b.begin;
      if (a.end != b.end) return a.end < b.end;
      return name(a) < name(b);
    });
  }

  // Checks that tensors follow each other without overlap or hole, have the size of their shapes, and end at
  // the file's last byte.
  void check_bytes() const {
    const std::uint64_t data_bytes = file_.bytes_.size() - file_.data_begin_;
    std::uint64_t at = 0;
    const SafetensorsFile::Entry* before = nullptr;
    for (const auto& entry : file_.entries_) {
      if (entry.end < entry.begin)
        refuse(fmt::format("tensor '{}' ends before it begins", of(entry)), kCorrupt);
      if (entry.begin < at) {
        refuse(fmt::format("tensors '{}' and '{}' overlap", of(*before), of(entry)), kCorrupt);
      }
      if (entry.begin > at) {
        refuse(fmt::format("a gap of {} bytes precedes tensor '{}'", entry.begin - at, of(entry)), kCorrupt);
      }
      if (entry.end - entry.begin != bytes_of(entry)) {
        refuse(fmt::format("tensor '{}' has {} bytes, but its shape {} of {} needs {}", of(entry),
                           entry.end - entry.begin, shape_text(shape(entry)), safetensors_name(entry.dtype),
                           bytes_of(entry)),
               kCorrupt);
      }
      at = entry.end;
      before = &entry;
    }
    if (at > data_bytes) {
      refuse(fmt::format("its tensors need {} bytes, but the file holds {}", at, data_bytes), kIncomplete);
    }
    if (at < data_bytes) {
      refuse(fmt::format("{} bytes at its end belong to no tensor", data_bytes - at), kCorrupt);
    }
  }

  void index_names() {
    const auto twice = file_.sort_names();
    if (twice) refuse(fmt::format("tensor '{}' is given twice", of(file_.entries_[*twice])), kCorrupt);
  }

  std::uint64_t bytes_of(const SafetensorsFile::Entry& entry) const {
    // Multiplies in the same order as the reference implementation (elements, then bits), so that the same
    // shapes are refused as too large.
    std::uint64_t bits = 1;
    bool overflow = false;
    for (const std::int64_t extent : shape(entry)) {
      overflow |= __builtin_mul_overflow(bits, static_cast<std::uint64_t>(extent), &bits);
    }
    overflow |= __builtin_mul_overflow(bits, static_cast<std::uint64_t>(8 * size_of(entry.dtype)), &bits);
    if (overflow) {
      refuse(
          fmt::format("tensor '{}' of shape {} is too large to exist", of(entry), shape_text(shape(entry))),
          kCorrupt);
    }
    return bits / 8;
  }

  std::string_view name(const SafetensorsFile::Entry& entry) const {
    return std::string_view(file_.names_).substr(entry.name_at, entry.name_size);
  }
  std::string of(const SafetensorsFile::Entry& entry) const { return excerpt(name(entry)); }
  std::span<const std::int64_t> shape(const SafetensorsFile::Entry& entry) const {
    return std::span(file_.extents_).subspan(entry.shape_at, entry.rank);
  }

  SafetensorsFile& file_;
  bool seen_metadata_ = false;
};

SafetensorsFile SafetensorsFile::open(const Path& path, Env& env) {
  SafetensorsFile file;
  file.name_ = path.string();
  file.file_ = env.map(path);
  file.bytes_ = file.file_.bytes();
  HeaderParser(file).parse();
  return file;
}

SafetensorsFile SafetensorsFile::parse(std::span<const std::byte> bytes, std::string name) {
  SafetensorsFile file;
  file.name_ = std::move(name);
  file.bytes_ = bytes;
  HeaderParser(file).parse();
  return file;
}

std::optional<std::uint32_t> SafetensorsFile::sort_names() {
  by_name_.resize(entries_.size());
  std::iota(by_name_.begin(), by_name_.end(), 0U);
  const auto by_name = [&](std::uint32_t i) { return (*this)[i].name; };
  std::ranges::sort(by_name_, {}, by_name);
  const auto twice = std::ranges::adjacent_find(by_name_, {}, by_name);
  return twice == by_name_.end() ? std::nullopt : std::optional(*twice);
}

SafetensorsFile SafetensorsFile::renamed(
    const std::function<std::string(std::string_view name)>& new_name) && {
  std::string names;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const std::string name = new_name((*this)[i].name);
    entries_[i].name_size = static_cast<std::uint32_t>(name.size());
    entries_[i].name_at = static_cast<std::uint32_t>(names.size());
    names += name;
    // Earlier entries refer to `names`, later entries to names_, so names_ is replaced after the loop.
  }
  names_ = std::move(names);
  if (const auto twice = sort_names())
    throw invalid(fmt::format("tensor '{}' is given twice", excerpt((*this)[*twice].name))).at(name_);
  return std::move(*this);
}

void copy_elements(const TensorView& tensor, std::int64_t first, std::span<std::byte> out) {
  const auto size = static_cast<std::size_t>(size_of(tensor.dtype));
  if (tensor.column_stride == 0) {
    const auto bytes = tensor.data.subspan(static_cast<std::size_t>(first) * size, out.size());
    std::ranges::copy(bytes, out.begin());
    return;
  }
  const std::int64_t columns = tensor.shape[1];
  for (std::size_t to = 0; to < out.size(); to += size, ++first) {
    const auto from = static_cast<std::size_t>(first % columns * tensor.column_stride + first / columns);
    std::memcpy(&out[to], &tensor.data[from * size], size);
  }
}

TensorView SafetensorsFile::operator[](std::size_t i) const {
  const Entry& entry = entries_[i];
  return {.name = std::string_view(names_).substr(entry.name_at, entry.name_size),
          .dtype = entry.dtype,
          .shape = std::span(extents_).subspan(entry.shape_at, entry.rank),
          .data = bytes_.subspan(data_begin_ + entry.begin, entry.end - entry.begin),
          .file_offset = data_begin_ + entry.begin};
}

std::optional<std::uint32_t> SafetensorsFile::index_of(std::string_view name) const {
  const auto name_of = [&](std::uint32_t i) { return (*this)[i].name; };
  const auto at = std::ranges::lower_bound(by_name_, name, {}, name_of);
  if (at == by_name_.end() || name_of(*at) != name) return std::nullopt;
  return *at;
}

std::optional<TensorView> SafetensorsFile::find(std::string_view name) const {
  const auto index = index_of(name);
  return index ? std::optional((*this)[*index]) : std::nullopt;
}

}  // namespace primus
