#include "base/files/append_file.h"

namespace primus {

bool AppendFile::append(std::span<const std::byte> record) {
  try {
    if (!file_) open();
    partial_ = true;
    file_->append(record);
    partial_ = false;
    size_ += record.size();
    return true;
  } catch (const Error& error) {
    last_error_ = error.what();
  }
  try {
    remove_partial_record();
  } catch (const Error&) {
    // The error is ignored here, because the next open() tries again.
  }
  // Closes the file: a failed descriptor (e.g. of a vanished mount) may stay broken, but a new one may work.
  file_.reset();
  return false;
}

bool AppendFile::sync() {
  try {
    if (!file_) return true;
    file_->sync();
    if (!name_synced_ && path_.has_parent_path()) env_.sync_folder(path_.parent_path());
    name_synced_ = true;
    return true;
  } catch (const Error& error) {
    last_error_ = error.what();
    return false;
  }
}

void AppendFile::close() {
  file_.reset();
  size_ = 0;
  partial_ = name_synced_ = false;
}

void AppendFile::open() {
  if (path_.has_parent_path()) make_folders(path_.parent_path(), env_);
  file_ = env_.open(path_, OpenMode::kAppend);
  const std::uint64_t found = file_->size();
  // A file shorter than size_ was replaced by another program. Then size_ is not the end of the complete
  // records.
  if (found < size_) partial_ = false;
  if (partial_) {
    remove_partial_record();
  } else {
    size_ = found;
  }
}

void AppendFile::remove_partial_record() {
  if (!file_ || !partial_) return;
  file_->truncate(size_);
  partial_ = false;
}

}  // namespace primus
