// Compressed archives (.tar.gz) of small files, in the format ustar (POSIX 1003.1-1988), which every tar
// reads.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/files/file.h"

namespace primus::postmortem {

// Builds an archive in memory.
class TarWriter {
 public:
  TarWriter();
  ~TarWriter();
  TarWriter(const TarWriter&) = delete;
  TarWriter& operator=(const TarWriter&) = delete;

  // Adds a file. `time`: seconds since 1970. Returns false if the format cannot store the name, which may
  // have 100 characters.
  bool add(std::string_view name, std::string_view content, double time);
  // Returns the archive. Call it once, at the end.
  std::string finish();

 private:
  struct Stream;
  std::unique_ptr<Stream> stream_;
};

struct TarLimits {
  std::uint64_t all_bytes = 4ULL << 30;  // of the extracted files
  std::uint64_t files = 1 << 20;
};

// Extracts an untrusted archive into `folder`, which must exist. Throws Error(kInvalid) if the archive is
// damaged, exceeds the limits, contains anything but regular files and folders, or has a name that leaves
// the folder; FileError if a file operation fails.
void extract_tar(const Path& file, const Path& folder, const TarLimits& limits = {});

}  // namespace primus::postmortem
