// An Env in memory that fails on purpose: crashes at the n-th operation, errors, full disks, and what a power
// failure leaves of data and names that were not synced. For tests; nothing here touches the real disk.
//
//   FaultEnv env;
//   env.crash_at(env.operations() + 7);
//   EXPECT_THROW(save(env), SimulatedCrash);
//   env.reboot(FaultEnv::Survivors::kSynced);  // then look at what is there
//
// Thread-safe. Files opened before a crash stay dead after reboot().
#pragma once

#include <cstdint>
#include <exception>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/files/file.h"

namespace primus {

// The program stops here. Not an Error, so that no handler of errors tidies up what a dead process could not.
class SimulatedCrash : public std::exception {
 public:
  const char* what() const noexcept override { return "simulated crash"; }
};

class FaultEnv : public Env {
 public:
  // What a crash leaves.
  enum class Survivors {
    kAll,     // the process died, the kernel did not (SIGKILL)
    kSynced,  // only what was synced: a power failure at its worst
    kRandom,  // of the rest some: names one by one, bytes sector by sector
  };

  FaultEnv();
  ~FaultEnv() override;

  // Operations so far: every call of Env and File but close and destructors.
  std::uint64_t operations() const;
  // The operation of that number (counted from 0) crashes, and all after it. Half of a write reaches the
  // file.
  void crash_at(std::uint64_t operation);
  // The operation of that number throws FileError(code); those after it work again. Half of a write reaches
  // the file.
  void fail_at(std::uint64_t operation, int code);
  // From now on all files together hold at most so many bytes; writes beyond it throw ENOSPC.
  void set_capacity(std::uint64_t bytes);
  // After a crash: the file system as the next start finds it. No more faults are set.
  void reboot(Survivors survivors, std::uint64_t seed = 0);
  // Changes one byte of a file, beneath everything: bit rot.
  void flip_bit(const Path& path, std::uint64_t bit);

  std::unique_ptr<File> open(const Path& path, OpenMode mode) override;
  MappedFile map(const Path& path) override;
  std::optional<FileStatus> status(const Path& path) override;
  bool is_link(const Path&) override { return false; }  // there are none here
  std::vector<std::string> list(const Path& folder) override;
  void make_folder(const Path& folder) override;
  void rename(const Path& from, const Path& to) override;
  void remove_file(const Path& path) override;
  void remove_folder(const Path& folder) override;
  void sync_folder(const Path& folder) override;
  std::uint64_t free_space(const Path& path) override;

 private:
  struct Node;
  class OpenFile;
  using NodePtr = std::shared_ptr<Node>;
  // Names that change together, e.g. both of a rename; null = gone.
  using NameChange = std::vector<std::pair<std::string, NodePtr>>;

  struct Node {
    bool is_folder = false;
    std::vector<std::byte> data, synced_data;
    std::map<std::string, NodePtr> names, synced_names;
    std::vector<NameChange> unsynced;
  };

  // Counts an operation, and lets it fail as told. `torn`, when given, is set instead of throwing, so that a
  // write can take its half first and then call fail_torn().
  void begin(const Path& path, bool* torn = nullptr);
  [[noreturn]] void fail_now(const Path& path);
  NodePtr find(const Path& path) const;
  NodePtr folder_of(const Path& path) const;
  static void change(Node& folder, NameChange names);
  static std::uint64_t bytes_in(const Node& node);
  void write(Node& node, const Path& path, std::span<const std::byte> data, std::uint64_t offset);
  void survive(Node& node, Survivors survivors, std::uint64_t& random);

  static constexpr auto kNever = std::numeric_limits<std::uint64_t>::max();
  mutable std::mutex mutex_;
  NodePtr root_;
  std::uint64_t operations_ = 0, crash_at_ = kNever, fail_at_ = kNever, capacity_ = kNever;
  int fail_code_ = 0;
  bool dead_ = false;
  std::uint64_t boot_ = 0;  // counts reboots: files of an earlier one are dead
};

}  // namespace primus
