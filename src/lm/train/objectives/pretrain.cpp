// Pre-training: predicts the next token of text.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <set>
#include <span>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/files/file.h"
#include "base/files/scratch_folder.h"
#include "config/trainer_config.h"
#include "lm/data/repeated_dataset.h"
#include "lm/generate/generate.h"
#include "lm/train/objectives/objective.h"
#include "lm/train/settings/training_settings.h"

namespace primus {
namespace {

data::DataOptions options_of(const DataRequest& request) {
  const config::TrainerConfig& c = request.experiment.trainer;
  data::DataOptions options = data_options_of(request.experiment, request.tokenizer);
  options.text.progress = request.progress;
  if (request.timed_steps > 0) {
    options.train_samples = request.timed_steps * c.global_batch_size;
    options.valid_samples = (request.timed_steps / c.eval_interval + 1) * options.test_samples;
  }
  return options;
}

// Adds notes about evaluations on files that are also trained on.
void note_files_of_training(const config::TrainerConfig& c, data::Datasets& datasets) {
  const auto place_of = [](const std::string& path) {
    std::error_code unreadable;  // if resolving the path fails, the unresolved path is compared
    const std::filesystem::path place = std::filesystem::weakly_canonical(path, unreadable);
    return unreadable ? std::filesystem::path(path) : place;
  };
  std::set<std::filesystem::path> trained;
  for (const std::string& path : data::paths_of(c.train_data_path)) trained.insert(place_of(path));
  const auto note = [&](const char* key, const std::vector<std::string>& list, const char* loss) {
    for (const std::string& path : data::paths_of(list)) {
      if (!trained.contains(place_of(path))) continue;
      datasets.notes.push_back(
          fmt::format("{} and train_data_path both name '{}': the {} loss is measured on training data, and "
                      "does not show overfitting",
                      key, path, loss));
    }
  };
  if (datasets.valid) note("valid_data_path", c.valid_data_path, "validation");
  if (datasets.test) note("test_data_path", c.test_data_path, "test");
}

// Returns the number of text bytes that `ids` decode to. Tokens that mark the ends of documents have no text.
// Other special tokens are part of the text.
std::size_t bytes_of(std::span<const std::int32_t> ids, const Tokenizer& tokenizer) {
  const SpecialIds& special = tokenizer.special_ids();
  const std::optional<std::int32_t> end = special.eod ? special.eod : special.eos;
  const std::vector<std::int32_t>& before = tokenizer.frame().before;
  std::vector<std::int32_t> text;
  std::ranges::copy_if(ids, std::back_inserter(text), [&](std::int32_t id) {
    return id != end && std::ranges::find(before, id) == before.end();
  });
  return tokenizer.decode(text, /*skip_special=*/false).size();
}

class Pretrain final : public Objective {
 public:
  void find_missing(const config::Experiment& experiment, std::vector<MissingInput>& missing) const override {
    const config::TrainerConfig& c = experiment.trainer;
    if (c.mock_data) return;
    Env& env = Env::posix();
    for (const auto& [key, paths] :
         {std::pair("data_path", &c.data_path), std::pair("train_data_path", &c.train_data_path),
          std::pair("valid_data_path", &c.valid_data_path), std::pair("test_data_path", &c.test_data_path)}) {
      for (const std::string& path : *paths) {
        double weight = 0;
        const char* const end = path.data() + path.size();
        const bool is_weight = std::from_chars(path.data(), end, weight).ptr == end;
        const bool is_glob = path.find_first_of("*?[") != std::string::npos;
        if (!is_weight && !is_glob && !env.status(path + ".idx") && !env.status(path))
          missing.push_back({key, path});
      }
    }
  }

  void check_samples(const config::Experiment& e) const override {
    const config::TrainerConfig& c = e.trainer;
    const auto check = [&e](const char* key, double samples, const char* what, const char* hint) {
      if (samples <= static_cast<double>(data::kMaxOrderedSamples)) return;
      throw e.error_for(key, fmt::format("{} {:.3g} samples; the limit is 2^32", what, samples), hint);
    };
    const auto batch = static_cast<double>(c.global_batch_size);
    const double evaluations = std::floor(static_cast<double>(c.train_iters / c.eval_interval)) + 1;
    check("train_iters", static_cast<double>(c.train_iters) * batch, "train_iters * global_batch_size are",
          "train for fewer steps");
    check("eval_iters", evaluations * static_cast<double>(c.eval_iters) * batch,
          "the evaluations (eval_iters * global_batch_size each) are",
          "evaluate on fewer batches (eval_iters), or less often (eval_interval)");
    if (c.mock_data) return;
    double of_epochs = 0;
    for (const std::string& path : data::paths_of(c.data_path.empty() ? c.train_data_path : c.data_path)) {
      const data::TokenBound tokens = data::bound_tokens(path);
      if (tokens.maximum <= c.seq_length) {
        throw e.error_for(
            "seq_length",
            fmt::format("seq_length is {}, but '{}' holds at most {} tokens, less than one sample",
                        c.seq_length, path, tokens.maximum),
            "shorten seq_length, or add data");
      }
      if (tokens.exact)
        of_epochs += c.train_epochs.value_or(0) * static_cast<double>(tokens.maximum) /
                     static_cast<double>(c.seq_length);
    }
    check("train_epochs", of_epochs, "this number of epochs is", "train for fewer epochs");
  }

  std::optional<std::int64_t> planned_samples(const DataRequest& request, double epochs) const override {
    constexpr std::int64_t kSmall = std::int64_t{8} << 20;  // tokens of text that are counted within seconds
    data::DataOptions options = options_of(request);
    std::int64_t text = 0;
    for (const std::string& path :
         data::paths_of(options.data_path.empty() ? options.train_data_path : options.data_path)) {
      const data::TokenBound tokens = data::bound_tokens(path);
      if (tokens.exact) continue;
      if (tokens.maximum > kSmall - text) return std::nullopt;
      text += tokens.maximum;
    }
    // A plan uses a temporary cache, so it leaves no tokens in the cache of runs.
    const ScratchFolder cache("primus-plan");
    options.cache_dir = cache.path();
    return data::samples_of_epochs(options, request.tokenizer, epochs);
  }

  std::int64_t prompt_tokens(const config::TrainerConfig&) const override { return 256; }

  data::Datasets open(const DataRequest& request) override {
    const config::TrainerConfig& c = request.experiment.trainer;
    data::Datasets datasets = data::open_datasets(options_of(request), request.tokenizer);
    if (!c.mock_data && !c.train_data_path.empty()) note_files_of_training(c, datasets);
    if (depends_on_ranks(c)) {
      for (auto* dataset : {&datasets.train, &datasets.valid, &datasets.test}) {
        if (*dataset) *dataset = data::make_cyclic(std::move(*dataset), request.cyclic);
      }
    }
    if (request.timed_steps > 0) {
      for (auto* dataset : {&datasets.train, &datasets.valid})
        *dataset = data::make_repeated(std::move(*dataset));
    }
    const std::int64_t needed = c.train_iters * c.global_batch_size;
    if (datasets.train && datasets.train->size() < needed) {
      throw request.experiment.error_for(
          "train_iters",
          fmt::format("{} steps of {} sequences need {} samples, but {} has {}", c.train_iters,
                      c.global_batch_size, needed, datasets.train->description(), datasets.train->size()),
          fmt::format("train for {} steps", datasets.train->size() / c.global_batch_size));
    }
    return datasets;
  }

  std::int64_t samples_of_epochs(const DataRequest& request, double epochs) override {
    return data::samples_of_epochs(options_of(request), request.tokenizer, epochs);
  }
  bool depends_on_ranks(const config::TrainerConfig& trainer) const override {
    return trainer.dataloader_type == "cyclic";
  }
  bool documents_end_by_token() const override { return true; }

  std::optional<double> bytes_per_token(const data::Datasets& datasets,
                                        const DataRequest& request) const override {
    constexpr std::int64_t kSamples = 32;
    const Tokenizer& tokenizer = request.tokenizer;
    if (!datasets.valid || request.experiment.trainer->mock_data || tokenizer.name() == "NullTokenizer")
      return std::nullopt;
    const data::Dataset& valid = *datasets.valid;
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(valid.seq_length()) + 1);
    std::vector<float> mask(static_cast<std::size_t>(valid.seq_length()));
    std::size_t bytes = 0, labels = 0;
    for (std::int64_t i = 0; i < std::min(kSamples, valid.size()); ++i) {
      valid.sample(i, tokens, mask);
      const std::span<const std::int32_t> text = std::span(tokens).subspan(1);
      // Data with another vocabulary (allow_tokenizer_change) cannot be decoded.
      if (std::ranges::any_of(text, [&](std::int32_t id) { return id >= tokenizer.vocab_size(); }))
        return std::nullopt;
      bytes += bytes_of(text, tokenizer);
      labels += text.size();
    }
    if (bytes == 0) return std::nullopt;
    return static_cast<double>(bytes) / static_cast<double>(labels);
  }

  // Returns complete words near the beginning of the data, because a sequence often begins within a word.
  std::vector<std::int32_t> sample_prompt(const data::Datasets& datasets,
                                          const DataRequest& request) const override {
    constexpr std::size_t kLooked = 64, kWords = 8, kTokens = 12;
    const auto sequence = static_cast<std::size_t>(request.experiment.trainer->seq_length);
    const data::Dataset& from = datasets.valid ? *datasets.valid : *datasets.train;
    std::vector<std::int32_t> tokens(sequence + 1);
    std::vector<float> mask(sequence);
    from.sample(0, tokens, mask);
    tokens.resize(std::min(kLooked, sequence));
    const std::string text = request.tokenizer.decode(tokens);
    if (const std::string_view words = opening_words(text, kWords); !words.empty())
      return request.tokenizer.encode(words);
    tokens.resize(std::min(kTokens, tokens.size()));
    return tokens;
  }

  std::string_view validation_hint() const override { return "set valid_data_path"; }

  std::string data_name(const config::TrainerConfig& c) const override {
    return c.mock_data
               ? "mock data"
               : fmt::format("{}", fmt::join(c.data_path.empty() ? c.train_data_path : c.data_path, " "));
  }
  bool keeps_order(std::string_view) const override { return false; }
  void refuse_changed_data(const ChangedData& changed) const override {
    changed.refuse(key_in_use(changed.experiment, {"data_path", "train_data_path", "mock_data"}),
                   "training text");
  }

  // Completes the files of the model folder. A model with its own chat template keeps this template.
  void finish_model_files(const DataRequest& request, const ModelConfig&,
                          std::vector<Snapshot::Blob>& files) const override {
    const bool has_tokenizer = std::ranges::any_of(
        files, [](const Snapshot::Blob& file) { return file.name.starts_with("tokenizer"); });
    const bool has_template = std::ranges::any_of(files, [](const Snapshot::Blob& file) {
      return file.name == "chat_template.jinja" ||
             file.content.find("\"chat_template\"") != std::string::npos;
    });
    const std::string_view jinja = request.tokenizer.chat_template();
    if (has_tokenizer && !has_template && !jinja.empty())
      files.push_back({"chat_template.jinja", std::string(jinja)});
  }
};

std::unique_ptr<Objective> make() { return std::make_unique<Pretrain>(); }

}  // namespace

extern const ObjectiveEntry kPretrain{.stage = {.name = "pretrain"}, .make = make};
extern const ObjectiveEntry kMlperfPretrain{
    .stage = {.name = "mlperf_pretrain",
              .meaning = "which also writes a log in MLPerf's format (docs/watching.md)",
              .mlperf_log = true},
    .make = make};

}  // namespace primus
