// A library of collectives with NCCL's interface for ranks that are threads of one process, on devices whose
// memory is the host's: "stream handles" are Stream objects of a CPU or guard device. What goes wrong with a
// real one can be ordered. Built as a shared library of its own, so that it is found as the real one is.
#pragma once

extern "C" {
// What this thread is told when it asks for the version.
void fake_nccl_version(int version);
// From now on asking for errors in communicators of this rank (of the group) gives `result`; 0: none.
void fake_nccl_error(int rank, int result);
// So many times a communicator says that it is not ready after each call; negative: for ever.
void fake_nccl_slowness(int times);
// Communicators that were made, and not destroyed or aborted.
int fake_nccl_alive();
// Communicators that were aborted.
int fake_nccl_aborted();
// The most blocks of a kernel that the last communicator may take, as its configuration says.
int fake_nccl_blocks();
}
