#include "cli/benchmark/benchmark_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <thread>
#include <vector>

#include "base/error.h"
#include "comm/job.h"
#include "comm/local/thread_group.h"
#include "comm/mpi/current_job.h"
#include "turbo/devices/devices.h"

namespace primus::cli {
namespace {

int count_of(const std::string& kind) {
  for (const turbo::DeviceListing& listing : turbo::list_devices())
    if (listing.kind == kind) return static_cast<int>(listing.devices.size());
  return 1;
}

void describe(BenchmarkReport& report, const Device& device, int world, int nodes, const char* way) {
  report.device = fmt::format("{} | {} ranks on {} node{}, {}", device.description(), world, nodes,
                              nodes == 1 ? "" : "s", way);
}

const char* way_of(comm::Transport asked, const comm::JobEnvironment& place, int nodes) {
  using comm::Transport;
  switch (asked != Transport::kAuto ? asked : place.transport) {
    case Transport::kSharedMemory:
      return "shared memory";
    case Transport::kTcp:
      return "TCP";
    case Transport::kMpi:
      return "MPI";
    case Transport::kAuto:
      break;
  }
  if (nodes == 1) return "shared memory";
  return place.mpi ? "MPI and shared memory" : "TCP and shared memory";
}

}  // namespace

void BenchmarkRanks::declare(Arguments& args) {
  ranks_.declare(args, "ranks to start on this machine (default: one for each GPU; on CPUs 2)");
  args.option("--transport", "KIND", &transport_,
              "how ranks on CPUs communicate (mpi: under mpirun; threads: all ranks in one process)")
      .choices = {"auto", "shared-memory", "tcp", "mpi", "threads"};
}

void BenchmarkRanks::check_words() const {
  ranks_.check();
  if (transport_ != "threads") comm::parse_transport(transport_, "--transport");
}

int BenchmarkRanks::run(const DeviceOptions& device, const BenchmarkOutput& output, const SideBySide& jobs,
                        Console& console, const Measure& measure) const {
  const auto place = comm::current_job();
  ranks_.check_place(place);
  if (const auto note = ranks_.unused_master(); note && !place) console.note("note: " + *note);
  if (place && place->world > 1) return run_rank(*place, device, output, console, measure);
  const DeviceSpec spec = device.spec(console);
  const int ranks = ranks_.here().value_or(spec.kind == "cpu" ? 2 : count_of(spec.kind));
  if (ranks * ranks_.nodes() < 2)
    throw invalid("one rank has no other rank to communicate with",
                  "start several ranks: --nproc 2, or --nnodes");
  if (transport_ == "threads") return run_threads(ranks, device, output, console, measure);
  launch::LocalLaunch start = ranks_.start(ranks);
  start.environment = for_ranks(jobs);
  // Only rank 0's output is shown. The error of another rank is in the launch result.
  start.output_file = [](int) { return Path("/dev/null"); };
  const launch::LaunchResult result = launch::run_local(start);
  if (result.failed_rank > 0) console.note("error: " + result.failure);
  return result.exit_code;
}

int BenchmarkRanks::run_rank(const comm::JobEnvironment& place, const DeviceOptions& options,
                             const BenchmarkOutput& output, Console& console, const Measure& measure) const {
  if (transport_ == "threads")
    throw invalid("--transport threads is for one process, but a launcher started several",
                  "remove --transport");
  const comm::Transport transport = comm::parse_transport(transport_, "--transport");
  const auto job = comm::Job::connect(
      place, {.transport = transport, .notice = [&](const std::string& text) { console.note(text); }});
  BenchmarkReport report;
  try {
    const std::unique_ptr<Device> device =
        turbo::open_device(options.spec(console, place.local_rank, place.local_world));
    const DeviceCollectives* const collectives = turbo::collectives_of(*device);
    if (collectives && transport_ != "auto")
      throw invalid(
          fmt::format("--transport {} is for ranks on CPUs; on {} the vendor's library chooses the transport",
                      transport_, device->description()),
          "leave --transport out, or set --device cpu");
    const std::unique_ptr<comm::Communicator> world = job->world(*device, collectives);
    report = measure(*world, *device);
    const int nodes = place.world / std::max(place.local_world, 1);
    describe(report, *device, place.world, nodes,
             collectives ? "the vendor's library" : way_of(transport, place, nodes));
  } catch (const Error& error) {
    job->abort(error.what(), error.kind());
    throw;
  }
  job->leave();
  return place.rank == 0 ? output.finish(report, console) : 0;
}

int BenchmarkRanks::run_threads(int ranks, const DeviceOptions& options, const BenchmarkOutput& output,
                                Console& console, const Measure& measure) const {
  if (options.spec(console).kind != "cpu")
    throw invalid("--transport threads is for CPUs: ranks with GPUs are processes", "remove --transport");
  if (ranks_.nodes() > 1) throw invalid("--transport threads is for one machine", "remove --nnodes");
  constexpr int kMaxThreads = 256;
  if (ranks > kMaxThreads)
    throw invalid(fmt::format("--transport threads supports at most {} ranks", kMaxThreads));
  auto worlds = comm::local::make_thread_group(ranks);
  std::vector<BenchmarkReport> reports(static_cast<std::size_t>(ranks));
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto i = static_cast<std::size_t>(rank);
      try {
        const std::unique_ptr<Device> device = turbo::open_device(options.spec(console, rank, ranks));
        reports[i] = measure(*worlds[i], *device);
        describe(reports[i], *device, ranks, 1, "threads");
      } catch (const std::exception& error) {
        failures[i] = std::current_exception();
        worlds[i]->abort(error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
  return output.finish(reports.front(), console);
}

}  // namespace primus::cli
