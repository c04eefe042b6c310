// primus data merge | split
#include <fmt/format.h>

#include <algorithm>

#include "base/checked.h"
#include "base/error.h"
#include "cli/command.h"
#include "lm/data/gpt_dataset.h"
#include "lm/data/indexed_dataset.h"
#include "lm/data/rearrange.h"

namespace primus::cli {
namespace {

// Reports the number of tokens copied.
class CopyProgress {
 public:
  CopyProgress(const Terminal& terminal, std::string label, std::int64_t total)
      : line_(terminal,
              {.label = std::move(label), .unit = "tokens", .total = static_cast<std::uint64_t>(total)}) {}
  void operator()(std::int64_t done, std::int64_t) {
    line_.update(static_cast<std::uint64_t>(done), steady_seconds());
  }
  void finish() { line_.finish(steady_seconds()); }

 private:
  ProgressLine line_;
};

std::string summary(const Path& prefix) {
  const auto dataset = data::IndexedDataset::open(prefix);
  return fmt::format("{}.bin, .idx: {} document{}, {} tokens\n", prefix.string(), dataset->documents(),
                     dataset->documents() == 1 ? "" : "s", dataset->tokens());
}

class DataMerge final : public Command {
 public:
  void declare(Arguments& args) override {
    args.positional("PREFIX", &inputs_, "data sets in order, or folders with data sets").required = false;
    args.option("--input,-i", "PREFIX", &more_inputs_, "a further data set or folder").several = true;
    args.option("--output-prefix,-o", "PREFIX", &output_, "writes PREFIX.bin and PREFIX.idx").required = true;
    overwrite_.declare(args);
  }

  int run(Console& console) override {
    inputs_.insert(inputs_.end(), more_inputs_.begin(), more_inputs_.end());
    const std::vector<Path> inputs = data::find_datasets(inputs_);
    std::int64_t tokens = 0;
    for (const Path& input : inputs) tokens += data::IndexedDataset::open(input)->tokens();
    CopyProgress progress(console.err, "merging", tokens);
    data::merge_datasets(inputs, output_, std::ref(progress), overwrite_.existing());
    progress.finish();
    console.print(summary(output_));
    return 0;
  }

 private:
  std::vector<std::string> inputs_, more_inputs_;
  std::string output_;
  OverwriteFlag overwrite_;
};

class DataSplit final : public Command {
 public:
  void declare(Arguments& args) override {
    args.positional("PREFIX", &input_, "data set, without .bin and .idx");
    args.option("--output-prefix,-o", "PREFIX", &output_, "PREFIX_train ..., or PREFIX_0 ...").required =
        true;
    args.option("--split", "A,B,C", &split_, "shares of the documents for train, valid and test");
    args.option("--parts", "N", &parts_,
                "number of parts with about equally many documents, instead of --split");
    overwrite_.declare(args);
  }

  int run(Console& console) override {
    if (split_.empty() == !parts_) {
      throw invalid(fmt::format("'data split' {}",
                                parts_ ? "accepts --split or --parts, not both" : "needs --split or --parts"),
                    "--split 98,1,1 sets the shares of train, valid and test; --parts 8 makes 8 equal parts");
    }
    const auto dataset = data::IndexedDataset::open(input_);
    const std::vector<data::DatasetPart> parts = parts_of(dataset->documents());
    CopyProgress progress(console.err, "splitting", dataset->tokens());
    data::split_dataset(input_, parts, std::ref(progress), overwrite_.existing());
    progress.finish();
    for (const data::DatasetPart& part : parts) console.print(summary(part.prefix));
    return 0;
  }

 private:
  std::vector<data::DatasetPart> parts_of(std::int64_t documents) const {
    std::vector<data::DatasetPart> parts;
    if (!parts_) {
      const std::vector<data::Share> shares = data::split_sequences(split_, documents);
      constexpr const char* kNames[] = {"train", "valid", "test"};
      for (std::size_t i = 0; i < shares.size(); ++i) {
        const std::string name = fmt::format("{}_{}", output_, kNames[i]);
        if (shares[i].first < shares[i].last) {
          parts.push_back({name, shares[i].first, shares[i].last});
        } else if (asks_for_share(i)) {
          throw invalid(
              fmt::format("--split {} of {} documents leaves none for {}", split_, documents, kNames[i]),
              "give it a larger share, or 0");
        } else if (Env::posix().status(name + ".idx")) {
          // Throws, because the existing data set and the new data sets may contain the same documents.
          throw invalid(fmt::format("'{}' already exists from another split", name),
                        "remove it, or choose another prefix with -o");
        }
      }
      return parts;
    }
    if (*parts_ < 1)
      throw invalid(fmt::format("--parts is {}", *parts_), fmt::format("choose 1 to {} parts", documents));
    if (*parts_ > documents) {
      throw invalid(fmt::format("--parts {} is too many: documents are not cut, and '{}' has {}", *parts_,
                                input_, documents),
                    fmt::format("choose 1 to {} parts", documents));
    }
    for (std::int64_t i = 0; i < *parts_; ++i) {
      const auto border = [&](std::int64_t k) { return checked_mul(documents, k, "documents") / *parts_; };
      parts.push_back({fmt::format("{}_{}", output_, i), border(i), border(i + 1)});
    }
    return parts;
  }

  // Returns whether the i-th number of --split is above 0. Call after parsing --split.
  bool asks_for_share(std::size_t i) const {
    std::size_t begin = 0;
    for (; i > 0 && begin != std::string::npos; --i) {
      const std::size_t comma = split_.find(',', begin);
      begin = comma == std::string::npos ? comma : comma + 1;
    }
    return begin != std::string::npos && split_.substr(begin).find_first_of("123456789") <
                                             std::min(split_.find(',', begin), split_.size()) - begin;
  }

  std::string input_, output_, split_;
  std::optional<std::int64_t> parts_;
  OverwriteFlag overwrite_;
};

}  // namespace

extern const CommandEntry kDataMerge{
    "data merge",
    "Joins data sets into one",
    "All data sets must have the same token type. Tokens are copied without decoding, so this is as fast as "
    "copying files.",
    "primus data merge data/a_text_document data/b_text_document -o data/all\n"
    "primus data merge data/parts/ -o data/all",
    make_command<DataMerge>,
    {Section::kData, 5}};

extern const CommandEntry kDataSplit{"data split",
                                     "Cuts a data set into several",
                                     "Documents stay whole and keep their order.",
                                     "primus data split data/all -o data/all --split 98,1,1\n"
                                     "primus data split data/all -o data/part --parts 8",
                                     make_command<DataSplit>,
                                     {Section::kData, 6}};

}  // namespace primus::cli
