// A small SIMT machine in software: it runs GPU kernels as ordinary C++, so that every hand-written kernel is
// tested where there is no GPU, at the warp widths of both vendors (32 and 64).
//
// A block's threads are fibers of one operating-system thread. A fiber runs until it waits (at a barrier, in
// an exchange between lanes, or for something that another thread does) and then the next one of the block
// runs. Blocks are independent and spread over a thread pool. What real hardware leaves undefined is an error
// here: a barrier that some threads of a block do not reach, an exchange that some lanes of a warp do not
// take part in, a wait for what nobody does any more, a thread of a kernel that starts early and does not
// wait for the kernel in front of it. Shared memory starts as NaN in every block.
//
// Exceptions thrown by a kernel leave run(); the rest of that block is abandoned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <typeinfo>

#include "base/system/thread_pool.h"

namespace primus::gpu::emulator {

// Bytes that a lane can hand to the others of its warp at once.
inline constexpr std::size_t kExchangeBytes = 64;

struct Grid {
  std::int64_t blocks;
  int threads;               // of a block; a multiple of `warp`
  int warp;                  // lanes of a warp, at most 64
  std::size_t shared_bytes;  // of dynamic shared memory
  // Of a kernel that may begin before the one in front of it is over: its type, for errors. Each of its
  // threads has to call wait_for_previous() before it ends. Whether it does so before it touches memory
  // cannot be seen here. Null: the kernel begins when the one in front is over.
  const std::type_info* early = nullptr;
};

// Runs body(arguments) once for each thread of the grid, and returns when all have ended.
void run(ThreadPool& pool, const Grid& grid, void (*body)(const void*), const void* arguments);

// ---- For code inside kernels --------------------------------------------------------------------

struct Place {
  std::int64_t block, blocks;
  int thread, threads;
};
const Place& place();

// Notes that this thread has waited for the kernel in front, which is over in the emulator.
void wait_for_previous();

// Every thread of the block waits for all the others.
void barrier();

// As many threads of the block as `threads` says wait for each other at the barrier of this number, 0 to 15.
// It can be used again and again, by the same number of threads.
void barrier(int number, int threads);

// Lets other threads of the block run until ready(state) is true. Who makes it true calls made_progress().
void wait_until(bool (*ready)(const void*), const void* state);
void made_progress();

// Every lane of the warp hands over `bytes` bytes and gets what all lanes gave: lane l's at offset
// l * kExchangeBytes. Valid until the lane's next exchange but one.
const std::byte* exchange(const void* data, std::size_t bytes);

// The block's shared memory of this name: the same for all threads of a block, 128-byte aligned. Null names
// the dynamic shared memory of the launch.
void* shared(const void* name, std::size_t bytes);

}  // namespace primus::gpu::emulator
