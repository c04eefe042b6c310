// Jobs whose ranks are threads on guard devices, with a library that has NCCL's interface (fake_nccl.h).
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "comm/job.h"
#include "device/collectives.h"
#include "device/cpu/cpu_stream.h"
#include "device/guard_device.h"
#include "turbo/kernel_table.h"

namespace primus::comm::test {

inline const KernelTable kNoKernels;

// The GPU of this thread's rank.
inline thread_local std::string this_gpu;
inline thread_local std::function<void()> this_guard;

inline constexpr const char* kFake[] = {FAKE_NCCL, nullptr};

inline DeviceCollectives fake_collectives(const char* const* files = kFake) {
  return {.library = "NCCL",
          .file_names = files,
          .installation = "the fake one",
          .stream_handle = [](Stream& stream) -> void* { return &stream; },
          .recording = [](Stream&) { return false; },
          .reached = [](Event& event) { return static_cast<cpu::CpuEvent&>(event).reached(); },
          .make_current = [](int) {},
          .identity = [](int) { return this_gpu; },
          .guard = [](Device&, std::function<void()> check) { this_guard = std::move(check); }};
}

struct Rank {
  Job& job;
  Device& device;
  int rank;
};

// Runs `body` once per rank of a job, each in its own thread. Returns each rank's exception text; "" if none.
inline std::vector<std::string> on_all_ranks(int ranks, const std::function<void(Rank&)>& body,
                                             CopyEngines copy_engines = CopyEngines::kAuto,
                                             CountedRows counted_rows = CountedRows::kAuto) {
  Socket listener = listen_on("127.0.0.1", 0);
  const std::uint16_t port = port_of(listener);
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    JobEnvironment environment;
    environment.rank = rank;
    environment.world = ranks;
    environment.master_port = port;
    environment.copy_engines = copy_engines;
    environment.counted_rows = counted_rows;
    if (rank == 0) environment.listening_socket = listener.release();
    threads.emplace_back([&, rank, environment] {
      this_gpu = "0000:0" + std::to_string(rank);
      std::unique_ptr<Job> job;
      try {
        job = Job::connect(environment, {.start_timeout = std::chrono::seconds(30)});
        primus::test::GuardDevice device(1, kNoKernels);
        Rank here{*job, device, rank};
        body(here);
        job->leave();
      } catch (const Error& error) {
        errors[static_cast<std::size_t>(rank)] = error.what();
        if (job) job->abort(error.what(), error.kind());
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(rank)] = std::string("not an Error: ") + error.what();
        if (job) job->abort(error.what());
      }
      this_guard = nullptr;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

inline std::vector<std::string> none(int ranks) {
  return std::vector<std::string>(static_cast<std::size_t>(ranks));
}

}  // namespace primus::comm::test
