#include "base/files/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>

#include "base/files/file_mapping.h"

namespace primus {
namespace {

std::string hint_for(int code) {
  switch (code) {
    case ENOENT:
      return "check the path: the file or one of its folders does not exist";
    case EACCES:
    case EPERM:
      return "check its owner and its permissions (ls -l)";
    case EEXIST:
      return "a file that is not a folder has this name: remove it, or choose another name";
    case ENOSPC:
      return "free some space on that disk, or choose another folder";
    case EDQUOT:
      return "your disk quota is used up: delete something, or choose another folder";
    case EROFS:
      return "that file system is read-only: choose another folder, or see dmesg if it became read-only "
             "after an error";
    case EIO:
      return "the disk or its network failed: see dmesg, and do not use this disk until the cause is known";
    case EINVAL:
      return "use a regular file on a file system that supports this";
    case EMFILE:
    case ENFILE:
      return "too many open files: raise the limit (ulimit -n)";
    case EISDIR:
      return "this is a folder; a file is needed";
    case EFBIG:
      return "the file would exceed the limit of this process (ulimit -f) or of the file system";
    case ENOTDIR:
      return "a part of the path is a file, not a folder";
    case ENAMETOOLONG:
      return "choose a shorter name";
    case ELOOP:
      return "the path has a symbolic link that is not allowed, or links that form a cycle (ls -l shows "
             "them): remove the link";
    case ESTALE:
      return "the network file system was remounted or its server restarted: start again";
    default:
      return {};
  }
}

[[noreturn]] void fail(const char* verb, const Path& path) {
  throw FileError(fmt::format("cannot {} '{}'", verb, path.string()), errno);
}

// Repeats the call while a signal interrupts it.
template <typename Call>
auto retry(Call call) {
  decltype(call()) result;
  do {
    result = call();
  } while (result == -1 && errno == EINTR);
  return result;
}

// The kernel moves at most 0x7ffff000 bytes per call. Calls of fewer bytes report an error sooner.
constexpr std::size_t kLargestCall = 1U << 30;

class PosixFile : public File {
 public:
  PosixFile(Path path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  ~PosixFile() override {
    close_direct();
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  PosixFile(const PosixFile&) = delete;
  PosixFile& operator=(const PosixFile&) = delete;

  std::size_t read_at(std::span<std::byte> out, std::uint64_t offset) override {
    std::size_t done = 0;
    while (done < out.size()) {
      const std::size_t piece = std::min(out.size() - done, kLargestCall);
      const auto got = retry(
          [&] { return ::pread(descriptor_, out.data() + done, piece, static_cast<off_t>(offset + done)); });
      if (got < 0) fail("read", path_);
      if (got == 0) break;
      done += static_cast<std::size_t>(got);
    }
    return done;
  }

  void write_at(std::span<const std::byte> data, std::uint64_t offset) override {
    std::size_t done = 0;
    while (done < data.size()) {
      const std::size_t piece = std::min(data.size() - done, kLargestCall);
      const auto put = retry([&] {
        return ::pwrite(descriptor_, data.data() + done, piece, static_cast<off_t>(offset + done));
      });
      if (put < 0) fail("write", path_);
      done += static_cast<std::size_t>(put);
    }
  }

  // Writes the unaligned ends of the data through the page cache, because the ends share blocks with other
  // data.
  std::uint64_t write_direct(std::span<const std::byte> data, std::uint64_t offset) override {
    const std::size_t to_boundary = (kDirectBytes - offset % kDirectBytes) % kDirectBytes;
    const auto address = reinterpret_cast<std::uintptr_t>(data.data()) + to_boundary;
    if (data.size() < to_boundary + kDirectBytes || address % kDirectBytes != 0 || !open_direct()) {
      write_at(data, offset);
      return 0;
    }
    write_at(data.first(to_boundary), offset);
    const std::size_t end = data.size() - (data.size() - to_boundary) % kDirectBytes;
    std::size_t done = to_boundary;
    while (done < end) {
      const std::size_t piece = std::min(end - done, kLargestCall);
      const auto put = retry(
          [&] { return ::pwrite(direct_, data.data() + done, piece, static_cast<off_t>(offset + done)); });
      if (put < 0 && errno != EINVAL && errno != EOPNOTSUPP) fail("write", path_);
      if (put <= 0) {  // the file system requires a larger alignment or does not support direct writes
        close_direct();
        direct_refused_ = true;
        break;
      }
      done += static_cast<std::size_t>(put);
    }
    write_at(data.subspan(done), offset + done);
    return done - to_boundary;
  }

  void append(std::span<const std::byte> data) override {
    std::size_t done = 0;
    while (done < data.size()) {
      const std::size_t piece = std::min(data.size() - done, kLargestCall);
      const auto put = retry([&] { return ::write(descriptor_, data.data() + done, piece); });
      if (put < 0) fail("write", path_);
      done += static_cast<std::size_t>(put);
    }
  }

  void truncate(std::uint64_t size) override {
    if (retry([&] { return ::ftruncate(descriptor_, static_cast<off_t>(size)); }) != 0) fail("write", path_);
  }

  void sync() override {
    if (retry([&] { return ::fsync(descriptor_); }) != 0) fail("sync", path_);
  }

  std::uint64_t size() override {
    struct stat status {};
    if (::fstat(descriptor_, &status) != 0) fail("read the size of", path_);
    return static_cast<std::uint64_t>(status.st_size);
  }

  void close() override {
    close_direct();
    const int descriptor = std::exchange(descriptor_, -1);
    // EINTR is not an error, because Linux has closed the descriptor anyway. A second call of close() might
    // close the file of another thread.
    if (descriptor >= 0 && ::close(descriptor) != 0 && errno != EINTR) fail("close", path_);
  }

 private:
  // Opens a second descriptor of the same file, even if it was renamed.
  bool open_direct() {
    if (direct_ >= 0 || direct_refused_) return direct_ >= 0;
    const std::string self = fmt::format("/proc/self/fd/{}", descriptor_);
    direct_ = retry([&] { return ::open(self.c_str(), O_WRONLY | O_DIRECT | O_CLOEXEC); });
    direct_refused_ = direct_ < 0;
    return !direct_refused_;
  }
  void close_direct() {
    if (direct_ >= 0) ::close(std::exchange(direct_, -1));
  }

  Path path_;
  int descriptor_;
  int direct_ = -1;
  bool direct_refused_ = false;
};

FileStatus to_status(const struct stat& status) {
  FileStatus result;
  if (S_ISREG(status.st_mode)) result.type = FileStatus::Type::kFile;
  if (S_ISDIR(status.st_mode)) result.type = FileStatus::Type::kFolder;
  result.size = static_cast<std::uint64_t>(status.st_size);
  return result;
}

// Detects the short text that a clone without Git LFS contains in place of a large file, by its first line.
bool is_lfs_pointer(int descriptor, off_t size) {
  constexpr std::string_view kFirstLine = "version https://git-lfs.github.com/spec/v1\n";
  constexpr off_t kMaxBytes = 1024;  // the limit that the format of Git LFS sets
  if (size > kMaxBytes || size < static_cast<off_t>(kFirstLine.size())) return false;
  std::array<char, kFirstLine.size()> begin{};
  const ssize_t got = retry([&] { return ::pread(descriptor, begin.data(), begin.size(), 0); });
  return got == static_cast<ssize_t>(begin.size()) &&
         std::string_view(begin.data(), begin.size()) == kFirstLine;
}

int open_descriptor(const Path& path, OpenMode mode) {
  int flags = O_CLOEXEC;
  switch (mode) {
    // Without O_NONBLOCK, opening a pipe that has no writer would block forever.
    case OpenMode::kRead:
      flags |= O_RDONLY | O_NONBLOCK;
      break;
    case OpenMode::kWrite:
      flags |= O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW;
      break;
    case OpenMode::kUpdate:
      flags |= O_RDWR;
      break;
    case OpenMode::kAppend:
      flags |= O_WRONLY | O_CREAT | O_APPEND;
      break;
  }
  const int descriptor = retry([&] { return ::open(path.c_str(), flags, 0666); });
  if (descriptor < 0) fail("open", path);
  if (mode != OpenMode::kRead) return descriptor;
  struct stat status {};
  const bool known = ::fstat(descriptor, &status) == 0;
  if (known && S_ISREG(status.st_mode)) {
    if (!is_lfs_pointer(descriptor, status.st_size)) return descriptor;
    ::close(descriptor);
    throw invalid(fmt::format("'{}' is a Git LFS pointer: the actual file was not downloaded", path.string()),
                  "run 'git lfs install && git lfs pull' in the folder that was cloned");
  }
  if (known) errno = S_ISDIR(status.st_mode) ? EISDIR : EINVAL;
  const int code = errno;
  ::close(descriptor);
  errno = code;
  fail("read", path);
}

class PosixEnv : public Env {
 public:
  std::unique_ptr<File> open(const Path& path, OpenMode mode) override {
    return std::make_unique<PosixFile>(path, open_descriptor(path, mode));
  }

  MappedFile map(const Path& path) override {
    const int descriptor = open_descriptor(path, OpenMode::kRead);
    struct stat status {};
    const bool known = ::fstat(descriptor, &status) == 0;
    if (!known || status.st_size == 0) {  // mmap refuses an empty range
      const int code = errno;
      ::close(descriptor);
      if (known) return {};
      errno = code;
      fail("read the size of", path);
    }
    return MappedFile(
        std::make_shared<const FileMapping>(path, descriptor, static_cast<std::size_t>(status.st_size)));
  }

  std::optional<FileStatus> status(const Path& path) override {
    struct stat status {};
    if (::stat(path.c_str(), &status) == 0) return to_status(status);
    if (errno == ENOENT || errno == ENOTDIR) return std::nullopt;
    fail("look at", path);
  }

  bool is_link(const Path& path) override {
    struct stat status {};
    if (::lstat(path.c_str(), &status) == 0) return S_ISLNK(status.st_mode);
    if (errno == ENOENT || errno == ENOTDIR) return false;
    fail("look at", path);
  }

  std::vector<std::string> list(const Path& folder) override {
    const std::unique_ptr<DIR, int (*)(DIR*)> stream(::opendir(folder.c_str()), ::closedir);
    if (stream == nullptr) fail("list", folder);
    std::vector<std::string> names;
    for (;;) {
      errno = 0;
      const dirent* entry = ::readdir(stream.get());
      if (entry == nullptr) break;
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") names.emplace_back(name);
    }
    if (errno != 0) fail("list", folder);
    std::ranges::sort(names);
    return names;
  }

  void make_folder(const Path& folder) override {
    if (::mkdir(folder.c_str(), 0777) == 0) return;
    if (errno == EEXIST) {
      const auto there = status(folder);
      if (there && there->type == FileStatus::Type::kFolder) return;
      errno = EEXIST;
    }
    fail("create folder", folder);
  }

  void rename(const Path& from, const Path& to) override {
    if (::rename(from.c_str(), to.c_str()) == 0) return;
    throw FileError(fmt::format("cannot rename '{}' to '{}'", from.string(), to.string()), errno);
  }

  void remove_file(const Path& path) override {
    if (::unlink(path.c_str()) != 0) fail("remove", path);
  }

  void remove_folder(const Path& folder) override {
    if (::rmdir(folder.c_str()) != 0) fail("remove folder", folder);
  }

  void sync_folder(const Path& folder) override {
    const int descriptor = retry([&] { return ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
    if (descriptor < 0) fail("open folder", folder);
    PosixFile(folder, descriptor).sync();
  }

  std::uint64_t free_space(const Path& path) override {
    struct statvfs status {};
    if (retry([&] { return ::statvfs(path.c_str(), &status); }) != 0) fail("ask for the free space of", path);
    const unsigned __int128 bytes = static_cast<unsigned __int128>(status.f_bavail) * status.f_frsize;
    constexpr auto kMax = std::numeric_limits<std::uint64_t>::max();
    return bytes > kMax ? kMax : static_cast<std::uint64_t>(bytes);
  }
};

}  // namespace

FileError::FileError(const std::string& what, int code, std::string hint)
    : Error(kind_of_errno(code), what + ": " + std::strerror(code),
            hint.empty() ? hint_for(code) : std::move(hint)),
      code_(code) {}

bool FileError::out_of_space() const { return code_ == ENOSPC || code_ == EDQUOT; }

bool FileError::no_such_file() const {
  constexpr std::array kCodes = {ENOENT, ENOTDIR, EISDIR, EINVAL, ELOOP, ENXIO};
  return std::ranges::find(kCodes, code_) != kCodes.end();
}

MappedFile::MappedFile(std::shared_ptr<const FileMapping> mapping)
    : mapping_(std::move(mapping)), bytes_(mapping_->bytes()) {}

void MappedFile::tolerate_truncation() const {
  if (mapping_) mapping_->tolerate_truncation();
}

void MappedFile::check_unchanged() const {
  if (mapping_) mapping_->check_unchanged();
}

Env& Env::posix() {
  static PosixEnv env;
  return env;
}

std::string read_file(const Path& path, std::uint64_t limit, Env& env) {
  const auto file = env.open(path, OpenMode::kRead);
  const std::uint64_t size = file->size();
  const auto refuse = [&] {
    throw invalid(fmt::format("'{}' is larger than {} bytes", path.string(), limit),
                  "check that this is the file you mean");
  };
  if (size > limit) refuse();
  // Reads to the end, because the size of a growing file or a file in /proc is only an estimate.
  std::string content(size + 1, '\0');
  std::size_t done = 0;
  for (;;) {
    const std::size_t got = file->read_at(std::as_writable_bytes(std::span(content)).subspan(done), done);
    done += got;
    if (done > limit) refuse();
    if (done < content.size()) break;
    content.resize(content.size() * 2);
  }
  content.resize(done);
  return content;
}

void write_file(const Path& path, std::string_view content, Env& env) {
  const auto file = env.open(path, OpenMode::kWrite);
  file->append(as_bytes(content));
  file->sync();
  file->close();
}

void write_file_atomic(const Path& path, std::string_view content, Env& env) {
  const Path folder = path.has_parent_path() ? path.parent_path() : Path(".");
  const Path temporary = folder / (".tmp-" + path.filename().string());
  if (env.is_link(temporary)) env.remove_file(temporary);
  try {
    write_file(temporary, content, env);
    env.rename(temporary, path);
  } catch (const FileError&) {
    try {
      env.remove_file(temporary);
    } catch (const FileError&) {
    }
    throw;
  }
  env.sync_folder(folder);
}

void refuse_existing(const Path& path, Existing existing, Env& env) {
  if (existing == Existing::kReplace) return;
  if (!env.is_link(path) && !env.status(path)) return;
  throw invalid(fmt::format("'{}' already exists", path.string()),
                "choose another name, or replace it with --overwrite");
}

void write_output(const Path& path, std::string_view content, Existing existing, Env& env) {
  const auto there = env.status(path);
  if (there && there->type == FileStatus::Type::kOther) {
    // Writes without syncing, because devices and pipes cannot be synced.
    const auto file = env.open(path, OpenMode::kAppend);
    file->append(as_bytes(content));
    file->close();
    return;
  }
  if (there) refuse_existing(path, existing, env);
  std::error_code unresolved;
  const Path target = std::filesystem::weakly_canonical(path, unresolved);
  write_file_atomic(unresolved ? path : target, content, env);
}

void make_folders(const Path& folder, Env& env) {
  if (folder.empty()) return;
  const auto there = env.status(folder);
  if (there && there->type == FileStatus::Type::kFolder) return;
  const Path parent = folder.has_parent_path() ? folder.parent_path() : Path(".");
  if (parent != folder) make_folders(parent, env);
  env.make_folder(folder);
  env.sync_folder(parent);
}

void remove_tree(const Path& folder, Env& env) {
  // For a link, remove only the link and not its target.
  if (env.is_link(folder)) return env.remove_file(folder);
  const auto there = env.status(folder);
  if (!there) return;
  if (there->type != FileStatus::Type::kFolder) return env.remove_file(folder);
  for (const auto& name : env.list(folder)) remove_tree(folder / name, env);
  env.remove_folder(folder);
}

void try_remove_tree(const Path& folder, Env& env) {
  try {
    remove_tree(folder, env);
  } catch (const FileError&) {
  }
}

bool is_plain_name(std::string_view name) {
  if (name.empty() || name == "." || name == ".." || name.size() > 255) return false;
  return std::ranges::all_of(name, [](char c) {
    return c != '/' && c != '\\' && static_cast<unsigned char>(c) >= 0x20 && c != 0x7f;
  });
}

}  // namespace primus
