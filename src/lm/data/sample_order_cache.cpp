// cached_sample_order: one file per order (docs/formats/megatron.md).
#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string_view>

#include "base/checked.h"
#include "base/error.h"
#include "base/files/file_lock.h"
#include "lm/data/sample_order.h"

namespace primus::data {

namespace {

constexpr std::uint64_t kOrderMagic = 0x726564726F737250;  // the bytes "Prsorder", little-endian
constexpr std::uint64_t kOrderVersion = 1;

struct Header {
  std::uint64_t magic = kOrderMagic, version = kOrderVersion;
  std::array<std::uint64_t, 2> key = {};
  // Sizes of the arrays that follow the header; `rows` has samples + 1 entries.
  std::uint64_t documents = 0, samples = 0;
  std::uint64_t epochs = 0, separate_last_epoch = 0;
  std::uint64_t checksum = 0;  // XXH3 hash of the arrays
};
static_assert(sizeof(Header) == 72);

// Returns a hash of everything that the order depends on.
std::array<std::uint64_t, 2> key_of(const OrderOptions& options,
                                    FunctionRef<std::int32_t(std::int64_t)> length) {
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  const std::array<std::int64_t, 6> numbers = {static_cast<std::int64_t>(kOrderVersion),
                                               options.first,
                                               options.last,
                                               options.seq_length,
                                               options.samples,
                                               options.seed};
  XXH3_128bits_update(&state, numbers.data(), sizeof numbers);
  std::array<std::int32_t, 4096> lengths;
  for (std::int64_t begin = options.first; begin < options.last;) {
    const std::int64_t count = std::min<std::int64_t>(options.last - begin, lengths.size());
    for (std::int64_t i = 0; i < count; ++i) lengths[static_cast<std::size_t>(i)] = length(begin + i);
    XXH3_128bits_update(&state, lengths.data(), static_cast<std::size_t>(count) * sizeof(std::int32_t));
    begin += count;
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(&state);
  return {hash.high64, hash.low64};
}

std::optional<SampleOrder> load(const Path& path, const std::array<std::uint64_t, 2>& key) {
  if (!Env::posix().status(path)) return std::nullopt;
  MappedFile file = Env::posix().map(path);
  file.tolerate_truncation();  // the checksum below detects truncation now; GptDataset checks for truncation
                               // at each sample
  const std::span<const std::byte> bytes = file.bytes();
  Header header;
  if (bytes.size() < sizeof header) return std::nullopt;
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != kOrderMagic || header.version != kOrderVersion || header.key != key)
    return std::nullopt;
  constexpr std::uint64_t kLimit = UINT32_MAX;  // this limit prevents overflow of the sums below
  if (header.documents > kLimit || header.samples > kLimit) return std::nullopt;
  const std::span<const std::byte> arrays = bytes.subspan(sizeof header);
  const std::uint64_t rows = header.samples + 1;
  if (arrays.size() != 4 * header.documents + 8 * rows + 4 * header.samples ||
      XXH3_64bits(arrays.data(), arrays.size()) != header.checksum) {
    return std::nullopt;
  }
  // The arrays are aligned: the mapping begins at a page border, and each array at a multiple of four bytes.
  const auto* documents = reinterpret_cast<const std::int32_t*>(arrays.data());
  const auto* places = reinterpret_cast<const SampleOrder::Place*>(documents + header.documents);
  const auto* shuffle = reinterpret_cast<const std::uint32_t*>(places + rows);
  return SampleOrder{{documents, header.documents},
                     {places, rows},
                     {shuffle, header.samples},
                     static_cast<std::int64_t>(header.epochs),
                     header.separate_last_epoch != 0,
                     nullptr,
                     std::move(file)};
}

void save(const SampleOrder& order, const std::array<std::uint64_t, 2>& key, const Path& path) {
  Header header;
  header.key = key;
  header.documents = order.documents.size();
  header.samples = order.shuffle.size();
  header.epochs = static_cast<std::uint64_t>(order.epochs);
  header.separate_last_epoch = order.separate_last_epoch;
  const std::array arrays = {std::as_bytes(order.documents), std::as_bytes(order.rows),
                             std::as_bytes(order.shuffle)};
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  for (const auto& array : arrays) XXH3_64bits_update(&state, array.data(), array.size());
  header.checksum = XXH3_64bits_digest(&state);
  Env& env = Env::posix();
  // No other process writes this file, because this process holds the lock.
  const Path temporary = path.string() + ".tmp";
  try {
    const auto file = env.open(temporary, OpenMode::kWrite);
    file->append(std::as_bytes(std::span(&header, 1)));
    for (const auto& array : arrays) file->append(array);
    file->sync();
    file->close();
    env.rename(temporary, path);
  } catch (FileError& error) {
    if (env.status(temporary)) env.remove_file(temporary);
    error.add_hint("or choose another data_cache_path");
    throw;
  }
  env.sync_folder(path.parent_path());
}

}  // namespace

SampleOrder cached_sample_order(const OrderOptions& options, FunctionRef<std::int32_t(std::int64_t)> length,
                                std::string_view name, const Path& cache) {
  const std::array<std::uint64_t, 2> key = key_of(options, length);
  const Path path = cache / fmt::format("sample-order-{:016x}{:016x}", key[0], key[1]);
  if (auto order = load(path, key)) return *std::move(order);
  make_folders(cache);
  const FileLock lock = FileLock::wait(path.string() + ".lock");
  if (auto order = load(path, key)) return *std::move(order);  // another process has built the file meanwhile
  save(build_sample_order(options, length, name), key, path);
  if (auto order = load(path, key)) return *std::move(order);
  throw invalid(fmt::format("the sample order reads back differently than it was written"),
                "check the disk of data_cache_path")
      .at(path.string());
}

}  // namespace primus::data
