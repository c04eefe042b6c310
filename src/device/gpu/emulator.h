// A small SIMT machine in software. It runs GPU kernels as ordinary C++, with the warp widths of both vendors
// (32 and 64). So every hand-written kernel can be tested without a GPU.
//
// A block's threads are fibers of one operating-system thread. A fiber runs until it waits at a barrier, in
// an exchange between lanes, or for another thread. Then the next fiber of the block runs. Blocks are
// independent and spread over a thread pool. The following cases, which have undefined behaviour on real
// hardware, are errors here: a barrier that some threads of a block do not reach, an exchange without some
// lanes of the warp, a wait that no remaining thread can end, a thread of an early-starting kernel that does
// not wait for the previous kernel. Shared memory starts as NaN in every block.
//
// run() rethrows exceptions of a kernel; the block that has thrown is not completed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <typeinfo>

#include "base/system/thread_pool.h"

namespace primus::gpu::emulator {

// Maximum bytes per lane in one exchange of a warp.
inline constexpr std::size_t kExchangeBytes = 64;

struct Grid {
  std::int64_t blocks;
  int threads;               // number of threads per block; a multiple of `warp`
  int warp;                  // lanes per warp, at most 64
  std::size_t shared_bytes;  // size of the dynamic shared memory
  // The type of a kernel that may begin before the previous kernel ends, for error messages. Null for other
  // kernels. Each thread of such a kernel must call wait_for_previous() before it ends. The emulator cannot
  // check that the call precedes memory accesses of the thread.
  const std::type_info* early = nullptr;
};

// Runs body(arguments) once per thread of the grid, and returns when all threads have ended.
void run(ThreadPool& pool, const Grid& grid, void (*body)(const void*), const void* arguments);

// ---- For code inside kernels --------------------------------------------------------------------

struct Place {
  std::int64_t block, blocks;
  int thread, threads;
};
const Place& place();

// Records that this thread has waited for the previous kernel. In the emulator, the previous kernel has
// always ended.
void wait_for_previous();

// Makes every thread of the block wait for all other threads of the block.
void barrier();

// Makes `threads` threads of the block wait for each other at barrier `number`, 0 to 15. A barrier can be
// used again with the same number of threads.
void barrier(int number, int threads);

// Runs other threads of the block until ready(state) is true. A thread that changes the state must call
// made_progress().
void wait_until(bool (*ready)(const void*), const void* state);
void made_progress();

// Every lane of the warp contributes `bytes` bytes and gets the data of all lanes; the data of lane l is at
// offset l * kExchangeBytes. The data is valid until the second exchange() of this lane after this call.
const std::byte* exchange(const void* data, std::size_t bytes);

// Returns the block's shared variable that `name` identifies, aligned to 128 bytes. All threads of a block
// get the same address. If `name` is null, returns the dynamic shared memory of the launch.
void* shared(const void* name, std::size_t bytes);

}  // namespace primus::gpu::emulator
