#include "lm/checkpoint/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/files/crc32c.h"
#include "base/files/file.h"
#include "base/text/excerpt.h"
#include "base/text/json_reader.h"
#include "lm/checkpoint/safetensors.h"

namespace primus {
namespace {

constexpr std::string_view kFormat = "primus-checkpoint";
// The manifest ends with the checksum of all bytes that precede the checksum's digits.
constexpr std::string_view kSealKey = "\"manifest_crc32c\":\"";
constexpr std::string_view kSealEnd = "\"}\n";
constexpr std::size_t kDigits = 8;
constexpr std::size_t kMaxSlices = 16384;  // max slices per tensor
constexpr std::string_view kDamagedHint = "the checkpoint is damaged; use an older one";

std::string_view name_of(TensorPart part) { return part == TensorPart::kModel ? "model" : "optimizer"; }

std::string json_quoted(const std::string& text) { return nlohmann::json(text).dump(); }

[[noreturn]] void refuse(std::string_view where, const std::string& what) {
  throw invalid(fmt::format("'{}': {}", where, what), std::string(kDamagedHint));
}

std::uint32_t parse_crc(std::string_view text, std::string_view where) {
  std::uint32_t value = 0;
  bool good = text.size() == kDigits;
  for (const char c : text) {
    const bool digit = c >= '0' && c <= '9', letter = c >= 'a' && c <= 'f';
    good = good && (digit || letter);
    value = value * 16 + static_cast<std::uint32_t>(digit ? c - '0' : c - 'a' + 10);
  }
  if (!good) refuse(where, "a checksum that is not 8 hexadecimal digits");
  return value;
}

void check_seal(std::string_view json, std::string_view where) {
  const std::string unsealed = "its final checksum is missing: it was cut off or changed";
  if (json.size() < kSealKey.size() + kDigits + kSealEnd.size() || !json.ends_with(kSealEnd)) {
    refuse(where, unsealed);
  }
  const std::string_view digits = json.substr(json.size() - kSealEnd.size() - kDigits, kDigits);
  const std::string_view sealed = json.substr(0, json.size() - kSealEnd.size() - kDigits);
  if (!sealed.ends_with(kSealKey)) refuse(where, unsealed);
  if (crc32c(0, as_bytes(sealed)) != parse_crc(digits, where)) {
    refuse(where, "its checksum differs: it was changed after it was written");
  }
}

class ManifestParser {
 public:
  ManifestParser(std::string_view json, std::string_view where)
      : json_(json, where, {.hint = kDamagedHint}), where_(where) {}

  Manifest parse() {
    bool has_version = false;
    json_.object([&](std::string_view key) {
      if (key == "format") {
        if (json_.read_string() != kFormat) refuse(where_, "this is not the manifest of a Primus checkpoint");
      } else if (key == "version") {
        const auto version = json_.read_unsigned();
        has_version = true;
        if (version != Manifest::kVersion) {
          throw unsupported(fmt::format("'{}': checkpoint format {}; this program reads {}", where_, version,
                                        Manifest::kVersion),
                            "use the version of Primus that wrote it");
        }
      } else if (key == "iteration") {
        manifest_.iteration = json_.read_size();
      } else if (key == "files") {
        json_.array([&] { file(); });
      } else if (key == "tensors") {
        json_.array([&] { tensor(); });
      } else {
        json_.skip();
      }
    });
    json_.finish();
    if (!has_version) refuse(where_, "its version is missing");
    return std::move(manifest_);
  }

 private:
  void file() {
    FileRecord record;
    json_.object([&](std::string_view key) {
      if (key == "name") {
        record.name = json_.read_string();
      } else if (key == "bytes") {
        record.bytes = json_.read_unsigned();
      } else if (key == "crc32c") {
        record.crc = parse_crc(json_.read_string(), where_);
      } else {
        json_.skip();
      }
    });
    if (!is_plain_name(record.name))
      refuse(where_, fmt::format("the file name '{}' is not plain", excerpt(record.name)));
    if (!manifest_.files.empty() && manifest_.files.back().name >= record.name) {
      refuse(where_, fmt::format("file '{}' is out of order or given twice", excerpt(record.name)));
    }
    manifest_.files.push_back(std::move(record));
  }

  void tensor() {
    TensorRecord record;
    json_.object([&](std::string_view key) {
      if (key == "name") {
        record.name = json_.read_string();
      } else if (key == "part") {
        const std::string part = json_.read_string();
        record.part = part == "model" ? TensorPart::kModel : TensorPart::kOptimizer;
        if (part != name_of(record.part)) refuse(where_, fmt::format("unknown part '{}'", excerpt(part)));
      } else if (key == "dtype") {
        const std::string dtype = json_.read_string();
        const auto known = dtype_of_safetensors_name(dtype);
        if (!known) refuse(where_, fmt::format("unknown dtype '{}'", excerpt(dtype)));
        record.dtype = *known;
      } else if (key == "shape") {
        record.shape = extents();
      } else if (key == "file") {
        record.file = file_index(json_.read_string());
      } else if (key == "slices") {
        json_.array([&] {
          if (record.slices.size() == kMaxSlices) {
            refuse(where_, fmt::format("a tensor has more than {} slices", kMaxSlices));
          }
          record.slices.push_back(slice());
        });
      } else {
        json_.skip();
      }
    });
    check(record);
    manifest_.tensors.push_back(std::move(record));
  }

  void check(const TensorRecord& record) const {
    const auto key = [](const TensorRecord& tensor) { return std::tie(tensor.part, tensor.name); };
    if (!manifest_.tensors.empty() && key(manifest_.tensors.back()) >= key(record)) {
      refuse(where_, fmt::format("tensor '{}' is out of order or given twice", excerpt(record.name)));
    }
    std::int64_t count = size_of(record.dtype);
    for (const std::int64_t extent : record.shape) {
      if (__builtin_mul_overflow(count, extent, &count)) {
        refuse(where_, fmt::format("tensor '{}' is too large to exist", excerpt(record.name)));
      }
    }
    std::vector<const Slice*> slices;
    for (const auto& recorded : record.slices) slices.push_back(&recorded.slice);
    if (!tile(slices, record.shape)) {
      refuse(where_,
             fmt::format("the slices of tensor '{}' overlap, or do not cover it", excerpt(record.name)));
    }
  }

  SliceRecord slice() {
    SliceRecord record;
    json_.object([&](std::string_view key) {
      if (key == "offset") {
        record.slice.offset = extents();
      } else if (key == "extent") {
        record.slice.extent = extents();
      } else if (key == "crc32c") {
        record.crc = parse_crc(json_.read_string(), where_);
      } else {
        json_.skip();
      }
    });
    return record;
  }

  std::vector<std::int64_t> extents() {
    std::vector<std::int64_t> values;
    json_.array([&] {
      if (values.size() == SafetensorsFile::kMaxRank) refuse(where_, "a tensor has too many dimensions");
      values.push_back(json_.read_size());
    });
    return values;
  }

  std::uint32_t file_index(const std::string& name) const {
    const auto file = std::ranges::lower_bound(manifest_.files, name, {}, &FileRecord::name);
    if (file == manifest_.files.end() || file->name != name) {
      refuse(where_, fmt::format("a tensor is in '{}', which is not listed as a file", excerpt(name)));
    }
    return static_cast<std::uint32_t>(file - manifest_.files.begin());
  }

  JsonReader json_;
  std::string_view where_;
  Manifest manifest_;
};

}  // namespace

std::string Manifest::to_json() const {
  // One record per line, so that diff can compare two manifests.
  std::string json = fmt::format("{{\"format\":\"{}\",\"version\":{},\"iteration\":{},\n\"files\":[", kFormat,
                                 kVersion, iteration);
  std::string_view separator = "\n";
  for (const auto& file : files) {
    json += fmt::format("{}{{\"name\":{},\"bytes\":{},\"crc32c\":\"{:08x}\"}}",
                        std::exchange(separator, ",\n"), json_quoted(file.name), file.bytes, file.crc);
  }
  json += "],\n\"tensors\":[";
  separator = "\n";
  for (const auto& tensor : tensors) {
    json += fmt::format(R"({}{{"name":{},"part":"{}","dtype":"{}","shape":[{}],"file":{},"slices":[)",
                        std::exchange(separator, ",\n"), json_quoted(tensor.name), name_of(tensor.part),
                        safetensors_name(tensor.dtype), fmt::join(tensor.shape, ","),
                        json_quoted(files[tensor.file].name));
    std::string_view comma = "";
    for (const auto& [slice, crc] : tensor.slices) {
      json += fmt::format(R"({}{{"offset":[{}],"extent":[{}],"crc32c":"{:08x}"}})", std::exchange(comma, ","),
                          fmt::join(slice.offset, ","), fmt::join(slice.extent, ","), crc);
    }
    json += "]}";
  }
  json += "],\n";
  json += kSealKey;
  json += fmt::format("{:08x}", crc32c(0, as_bytes(json)));
  json += kSealEnd;
  return json;
}

Manifest Manifest::parse(std::string_view json, std::string_view where) {
  check_seal(json, where);
  return ManifestParser(json, where).parse();
}

}  // namespace primus
