#include "bench/checkpoint_benchmark.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/random/random.h"
#include "base/system/process_label.h"
#include "base/terminal/terminal.h"
#include "base/text/sizes.h"
#include "bench/benchmark_entry.h"
#include "lm/checkpoint/checkpoint.h"

namespace primus {
namespace {

// The shape of each tensor is that of a layer's matrix in a model with a few billion parameters.
constexpr std::int64_t kRows = 4096, kColumns = 4096;

// Returns random bytes, different in each tensor, so that file systems cannot compress or deduplicate them.
std::vector<std::byte> random_bytes(std::uint64_t count, std::uint32_t which) {
  const RandomStream stream(20261122, RandomPurpose::kTest, which);
  std::vector<std::byte> bytes(static_cast<std::size_t>((count + 15) / 16 * 16));
  for (std::size_t i = 0; i < bytes.size(); i += 16) {
    const Philox::Counter words = stream.quad(i / 16);
    std::memcpy(bytes.data() + i, words.data(), 16);
  }
  bytes.resize(static_cast<std::size_t>(count));
  return bytes;
}

struct Content {
  std::vector<std::vector<std::byte>> bytes;
  Snapshot snapshot;
  std::uint64_t size = 0;
};

// Makes a checkpoint of about `bytes` bytes. A bf16 weight of n elements, its fp32 master weight and two
// moments need 14 n bytes.
Content make_content(std::uint64_t bytes) {
  Content content;
  std::uint64_t elements = std::max<std::uint64_t>(bytes / 14 / kColumns, 1) * kColumns;
  std::uint32_t number = 0;
  while (elements > 0) {
    const auto rows = static_cast<std::int64_t>(std::min<std::uint64_t>(elements / kColumns, kRows));
    const std::string name = fmt::format("layer{}.weight", number / 4);
    const auto add = [&](std::vector<TensorSource>& part, const std::string& full, DType dtype) {
      const auto size = static_cast<std::uint64_t>(rows * kColumns * size_of(dtype));
      content.bytes.push_back(random_bytes(size, number++));
      part.push_back(
          {.name = full, .dtype = dtype, .shape = {rows, kColumns}, .data = content.bytes.back().data()});
      content.size += size;
    };
    add(content.snapshot.model, name, DType::kBF16);
    for (const char* state : {"fp32_param", "exp_avg", "exp_avg_sq"})
      add(content.snapshot.optimizer, optimizer_tensor_name(state, name), DType::kF32);
    elements -= static_cast<std::uint64_t>(rows * kColumns);
  }
  content.snapshot.files = {{"config.json", "{}"}};
  return content;
}

// Asks the system to drop these files from the page cache. They must be synced already.
void drop_cache(const Path& folder, Env& env) {
  for (const std::string& name : env.list(folder)) {
    const int file = ::open((folder / name).c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) continue;
    ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    ::close(file);
  }
}

void load(const Path& folder, const Content& content, std::vector<std::byte>& buffer, Env& env) {
  // open() verifies only the structure. The checksum of a tensor is verified when the tensor is read.
  const CheckpointReader reader = CheckpointReader::open(folder, Validation::kStructure, env);
  for (const TensorPart part : {TensorPart::kModel, TensorPart::kOptimizer}) {
    const auto& tensors = part == TensorPart::kModel ? content.snapshot.model : content.snapshot.optimizer;
    for (const TensorSource& tensor : tensors) {
      buffer.resize(static_cast<std::size_t>(tensor.bytes()));
      reader.read(part, tensor.name, tensor.dtype, tensor.shape, buffer);
      if (std::memcmp(buffer.data(), tensor.data, buffer.size()) != 0)
        throw Error(ErrorKind::kIo,
                    fmt::format("{}: {} differs from what was written", folder.string(), tensor.name),
                    "do not keep checkpoints there; check the disk or the file server for errors");
    }
  }
}

void check_room(const Path& folder, std::uint64_t bytes) {
  struct statvfs space {};
  if (::statvfs(folder.c_str(), &space) != 0) return;  // a later write fails with a more helpful error
  const std::uint64_t free = static_cast<std::uint64_t>(space.f_bavail) * space.f_frsize;
  if (free > 2 * bytes + (std::uint64_t{64} << 20)) return;
  throw invalid(fmt::format("{} has {} free, too little for two checkpoints of {}", folder.string(),
                            human_bytes(static_cast<double>(free)), human_bytes(static_cast<double>(bytes))),
                "give a smaller --size, or another --path");
}

}  // namespace

BenchmarkReport benchmark_checkpoint(const CheckpointBenchmarkOptions& options, Env& env) {
  if (options.repetitions < 1) throw invalid("a measurement needs at least one repetition");
  make_folders(options.folder, env);
  check_room(options.folder, options.bytes);
  const Path place = options.folder / (".primus-benchmark-" + process_label());
  make_folders(place, env);
  std::vector<double> saved, loaded, loaded_cold;
  Content content = make_content(options.bytes);
  WrittenBytes written;
  const auto timed = [](std::vector<double>& samples, const auto& work) {
    const double begin = steady_seconds();
    work();
    samples.push_back(std::max(steady_seconds() - begin, 1e-9));
  };
  try {
    CheckpointRoot root(place, {.keep_last = 1, .max_shard_bytes = options.shard_bytes}, env);
    std::vector<std::byte> buffer;
    // The first repetition is a warm-up: it creates folders and touches the buffer's pages.
    for (int i = 0; i <= options.repetitions; ++i) {
      if (options.progress) options.progress(i);
      content.snapshot.iteration = i + 1;
      std::vector<double> first;
      timed(i == 0 ? first : saved, [&] { root.save(content.snapshot); });
      const Path folder = root.folder(content.snapshot.iteration);
      timed(i == 0 ? first : loaded, [&] { load(folder, content, buffer, env); });
      drop_cache(folder, env);
      timed(i == 0 ? first : loaded_cold, [&] { load(folder, content, buffer, env); });
    }
    written = root.last_written();
  } catch (...) {
    try_remove_tree(place, env);
    throw;
  }
  remove_tree(place, env);

  BenchmarkReport report{.suite = "checkpoint",
                         .device = fmt::format("{} in {}", human_bytes(static_cast<double>(content.size)),
                                               options.folder.string()),
                         .dtype = {}};
  const auto add = [&](const char* name, std::vector<double> samples) {
    report.results.push_back(
        {.name = name, .timing = summarize(std::move(samples)), .bytes = static_cast<double>(content.size)});
  };
  add("save, synced", std::move(saved));
  add("load after a save", std::move(loaded));
  add("load, cache dropped", std::move(loaded_cold));
  report.notes.push_back(fmt::format("{} of the {} of a save bypassed the page cache (O_DIRECT)",
                                     human_bytes(static_cast<double>(written.direct)),
                                     human_bytes(static_cast<double>(written.all))));
  report.notes.emplace_back("the page cache is dropped before reads, if the file system supports it");
  return report;
}

namespace {

class CheckpointBenchmark final : public Benchmark {
  std::vector<BenchmarkOption> options() override {
    return {{"--path", "FOLDER",
             "folder to test; the benchmark makes its own folder there and removes it at the end", &folder_},
            {"--size", "SIZE", "size of a checkpoint: weights, master weights and two moments", &size_},
            {"--shard-size", "SIZE", "maximum size of a file", &shard_},
            {.names = "--repeat",
             .value = "N",
             .help = "repetitions of saving and loading",
             .target = &repetitions_,
             .range = {{1, 1000}}}};
  }
  void check() override {
    constexpr std::int64_t kMaxBytes = std::int64_t{1} << 42;
    const std::vector<std::int64_t> size = parse_sizes("--size", size_, kMaxBytes),
                                    shard = parse_sizes("--shard-size", shard_, kMaxBytes);
    if (size.size() != 1 || shard.size() != 1) throw invalid("--size and --shard-size take one size each");
    std::error_code none;
    if (folder_ != kOutput && !std::filesystem::is_directory(folder_, none)) {
      throw invalid(fmt::format("--path: folder '{}' does not exist", folder_),
                    fmt::format("correct the path, or create the folder: mkdir -p '{}'", folder_));
    }
    options_ = {.folder = folder_,
                .bytes = static_cast<std::uint64_t>(size.front()),
                .shard_bytes = static_cast<std::uint64_t>(shard.front()),
                .repetitions = static_cast<int>(repetitions_)};
  }
  BenchmarkReport measure(const BenchmarkRun& run) override {
    options_.progress = run.measured;
    return benchmark_checkpoint(options_);
  }

  CheckpointBenchmarkOptions options_;
  static constexpr std::string_view kOutput = "output";  // the workspace of runs, which the benchmark creates
  std::string folder_{kOutput}, size_ = "1G", shard_ = "4G";
  std::int64_t repetitions_ = 5;
};

}  // namespace

extern const BenchmarkEntry kCheckpointEntry{.name = "checkpoint",
                                             .make = make_benchmark<CheckpointBenchmark>};

}  // namespace primus
