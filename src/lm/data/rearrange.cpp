#include "lm/data/rearrange.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <set>

#include "base/error.h"
#include "base/files/partial_folder.h"
#include "lm/data/indexed_dataset.h"
#include "lm/data/made_by.h"

namespace primus::data {

namespace {

// Copies in several steps, so that progress can be reported.
void copy_documents(const IndexedDataset& from, std::int64_t first, std::int64_t last,
                    IndexedDatasetWriter& to, const std::function<void()>& report) {
  constexpr std::int64_t kDocuments = 1024;
  for (std::int64_t i = first; i < last; i += kDocuments) {
    to.append(from, i, std::min(last, i + kDocuments));
    report();
  }
}

// Returns the folder for unfinished work. The folder differs from the folder of tokenize_corpus() for the
// same prefix, because that folder may contain work to resume.
Path folder_for(const Path& output) { return output.string() + ".bin"; }

void refuse_input_as_output(const Path& input, const Path& output) {
  if (std::filesystem::weakly_canonical(input) != std::filesystem::weakly_canonical(output)) return;
  throw invalid(fmt::format("'{}' is both an input and the output", input.string()),
                "choose another output prefix");
}

std::vector<Path> datasets_in(const Path& folder) {
  std::set<Path> prefixes;
  for (const std::string& name : Env::posix().list(folder)) {
    if (!name.ends_with(".bin") && !name.ends_with(".idx")) continue;
    const Path prefix = folder / name.substr(0, name.size() - 4);
    if (!IndexedDataset::exists(prefix)) {
      throw invalid(fmt::format("'{}' has no matching {}", (folder / name).string(),
                                name.ends_with(".bin") ? ".idx" : ".bin"),
                    "a data set needs both files: copy the other one, or remove this one");
    }
    prefixes.insert(prefix);
  }
  if (prefixes.empty())
    throw invalid(fmt::format("the folder '{}' holds no .bin and .idx files", folder.string()),
                  "name the folder that directly contains them, or their prefixes");
  return {prefixes.begin(), prefixes.end()};
}

}  // namespace

std::vector<Path> find_datasets(const std::vector<std::string>& paths) {
  std::vector<Path> found;
  for (const std::string& path : paths) {
    const auto status = Env::posix().status(path);
    if (status && status->type == FileStatus::Type::kFolder) {
      const std::vector<Path> inside = datasets_in(path);
      found.insert(found.end(), inside.begin(), inside.end());
    } else {
      found.emplace_back(path);
    }
  }
  return found;
}

void merge_datasets(const std::vector<Path>& inputs, const Path& output, const RearrangeProgressFn& progress,
                    Existing existing, Env& env) {
  if (inputs.empty()) throw invalid("no data set to merge is given", "name their prefixes, or their folder");
  std::vector<std::shared_ptr<const IndexedDataset>> datasets;
  MadeBy made_by;
  std::int64_t total = 0;
  for (const Path& input : inputs) {
    datasets.push_back(IndexedDataset::open(input, env));
    made_by.add(input, *datasets.back(), env);
    total += datasets.back()->tokens();
    refuse_input_as_output(input, output);
  }
  refuse_existing_dataset(output, existing, env);
  PartialFolder folder(folder_for(output), env);
  IndexedDatasetWriter writer(output, datasets.front()->token_type(), folder.path() / "merged", {}, env);
  for (const auto& dataset : datasets) {
    copy_documents(*dataset, 0, dataset->documents(), writer, [&] {
      if (progress) progress(writer.tokens(), total);
    });
  }
  writer.complete();
  made_by.attach(writer);
  writer.finish();
  folder.remove();
}

void split_dataset(const Path& input, const std::vector<DatasetPart>& parts,
                   const RearrangeProgressFn& progress, Existing existing, Env& env) {
  if (parts.empty()) throw invalid("no part to write is given");
  const auto dataset = IndexedDataset::open(input, env);
  MadeBy made_by;
  made_by.add(input, *dataset, env);
  std::set<Path> names;
  for (const DatasetPart& part : parts) {
    if (part.first < 0 || part.last < part.first || part.last > dataset->documents()) {
      throw invalid(fmt::format("'{}' has {} documents, not {} to {}", input.string(), dataset->documents(),
                                part.first, part.last));
    }
    refuse_input_as_output(input, part.prefix);
    if (!names.insert(part.prefix).second)
      throw invalid(fmt::format("two parts are named '{}'", part.prefix.string()));
    refuse_existing_dataset(part.prefix, existing, env);
  }
  PartialFolder folder(folder_for(parts.front().prefix), env);
  std::vector<std::unique_ptr<IndexedDatasetWriter>> writers;
  std::int64_t done = 0;
  for (const DatasetPart& part : parts) {
    writers.push_back(std::make_unique<IndexedDatasetWriter>(part.prefix, dataset->token_type(),
                                                             folder.path() / std::to_string(writers.size()),
                                                             IndexedDatasetWriter::Progress{}, env));
    IndexedDatasetWriter& writer = *writers.back();
    copy_documents(*dataset, part.first, part.last, writer, [&] {
      if (progress) progress(done + writer.tokens(), dataset->tokens());
    });
    done += writer.tokens();
    writer.complete();
    made_by.attach(writer);
  }
  for (const auto& writer : writers) writer->finish();
  writers.clear();
  folder.remove();
}

}  // namespace primus::data
