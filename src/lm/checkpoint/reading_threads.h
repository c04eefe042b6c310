// The threads with which a rank reads and checks a checkpoint. One thread alone spends most of its time in
// page faults of the mapped file, and copies about 1.5 GB/s.
//
// Thread-safety: all functions.
#pragma once

#include <cstdint>
#include <memory>

#include "base/system/thread_pool.h"

namespace primus {

// Bytes that a thread reads at a time.
inline constexpr std::int64_t kReadingGrain = 8 << 20;

// Returns threads for reading `bytes` bytes: at most this rank's share of the machine's cores
// (LOCAL_WORLD_SIZE ranks share the machine), at most 16, and no more than there are grains. num_threads does
// not limit them. If the system refuses threads, there are fewer. The caller is one of the threads.
std::unique_ptr<ThreadPool> reading_threads(std::uint64_t bytes);

}  // namespace primus
