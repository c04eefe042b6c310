// Files. Every operating-system call on a file goes through an Env. A test's Env (tests/base/fault_env.h) can
// stop the program at any write, fsync or rename, fill the disk, or lose data that was not synced.
// Env::posix() is the real operating system.
//
// Durability follows POSIX. Data survives a power failure once File::sync() has returned. The creation,
// renaming or removal of a file survives a power failure once sync_folder() of its folder has returned.
//
// Errors: FileError with the path, the reason and the next step. kind_of_errno() defines the kind of a
// FileError. Thread-safety: an Env may be used from any thread. read_at and write_at of a File may run
// concurrently; other calls of a File need one thread at a time.
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

// An operating-system call failed. `code()` is the errno value; for example, it distinguishes a full disk
// from a broken disk.
class FileError : public Error {
 public:
  // `what`: e.g. "cannot write '/a/b'"; the reason is appended. An empty `hint` is replaced by a hint for
  // this code.
  FileError(const std::string& what, int code, std::string hint = {});
  int code() const { return code_; }
  // Returns true if the disk or the quota is full.
  bool out_of_space() const;
  // Returns true if the path is not a readable file: a folder, a pipe, a circular link, or missing.
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
  // A write_at() for large data that is not read again soon. If the file system supports direct writes, parts
  // bypass the page cache if they are aligned to kDirectBytes in the file and in memory. Returns the number
  // of bytes that bypassed the page cache.
  static constexpr std::uint64_t kDirectBytes = 4096;
  virtual std::uint64_t write_direct(std::span<const std::byte> data, std::uint64_t offset) {
    write_at(data, offset);
    return 0;
  }
  // Appends all of `data` in one call, which is one write(2) unless the system accepts only a part.
  virtual void append(std::span<const std::byte> data) = 0;
  virtual void truncate(std::uint64_t size) = 0;
  virtual void sync() = 0;
  virtual std::uint64_t size() = 0;
  virtual void close() = 0;
};

class FileMapping;

// A file's bytes, read-only and paged in on demand. The bytes are valid while any copy of this object exists,
// and during this time the file must not be truncated. To change its content, replace the file by renaming,
// as write_file_atomic does. By default, reading missing bytes of a truncated file ends the process with a
// message that names the file; tolerate_truncation() changes this.
class MappedFile {
 public:
  MappedFile() = default;
  MappedFile(std::shared_ptr<const void> owner, std::span<const std::byte> bytes)
      : owner_(std::move(owner)), bytes_(bytes) {}
  explicit MappedFile(std::shared_ptr<const FileMapping> mapping);
  std::span<const std::byte> bytes() const { return bytes_; }

  // After this call, missing bytes are read as zeros. The reader must call check_unchanged() after reading
  // and before using the data.
  void tolerate_truncation() const;
  // Throws Error(kInvalid) if the file was truncated, extended or modified since it was mapped. One system
  // call.
  void check_unchanged() const;

 private:
  std::shared_ptr<const void> owner_;
  std::shared_ptr<const FileMapping> mapping_;  // null: the bytes are not from a file
  std::span<const std::byte> bytes_;
};

enum class OpenMode {
  kRead,    // an existing regular file; Error(kInvalid) if it is a Git LFS pointer
  kWrite,   // created or truncated; does not follow a symlink
  kUpdate,  // an existing file, for reading and writing in place
  kAppend,  // created if missing; every append goes to the end
};

struct FileStatus {
  enum class Type { kFile, kFolder, kOther };
  Type type = Type::kOther;
  std::uint64_t size = 0;  // bytes, for a file
};

class Env {
 public:
  virtual ~Env() = default;
  // Returns the Env of the real operating system. Stateless.
  static Env& posix();

  virtual std::unique_ptr<File> open(const Path& path, OpenMode mode) = 0;
  virtual MappedFile map(const Path& path) = 0;
  // Returns the status of a path (following symlinks); nullopt if it does not exist.
  virtual std::optional<FileStatus> status(const Path& path) = 0;
  // Returns whether the path is a symlink. True even if its target does not exist.
  virtual bool is_link(const Path& path) = 0;
  // Returns the names in a folder, sorted, without "." and "..".
  virtual std::vector<std::string> list(const Path& folder) = 0;
  // Creates one folder, unless it exists. Its parent must exist.
  virtual void make_folder(const Path& folder) = 0;
  // Renames atomically within a file system. Replaces an existing file or empty folder.
  virtual void rename(const Path& from, const Path& to) = 0;
  virtual void remove_file(const Path& path) = 0;
  virtual void remove_folder(const Path& folder) = 0;  // the folder must be empty
  virtual void sync_folder(const Path& folder) = 0;
  // Returns the bytes that this user may still write to the file system of `path`.
  virtual std::uint64_t free_space(const Path& path) = 0;
};

// Reads a complete file, e.g. a config. Throws Error(kInvalid) if it has more than `limit` bytes, before
// reading if the size is known.
std::string read_file(const Path& path, std::uint64_t limit = 256U << 20, Env& env = Env::posix());

// Writes and syncs a new file. Does not sync its folder.
void write_file(const Path& path, std::string_view content, Env& env = Env::posix());

// Replaces `path` atomically: readers get either the old or the new content, even after a crash. Writes a
// temporary file in the same folder, syncs it, renames it and syncs the folder. If `path` is a symlink,
// replaces the link and leaves its target unchanged.
void write_file_atomic(const Path& path, std::string_view content, Env& env = Env::posix());

// Whether a command replaces an existing output. --overwrite selects kReplace.
enum class Existing { kRefuse, kReplace };

// Throws Error(kInvalid) if `existing` is kRefuse and `path` exists, even as a dangling symlink. Commands
// call this function for their outputs before they start work.
void refuse_existing(const Path& path, Existing existing, Env& env = Env::posix());

// Writes a file named by the user, like a shell's redirection: follows symlinks, and accepts devices and
// pipes. An existing regular file is refused or replaced atomically, depending on `existing`.
void write_output(const Path& path, std::string_view content, Existing existing, Env& env = Env::posix());

// Creates a folder and its missing parents. Syncs each new name in its parent.
void make_folders(const Path& folder, Env& env = Env::posix());

// Removes a folder with its contents, or a file. Symlinks, even `folder` itself, are removed and not
// followed. A missing path is not an error.
void remove_tree(const Path& folder, Env& env = Env::posix());

// Calls remove_tree() after a failure; ignores errors, because the first failure is reported.
void try_remove_tree(const Path& folder, Env& env = Env::posix());

// Returns true for a name that cannot lead out of its folder. It must have 1 to 255 bytes, differ from "."
// and "..", and contain no '/', '\\' or control character.
bool is_plain_name(std::string_view name);

inline std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span<const char>(text.data(), text.size()));
}

}  // namespace primus
