// manifest.json of a checkpoint: every file and every tensor, with sizes and CRC32C
// (docs/formats/checkpoint.md).
//
// A tensor is recorded as slices of its global shape, each with its own CRC32C. Primus writes one slice per
// tensor, the complete tensor, independent of the number of ranks that wrote the tensor.
//
// Errors: kInvalid. Thread-safety: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lm/checkpoint/slice.h"
#include "tensor/dtype.h"

namespace primus {

enum class TensorPart { kModel, kOptimizer };

struct SliceRecord {
  Slice slice;
  std::uint32_t crc = 0;  // CRC32C of the slice's bytes in row-major order
};

struct TensorRecord {
  std::string name;  // global name of the tensor
  TensorPart part = TensorPart::kModel;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;  // global shape of the tensor
  std::uint32_t file = 0;           // index into Manifest::files
  std::vector<SliceRecord> slices;  // slices that cover the shape exactly, without overlap
};

struct FileRecord {
  std::string name;  // file name without a folder
  std::uint64_t bytes = 0;
  // CRC32C of the complete file. For a safetensors file: CRC32C of the header only, because each tensor has a
  // separate CRC32C.
  std::uint32_t crc = 0;
};

struct Manifest {
  static constexpr std::string_view kFileName = "manifest.json";
  static constexpr int kVersion = 1;
  static constexpr std::uint64_t kMaxBytes = 50'000'000;  // size limit of the JSON text

  std::int64_t iteration = 0;
  std::vector<FileRecord> files;      // all files of the folder except the manifest
  std::vector<TensorRecord> tensors;  // records sorted by part, then by name

  // Returns JSON that ends with the CRC32C of all preceding bytes. parse() therefore refuses a truncated or
  // changed manifest.
  std::string to_json() const;
  // Parses a manifest. `where` names the file in error messages.
  static Manifest parse(std::string_view json, std::string_view where);
};

}  // namespace primus
