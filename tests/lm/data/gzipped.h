// Compresses bytes as gzip does.
#pragma once

#include <zlib.h>

#include <string>

#include "lm/data/data_test_util.h"

namespace primus::data {

inline std::string gzipped(const std::string& text) {
  const TemporaryFolder folder;
  const std::string path = folder / "packed";
  gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
  gzclose(file);
  return read_all(path);
}

}  // namespace primus::data
