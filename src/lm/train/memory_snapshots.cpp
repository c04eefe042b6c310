#include "lm/train/memory_snapshots.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <span>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/terminal/terminal.h"
#include "lm/checkpoint/snapshot_link.h"

namespace primus {
namespace {

using Kind = SnapshotFolder::Kind;

constexpr const char* kPlaceFile = "place.txt";

// Calls use(name, tensor) for each tensor that this rank stores and that a restart needs.
void for_each_tensor(TrainingSession& session, const std::function<void(std::string, const Tensor&)>& use) {
  const auto of_unit = [&](const engine::ParameterUnit& unit) {
    const auto name = [&](std::string_view what) {
      return fmt::format("{}.{}.{}", unit.number, unit.name, what);
    };
    const engine::StoredWeights& stored = unit.stored;
    if (!stored.values.absent()) use(name("values"), stored.values);
    if (!stored.master.absent() && stored.master.data != stored.values.data)
      use(name("master"), stored.master);
    if (!stored.remainder.absent()) use(name("remainder"), stored.remainder);
    for (const engine::UnitState& state : unit.states) {
      const std::string prefix = fmt::format("{}.{}", state.rule, state.spec.name);
      if (!state.values.absent()) use(name(prefix), state.values);
      if (!state.scales.absent()) use(name(prefix + ".scales"), state.scales);
    }
  };
  for (const engine::ParameterUnit& unit : session.store().units()) of_unit(unit);
  if (const engine::DelayedScales* const scales = session.scales()) {
    int number = 0;
    for (const engine::DelayedScales::Layer& layer : scales->layers()) {
      use(fmt::format("fp8.{}.history", number), layer.history);
      use(fmt::format("fp8.{}.scales", number++), layer.scales);
    }
  }
}

// Returns the bytes of all files below a folder. Other ranks may remove files meanwhile.
std::uint64_t bytes_below(const Path& folder) {
  std::uint64_t sum = 0;
  std::error_code error;
  for (std::filesystem::recursive_directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code gone;
    const std::uint64_t size = entry->is_regular_file(gone) ? entry->file_size(gone) : 0;
    if (!gone) sum += size;
  }
  return sum;
}

// Returns the folder that a supervisor has made for snapshots, if they are wanted.
std::optional<SnapshotFolder> given_folder(bool wanted) {
  const char* const folder = std::getenv(kSnapshotVariable);
  return wanted && folder && *folder ? std::optional(SnapshotFolder(Path(folder))) : std::nullopt;
}

}  // namespace

std::optional<TrainerState> newest_snapshot_state(const RunPlan& plan, bool wanted) {
  const std::optional<SnapshotFolder> folder = given_folder(wanted);
  if (!folder) return std::nullopt;
  try {
    const int rank = plan.ranks.rank();
    const std::vector<SnapshotId> own = folder->list(Kind::kOwn, rank);
    const auto newest = std::ranges::max_element(own, {}, &SnapshotId::iteration);
    if (newest == own.end()) return std::nullopt;
    return read_trainer_state(
        CheckpointReader::open(folder->snapshot(Kind::kOwn, rank, *newest), Validation::kStructure));
  } catch (const Error&) {
    return std::nullopt;  // MemorySnapshots::restore() reports it
  }
}

MemorySnapshots::MemorySnapshots(RunPlan& plan, TrainingSession& session, DeviceReader& reader, bool wanted)
    : plan_(plan), session_(session), reader_(reader), folder_(given_folder(wanted)) {
  if (wanted && !folder_ && plan.ranks.first()) {
    plan.log.warning(
        "snapshot_interval has no effect without --supervise: only its restarts can use snapshots in memory");
  }
}

std::int64_t MemorySnapshots::bytes() const {
  std::int64_t sum = 0;
  for_each_tensor(session_, [&](const std::string&, const Tensor& tensor) { sum += tensor.bytes(); });
  return sum;
}

// Describes the tensors' owner, because a snapshot fits only this place.
std::string MemorySnapshots::place() const {
  const engine::MeshShape& s = plan_.shape;
  return fmt::format("rank {} of {}, tensor {}, context {}, pipeline {}, expert {}", plan_.ranks.rank(),
                     plan_.ranks.size(), s.tensor, s.context, s.pipeline, s.expert);
}

std::vector<TensorSource> MemorySnapshots::sources() {
  std::vector<TensorSource> all;
  for_each_tensor(session_, [&](std::string name, const Tensor& tensor) {
    TensorSource& source = all.emplace_back();
    source.name = std::move(name);
    source.dtype = DType::kU8;
    source.shape = {tensor.bytes()};
    source.fill = [this, tensor](std::uint64_t offset, std::span<std::byte> out) {
      reader_.read(tensor, offset, out);
    };
  });
  return all;
}

bool MemorySnapshots::is_valid(const Path& snapshot, std::optional<CheckpointReader>& reader,
                               std::string& problem) {
  try {
    reader.emplace(CheckpointReader::open(snapshot));
    if (reader->file(kPlaceFile) != place())
      throw invalid("it belongs to another place: " + reader->file(kPlaceFile));
    for_each_tensor(session_, [&](const std::string& name, const Tensor& tensor) {
      const std::optional<TensorView> found = reader->find(TensorPart::kOptimizer, name);
      if (!found || static_cast<std::int64_t>(found->data.size()) != tensor.bytes())
        throw invalid("it lacks " + name);
    });
    return true;
  } catch (const Error& error) {
    reader.reset();
    problem = error.what();
    return false;
  }
}

bool MemorySnapshots::record_distrust(std::int64_t good) {
  try {
    std::vector<SnapshotId> first;
    // A partner may still have copies of earlier histories.
    for (std::string& history : folder_->histories(plan_.ranks.rank()))
      first.push_back({.history = std::move(history), .iteration = good + 1});
    folder_->distrust(plan_.ranks.rank(), first);
    return true;
  } catch (const Error& error) {
    plan_.log.warning("cannot record that snapshots in memory may be damaged: {}", error.what());
    return false;
  }
}

bool MemorySnapshots::distrust_after(std::int64_t good) {
  if (!on()) return true;
  bool recorded = record_distrust(good);
  if (!recorded) {
    // Without them, there is also space for the record.
    try {
      if (pending_) writer_->wait();
    } catch (const Error& error) {
      plan_.log.warning("the last snapshot could not be written to memory: {}", error.what());
    }
    pending_.reset();
    complete_.reset();
    try {
      folder_->keep_only(Kind::kOwn, plan_.ranks.rank(), {});
      plan_.log.warning("the snapshots of rank {} were removed from memory", plan_.ranks.rank());
    } catch (const Error& error) {
      plan_.log.warning("snapshots cannot be removed from memory: {}", error.what());
    }
    recorded = record_distrust(good);
  }
  return plan_.ranks.any(recorded);
}

// Makes sure that this rank has the snapshot among its own ones.
bool MemorySnapshots::obtain(const SnapshotId& id, bool& from_partner, std::string& problem) {
  const int rank = plan_.ranks.rank();
  const Path own = folder_->snapshot(Kind::kOwn, rank, id);
  if (Env::posix().status(own)) return true;
  from_partner = true;
  problem = "this host does not have it";
  try {
    // The host that takes a lost one's place may itself hold the copy.
    const Path copy = folder_->snapshot(Kind::kCopies, rank, id);
    if (Env::posix().status(copy)) {
      make_folders(own.parent_path());
      Env::posix().rename(copy, own);
      return true;
    }
    const std::optional<SnapshotLink> link = SnapshotLink::read(*folder_);
    if (!link) return false;
    return fetch_snapshot(*link, *folder_, rank, id, [&](const std::string& text) { problem = text; });
  } catch (const Error& error) {
    problem = error.what();
    return false;
  }
}

std::optional<MemorySnapshots::Restored> MemorySnapshots::restore(std::int64_t checkpoint) {
  if (!on()) return std::nullopt;
  SingleRank single;
  CheckpointGroup& group = plan_.ranks.group() ? *plan_.ranks.group() : single;
  const int rank = group.rank();
  const std::vector<SnapshotId> distrusted = snapshot_ids_of(in_step(
      group, [&] { return to_text(folder_->distrusted(rank)); },
      [&](const std::vector<std::string>& of_ranks) {
        std::vector<SnapshotId> all;
        for (const std::string& text : of_ranks) {
          for (SnapshotId& one : snapshot_ids_of(text)) {
            if (std::ranges::find(all, one) == all.end()) all.push_back(std::move(one));
          }
        }
        return to_text(all);
      }));
  const auto may_be_damaged = [&](const SnapshotId& one) {
    return std::ranges::any_of(distrusted, [&](const SnapshotId& first) {
      return first.history == one.history && one.iteration >= first.iteration;
    });
  };
  // The snapshots that any rank has, the newest first.
  const std::string candidates = in_step(
      group,
      [&] {
        std::vector<SnapshotId> here = folder_->list(Kind::kOwn, rank);
        for (SnapshotId& copy : folder_->list(Kind::kCopies, rank)) here.push_back(std::move(copy));
        return to_text(here);
      },
      [&](const std::vector<std::string>& of_ranks) {
        std::vector<SnapshotId> all;
        for (const std::string& text : of_ranks) {
          for (SnapshotId& one : snapshot_ids_of(text)) {
            const bool known = std::ranges::find(all, one) != all.end();
            if (one.iteration > checkpoint && !known && !may_be_damaged(one)) all.push_back(std::move(one));
          }
        }
        std::ranges::stable_sort(all, std::greater(), &SnapshotId::iteration);
        return to_text(all);
      });
  for (const SnapshotId& id : snapshot_ids_of(candidates)) {
    std::optional<CheckpointReader> reader;
    bool from_partner = false;
    const std::string verdict = in_step(
        group,
        [&] {
          std::string problem;
          const Path own = folder_->snapshot(Kind::kOwn, rank, id);
          const auto valid_here = [&](std::string& why) {
            return obtain(id, from_partner, why) && is_valid(own, reader, why);
          };
          bool valid = valid_here(problem);
          if (!valid && !from_partner) {
            // It is damaged; another host may have a good copy.
            try_remove_tree(own);
            std::string later;
            valid = valid_here(later);
          }
          return !valid ? "-" + problem : std::string(from_partner ? "partner" : "memory");
        },
        [&](const std::vector<std::string>& answers) {
          std::string best = "memory";
          for (std::size_t r = 0; r < answers.size(); ++r) {
            if (answers[r].starts_with('-')) return fmt::format("-rank {}: {}", r, answers[r].substr(1));
            if (answers[r] == "partner") best = answers[r];
          }
          return best;
        });
    if (verdict.starts_with('-')) {
      if (plan_.ranks.first())
        plan_.log.warning("the snapshot of step {} in memory is not used: {}", id.iteration,
                          verdict.substr(1));
      continue;
    }
    load(*reader);
    complete_ = id;
    return Restored{.reader = std::move(*reader), .from_partner = verdict == "partner"};
  }
  return std::nullopt;
}

void MemorySnapshots::load(const CheckpointReader& reader) {
  engine::Rank& rank = session_.rank();
  for_each_tensor(session_, [&](const std::string& name, const Tensor& tensor) {
    const std::optional<TensorView> found = reader.find(TensorPart::kOptimizer, name);
    rank.compute().copy_to_device(tensor.data, found->data.data(), tensor.bytes());
  });
  rank.compute().synchronize();
  session_.store().refresh_values(rank.context());
}

void MemorySnapshots::open() {
  if (!on()) return;
  const int rank = plan_.ranks.rank();
  std::vector<SnapshotId> kept;
  if (complete_) kept.push_back(*complete_);
  folder_->keep_only(Kind::kOwn, rank, kept);
  history_ = plan_.ranks.from_first(new_history());
  const Path root = folder_->history(Kind::kOwn, rank, history_);
  // With several hosts, this one also holds two copies of as many ranks of another host.
  const int of_others = plan_.ranks.on_host() < plan_.ranks.size() ? 2 : 0;
  const auto needed = static_cast<std::uint64_t>(bytes()) * static_cast<std::uint64_t>(2 + of_others) *
                      static_cast<std::uint64_t>(plan_.ranks.on_host());
  const std::uint64_t held = bytes_below(folder_->root());
  const std::uint64_t free = held + Env::posix().free_space(folder_->root());
  const bool lacks = plan_.ranks.any(needed > free);
  if (lacks) {
    const auto amount = [](std::uint64_t count) { return human_bytes(static_cast<double>(count)); };
    throw invalid(fmt::format("snapshot_interval: the snapshots on this host need {} in '{}', and {} "
                              "are free (or another host lacks memory)",
                              amount(needed), folder_->root().string(), amount(free)),
                  "set snapshot_interval=0, or give the memory file system more space (mount -o "
                  "remount,size=... /dev/shm)");
  }
  make_folders(root);
  folder_->record_history(rank, history_);
  has_partners_ = SnapshotLink::read(*folder_).has_value();
  writer_ = std::make_unique<AsyncWriter>(root, SaveOptions{});
}

// Returns whether the supervisor has copied the snapshot to another host, or has found none that takes it.
bool MemorySnapshots::has_copy(const SnapshotId& id) {
  if (!has_partners_) return true;
  try {
    const auto copied = folder_->copied(plan_.ranks.rank());
    if (!copied || copied->id != id) return false;
    if (!copied->exists && !std::exchange(warned_of_copies_, true)) {
      plan_.log.warning(
          "the snapshots in this host's memory have no copy: no other host can be reached, or has space; "
          "after "
          "the loss of this host, the run continues from the disk");
    }
    return true;
  } catch (const Error&) {
    return false;  // the next look tries again
  }
}

// Returns whether this rank's part of the pending snapshot is complete, or has failed (failure_).
bool MemorySnapshots::is_done() {
  if (failure_) return true;
  try {
    writer_->check();
  } catch (const Error& error) {
    failure_ = error.what();
    return true;
  }
  return writer_->last_saved() == pending_->iteration && has_copy(*pending_);
}

MemorySnapshots::Settled MemorySnapshots::settle() {
  if (!writer_) return {};
  if (!pending_) return {.free = true};
  if (plan_.ranks.any(!is_done())) {
    constexpr int kMany = 10;
    if (++unfinished_ == kMany && plan_.ranks.first() && !std::exchange(warned_of_time_, true)) {
      plan_.log.warning(
          "the snapshot of step {} is still not complete after {} intervals: writing or copying it takes "
          "long; restarts continue from older states. Raise snapshot_interval or snapshot_copy_rate",
          pending_->iteration, kMany);
    }
    return {};
  }
  unfinished_ = 0;
  const SnapshotId written = *std::exchange(pending_, std::nullopt);
  const std::optional<std::string> failure = std::exchange(failure_, std::nullopt);
  if (failure && !std::exchange(warned_, true)) {
    plan_.log.warning(
        "the snapshot of step {} could not be written to memory: {}; the run continues, and its restarts use "
        "older "
        "states",
        written.iteration, *failure);
  }
  const bool failed = plan_.ranks.any(failure.has_value());
  if (!failed) complete_ = written;
  std::vector<SnapshotId> kept;
  if (complete_) kept.push_back(*complete_);
  try {
    folder_->keep_only(Kind::kOwn, plan_.ranks.rank(), kept);
    // AsyncWriter writes below this folder.
    make_folders(folder_->history(Kind::kOwn, plan_.ranks.rank(), history_));
  } catch (const Error& error) {
    plan_.log.warning("older snapshots cannot be removed from memory: {}", error.what());
  }
  return {.completed = failed ? std::nullopt : std::optional(written.iteration), .free = true};
}

void MemorySnapshots::take(std::int64_t iteration, std::string trainer_state) {
  Snapshot snapshot;
  snapshot.iteration = iteration;
  snapshot.files = {{kPlaceFile, place()}};
  snapshot.trainer_state = std::move(trainer_state);
  snapshot.optimizer = sources();
  const bool on_host = session_.rank().device().properties().host_memory;
  pending_ = SnapshotId{.history = history_, .iteration = iteration};
  writer_->save(std::move(snapshot), on_host ? AsyncWriter::Sources::kLive : AsyncWriter::Sources::kOnDevice);
}

void MemorySnapshots::wait_copied() {
  if (writer_) writer_->wait_copied();
}

}  // namespace primus
