// primus data inspect: shows the contents of a data set, and the order in which training reads it.
#include "lm/data/inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text/json_text.h"
#include "cli/command.h"
#include "lm/data/dataset.h"
#include "lm/data/indexed_dataset.h"
#include "lm/data/made_by.h"
#include "lm/generate/model_folder.h"
#include "lm/tokenizer/simple.h"

namespace primus::cli {
namespace {

// Parses "N1,N2,N3", the sample counts of the splits. Trailing counts may be omitted.
std::array<std::int64_t, 3> parse_samples(std::string_view text) {
  std::array<std::int64_t, 3> samples = {};
  std::string_view rest = text;
  for (std::int64_t& count : samples) {
    const std::string_view number = rest.substr(0, rest.find(','));
    const auto result = std::from_chars(number.data(), number.data() + number.size(), count);
    if (result.ec != std::errc() || result.ptr != number.data() + number.size() || count < 0) break;
    if (number.size() == rest.size()) return samples;
    rest.remove_prefix(number.size() + 1);
  }
  throw invalid(fmt::format("--samples needs up to three counts of samples, not '{}'", text),
                "e.g. --samples 1000,100,10 for training, validation and test");
}

constexpr std::int64_t kShown = 3;  // documents shown by default

class DataInspect final : public Command {
 public:
  void declare(Arguments& args) override {
    args.positional("PREFIX", &prefix_, "data set, without .bin and .idx").required = false;
    args.option("--tokenizer,-t", "FILE", &tokenizer_,
                "show texts, and check ids and document ends, with this tokenizer");
    args.option("--tokenizer-type", "TYPE", &type_, "kind of tokenizer, as in experiments");
    args.option("--show", "N", &show_, "with a tokenizer: number of documents to show").default_note(kShown);
    args.flag("--quick", quick_, "read only the index");
    args.flag("--order", order_, "print the samples of training, validation and test in training order");
    args.option("--seq-length", "L", &seq_length_, "with --order: tokens of a sample");
    args.option("--seed", "S", &seed_, "with --order").default_note(data::DataOptions{}.seed);
    args.option("--split", "A,B,C", &split_, "with --order: shares of training, validation and test")
        .default_note(fmt::format("as in training, {}", data::kUsualShares));
    args.option("--samples", "N1,N2,N3", &samples_, "with --order: number of samples of each split");
    args.option("--blend", "WEIGHT PREFIX", &blend_,
                "with --order, instead of PREFIX: weights and prefixes in turn")
        .several = true;
    args.flag("--json", json_, "print as JSON");
  }

  int run(Console& console) override {
    if (prefix_.empty() == blend_.empty()) {
      throw invalid("'data inspect' needs either a PREFIX or a --blend",
                    "'data inspect --help' has examples");
    }
    refuse_unused();
    if (order_) {
      print_order(console);
      return 0;
    }
    if (!blend_.empty()) {
      throw invalid("--blend needs --order", "add --order, or inspect each PREFIX separately");
    }
    const auto dataset = data::IndexedDataset::open(prefix_);
    std::unique_ptr<const Tokenizer> tokenizer;
    if (!tokenizer_.empty() || !type_.empty()) tokenizer = load_named_tokenizer({type_, tokenizer_, {}, {}});
    data::InspectOptions options{.read_tokens = !quick_};
    if (tokenizer != nullptr) {
      console.notes(tokenizer->notes());
      options.vocab_size = tokenizer->vocab_size();
      options.eod = tokenizer->special_ids().eod;
      note_other_tokenizer(*dataset, *tokenizer, console);
    }
    const data::Inspection found = data::inspect(*dataset, options);
    const std::vector<std::string> texts =
        tokenizer != nullptr ? first_texts(*dataset, *tokenizer) : std::vector<std::string>();
    json_ ? console.write(as_json(*dataset, found, options, texts))
          : console.print(as_text(*dataset, found, options, texts));
    if (!found.first_beyond) return 0;
    const Error error = beyond_vocabulary(*dataset, found, options);
    console.note(error.render());
    return error.exit_code();
  }

 private:
  // Warns if the data were tokenized with another tokenizer. The inspection continues, because the user may
  // look for the tokenizer that fits.
  void note_other_tokenizer(const data::IndexedDataset& dataset, const Tokenizer& tokenizer,
                            Console& console) const {
    try {
      data::check_made_by(prefix_, dataset, tokenizer);
    } catch (const Error& error) {
      console.notes({fmt::format("{}: the texts below are not the texts of the data", error.what())});
    }
  }

  // Refuses options that would have no effect.
  void refuse_unused() const {
    const auto refuse_without = [&](bool given, const char* option) {
      if (!order_ && given)
        throw invalid(fmt::format("{} needs --order", option), "add --order, or remove the option");
    };
    refuse_without(seq_length_.has_value(), "--seq-length");
    refuse_without(seed_.has_value(), "--seed");
    refuse_without(split_.has_value(), "--split");
    refuse_without(!samples_.empty(), "--samples");
    if (order_ && (quick_ || show_))
      throw invalid(fmt::format("{} and --order exclude each other", quick_ ? "--quick" : "--show"),
                    "remove one of the options");
    if (show_ && tokenizer_.empty() && type_.empty())
      throw invalid("--show needs a tokenizer", "name its file with --tokenizer, or remove --show");
  }

  static Error beyond_vocabulary(const data::IndexedDataset& dataset, const data::Inspection& found,
                                 const data::InspectOptions& options) {
    return invalid(
               fmt::format("document {} has the token {} at position {}, outside the vocabulary of {}; in "
                           "all, {} of {} tokens are outside",
                           found.first_beyond->document, found.first_beyond->id, found.first_beyond->position,
                           options.vocab_size, found.beyond_vocabulary, found.tokens),
               "check that the data was made with this tokenizer")
        .at(dataset.name());
  }

  // Prints {"split": "99,1,0", "splits": {"train": {"len": ..., "samples": [[...], ...]}, ...}}; a split that
  // is not requested is null.
  void print_order(Console& console) const {
    if (!seq_length_)
      throw invalid("--order needs --seq-length",
                    "add the number of tokens per sample, e.g. --seq-length 1024");
    if (*seq_length_ < 1)
      throw invalid(fmt::format("--seq-length cannot be {}", *seq_length_), "set it to 1 or more");
    if (samples_.empty()) {
      throw invalid("--order needs --samples",
                    "add the number of samples of each split, e.g. --samples 100,10,10");
    }
    const auto samples = parse_samples(samples_);
    data::DataOptions options;
    options.data_path = blend_.empty() ? std::vector<std::string>{prefix_} : blend_;
    options.split = split_;
    options.seq_length = *seq_length_;
    if (seed_) options.seed = *seed_;
    options.train_samples = samples[0];
    options.valid_samples = samples[1];
    options.test_samples = samples[2];
    // Without a tokenizer, any token id is accepted.
    const auto tokenizer = tokenizer_.empty() && type_.empty()
                               ? make_null_tokenizer(INT32_MAX - 1)
                               : load_named_tokenizer({type_, tokenizer_, {}, {}});
    const data::Datasets sets = data::open_datasets(options, *tokenizer);
    console.notes(sets.notes);
    const std::string shares = split_.value_or(data::kUsualShares);
    if (!split_) console.notes({fmt::format("--split is not given: {}, as in training", shares)});
    console.notes(sets.facts);
    using Named = std::pair<const char*, const data::Dataset*>;
    const std::array<Named, 3> opened = {
        {{"train", sets.train.get()}, {"valid", sets.valid.get()}, {"test", sets.test.get()}}};
    for (std::size_t i = 0; i < opened.size(); ++i) {
      if (samples[i] == 0 || opened[i].second != nullptr) continue;
      throw invalid(fmt::format("the split '{}' has no {} data, but --samples asks for {} samples of it",
                                shares, opened[i].first, samples[i]),
                    "give it a share in --split, or ask for 0 samples");
    }
    std::string text = fmt::format("{{\"split\":{},\"splits\":{{", json_text(nlohmann::json(shares), -1));
    for (const auto& [name, set] : opened) {
      if (text.back() != '{') text += ',';
      text += fmt::format("\"{}\":", name);
      if (set == nullptr) {
        text += "null";
        continue;
      }
      print_samples(*set, text, console);
    }
    console.write(text + "}}\n");
  }

  // Appends samples to `text` and prints it when it gets long.
  static void print_samples(const data::Dataset& set, std::string& text, Console& console) {
    constexpr std::size_t kLong = 1 << 20;
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(set.seq_length()) + 1);
    std::vector<float> mask(static_cast<std::size_t>(set.seq_length()));
    text += fmt::format("{{\"len\":{},\"samples\":[", set.size());
    for (std::int64_t i = 0; i < set.size(); ++i) {
      set.sample(i, tokens, mask);
      text += fmt::format("{}[{}]", i > 0 ? "," : "", fmt::join(tokens, ","));
      if (text.size() < kLong) continue;
      console.write(text);
      text.assign(1, '\n');
    }
    text += "]}";
  }

  // Returns the first text of each of the first documents.
  std::vector<std::string> first_texts(const data::IndexedDataset& dataset,
                                       const Tokenizer& tokenizer) const {
    constexpr std::int32_t kTokens = 60;
    std::vector<std::string> texts;
    std::vector<std::int32_t> tokens;
    const std::int64_t shown = std::min(dataset.documents(), show_.value_or(kShown));
    for (std::int64_t document = 0; document < shown; ++document) {
      const std::int64_t first = dataset.document_start(document);
      if (first == dataset.document_start(document + 1)) {
        texts.emplace_back();
        continue;
      }
      tokens.resize(static_cast<std::size_t>(std::min(dataset.length(first), kTokens)));
      dataset.read(first, 0, tokens);
      std::erase_if(tokens, [&](std::int32_t id) { return id < 0 || id >= tokenizer.vocab_size(); });
      texts.push_back(tokenizer.decode(tokens, /*skip_special=*/false));
    }
    return texts;
  }

  static std::string as_json(const data::IndexedDataset& dataset, const data::Inspection& found,
                             const data::InspectOptions& options, const std::vector<std::string>& texts) {
    nlohmann::ordered_json json{{"prefix", dataset.name()},
                                {"dtype", data::token_name(dataset.token_type())},
                                {"documents", found.documents},
                                {"empty_documents", found.empty_documents},
                                {"sequences", found.sequences},
                                {"empty_sequences", found.empty_sequences},
                                {"tokens", found.tokens},
                                {"shortest_sequence", found.shortest},
                                {"longest_sequence", found.longest},
                                {"unused_bytes", found.unused_bytes},
                                {"histogram", nlohmann::json::array()}};
    for (const auto& bin : found.histogram) {
      json["histogram"].push_back(
          {{"from", bin.from}, {"to", bin.to}, {"sequences", bin.sequences}, {"tokens", bin.tokens}});
    }
    if (found.largest_id) {
      json["smallest_id"] = *found.smallest_id;
      json["largest_id"] = *found.largest_id;
    }
    if (options.read_tokens && options.vocab_size > 0) {
      json["vocab_size"] = options.vocab_size;
      json["tokens_beyond_vocabulary"] = found.beyond_vocabulary;
      if (found.first_beyond) {
        json["error"] = beyond_vocabulary(dataset, found, options).what();
        json["first_beyond_vocabulary"] = {{"document", found.first_beyond->document},
                                           {"position", found.first_beyond->position},
                                           {"id", found.first_beyond->id}};
      }
      json["documents_ended_by_eod"] = found.ended_documents;
      json["samples"] = texts;
    }
    return json_text(json) + "\n";
  }

  static std::string as_text(const data::IndexedDataset& dataset, const data::Inspection& found,
                             const data::InspectOptions& options, const std::vector<std::string>& texts) {
    std::string text = dataset.name() + "\n";
    const auto line = [&text](std::string_view name, const std::string& value) {
      text += fmt::format("  {:<16}{}\n", name, value);
    };
    line("documents", fmt::format("{} ({} empty)", found.documents, found.empty_documents));
    line("sequences", fmt::format("{} ({} empty), {} to {} tokens", found.sequences, found.empty_sequences,
                                  found.shortest, found.longest));
    line("tokens", fmt::format("{}, {}, {}", found.tokens, data::token_name(dataset.token_type()),
                               human_bytes(static_cast<double>(dataset.data_bytes()))));
    if (found.largest_id) line("ids", fmt::format("{} to {}", *found.smallest_id, *found.largest_id));
    line("checks", "index and data file match");
    if (found.unused_bytes > 0) {
      line("", fmt::format("{} bytes of the data file do not belong to any sequence", found.unused_bytes));
    }
    if (options.read_tokens && options.vocab_size > 0) {
      line("", found.beyond_vocabulary == 0
                   ? fmt::format("all ids are in the vocabulary of {}", options.vocab_size)
                   : fmt::format("{} tokens are OUTSIDE the vocabulary of {}", found.beyond_vocabulary,
                                 options.vocab_size));
      line("", fmt::format("{} of {} documents end with the end-of-document token", found.ended_documents,
                           found.documents));
    }
    text += "  sequence length      sequences          tokens\n";
    std::int64_t maximum = 1;
    for (const auto& bin : found.histogram) maximum = std::max(maximum, bin.sequences);
    constexpr std::int64_t kBar = 30;
    for (const auto& bin : found.histogram) {
      if (bin.to < found.shortest) continue;
      const std::string range =
          bin.from == bin.to ? fmt::format("{}", bin.from) : fmt::format("{}-{}", bin.from, bin.to);
      const auto bar = static_cast<std::size_t>((bin.sequences * kBar + maximum - 1) / maximum);
      text +=
          fmt::format("  {:>15}{:>15}{:>16}  {}\n", range, bin.sequences, bin.tokens, std::string(bar, '#'));
    }
    for (std::size_t i = 0; i < texts.size(); ++i) {
      text += fmt::format("  document {}: {}\n", i, json_text(nlohmann::json(texts[i]), -1));
    }
    return text;
  }

  std::string prefix_, tokenizer_, type_, samples_;
  std::optional<std::string> split_;
  std::vector<std::string> blend_;
  std::optional<std::int64_t> seq_length_;
  std::optional<std::int64_t> show_, seed_;
  bool quick_ = false, order_ = false, json_ = false;
};

}  // namespace

extern const CommandEntry kDataInspect{
    "data inspect",
    "Shows the content of a data set, and the order in which training reads it",
    "Training reads samples in Megatron-LM's order. With --order, the command prints one JSON object with "
    "the samples of each split, of seq-length + 1 tokens each.",
    "primus data inspect data/books_text_document --tokenizer tokenizer.json\n"
    "primus data inspect data/books_text_document --order --seq-length 1024 --split 98,1,1 --samples "
    "100,10,10\n"
    "primus data inspect --order --blend 0.7 data/a 0.3 data/b --seq-length 1024 --samples 100,10",
    make_command<DataInspect>,
    {Section::kData, 4}};

}  // namespace primus::cli
