// open_datasets: opens the train, valid and test data sets of the paths that the user names.
#include "lm/data/dataset.h"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "base/checked.h"
#include "base/error.h"
#include "base/files/file.h"
#include "base/files/file_lock.h"
#include "base/files/partial_folder.h"
#include "lm/data/blend_list.h"
#include "lm/data/corpus.h"
#include "lm/data/gpt_dataset.h"
#include "lm/data/made_by.h"
#include "lm/data/text_split.h"
#include "lm/data/tokenize.h"

namespace primus::data {

namespace {

constexpr const char* kTokenizedText = "_text_document";  // ending of the names that `data tokenize` writes

constexpr const char* kSeal = "checksums";   // name of the checksum file in a folder of cached tokens
constexpr std::int64_t kCacheVersion = 1;    // increased when text is converted to tokens differently
constexpr std::uint64_t kPackedVersion = 1;  // increased when only packed text is cut differently
// Each data set of a blend prepares this fraction of samples in addition to its share (Megatron's
// mid_level_dataset_surplus).
constexpr double kSurplus = 0.005;
constexpr const char* kMockSplit = "1,1,1";
constexpr std::array<std::string_view, 3> kSplitNames = {"train", "valid", "test"};

class Opener {
 public:
  Opener(const DataOptions& options, const Tokenizer& tokenizer)
      : options_(options),
        tokenizer_(tokenizer),
        requested_{options.train_samples, options.valid_samples, options.test_samples} {
    const SpecialIds& special = tokenizer.special_ids();
    rules_.vocab_size = options.vocab_size > 0 ? options.vocab_size : tokenizer.vocab_size();
    // A padding id that also has another role would mask real tokens out of the loss.
    if (special.pad && special.pad != special.eos && special.pad != special.eod &&
        special.pad != special.bos) {
      rules_.pad = special.pad;
    }
    if (options.eod_mask_loss) {
      if (!special.eod) throw invalid("eod_mask_loss needs a tokenizer with an end-of-document token");
      rules_.loss_end = special.eod;
    }
  }

  std::int64_t samples_of_epochs(double epochs) {
    if (options_.mock_data) {
      throw invalid("mock data never ends, so it has no epochs", "set train_iters or train_tokens");
    }
    double samples = 0;
    for (const std::string& path : parse_blend(training_paths()).paths) samples += samples_in(path, epochs);
    if (samples > static_cast<double>(kMaxOrderedSamples)) {
      throw unsupported(fmt::format("{} epochs are {:.3g} samples; the limit is 2^32", epochs, samples),
                        "train for fewer epochs");
    }
    return static_cast<std::int64_t>(samples);
  }

  Datasets run() {
    const std::array<const std::vector<std::string>*, 3> per_split = {
        &options_.train_data_path, &options_.valid_data_path, &options_.test_data_path};
    const bool separate = !per_split[0]->empty() || !per_split[1]->empty() || !per_split[2]->empty();
    const int kinds = int{options_.mock_data} + int{!options_.data_path.empty()} + int{separate};
    if (kinds != 1) {
      throw invalid(
          kinds == 0 ? "no training data is given" : "the training data is given in more than one way",
          "set data_path, or train_data_path and the like, or mock_data: true");
    }
    Splits result;
    notes_ = notes_on_repeated_paths(parse_blend(training_paths()));
    if (options_.mock_data) {
      result = open_mock();
    } else if (!separate) {
      result = open_shared(parse_blend(options_.data_path));
    } else {
      for (std::size_t split = 0; split < 3; ++split) {
        if (requested_[split] == 0) continue;
        if (per_split[split]->empty()) {
          if (split > 0) continue;  // the user set no path for this split
          throw invalid("validation or test data is given, but no training data", "set train_data_path");
        }
        result[split] = open_blend(parse_blend(*per_split[split]), split, std::nullopt);
      }
    }
    for (const auto& dataset : result) {
      if (dataset != nullptr) check_first_sample(*dataset);
    }
    const std::size_t bytes = training_.size() * sizeof(std::uint64_t);
    const bool held_out =
        result[0] && !options_.data_path.empty() && holds_out(parse_blend(options_.data_path));
    std::vector<std::string> facts = held_out ? facts_on_shares(result) : std::vector<std::string>();
    if (result[0] && !options_.mock_data) add_facts_on_weights(facts);
    for (const std::size_t split : {1, 2}) {
      if (!result[split] || options_.mock_data) continue;
      const std::vector<std::string>& own = *per_split[split];
      add_fact_on_repeats(separate ? own : options_.data_path, split, separate, facts);
    }
    return {.train = std::move(result[0]),
            .valid = std::move(result[1]),
            .test = std::move(result[2]),
            .held_out = held_out,
            .train_fingerprint = training_.empty() ? 0 : XXH3_64bits(training_.data(), bytes),
            .notes = std::move(notes_),
            .facts = std::move(facts)};
  }

 private:
  // Refuses data that another tokenizer produced, before training begins.
  static void check_first_sample(const Dataset& dataset) {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(dataset.seq_length()) + 1);
    std::vector<float> mask(static_cast<std::size_t>(dataset.seq_length()));
    if (dataset.size() > 0) dataset.sample(0, tokens, mask);
  }

  using Splits = std::array<std::unique_ptr<const Dataset>, 3>;

  Splits open_mock() {
    if (!tokenizer_.special_ids().eod)
      throw invalid("mock data needs a tokenizer with an end-of-document token");
    const auto source = make_mock_source(tokenizer_.vocab_size(), *tokenizer_.special_ids().eod);
    Splits result;
    for (std::size_t split = 0; split < 3; ++split) {
      if (requested_[split] > 0)
        result[split] = open_split(source, split, std::string(kMockSplit), requested_[split]);
    }
    return result;
  }

  std::string shares() const { return options_.split.value_or(kUsualShares); }

  Splits open_shared(const BlendList& blend) {
    const std::vector<Share> wanted = split_sequences(shares(), kManySequences);
    Splits result;
    for (std::size_t split = 0; split < 3; ++split) {
      if (requested_[split] == 0) continue;
      if (split == 0 && wanted[split].first == wanted[split].last) {
        throw invalid(fmt::format("the split '{}' leaves nothing to train on", shares()),
                      "its first number is the training share: set it above 0");
      }
      if (wanted[split].first == wanted[split].last) continue;
      // If the user did not set a split, data sets of the blend that are too short have only training data.
      const BlendList parts = options_.split || split == 0 ? blend : with_held_out(blend, split);
      if (!parts.paths.empty()) result[split] = open_blend(parts, split, shares());
    }
    return result;
  }

  // Returns the data sets of a blend that have validation or test data although no split was set.
  BlendList with_held_out(const BlendList& blend, std::size_t split) {
    BlendList parts;
    for (std::size_t i = 0; i < blend.paths.size(); ++i) {
      const std::shared_ptr<const TokenSource> data = source(blend.paths[i]);
      const Share share = share_of(*data, split, shares());
      if (share.first == share.last) {
        if (split == 1) {
          notes_.push_back(nothing_to_hold_out(blend.paths[i], *data, options_.seq_length, is_text(*data)));
        }
        continue;
      }
      parts.paths.push_back(blend.paths[i]);
      if (!blend.weights.empty()) parts.weights.push_back(blend.weights[i]);
    }
    if (!parts.weights.empty()) parts.weights = normalized(parts.weights);
    return parts;
  }

  // Returns whether data_path has sequences that are not trained on.
  bool holds_out(const BlendList& blend) {
    return std::ranges::any_of(blend.paths, [this](const std::string& path) {
      const std::shared_ptr<const TokenSource> data = source(path);
      const Share share = share_of(*data, 0, shares());
      return share.last - share.first < data->sequences();
    });
  }

  // Describes shares that the user did not choose, or that differ from `split`: a share of a small data set
  // consists of whole sequences. Adds a note instead of a fact if a share is much too large.
  std::vector<std::string> facts_on_shares(const Splits& opened) {
    const std::vector<Share> chosen = split_sequences(shares(), kManySequences);
    std::vector<std::string> facts;
    for (const std::string& path : parse_blend(options_.data_path).paths) {
      const std::shared_ptr<const TokenSource> data = source(path);
      for (const std::size_t split : {1, 2}) {
        const Share share = share_of(*data, split, shares());
        if (!opened[split] || share.first == share.last) continue;
        const double wanted = options_.split ? static_cast<double>(chosen[split].last - chosen[split].first) /
                                                   static_cast<double>(kManySequences)
                                             : 0;
        const bool as_said =
            options_.split && !is_text(*data) && share == split_sequences(shares(), data->sequences())[split];
        std::string note =
            note_on_large_share(path, *data, share, wanted, options_.seq_length, split == 2, is_text(*data));
        constexpr double kUsual = 0.01;  // the share of validation data if the user sets none
        if (note.empty() && !as_said) {
          note = note_on_small_share(path, *data, share, options_.split ? wanted : kUsual, split == 2);
        }
        if (!note.empty()) {
          notes_.push_back(std::move(note));
        } else if (!as_said) {
          facts.push_back(path + ": " + describe_held_out(*data, share, split == 2));
        }
      }
    }
    return facts;
  }

  const std::vector<std::string>& training_paths() const {
    return options_.data_path.empty() ? options_.train_data_path : options_.data_path;
  }

  // Returns the number of samples in `epochs` passes over the training data of a path.
  double samples_in(const std::string& path, double epochs) {
    check_length(*source(path));
    return samples_of(path, 0, options_.data_path.empty() ? std::nullopt : std::optional(shares()), epochs);
  }

  // Returns the number of samples in `epochs` passes over a split of a path; 0 if the split has no sequence.
  // `shares`: the split of the data; nullopt: all sequences.
  double samples_of(const std::string& path, std::size_t split, const std::optional<std::string>& shares,
                    double epochs) {
    const std::shared_ptr<const TokenSource> data = source(path);
    const Share share = share_of(*data, split, shares);
    if (share.first == share.last) return 0;
    double tokens = 0;
    for (std::int64_t i = share.first; i < share.last; ++i) tokens += data->length(i);
    // The number of rows in the sample order of this many epochs (sample_order.h).
    return std::max(1.0, std::floor((epochs * tokens - 1) / static_cast<double>(options_.seq_length)));
  }

  // Adds a fact for each source of a blend with weights: how often training reads the source.
  void add_facts_on_weights(std::vector<std::string>& facts) {
    const BlendList blend = parse_blend(training_paths());
    if (blend.weights.empty() || blend.paths.size() < 2) return;
    for (std::size_t i = 0; i < blend.paths.size(); ++i) {
      const double drawn = blend.weights[i] * static_cast<double>(requested_[0]);
      facts.push_back(fmt::format("{} is read {:.3g} times, because its weight is {:.3g}", blend.paths[i],
                                  drawn / samples_in(blend.paths[i], 1), blend.weights[i]));
    }
  }

  // Adds a fact if one evaluation draws more samples than the split's data have. `separate`: whether `list`
  // belongs to this split only.
  void add_fact_on_repeats(const std::vector<std::string>& list, std::size_t split, bool separate,
                           std::vector<std::string>& facts) {
    const std::int64_t drawn =
        options_.test_samples > 0 ? std::min(requested_[split], options_.test_samples) : requested_[split];
    const std::optional<std::string> divided = separate ? std::nullopt : std::optional(shares());
    double samples = 0;
    for (const std::string& path : parse_blend(list).paths) samples += samples_of(path, split, divided, 1);
    if (samples < static_cast<double>(drawn)) {
      facts.push_back(
          describe_repeats(split == 1 ? "validation" : "test", static_cast<std::int64_t>(samples), drawn));
    }
  }

  // Returns the sequences of `source` that belong to train, valid or test. `shares`: the split; nullopt: all
  // sequences.
  Share share_of(const TokenSource& source, std::size_t split,
                 const std::optional<std::string>& shares) const {
    const std::int64_t all = source.sequences();
    if (!shares) return {0, all};
    if (options_.split && is_text(source)) {
      const std::array<bool, 3> drawn = {true, requested_[1] > 0, requested_[2] > 0};
      return split_text(source, *shares, drawn, options_.seq_length)[split];
    }
    if (options_.split || options_.mock_data) return split_sequences(*shares, all)[split];
    const std::int64_t rounded = is_text(source) ? all : split_sequences(*shares, all)[1].first;
    const std::int64_t from = held_out_from(source, options_.seq_length, rounded);
    return split == 0 ? Share{0, from} : split == 1 ? Share{from, all} : Share{all, all};
  }

  // Returns whether the tokens of a source were made from text, and not read from a .bin file of the user.
  bool is_text(const TokenSource& source) const { return std::ranges::find(text_, &source) != text_.end(); }

  // Opens one split of a blend. `shares`: the split of each data set; nullopt: all sequences of each.
  std::unique_ptr<const Dataset> open_blend(const BlendList& blend, std::size_t split,
                                            const std::optional<std::string>& shares) {
    const std::int64_t requested = requested_[split];
    // A single data set needs no blend if it has no weight, or if its path belongs to one split.
    if (blend.paths.size() == 1 && (blend.weights.empty() || !shares)) {
      return open_split(source(blend.paths[0]), split, shares, requested);
    }
    if (blend.paths.size() > UINT16_MAX)
      throw unsupported("a blend of more than 65535 data sets is not supported");
    std::vector<std::unique_ptr<const Dataset>> datasets;
    std::int64_t size = 0;
    for (std::size_t i = 0; i < blend.paths.size(); ++i) {
      std::int64_t samples = -1;  // -1: the samples of one epoch
      if (!blend.weights.empty()) {
        const double target = std::ceil(static_cast<double>(requested) * blend.weights[i]);
        size += static_cast<std::int64_t>(target);
        samples = static_cast<std::int64_t>(std::ceil(target * (1 + kSurplus)));
      }
      datasets.push_back(open_split(source(blend.paths[i]), split, shares, samples));
    }
    std::vector<double> weights = blend.weights;
    if (weights.empty()) {
      std::int64_t available = 0;
      for (const auto& dataset : datasets) {
        weights.push_back(static_cast<double>(dataset->size()));
        available += dataset->size();
      }
      // If more than one epoch is requested, all data sets repeat equally often.
      if (requested > available) {
        if (split == 0) training_.clear();
        return open_blend({blend.paths, normalized(weights)}, split, shares);
      }
      size = requested;
    }
    return std::make_unique<BlendedDataset>(std::move(datasets),
                                            build_blend_order(normalized(weights), size));
  }

  std::unique_ptr<const Dataset> open_split(std::shared_ptr<const TokenSource> source, std::size_t split,
                                            const std::optional<std::string>& shares, std::int64_t samples) {
    check_length(*source);
    if (split == 0) training_.push_back(source->fingerprint());
    const Share share = share_of(*source, split, shares);
    if (shares && share.first == share.last && source->sequences() > 0)
      throw empty_share(*shares, kSplitNames[split], given_name(*source), source->sequences());
    const OrderOptions order{share.first, share.last, options_.seq_length, samples, options_.seed};
    return std::make_unique<GptDataset>(std::move(source), order, rules_, kSplitNames[split],
                                        options_.cache_dir);
  }

  // Returns the name that the user gave. For text, `source` has only the name of the file of cached tokens,
  // which is a hash.
  std::string given_name(const TokenSource& source) const {
    for (const auto& [path, opened] : sources_) {
      if (opened.get() == &source) return path;
    }
    return source.name();
  }

  // Refuses a split that is shorter than one sample. Megatron would repeat it.
  void check_length(const TokenSource& source) const {
    std::int64_t tokens = 0;
    for (std::int64_t i = 0; i < source.sequences(); ++i) {
      tokens += source.length(i);
      if (tokens > options_.seq_length) return;
    }
    if (tokens == 0) {
      throw invalid(fmt::format("{} is empty, so it has no training data", given_name(source)),
                    "check that its source text is not empty; 'primus data inspect' shows its content");
    }
    throw invalid(
        fmt::format("{} holds {} tokens, fewer than the {} of one sample (seq_length {} and its last label)",
                    given_name(source), tokens, options_.seq_length + 1, options_.seq_length),
        "shorten seq_length, or add data");
  }

  // Opens the data set with the prefix `path`; text is tokenized first. The splits share the result.
  std::shared_ptr<const TokenSource> source(const std::string& path) {
    for (const auto& [known, opened] : sources_) {
      if (known == path) return opened;
    }
    const bool text = !IndexedDataset::exists(path);
    std::shared_ptr<const TokenSource> opened = IndexedDataset::open(text ? tokenized(path) : Path(path));
    if (!text && !options_.allow_other_tokenizer) check_made_by(path, *opened, tokenizer_);
    sources_.emplace_back(path, opened);
    if (text) text_.push_back(opened.get());
    return opened;
  }

  // Returns the path prefix of the .bin and .idx files made from a text; tokenizes it if they are not cached.
  Path tokenized(const std::string& pattern) {
    if (!Env::posix().status(pattern) && pattern.find_first_of("*?[") == std::string::npos) {
      throw invalid(
          fmt::format("data '{}' does not exist", pattern),
          fmt::format(
              "{}set the data path to a text or JSON-lines file, a folder or glob of such files, or the "
              "common prefix of a .bin and an .idx file{}",
              Path(pattern).is_absolute()
                  ? ""
                  : fmt::format("paths are relative to '{}'; ", std::filesystem::current_path().string()),
              IndexedDataset::exists(pattern + kTokenizedText) ? ", such as " + pattern + kTokenizedText
                                                               : hint_on_missing_path(pattern)));
    }
    IndexedDataset::refuse_folder(pattern);
    if (pattern.ends_with(".bin") || pattern.ends_with(".idx")) {
      throw invalid(fmt::format("the data path '{}' names only one of a pair of files", pattern),
                    fmt::format("leave out the extension: {}", pattern.substr(0, pattern.size() - 4)));
    }
    SkippedFiles skipped;
    const std::vector<InputFile> files = find_inputs({pattern}, &skipped);
    for (std::string& remark : remarks_on(files, skipped)) notes_.push_back(std::move(remark));
    std::uint64_t bytes = 0;
    for (const InputFile& file : files) bytes += file.size;
    if (bytes == 0) {
      throw invalid(fmt::format("'{}' is empty, so it has no training data", pattern),
                    "put text into it, or name other data (data_path)");
    }
    const Path cache =
        options_.cache_dir.empty() ? files.front().path.parent_path() / kCacheFolder : options_.cache_dir;
    const Path folder = cache / fmt::format("{:016x}", cache_key(files));
    if (damage_of(folder)) build_cache(pattern, cache, folder);
    return tokenized_prefix(folder / "tokens", options_.text.json_key);
  }

  // Returns a hash of everything that the tokens depend on: contents, not names or dates.
  std::uint64_t cache_key(const std::vector<InputFile>& files) const {
    XXH3_state_t state;
    XXH3_64bits_reset(&state);
    const auto add = [&state](const void* bytes, std::size_t size) {
      XXH3_64bits_update(&state, bytes, size);
    };
    const auto add_number = [&add](std::uint64_t number) { add(&number, sizeof number); };
    add_number(static_cast<std::uint64_t>(kCacheVersion));
    add_number(tokenizer_.fingerprint());
    add_number(static_cast<std::uint64_t>(options_.text.append_eod) |
               static_cast<std::uint64_t>(options_.text.skip_bad) << 1);
    add(options_.text.json_key.data(), options_.text.json_key.size());
    std::vector<std::byte> buffer(1 << 20);
    for (const InputFile& input : files) {
      const std::uint64_t parts = input.compression == Compression::kNone ? 0 : kPackedVersion;
      add_number(static_cast<std::uint64_t>(input.kind) | static_cast<std::uint64_t>(input.compression) << 8 |
                 parts << 16);
      add_number(input.size);
      const auto file = Env::posix().open(input.path, OpenMode::kRead);
      for (std::uint64_t offset = 0;;) {
        const std::size_t count = file->read_at(buffer, offset);
        if (count == 0) break;
        add(buffer.data(), count);
        offset += count;
      }
    }
    return XXH3_64bits_digest(&state);
  }

  // Describes the tokens in a cache folder: one line per file with size and checksum.
  std::string seal_of(const Path& folder) const {
    std::string seal;
    std::vector<std::byte> buffer(1 << 20);
    for (const char* extension : {".bin", ".idx"}) {
      const Path path = tokenized_prefix(folder / "tokens", options_.text.json_key).string() + extension;
      const auto file = Env::posix().open(path, OpenMode::kRead);
      XXH3_state_t state;
      XXH3_64bits_reset(&state);
      std::uint64_t size = 0;
      while (const std::size_t count = file->read_at(buffer, size)) {
        XXH3_64bits_update(&state, buffer.data(), count);
        size += count;
      }
      seal += fmt::format("{} {} {:016x}\n", path.filename().string(), size, XXH3_64bits_digest(&state));
    }
    return seal;
  }

  // Returns nullopt if the cached tokens match their checksums, "" if no tokens are cached, otherwise a
  // description of the damage. Reading the tokens takes less time than reading the text for the cache key.
  std::optional<std::string> damage_of(const Path& folder) const {
    if (!Env::posix().status(folder)) return "";
    const Path prefix = tokenized_prefix(folder / "tokens", options_.text.json_key);
    if (!IndexedDataset::exists(prefix)) return "a file is missing";
    if (!Env::posix().status(folder / kSeal)) return "they have no checksum (written by an older version)";
    try {
      if (read_file(folder / kSeal) == seal_of(folder)) return std::nullopt;
    } catch (const Error& error) {
      return error.what();
    }
    return "they differ from their checksum";
  }

  // Builds the tokens in a separate folder and renames the folder at the end. Other processes therefore see
  // all tokens or none. The next run resumes what an interrupted run left there.
  void build_cache(const std::string& pattern, const Path& cache, const Path& folder) {
    try {
      make_folders(cache);
    } catch (FileError& error) {
      error.add_hint("set data_cache_path to put the tokens into another folder");
      throw;
    }
    const FileLock lock = FileLock::wait(folder.string() + ".lock");
    const std::optional<std::string> damage = damage_of(folder);
    if (!damage) return;  // another process has built the tokens
    if (!damage->empty()) {
      notes_.push_back(fmt::format("the cached tokens of '{}' in '{}' are not used: {}; they are rebuilt",
                                   pattern, folder.string(), *damage));
    }
    remove_tree(folder);
    const Path unfinished = folder.string() + ".partial";
    make_folders(unfinished);
    TokenizeOptions tokenize;
    tokenize.inputs = {pattern};
    tokenize.json_keys = {options_.text.json_key};
    tokenize.output_prefix = unfinished / "tokens";
    tokenize.append_eod = options_.text.append_eod && tokenizer_.special_ids().eod.has_value();
    tokenize.skip_bad = options_.text.skip_bad;
    const auto tokenized = [](std::string_view option, std::string_view does) {
      return fmt::format("'primus data tokenize {}' {}: set data_path to the prefix that it writes", option,
                         does);
    };
    tokenize.hints = {tokenized("--json-keys KEY", "reads the text from another key"),
                      tokenized("--skip-bad", "skips such lines"),
                      tokenized("--max-line-mib N", "reads longer lines")};
    tokenize.workers = options_.text.workers;
    tokenize.existing = Existing::kReplace;  // replaces files that a killed process left
    try {
      const TokenizeResult result = tokenize_corpus(tokenize, tokenizer_, options_.text.progress);
      if (result.skipped_lines > 0) {
        notes_.push_back(fmt::format("{}: skipped {} broken lines, the first at {}", pattern,
                                     result.skipped_lines, result.first_skipped));
      }
      write_file_atomic(unfinished / kSeal, seal_of(unfinished));
      Env::posix().rename(unfinished, folder);
      Env::posix().sync_folder(cache);
    } catch (...) {
      if (!Env::posix().status(PartialFolder::path_for(tokenize.output_prefix))) try_remove_tree(unfinished);
      throw;
    }
  }

  const DataOptions& options_;
  const Tokenizer& tokenizer_;
  const std::array<std::int64_t, 3> requested_;
  TokenRules rules_;
  std::vector<std::string> notes_;
  std::vector<std::uint64_t> training_;  // fingerprints of the training data
  std::vector<std::pair<std::string, std::shared_ptr<const TokenSource>>> sources_;
  std::vector<const TokenSource*> text_;  // token sources made from text
};

}  // namespace

namespace {

void check(const DataOptions& options) {
  if (options.seq_length < 1) throw invalid(fmt::format("seq_length is {}", options.seq_length));
  if (options.seed < 0 || options.seed > UINT32_MAX) {
    throw invalid(fmt::format("the data seed {} is not in [0, 2^32)", options.seed),
                  "choose a seed in this range: numpy's generator, which Megatron-LM uses, accepts no other");
  }
  for (const std::int64_t samples : {options.train_samples, options.valid_samples, options.test_samples}) {
    if (samples < 0) throw invalid(fmt::format("{} samples are requested", samples));
  }
}

}  // namespace

void Dataset::document_starts(std::int64_t /*index*/, std::vector<std::int32_t>& starts) const {
  starts.assign(1, 0);
}

void Dataset::document_marks(std::int64_t /*index*/, std::vector<DocumentRole>& roles,
                             std::vector<float>& values) const {
  roles.clear();
  values.clear();
}

void Dataset::document_records(std::int64_t /*index*/, std::vector<std::int64_t>& records) const {
  records.clear();
}

double Dataset::learned_tokens(std::int64_t index) const {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(seq_length()) + 1);
  std::vector<float> mask(static_cast<std::size_t>(seq_length()));
  sample(index, tokens, mask);
  double sum = 0;
  for (const float m : mask) sum += static_cast<double>(m);
  return sum;
}

Datasets open_datasets(const DataOptions& options, const Tokenizer& tokenizer) {
  check(options);
  return Opener(options, tokenizer).run();
}

std::int64_t samples_of_epochs(const DataOptions& options, const Tokenizer& tokenizer, double epochs) {
  check(options);
  return Opener(options, tokenizer).samples_of_epochs(epochs);
}

TokenBound bound_tokens(const std::string& path) {
  if (IndexedDataset::exists(path)) return {IndexedDataset::open(path)->tokens(), true};
  if (!Env::posix().status(path)) return {};
  // A text has at most one token per byte, plus an EOS and a BOS token per file or line. In JSON lines, the
  // braces and the key add more bytes than EOS and BOS add tokens.
  constexpr std::int64_t kFrame = 16;
  TokenBound bound{0, false};
  for (const InputFile& file : find_inputs({path})) {
    if (file.compression != Compression::kNone) return {};
    bound.maximum += static_cast<std::int64_t>(file.size) + kFrame;
  }
  return bound;
}

}  // namespace primus::data
