// Measures communication between ranks on this machine: time and GB/s (bytes of the full tensor over time) of
// fp32 collectives, and the latency of the smallest collectives. Reports the best repetition, because
// disturbances only make repetitions longer.
//
//   comm_bench [--ranks N] [--transport threads|rings|shm|tcp|gpu] [--megabytes N] [--repeat N]
//   mpirun -n N comm_bench --transport mpi [...]
//
// threads: ranks are threads that read each other's memory; rings: threads that communicate through byte
// rings; shm and tcp: processes over shared memory and loopback; mpi: ranks started by mpirun; gpu: one
// process per GPU, over the vendor's library.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string_view>
#include <thread>
#include <vector>

#include "base/error.h"
#include "comm/job.h"
#include "comm/local/thread_group.h"
#include "comm/mpi/current_job.h"
#include "launch/ranks/local_launch.h"
#include "turbo/devices/devices.h"

namespace primus::comm {
namespace {

struct Options {
  int ranks = 2, megabytes = 64, repeat = 9;
  std::string_view transport = "threads";
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    const char* const value = i + 1 < argc ? argv[++i] : nullptr;
    if (value && name == "--transport") {
      options.transport = value;
      continue;
    }
    int* const slot = name == "--ranks"       ? &options.ranks
                      : name == "--megabytes" ? &options.megabytes
                      : name == "--repeat"    ? &options.repeat
                                              : nullptr;
    const char* const end = value ? value + std::strlen(value) : nullptr;
    if (!slot || !value || std::from_chars(value, end, *slot).ptr != end || *slot < 1 || *slot > 4096) {
      throw invalid(fmt::format("cannot use '{}'", name), "see the head of benchmarks/comm/comm_bench.cpp");
    }
  }
  for (const std::string_view known : {"threads", "rings", "shm", "tcp", "mpi", "gpu"}) {
    if (options.transport == known) return options;
  }
  throw invalid(fmt::format("there is no transport '{}'", options.transport),
                "threads, rings, shm, tcp, mpi or gpu");
}

double seconds_of(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void measure(Communicator& comm, Device& device, const Options& options) {
  const auto stream = device.create_stream(StreamKind::kCompute);
  const int n = comm.size();
  const std::int64_t count = std::int64_t{options.megabytes} * (1 << 20) / 4 / n * n, part = count / n;
  const auto filled = [&](std::int64_t elements) {
    const std::vector<float> ones(static_cast<std::size_t>(elements), 1.0F);
    const Tensor tensor(device.allocate(elements * 4), DType::kF32, {elements});
    stream->copy_to_device(tensor.data, ones.data(), tensor.bytes());
    stream->synchronize();
    return tensor;
  };
  const Tensor in = filled(count), out = filled(count), small = filled(1);
  const Tensor small_part(in.data, DType::kF32, {part}), out_part(out.data, DType::kF32, {part});

  const auto report = [&](const char* name, std::int64_t calls, double bytes,
                          const std::function<void()>& call) {
    double best = 1e9;
    for (int i = 0; i <= options.repeat; ++i) {  // the first repetition is a warm-up
      comm.barrier(*stream);
      stream->synchronize();
      const double seconds = seconds_of([&] {
        for (std::int64_t c = 0; c < calls; ++c) call();
        stream->synchronize();
      });
      if (i > 0) best = std::min(best, seconds / static_cast<double>(calls));
    }
    // The time of a collective is the time of the slowest rank.
    std::vector<float> times{static_cast<float>(best)};
    stream->copy_to_device(small.data, times.data(), small.bytes());
    comm.all_reduce(*stream, small, small, Reduction::kMax);
    stream->copy_to_host(times.data(), small.data, small.bytes());
    stream->synchronize();
    const double slowest = times.front();
    if (comm.rank() != 0) return;
    if (bytes > 0) {
      fmt::print("{:<28}{:>10.2f} ms {:>8.2f} GB/s\n", name, slowest * 1e3, bytes / slowest * 1e-9);
    } else {
      fmt::print("{:<28}{:>10.2f} us\n", name, slowest * 1e6);
    }
    std::fflush(stdout);
  };
  const double bytes = static_cast<double>(count) * 4;
  const auto size = static_cast<std::size_t>(n);
  const std::vector<std::int64_t> counts(size, part);
  if (comm.rank() == 0) {
    fmt::print("{} ranks, {}, {} MiB of fp32\n", n, options.transport, options.megabytes);
    double best = 1e9;
    for (int i = 0; i < options.repeat; ++i) {
      best = std::min(best, seconds_of([&] {
                        stream->copy_on_device(out.data, in.data, in.bytes());
                        stream->synchronize();
                      }));
    }
    fmt::print("{:<28}{:>10.2f} ms {:>8.2f} GB/s\n", "a copy by one rank", best * 1e3, bytes / best * 1e-9);
  }
  report("all_reduce", 1, bytes, [&] { comm.all_reduce(*stream, in, out, Reduction::kSum); });
  report("all_reduce in place", 1, bytes, [&] { comm.all_reduce(*stream, in, in, Reduction::kMax); });
  report("reduce_scatter", 1, bytes, [&] { comm.reduce_scatter(*stream, in, out_part, Reduction::kSum); });
  report("all_gather", 1, bytes, [&] { comm.all_gather(*stream, small_part, out); });
  report("broadcast", 1, bytes, [&] { comm.broadcast(*stream, out, 0); });
  report("all_to_all", 1, bytes, [&] { comm.all_to_all(*stream, in, counts, out, counts); });
  const int next = (comm.rank() + 1) % n, before = (comm.rank() + n - 1) % n;
  report("exchange in a ring", 1, bytes, [&] {
    comm.exchange(*stream, std::vector{Transfer::send(in, next), Transfer::receive(out, before)});
  });
  report("all_reduce of 4 bytes", 1000, 0, [&] { comm.all_reduce(*stream, small, small, Reduction::kMax); });
  report("barrier", 1000, 0, [&] { comm.barrier(*stream); });
}

const DeviceSpec kOneThread{.kind = "cpu", .threads = 1};

// Returns the GPU of this rank, of the kind of this machine's GPUs.
DeviceSpec gpu_of(const JobEnvironment& environment) {
  DeviceSpec spec = turbo::choose_device({});
  if (spec.kind == "cpu") throw invalid("there is no GPU", "'primus device list' says why");
  spec.ordinal = environment.local_rank;
  return spec;
}

int run(int argc, char** argv) {
  const Options options = parse(argc, argv);
  if (const auto environment = current_job()) {
    JobOptions job_options;
    job_options.transport = options.transport == "tcp"   ? Transport::kTcp
                            : options.transport == "mpi" ? Transport::kMpi
                                                         : Transport::kSharedMemory;
    const auto job = Job::connect(*environment, job_options);
    const auto device = turbo::open_device(options.transport == "gpu" ? gpu_of(*environment) : kOneThread);
    measure(*job->world(*device, turbo::collectives_of(*device)), *device, options);
    job->leave();
    return 0;
  }
  if (options.transport == "threads" || options.transport == "rings") {
    const auto comms = local::make_thread_group(options.ranks, {.rings = options.transport == "rings"});
    std::vector<std::thread> threads;
    for (const auto& comm : comms) {
      threads.emplace_back([&] { measure(*comm, *turbo::open_device(kOneThread), options); });
    }
    for (std::thread& thread : threads) thread.join();
    return 0;
  }
  launch::LocalLaunch launch;
  launch.command.assign(argv, argv + argc);
  launch.command[0] = "/proc/self/exe";
  launch.ranks = options.ranks;
  const launch::LaunchResult result = launch::run_local(launch);
  if (result.exit_code != 0) std::fprintf(stderr, "%s\n", result.failure.c_str());
  return result.exit_code;
}

}  // namespace
}  // namespace primus::comm

int main(int argc, char** argv) {
  try {
    return primus::comm::run(argc, argv);
  } catch (const primus::Error& error) {
    std::fprintf(stderr, "%s\n", error.render().c_str());
    return error.exit_code();
  }
}
