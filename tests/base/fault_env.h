// An Env in memory for tests that fails on purpose: crashes at the n-th operation, errors, full disks, and
// power failures that lose data and names that were not synced. It never touches the real disk.
//
//   FaultEnv env;
//   env.crash_at(env.operations() + 7);
//   EXPECT_THROW(save(env), SimulatedCrash);
//   env.reboot(FaultEnv::Survivors::kSynced);  // then check the remaining files
//
// Thread-safe. Files opened before a crash cannot be used after reboot().
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

// The simulated end of the program. It is not an Error, so that no error handler cleans up what a dead
// process would leave.
class SimulatedCrash : public std::exception {
 public:
  const char* what() const noexcept override { return "simulated crash"; }
};

class FaultEnv : public Env {
 public:
  // The data that survives a crash.
  enum class Survivors {
    kAll,     // the process dies and the kernel survives (SIGKILL): everything
    kSynced,  // only synced data: the worst power failure
    kRandom,  // synced data, and a random part of the unsynced names and sectors
  };

  FaultEnv();
  ~FaultEnv() override;

  // Counts all calls of Env and File except close and destructors.
  std::uint64_t operations() const;
  // Crashes in operation `operation` (from 0) and in all later ones. Half of a write reaches the file.
  void crash_at(std::uint64_t operation);
  // Operation `operation` throws FileError(code); later ones work again. Half of a write reaches the file.
  void fail_at(std::uint64_t operation, int code);
  // Limits the total size of all files to `bytes`. Writes beyond it throw ENOSPC.
  void set_capacity(std::uint64_t bytes);
  // Restores the file system as the next start after a crash finds it. Removes all faults.
  void reboot(Survivors survivors, std::uint64_t seed = 0);
  // Flips one bit of a file, as bit rot does. This does not count as an operation.
  void flip_bit(const Path& path, std::uint64_t bit);

  std::unique_ptr<File> open(const Path& path, OpenMode mode) override;
  MappedFile map(const Path& path) override;
  std::optional<FileStatus> status(const Path& path) override;
  bool is_link(const Path&) override { return false; }  // this file system has no links
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
  // Names that change together, such as both names of a rename. A null node removes the name.
  using NameChange = std::vector<std::pair<std::string, NodePtr>>;

  struct Node {
    bool is_folder = false;
    std::vector<std::byte> data, synced_data;
    std::map<std::string, NodePtr> names, synced_names;
    std::vector<NameChange> unsynced;
  };

  // Counts an operation. If it is to fail, throws, or sets `torn` if given: a write then stores half of its
  // data and calls fail_now().
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
  std::uint64_t boot_ = 0;  // number of reboots; files opened before the last reboot cannot be used
};

}  // namespace primus
