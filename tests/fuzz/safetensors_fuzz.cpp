// Fuzzes safetensors files, shard indexes and manifests: any bytes are read or refused in bounded time and
// memory.
#include <fmt/format.h>

#include <cstdint>
#include <cstdlib>

#include "base/error.h"
#include "base/files/crc32c.h"
#include "base/files/file.h"
#include "lm/checkpoint/manifest.h"
#include "lm/checkpoint/safetensors.h"
#include "lm/checkpoint/shard_index.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

// Checks an accepted file: names are found, and bytes are covered once.
void check(const primus::SafetensorsFile& file) {
  std::uint64_t covered = file.header().size();
  for (std::size_t i = 0; i < file.size(); ++i) {
    const primus::TensorView tensor = file[i];
    require(tensor.file_offset == covered);
    covered += tensor.data.size();
    require(file.index_of(tensor.name) == i);
  }
  require(covered == file.bytes().size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    check(primus::SafetensorsFile::parse(bytes, "fuzz"));
  } catch (const primus::Error&) {
  }
  try {
    primus::ShardIndex::parse(text, "fuzz");
  } catch (const primus::Error&) {
  }
  try {
    // Appends the checksum, which no mutation would get right.
    std::string sealed = std::string(text) + "\"manifest_crc32c\":\"";
    sealed += fmt::format("{:08x}\"}}\n", primus::crc32c(0, primus::as_bytes(sealed)));
    primus::Manifest::parse(sealed, "fuzz");
  } catch (const primus::Error&) {
  }
  return 0;
}
