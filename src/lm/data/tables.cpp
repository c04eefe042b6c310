#include "lm/data/tables.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>

#include "base/error.h"

namespace primus::data {
namespace {

// Returns `path` with the extension .jsonl or, if this file exists, with a number before the extension.
Path new_jsonl(const Path& path) {
  Path to = Path(path).replace_extension(".jsonl");
  for (int i = 1; Env::posix().status(to); ++i)
    to = Path(path).replace_extension().concat(fmt::format("-{}.jsonl", i));
  return to;
}

}  // namespace

void refuse_table(const Path& path) {
  const std::string extension = path.extension().string();
  const bool tabs = extension == ".tsv";
  if (!tabs && extension != ".csv") return;
  throw invalid(fmt::format("'{}' is a table ({}), but records must be JSON lines", path.string(), extension),
                fmt::format("convert it: python3 -c \"import csv, json; [print(json.dumps(r)) for r in "
                            "csv.DictReader(open('{}', newline=''){})]\" > {}",
                            path.string(), tabs ? ", delimiter='\\t'" : "", new_jsonl(path).string()));
}

void refuse_binary_dataset(const Path& folder, const std::string& split) {
  namespace fs = std::filesystem;
  constexpr int kMostEntries = 1000;
  std::error_code none;
  int seen = 0;
  for (fs::recursive_directory_iterator it(folder, none), end; it != end && ++seen <= kMostEntries;
       it.increment(none)) {
    const std::string extension = it->path().extension().string();
    const bool parquet = extension == ".parquet";
    if (!parquet && extension != ".arrow") continue;
    const bool named = parquet || fs::exists(folder / "dataset_dict.json", none);  // splits have names
    const std::string load = parquet ? fmt::format("load_dataset('{}')", folder.string())
                                     : fmt::format("load_from_disk('{}')", folder.string());
    throw unsupported(
        fmt::format("folder '{}' has {} files ('{}'), but records must be JSON lines", folder.string(),
                    parquet ? "Parquet" : "Arrow", it->path().lexically_relative(folder).string()),
        fmt::format(
            "convert it with Hugging Face datasets, and name the new file: python3 -c \"from datasets "
            "import *; {}{}.to_json('{}')\"",
            load, named ? fmt::format("['{}']", split) : "", new_jsonl(split).string()));
  }
}

}  // namespace primus::data
