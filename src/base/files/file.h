// Files. Every operating-system call that touches one goes through an Env, so that a test can stop the
// program at any write, fsync or rename, fill the disk, or lose what was not yet synced
// (tests/base/fault_env.h). Env::posix() is the real one.
//
// Durability, as POSIX has it: bytes survive a power failure once File::sync() returned, and a name (created,
// renamed or removed) once sync_dir() of its folder returned.
//
// Errors: FileError (an Error whose kind is that of its errno value, kind_of_errno) with the path, the reason
// and the next step. Thread-safety: an Env may be used from any thread; a File from one thread at a time,
// except read_at and write_at, which may overlap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace primus {

using Path = std::filesystem::path;

// The operating system refused. `code()` is the errno value, so that a caller can tell a full disk from a
// broken one.
class FileError : public Error {
 public:
  // what: "cannot write '/a/b'"; the reason is added, and without a hint one that fits it.
  FileError(const std::string& what, int code, std::string hint = {});
  int code() const { return code_; }
  // The disk or the quota is full.
  bool out_of_space() const;
  // What has the name is no file that could be read: a folder, a pipe, a link in a circle, or nothing.
  bool no_such_file() const;

 private:
  int code_;
};

class File {
 public:
  virtual ~File() = default;  // closes, ignoring errors; call close() to see them
  // Reads up to out.size() bytes at `offset`; fewer only at the end of the file.
  virtual std::size_t read_at(std::span<std::byte> out, std::uint64_t offset) = 0;
  // Writes all of `data` at `offset`; the file grows when needed.
  virtual void write_at(std::span<const std::byte> data, std::uint64_t offset) = 0;
  // The same, for much data that nobody reads soon: what lies on multiples of kDirectBytes, in the file and
  // in memory alike, goes to the disk without a copy in the page cache, where the file system can do that.
  // Returns how many bytes did.
  static constexpr std::uint64_t kDirectBytes = 4096;
  virtual std::uint64_t write_direct(std::span<const std::byte> data, std::uint64_t offset) {
    write_at(data, offset);
    return 0;
  }
  // Writes all of `data` at the end. One call, one write(2) while the system takes it whole.
  virtual void append(std::span<const std::byte> data) = 0;
  virtual void truncate(std::uint64_t size) = 0;
  virtual void sync() = 0;
  virtual std::uint64_t size() = 0;
  virtual void close() = 0;
};

class FileMapping;

// A file's bytes, read-only, paged in on demand; valid as long as any copy of this object lives. Nobody
// should truncate the file meanwhile: replace files by rename, as write_file_atomic does. Where somebody
// does, a read of what is gone ends the process with a message that names the file, unless the reader prefers
// to check.
class MappedFile {
 public:
  MappedFile() = default;
  MappedFile(std::shared_ptr<const void> owner, std::span<const std::byte> bytes)
      : owner_(std::move(owner)), bytes_(bytes) {}
  explicit MappedFile(std::shared_ptr<const FileMapping> mapping);
  std::span<const std::byte> bytes() const { return bytes_; }

  // From here on, bytes that were cut off read as zeros. The reader promises to call check_unchanged() after
  // reading and before it uses what it read.
  void tolerate_truncation() const;
  // Error(kInvalid) where the file was cut, extended or written to since it was mapped. One system call.
  void check_unchanged() const;

 private:
  std::shared_ptr<const void> owner_;
  std::shared_ptr<const FileMapping> mapping_;  // null: the bytes are no file's
  std::span<const std::byte> bytes_;
};

enum class OpenMode {
  kRead,    // an existing regular file; Error(kInvalid) where it is a Git LFS pointer
  kWrite,   // created, or emptied; never through a symlink
  kUpdate,  // an existing file, to read and write in place
  kAppend,  // created when missing; every append goes to the end
};

struct FileStatus {
  enum class Type { kFile, kFolder, kOther };
  Type type = Type::kOther;
  std::uint64_t size = 0;  // bytes, of a file
};

class Env {
 public:
  virtual ~Env() = default;
  // The real operating system. Stateless.
  static Env& posix();

  virtual std::unique_ptr<File> open(const Path& path, OpenMode mode) = 0;
  virtual MappedFile map(const Path& path) = 0;
  // What is there (symlinks followed), or nullopt.
  virtual std::optional<FileStatus> status(const Path& path) = 0;
  // Whether the path's own last name is a symlink, wherever that leads.
  virtual bool is_link(const Path& path) = 0;
  // The names in a folder, sorted, without "." and "..".
  virtual std::vector<std::string> list(const Path& folder) = 0;
  // One folder; its parent must exist. One that is there already is fine.
  virtual void make_folder(const Path& folder) = 0;
  // Atomic within a file system. Replaces a file, not a folder that holds something.
  virtual void rename(const Path& from, const Path& to) = 0;
  virtual void remove_file(const Path& path) = 0;
  virtual void remove_folder(const Path& folder) = 0;  // an empty one
  virtual void sync_folder(const Path& folder) = 0;
  // Bytes that this user may still write to the file system that holds `path`.
  virtual std::uint64_t free_space(const Path& path) = 0;
};

// The whole file, e.g. a config. Refuses more than `limit` bytes (kInvalid), before reading them where the
// size is known.
std::string read_file(const Path& path, std::uint64_t limit = 256U << 20, Env& env = Env::posix());

// Writes and syncs one new file, then nothing of its folder.
void write_file(const Path& path, std::string_view content, Env& env = Env::posix());

// Replaces `path` so that a reader, and a crash at any instant, sees the old content or the new, never a
// mixture: a temporary beside it, sync, rename, sync of the folder. Where `path` is a symlink, the link is
// replaced, and what it leads to stays as it is.
void write_file_atomic(const Path& path, std::string_view content, Env& env = Env::posix());

// What a command does where its result's name is taken. Users say kReplace with --overwrite.
enum class Existing { kRefuse, kReplace };

// Error(kInvalid) where `path` is there already, even as a symlink to nothing, and `existing` is kRefuse. For
// commands to call before their work, with what they are about to write.
void refuse_existing(const Path& path, Existing existing, Env& env = Env::posix());

// Writes what a user asked for by name, as a shell's redirection would: a symlink is followed, a device or a
// pipe is written to. A regular file is refused or replaced, as write_file_atomic does.
void write_output(const Path& path, std::string_view content, Existing existing, Env& env = Env::posix());

// The folder with all parents that are missing. Each new name is synced in its parent.
void make_folders(const Path& folder, Env& env = Env::posix());

// The folder and all in it, or the file. Symlinks are removed and never followed, `folder` itself included.
// Nothing there is fine.
void remove_tree(const Path& folder, Env& env = Env::posix());

// The same on the way out of a failure: errors are passed over, since the first is the one to report.
void try_remove_tree(const Path& folder, Env& env = Env::posix());

// True for a name that stays in its folder: not empty, "." or "..", no '/', '\\' or control character, at
// most 255 bytes.
bool is_plain_name(std::string_view name);

inline std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span<const char>(text.data(), text.size()));
}

}  // namespace primus
