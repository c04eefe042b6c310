// CRC32C (Castagnoli polynomial, as in iSCSI, ext4 and Snappy): the checksum of checkpoints. Uses the CPU's
// crc32 instruction where there is one, three streams wide. "123456789" -> 0xe3069283. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace primus {

// The checksum of `crc`'s data followed by `data`; start with 0.
std::uint32_t crc32c(std::uint32_t crc, std::span<const std::byte> data);

// The checksum of `crc`'s data followed by `count` zero bytes; its time grows with the number of `count`'s
// bits.
std::uint32_t crc32c_zeros(std::uint32_t crc, std::uint64_t count);

// The checksum of `bytes` bytes that several writers hold parts of. `a` and `b` are checksums of all of them,
// with zeros in place of what is another writer's; the result covers the parts of both.
std::uint32_t crc32c_merge(std::uint32_t a, std::uint32_t b, std::uint64_t bytes);

// The portable implementation, for CPUs without the instruction and to test the other against.
std::uint32_t crc32c_portable(std::uint32_t crc, std::span<const std::byte> data);

}  // namespace primus
