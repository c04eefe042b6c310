// Recognizes tables (CSV, Parquet, Arrow) where records must be JSON lines, and says how to convert them.
#pragma once

#include <string>

#include "base/files/file.h"

namespace primus::data {

// Throws Error(kInvalid) if the extension is .csv or .tsv; such a file would be read as text.
void refuse_table(const Path& path);

// Throws Error(kUnsupported) if `folder` or a folder in it has binary files of Hugging Face datasets. Looks
// at the first 1000 entries. `split`: the split to convert, for the hint.
void refuse_binary_dataset(const Path& folder, const std::string& split);

}  // namespace primus::data
