// The in-memory file system with faults: operations, crashes, reboots.
#include "base/fault_env.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace primus {
namespace {

constexpr std::size_t kSector = 512;  // a disk writes a sector whole or not at all

// splitmix64, a generator that is good enough to choose which data survives.
std::uint64_t next_random(std::uint64_t& state) {
  std::uint64_t z = state += 0x9e3779b97f4a7c15U;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31);
}

bool flip_coin(std::uint64_t& state) { return (next_random(state) & 1U) != 0; }

}  // namespace

class FaultEnv::OpenFile : public File {
 public:
  OpenFile(FaultEnv& env, Path path, NodePtr node, bool append)
      : env_(env), path_(std::move(path)), node_(std::move(node)), append_(append), boot_(env.boot_) {}

  std::size_t read_at(std::span<std::byte> out, std::uint64_t offset) override {
    const std::lock_guard lock(env_.mutex_);
    begin();
    if (offset >= node_->data.size()) return 0;
    const std::size_t count = std::min<std::size_t>(out.size(), node_->data.size() - offset);
    std::copy_n(node_->data.begin() + static_cast<std::ptrdiff_t>(offset), count, out.begin());
    return count;
  }
  void write_at(std::span<const std::byte> data, std::uint64_t offset) override {
    const std::lock_guard lock(env_.mutex_);
    put(data, offset);
  }
  void append(std::span<const std::byte> data) override {
    const std::lock_guard lock(env_.mutex_);
    const std::uint64_t at = append_ ? node_->data.size() : position_;
    put(data, at);
    position_ = at + data.size();
  }
  void truncate(std::uint64_t size) override {
    const std::lock_guard lock(env_.mutex_);
    begin();
    node_->data.resize(size);
  }
  void sync() override {
    const std::lock_guard lock(env_.mutex_);
    begin();
    node_->synced_data = node_->data;
  }
  std::uint64_t size() override {
    const std::lock_guard lock(env_.mutex_);
    begin();
    return node_->data.size();
  }
  void close() override {}

 private:
  void begin() {
    if (boot_ != env_.boot_) throw SimulatedCrash();
    env_.begin(path_);
  }
  void put(std::span<const std::byte> data, std::uint64_t offset) {
    if (boot_ != env_.boot_) throw SimulatedCrash();
    env_.write(*node_, path_, data, offset);
  }

  FaultEnv& env_;
  Path path_;
  NodePtr node_;
  bool append_;
  std::uint64_t boot_, position_ = 0;
};

FaultEnv::FaultEnv() : root_(std::make_shared<Node>()) { root_->is_folder = true; }
FaultEnv::~FaultEnv() = default;

std::uint64_t FaultEnv::operations() const {
  const std::lock_guard lock(mutex_);
  return operations_;
}

void FaultEnv::crash_at(std::uint64_t operation) {
  const std::lock_guard lock(mutex_);
  crash_at_ = operation;
}

void FaultEnv::fail_at(std::uint64_t operation, int code) {
  const std::lock_guard lock(mutex_);
  fail_at_ = operation;
  fail_code_ = code;
}

void FaultEnv::set_capacity(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  capacity_ = bytes;
}

void FaultEnv::reboot(Survivors survivors, std::uint64_t seed) {
  const std::lock_guard lock(mutex_);
  survive(*root_, survivors, seed);
  dead_ = false;
  crash_at_ = fail_at_ = capacity_ = kNever;
  ++boot_;
}

void FaultEnv::flip_bit(const Path& path, std::uint64_t bit) {
  const std::lock_guard lock(mutex_);
  const NodePtr node = find(path);
  node->data.at(bit / 8) ^= std::byte{1} << (bit % 8);
  node->synced_data = node->data;
}

std::unique_ptr<File> FaultEnv::open(const Path& path, OpenMode mode) {
  const std::lock_guard lock(mutex_);
  begin(path);
  NodePtr node = find(path);
  if (node != nullptr && node->is_folder)
    throw FileError(fmt::format("cannot open '{}'", path.string()), EISDIR);
  if (node == nullptr) {
    if (mode == OpenMode::kRead || mode == OpenMode::kUpdate) {
      throw FileError(fmt::format("cannot open '{}'", path.string()), ENOENT);
    }
    const NodePtr folder = folder_of(path);
    node = std::make_shared<Node>();
    change(*folder, {{path.filename().string(), node}});
  } else if (mode == OpenMode::kWrite) {
    node->data.clear();
  }
  return std::make_unique<OpenFile>(*this, path, node, mode == OpenMode::kAppend);
}

MappedFile FaultEnv::map(const Path& path) {
  const std::lock_guard lock(mutex_);
  begin(path);
  const NodePtr node = find(path);
  if (node == nullptr) throw FileError(fmt::format("cannot open '{}'", path.string()), ENOENT);
  if (node->is_folder) throw FileError(fmt::format("cannot read '{}'", path.string()), EISDIR);
  const auto copy = std::make_shared<const std::vector<std::byte>>(node->data);
  return {copy, *copy};
}

std::optional<FileStatus> FaultEnv::status(const Path& path) {
  const std::lock_guard lock(mutex_);
  begin(path);
  const NodePtr node = find(path);
  if (node == nullptr) return std::nullopt;
  return FileStatus{node->is_folder ? FileStatus::Type::kFolder : FileStatus::Type::kFile, node->data.size()};
}

std::vector<std::string> FaultEnv::list(const Path& folder) {
  const std::lock_guard lock(mutex_);
  begin(folder);
  const NodePtr node = find(folder);
  if (node == nullptr || !node->is_folder) {
    throw FileError(fmt::format("cannot list '{}'", folder.string()), node == nullptr ? ENOENT : ENOTDIR);
  }
  std::vector<std::string> names;
  for (const auto& [name, child] : node->names) names.push_back(name);
  return names;
}

void FaultEnv::make_folder(const Path& folder) {
  const std::lock_guard lock(mutex_);
  begin(folder);
  const NodePtr there = find(folder);
  if (there != nullptr && there->is_folder) return;
  if (there != nullptr) throw FileError(fmt::format("cannot create folder '{}'", folder.string()), EEXIST);
  auto node = std::make_shared<Node>();
  node->is_folder = true;
  change(*folder_of(folder), {{folder.filename().string(), node}});
}

void FaultEnv::rename(const Path& from, const Path& to) {
  const std::lock_guard lock(mutex_);
  begin(from);
  const std::string what = fmt::format("cannot rename '{}' to '{}'", from.string(), to.string());
  const NodePtr node = find(from), target = find(to);
  if (node == nullptr) throw FileError(what, ENOENT);
  if (target != nullptr && target->is_folder != node->is_folder) {
    throw FileError(what, target->is_folder ? EISDIR : ENOTDIR);
  }
  if (target != nullptr && target->is_folder && !target->names.empty()) throw FileError(what, ENOTEMPTY);
  const NodePtr source_folder = folder_of(from), target_folder = folder_of(to);
  const std::string old_name = from.filename().string(), new_name = to.filename().string();
  if (source_folder == target_folder) {
    change(*source_folder, {{new_name, node}, {old_name, nullptr}});
  } else {
    change(*target_folder, {{new_name, node}});
    change(*source_folder, {{old_name, nullptr}});
  }
}

void FaultEnv::remove_file(const Path& path) {
  const std::lock_guard lock(mutex_);
  begin(path);
  const NodePtr node = find(path);
  if (node == nullptr || node->is_folder) {
    throw FileError(fmt::format("cannot remove '{}'", path.string()), node == nullptr ? ENOENT : EISDIR);
  }
  change(*folder_of(path), {{path.filename().string(), nullptr}});
}

void FaultEnv::remove_folder(const Path& folder) {
  const std::lock_guard lock(mutex_);
  begin(folder);
  const NodePtr node = find(folder);
  const int code = node == nullptr       ? ENOENT
                   : !node->is_folder    ? ENOTDIR
                   : node->names.empty() ? 0
                                         : ENOTEMPTY;
  if (code != 0) throw FileError(fmt::format("cannot remove folder '{}'", folder.string()), code);
  change(*folder_of(folder), {{folder.filename().string(), nullptr}});
}

void FaultEnv::sync_folder(const Path& folder) {
  const std::lock_guard lock(mutex_);
  begin(folder);
  const NodePtr node = find(folder);
  if (node == nullptr || !node->is_folder) {
    throw FileError(fmt::format("cannot open folder '{}'", folder.string()), ENOENT);
  }
  node->synced_names = node->names;
  node->unsynced.clear();
}

std::uint64_t FaultEnv::free_space(const Path& path) {
  const std::lock_guard lock(mutex_);
  begin(path);
  const std::uint64_t used = bytes_in(*root_);
  return capacity_ > used ? capacity_ - used : 0;
}

void FaultEnv::begin(const Path& path, bool* torn) {
  const std::uint64_t operation = operations_++;
  if (operation == crash_at_)
    dead_ = true;
  else if (dead_)
    throw SimulatedCrash();
  if (!dead_ && operation != fail_at_) return;
  if (torn == nullptr) fail_now(path);
  *torn = true;
}

void FaultEnv::fail_now(const Path& path) {
  if (dead_) throw SimulatedCrash();
  throw FileError(fmt::format("cannot use '{}'", path.string()), fail_code_);
}

FaultEnv::NodePtr FaultEnv::find(const Path& path) const {
  NodePtr node = root_;
  for (const Path& part : path.lexically_normal()) {
    const std::string name = part.string();
    if (name.empty() || name == "/" || name == ".") continue;
    const auto child = node->names.find(name);
    if (child == node->names.end()) return nullptr;
    node = child->second;
  }
  return node;
}

FaultEnv::NodePtr FaultEnv::folder_of(const Path& path) const {
  NodePtr folder = find(path.parent_path());
  if (folder == nullptr || !folder->is_folder) {
    throw FileError(fmt::format("cannot use '{}'", path.string()), folder == nullptr ? ENOENT : ENOTDIR);
  }
  return folder;
}

void FaultEnv::change(Node& folder, NameChange names) {
  for (const auto& [name, node] : names) {
    if (node == nullptr) {
      folder.names.erase(name);
    } else {
      folder.names[name] = node;
    }
  }
  folder.unsynced.push_back(std::move(names));
}

std::uint64_t FaultEnv::bytes_in(const Node& node) {
  std::uint64_t sum = node.data.size();
  for (const auto& [name, child] : node.names) sum += bytes_in(*child);
  return sum;
}

void FaultEnv::write(Node& node, const Path& path, std::span<const std::byte> data, std::uint64_t offset) {
  bool torn = false;
  begin(path, &torn);
  if (torn) data = data.first(data.size() / 2);
  const std::uint64_t used = bytes_in(*root_), room = capacity_ > used ? capacity_ - used : 0;
  // The maximum size of this file. A file without a name does not count as used space.
  const std::uint64_t limit = room > kNever - node.data.size() ? kNever : node.data.size() + room;
  const bool full = offset + data.size() > limit;
  if (full) data = data.first(limit > offset ? limit - offset : 0);
  if (!data.empty()) {
    if (offset + data.size() > node.data.size()) node.data.resize(offset + data.size());
    std::ranges::copy(data, node.data.begin() + static_cast<std::ptrdiff_t>(offset));
  }
  if (torn) fail_now(path);
  if (full) throw FileError(fmt::format("cannot write '{}'", path.string()), ENOSPC);
}

void FaultEnv::survive(Node& node, Survivors survivors, std::uint64_t& random) {
  if (survivors == Survivors::kSynced) {
    node.data = node.synced_data;
    node.names = node.synced_names;
  } else if (survivors == Survivors::kRandom) {
    for (std::size_t at = 0; at < node.data.size(); at += kSector) {
      if (flip_coin(random)) continue;
      for (std::size_t i = at; i < std::min(at + kSector, node.data.size()); ++i) {
        node.data[i] = i < node.synced_data.size() ? node.synced_data[i] : std::byte{};
      }
    }
    if (flip_coin(random)) node.data.resize(node.synced_data.size());
    node.names = node.synced_names;
    for (NameChange& names : std::exchange(node.unsynced, {})) {
      if (flip_coin(random)) change(node, std::move(names));
    }
  }
  node.synced_data = node.data;
  node.synced_names = node.names;
  node.unsynced.clear();
  for (auto& [name, child] : node.names) survive(*child, survivors, random);
}

}  // namespace primus
