// One rank of a job, for tests: rank_program SCENARIO [auto|shm|tcp|mpi] [FOLDER]. Prints failures, and exits
// with 0 or with the error's exit code. DEVICE=cuda runs it on GPU number LOCAL_RANK (scripts/gpu_check.sh).
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <thread>

#include "base/error.h"
#include "comm/conformance.h"
#include "comm/job.h"
#include "comm/mpi/current_job.h"
#include "turbo/devices/devices.h"

namespace primus::comm {
namespace {

using namespace std::chrono_literals;

struct Scene {
  Job& job;
  Communicator& world;
  Device& device;
  Stream& stream;
  test::Order order;  // order of sums

  Tensor zeros(std::int64_t count) const {
    return {device.allocate(count * size_of(DType::kF32)), DType::kF32, {count}};
  }
};

int conform(Scene& s) {
  test::Conformance conformance(s.world, s.device, s.stream, s.order);
  std::string wrong = conformance.run(s.world.size() <= 3 ? std::vector<std::int64_t>{0, 1, 7, 1021, 150001}
                                                          : std::vector<std::int64_t>{0, 1, 7, 2503});
  // Even and odd ranks make their groups at the same time.
  std::vector<int> half;
  for (int rank = 0; rank < s.world.size(); ++rank) {
    if (rank % 2 == s.world.rank() % 2) half.push_back(rank);
  }
  const auto group = s.world.split(half, "half");
  wrong += test::Conformance(*group, s.device, s.stream, s.order).run({7, 2503});
  std::fputs(wrong.c_str(), stderr);
  return wrong.empty() ? 0 : 1;
}

// All ranks sum forever, until a test ends them.
[[noreturn]] void sum_for_ever(Scene& s) {
  const Tensor tensor = s.zeros(100000);
  for (;;) s.world.all_reduce(s.stream, tensor, tensor, Reduction::kMax);
}

// Kills this process in a moment.
void die_soon() {
  std::thread([] {
    std::this_thread::sleep_for(100ms);
    kill(getpid(), SIGKILL);
  }).detach();
}

int die_at(Scene& s, int rank) {
  if (s.world.rank() == rank) die_soon();
  sum_for_ever(s);
}

int die(Scene& s) { return die_at(s, s.world.size() - 1); }
int die_first(Scene& s) { return die_at(s, 0); }

// The last rank is killed while all ranks send rows to each other.
int die_sending_rows(Scene& s) {
  constexpr std::int64_t kPart = 64, kWidth = 512;
  const std::int64_t ranks = s.world.size();
  const Tensor in = s.zeros(ranks * kPart * kWidth).reshaped({ranks * kPart, kWidth}),
               out = s.zeros(in.elements()).reshaped(in.shape);
  const Tensor counts(s.device.allocate(ranks * 4), DType::kI32, {ranks});
  const std::vector<std::int32_t> host(static_cast<std::size_t>(ranks), static_cast<std::int32_t>(kPart));
  s.stream.copy_to_device(counts.data, host.data(), counts.bytes());
  s.stream.synchronize();
  s.world.all_to_all_rows(s.stream, in, counts, out, counts);
  s.stream.synchronize();
  if (s.world.rank() == ranks - 1) die_soon();
  for (;;) s.world.all_to_all_rows(s.stream, in, counts, out, counts);
}

int hang(Scene& s) {
  s.world.barrier(s.stream);
  s.stream.synchronize();
  s.job.state().timeout = 500ms;
  while (s.world.rank() == 1 && !s.job.state().abort->aborted()) std::this_thread::sleep_for(5ms);
  sum_for_ever(s);
}

std::unique_ptr<Communicator> tensor_ranks(Scene& s) {
  std::vector<int> all;
  for (int rank = 0; rank < s.world.size(); ++rank) all.push_back(rank);
  return s.world.split(all, "tensor.0", Overlap::kProducts);
}

// Checks a group of tensor ranks, which may use another transport than the world.
int conform_tensor(Scene& s) {
  const auto group = tensor_ranks(s);
  std::printf("exchanges by copy engines: %s %s\n", group->by_copy_engines() ? "yes" : "no",
              group->why_no_copy_engines().c_str());
  const std::string wrong =
      test::Conformance(*group, s.device, s.stream, s.order).run({0, 1, 7, 1021, 400003});
  std::fputs(wrong.c_str(), stderr);
  return wrong.empty() ? 0 : 1;
}

// A scenario in which the device of rank 1 never reaches an exchange that its host has called.
int stuck(Scene& s) {
  const auto group = tensor_ranks(s);
  const Tensor own = s.zeros(1000), theirs = s.zeros(1000);
  const int other = 1 - s.world.rank();
  const auto swap = [&] {
    if (other < 0) return;
    group->exchange(s.stream, std::vector{Transfer::send(own, other), Transfer::receive(theirs, other)});
  };
  swap();
  s.stream.synchronize();
  if (s.world.rank() == 0) s.job.state().timeout = 500ms;
  if (s.world.rank() != 0) s.world.barrier(s.stream);
  swap();
  s.stream.synchronize();
  s.job.state().abort->check();
  return 0;
}

// Prints the time of all_to_all_rows() and of other calls that move the same rows.
int time_rows(Scene& s) {
  constexpr std::int64_t kPart = 16384, kWidth = 2048;  // rows per pair of ranks, and elements of a row
  constexpr int kWarm = 5, kCalls = 40;
  const std::int64_t ranks = s.world.size();
  const auto tensor = [&](DType dtype, const Shape& shape) {
    return Tensor(s.device.allocate(shape.elements() * size_of(dtype)), dtype, shape);
  };
  const Tensor in = tensor(DType::kBF16, {ranks * kPart, kWidth}), out = tensor(DType::kBF16, in.shape);
  const Tensor counts = tensor(DType::kI32, {ranks});
  const auto time = [&](const std::string& what, std::int64_t rows, auto call) {
    std::chrono::steady_clock::time_point begin;
    for (int i = 0; i < kWarm + kCalls; ++i) {
      if (i == kWarm) {
        s.world.barrier(s.stream);
        s.stream.synchronize();
        begin = std::chrono::steady_clock::now();
      }
      call();
    }
    s.stream.synchronize();
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / kCalls;
    const double bytes = static_cast<double>((ranks - 1) * rows * kWidth * 2);
    if (s.world.rank() == 0)
      std::printf("%-44s %6lld rows %8.1f us %7.1f GB/s\n", what.c_str(), static_cast<long long>(rows),
                  seconds * 1e6, bytes / seconds * 1e-9);
  };
  const auto copied = tensor_ranks(s);
  for (const std::int64_t rows : {kPart, kPart / 2, kPart / 8, std::int64_t{64}}) {
    const std::vector<std::int32_t> host(static_cast<std::size_t>(ranks), static_cast<std::int32_t>(rows));
    s.stream.copy_to_device(counts.data, host.data(), counts.bytes());
    s.stream.synchronize();
    const auto send = [&](RowCounts known) {
      s.world.all_to_all_rows(s.stream, in, counts, out, counts, known);
    };
    time("rows, counts unknown to the host", rows, [&] { send({}); });
    const std::uint64_t number = s.world.new_row_number();
    time("rows, counts known", rows, [&] { send({.number = number}); });
    std::vector<Transfer> transfers;
    for (int peer = 0; peer < ranks; ++peer) {
      if (peer == s.world.rank()) continue;
      transfers.push_back(Transfer::send(in.slice(peer * kPart, peer * kPart + rows), peer));
      transfers.push_back(Transfer::receive(out.slice(peer * kPart, peer * kPart + rows), peer));
    }
    time(copied->by_copy_engines() ? "exchange by copy engines" : "exchange by the library", rows,
         [&] { copied->exchange(s.stream, transfers); });
  }
  return 0;
}

int mismatch(Scene& s) {
  const Tensor tensor = s.zeros(64 - (s.world.rank() == 1 ? 1 : 0));
  s.world.all_reduce(s.stream, tensor, tensor, Reduction::kSum);
  s.world.barrier(s.stream);
  return 0;
}

int fail(Scene& s) {
  if (s.world.rank() == 1) throw invalid("the data set of rank 1 is broken");
  sum_for_ever(s);
}

int differ(Scene& s) {
  s.job.require_same({{"seed", "1"}, {"model", "llama"}});
  s.job.require_same({{"seed", "1"}, {"seq_length", s.job.rank() == 1 ? "2048" : "4096"}});
  return 0;
}

int run(int argc, char** argv) {
  const std::map<std::string, int (*)(Scene&)> scenes = {{"conform", conform},
                                                         {"conform_tensor", conform_tensor},
                                                         {"die", die},
                                                         {"die_first", die_first},
                                                         {"hang", hang},
                                                         {"mismatch", mismatch},
                                                         {"stuck", stuck},
                                                         {"fail", fail},
                                                         {"differ", differ},
                                                         {"time_rows", time_rows},
                                                         {"die_sending_rows", die_sending_rows}};
  const auto scene = scenes.find(argc > 1 ? argv[1] : "");
  const std::string transport = argc > 2 ? argv[2] : "auto";
  if (scene == scenes.end()) return 2;
  const auto environment = current_job();
  if (!environment) throw invalid("no launcher started this");
  if (std::getenv("IGNORE_SIGTERM")) signal(SIGTERM, SIG_IGN);
  const char* const absent = std::getenv("ABSENT_RANK");
  if (absent && std::atoi(absent) == environment->rank) std::this_thread::sleep_for(60s);
  JobOptions options;
  options.start_timeout = 60s;
  if (const char* seconds = std::getenv("START_TIMEOUT_MS"))
    options.start_timeout = std::chrono::milliseconds(std::atoi(seconds));
  if (const char* time = std::getenv("NOTICE_MS")) {
    options.notice_time = std::chrono::milliseconds(std::atoi(time));
    options.notice = [](const std::string& text) { std::fprintf(stderr, "%s\n", text.c_str()); };
  }
  if (const char* rank = std::getenv("TCP_RANK"); rank && std::atoi(rank) == environment->rank)
    options.transport = Transport::kTcp;
  if (transport == "shm") options.transport = Transport::kSharedMemory;
  if (transport == "tcp") options.transport = Transport::kTcp;
  if (transport == "mpi") options.transport = Transport::kMpi;
  if (argc > 3) options.flight_folder = argv[3];
  const auto job = Job::connect(*environment, options);
  int code = 0;
  try {
    const char* const kind = std::getenv("DEVICE");
    const std::unique_ptr<Device> device = turbo::open_device(
        kind && *kind ? DeviceSpec{kind, environment->local_rank, 0} : DeviceSpec{"cpu", 0, 1});
    const DeviceCollectives* const collectives = turbo::collectives_of(*device);
    const auto world = job->world(*device, collectives);
    const auto stream = device->create_stream(StreamKind::kCompute);
    Scene s{*job, *world, *device, *stream, collectives ? test::Order::kAny : test::Order::kRanks};
    code = scene->second(s);
    stream->synchronize();
  } catch (const Error& error) {
    job->abort(error.what(), error.kind());
    throw;
  }
  job->leave();
  return code;
}

}  // namespace
}  // namespace primus::comm

int main(int argc, char** argv) {
  try {
    return primus::comm::run(argc, argv);
  } catch (const primus::Error& error) {
    std::fprintf(stderr, "%s\n", error.render().c_str());
    return error.exit_code();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
