// CRC32C (Castagnoli polynomial, as in iSCSI, ext4 and Snappy): the checksum of checkpoints. Uses the CPU's
// crc32 instruction if available, for three streams at a time. "123456789" -> 0xe3069283. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace primus {

// Extends the checksum `crc` by `data`. The checksum of no data is 0.
std::uint32_t crc32c(std::uint32_t crc, std::span<const std::byte> data);

// Extends the checksum `crc` by `count` zero bytes, in time proportional to the number of bits of `count`.
std::uint32_t crc32c_zeros(std::uint32_t crc, std::uint64_t count);

// Merges the checksums of two writers that wrote different parts of the same `bytes` bytes. `a` and `b` are
// checksums over all bytes, with zeros in place of the other writer's parts. Returns the checksum over all
// bytes with the parts of both writers.
std::uint32_t crc32c_merge(std::uint32_t a, std::uint32_t b, std::uint64_t bytes);

// The portable implementation, for CPUs without the instruction and as a reference in tests.
std::uint32_t crc32c_portable(std::uint32_t crc, std::span<const std::byte> data);

}  // namespace primus
