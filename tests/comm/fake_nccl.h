// A collectives library with NCCL's interface, for ranks that are threads of one process. Devices use host
// memory, and "stream handles" are Stream objects of a CPU or guard device. Tests can inject the failures of
// a real library. It is built as a separate shared library, so that it is loaded as NCCL is.
#pragma once

extern "C" {
// Sets the version that the library reports to this thread.
void fake_nccl_version(int version);
// From now on, error queries on the communicators with the group rank `rank` return `result`. 0: no error.
void fake_nccl_error(int rank, int result);
// Sets how many times a communicator reports "in progress" after each call. Negative: forever.
void fake_nccl_slowness(int times);
// Returns the number of communicators that were made, and not yet destroyed or aborted.
int fake_nccl_alive();
// Returns the number of communicators that were aborted.
int fake_nccl_aborted();
// From now on, every abort of a communicator calls `hook` before it returns, as ncclCommAbort may wait for
// work of the device. Null: no hook.
void fake_nccl_on_abort(void (*hook)());
// Returns the number of bytes that all communicators have sent.
long long fake_nccl_sent();
// Returns the max blocks per kernel, as configured for the last communicator that was made.
int fake_nccl_blocks();
}
