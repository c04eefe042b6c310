#include "safe/preflight/storage.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/files/crc32c.h"
#include "base/files/piece_writer.h"
#include "base/random/random.h"
#include "base/system/process_label.h"
#include "base/terminal/terminal.h"
#include "safe/preflight/guard.h"

namespace primus::preflight {

struct Times {
  double write = 0, sync = 0, name = 0;  // seconds of writing, of syncing, and of renaming
  bool same = false;                     // whether the data read equals the data written
};

struct StorageFacts {
  const StorageOptions& options;
  Guarded<Times> times;
  double rate() const {  // MB/s
    return static_cast<double>(options.bytes) / (times.value->write + times.value->sync) * 1e-6;
  }
};

namespace {

constexpr std::size_t kBlock = std::size_t{4} << 20;

// Returns data that file systems cannot compress or deduplicate.
std::vector<std::byte> block_of(std::uint32_t number) {
  const RandomStream stream(20261122, RandomPurpose::kTest, number);
  std::vector<std::byte> block(kBlock);
  for (std::size_t i = 0; i < kBlock; i += 16) {
    const Philox::Counter words = stream.quad(i / 16);
    std::memcpy(block.data() + i, words.data(), 16);
  }
  return block;
}

Times run(const Path& folder, std::uint64_t bytes, Env& env) {
  const Path place = folder / (".primus-preflight-" + process_label());  // a unique name, because all nodes
                                                                         // may test at the same time
  Times times;
  make_folders(place, env);
  try {
    const std::vector<std::byte> block = block_of(1);
    const Path file = place / "partial", whole = place / "whole";
    double begin = steady_seconds();
    const auto out = env.open(file, OpenMode::kWrite);
    PieceWriter pieces;  // writes in the same way as checkpoints
    pieces.start(*out);
    std::uint32_t written = 0;
    for (std::uint64_t at = 0; at < bytes; at += kBlock) {
      const std::span data(block.data(),
                           static_cast<std::size_t>(std::min<std::uint64_t>(kBlock, bytes - at)));
      pieces.write(data, at);
      written = crc32c(written, data);
    }
    pieces.flush();
    times.write = steady_seconds() - begin;
    begin = steady_seconds();
    out->sync();
    out->close();
    times.sync = steady_seconds() - begin;
    begin = steady_seconds();
    env.rename(file, whole);
    env.sync_folder(place);
    times.name = steady_seconds() - begin;

    const auto in = env.open(whole, OpenMode::kRead);
    std::vector<std::byte> buffer(kBlock);
    std::uint32_t read = 0;
    std::uint64_t at = 0;
    for (std::size_t got = 0; (got = in->read_at(buffer, at)) > 0; at += got)
      read = crc32c(read, std::span<const std::byte>(buffer.data(), got));
    times.same = read == written && at == bytes;
  } catch (...) {
    try_remove_tree(place, env);
    throw;
  }
  remove_tree(place, env);
  return times;
}

void judge_unwritable(const StorageFacts& facts, Judge& judge) {
  const StorageOptions& options = facts.options;
  const std::string where = options.folder.string();
  const bool late = facts.times.timed_out;
  judge.fail({.where = where,
              .measured = late ? fmt::format("{}: {} could not be written within {} s", where,
                                             human_bytes(static_cast<double>(options.bytes)),
                                             options.timeout.count() / 1000)
                               : facts.times.problem,
              .wanted = "a file that is written, synced, renamed and read back",
              .source = "the file operations of a checkpoint",
              .fix = late ? "check the file server and the network to it, or choose another folder"
                          : "free disk space or choose another folder; replace a disk that reports errors"});
}

void judge_checkpoints(const CheckInput& in, Judge& judge) {
  const StorageFacts& facts = in.facts<StorageFacts>();
  const StorageOptions& options = facts.options;
  if (!facts.times.value) {
    judge_unwritable(facts, judge);
    return;
  }
  const Times& times = *facts.times.value;
  const std::string where = options.folder.string();
  Finding finding{.where = where,
                  .measured = fmt::format(
                      "{}: {:.0f} MB/s ({} written in {}, synced in {}, renamed in {})", where, facts.rate(),
                      human_bytes(static_cast<double>(options.bytes)), human_duration(times.write),
                      human_duration(times.sync), human_duration(times.name)),
                  .wanted = fmt::format("at least {:g} MB/s", options.min_rate.value),
                  .source = options.min_rate.source};
  if (!times.same) {
    finding.measured = where + ": the data read differ from the data written";
    finding.wanted = "the same bytes";
    finding.fix = "do not keep checkpoints there: replace the disk, or check the file server for errors";
    judge.fail(std::move(finding));
  } else if (facts.rate() < options.min_rate.value) {
    finding.fix = "choose a faster file system, save less often (save_interval), or keep async_save=true";
    judge.warn(std::move(finding));
  } else if (times.name > 1) {
    finding.wanted = "at most 1 s to rename a file";
    finding.source = "every checkpoint has several files";
    finding.fix = "check the load of the file system's metadata server, or choose another folder";
    judge.warn(std::move(finding));
  } else {
    judge.pass(std::move(finding));
  }
}

}  // namespace

void check_storage(const StorageOptions& options, NodeReport& report, Env& env) {
  const StorageFacts facts{options, guarded<Times>([folder = options.folder, bytes = options.bytes,
                                                    &env] { return run(folder, bytes, env); },
                                                   options.timeout)};
  report.has_stuck_threads |= facts.times.timed_out;
  judge_group("storage", facts, report.findings);
  if (!facts.times.value) return;
  report.measurements.push_back({.name = "write and sync, checkpoints",
                                 .where = options.folder.string(),
                                 .unit = "MB/s",
                                 .value = facts.rate(),
                                 .wanted = options.min_rate.value,
                                 .compared = true});
}

extern const Check kStorageCheckpoints{"storage.checkpoints", "storage",
                                       "Can checkpoints be written to the folder fast enough?",
                                       judge_checkpoints};

}  // namespace primus::preflight
