#include "lm/data/sft_dataset.h"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "base/checked.h"
#include "base/error.h"
#include "base/text/counted.h"
#include "lm/data/chat_template.h"
#include "lm/data/text_split.h"

namespace primus::data {
namespace {

// Bins of equal size for first-fit packing. The bins are leaves of a tree in which each node stores the
// largest free space in its subtree.
class FirstFit {
 public:
  FirstFit(std::size_t maximum, std::int64_t room)
      : leaves_(std::bit_ceil(std::max<std::size_t>(maximum, 1))) {
    room_.assign(2 * leaves_, room);
  }
  // Puts `size` into the first bin that has enough space, and returns the bin's index. `size` must not exceed
  // the size of a bin.
  std::size_t put(std::int64_t size) {
    std::size_t node = 1;
    while (node < leaves_) node = 2 * node + (room_[2 * node] >= size ? 0 : 1);
    room_[node] -= size;
    for (std::size_t up = node / 2; up > 0; up /= 2) room_[up] = std::max(room_[2 * up], room_[2 * up + 1]);
    return node - leaves_;
  }

 private:
  std::size_t leaves_;
  std::vector<std::int64_t> room_;
};

// The units of supervised fine-tuning: each conversation is a unit.
class ConversationUnits final : public TrainingUnits {
 public:
  explicit ConversationUnits(TokenizedConversations all) : all_(std::move(all)) {}

  const TokenizedConversations& texts() const override { return all_; }
  std::string_view noun() const override { return "conversation"; }
  std::size_t size() const override { return all_.size(); }
  std::int64_t tokens(std::size_t unit) const override { return all_.tokens(unit); }
  std::int64_t kept(std::size_t unit, std::int64_t room) const override {
    return std::min(all_.tokens(unit), room);
  }
  std::int64_t labels(std::size_t unit, std::int64_t room) const override {
    const std::int64_t length = kept(unit, room);
    // The first token is not a label.
    const auto learned = all_.learned.begin() + all_.begin(unit);
    return length > 1 ? std::count(learned + 1, learned + length, std::uint8_t{1}) : 0;
  }
  void write(std::size_t unit, std::int64_t room, std::span<std::int32_t> tokens,
             std::span<float> mask) const override {
    const std::int64_t begin = all_.begin(unit), length = kept(unit, room);
    std::copy_n(all_.ids.begin() + begin, length, tokens.begin());
    for (std::int64_t k = 1; k < length; ++k) {
      if (all_.learned[static_cast<std::size_t>(begin + k)] != 0) mask[static_cast<std::size_t>(k - 1)] = 1;
    }
  }
  void documents(std::size_t unit, std::int64_t room, std::vector<UnitDocument>& out) const override {
    out.push_back({.tokens = kept(unit, room)});
  }
  void hash(std::size_t unit, std::int64_t room,
            FunctionRef<void(const void*, std::size_t)> update) const override {
    const auto begin = static_cast<std::size_t>(all_.begin(unit)),
               length = static_cast<std::size_t>(kept(unit, room));
    update(all_.ids.data() + begin, length * sizeof(std::int32_t));
    update(all_.learned.data() + begin, length);
  }

 private:
  const TokenizedConversations all_;
};

std::int32_t pad_of(const Tokenizer& tokenizer) {
  const SpecialIds& special = tokenizer.special_ids();
  for (const auto& id : {special.pad, special.eod, special.eos}) {
    if (id) return *id;
  }
  return 0;
}

}  // namespace

SftDataset::SftDataset(std::shared_ptr<const TrainingUnits> units, const std::vector<std::uint32_t>& which,
                       const Layout& layout, std::string description)
    : units_(std::move(units)), layout_(layout), description_(std::move(description)) {
  fill(usable(which));
  if (!learned_.empty()) {
    order_.emplace(learned_.size(), layout_.seed, layout_.shuffle);
    return;
  }
  if (which.empty())
    throw invalid(
        fmt::format("{}: this share of the data has no {}", description_, noun_for(0, units_->noun())),
        "increase its share: split=90,10,0 trains on 90 % and holds out 10 %");
  const std::string all = counted(std::ssize(which), units_->noun());
  if (counts_.unanswered == std::ssize(which)) {
    throw invalid(
        fmt::format("{}: none of {} can be learned: {}", description_, all, units_->lack_at_any_length()),
        units_->has_roles()
            ? "give each record answers with text; the chosen answer must differ from the rejected one"
            : "give each record an answer: a message with the role assistant, a response, or "
              "input_ids with 1 in loss_mask; 'primus data conversations' shows what is learned");
  }
  if (const std::string_view remedy = units_->remedy(); !remedy.empty()) {
    throw invalid(fmt::format("{}: none of {} can be learned: {}", description_, all, units_->lack()),
                  std::string(remedy));
  }
  std::int64_t shortest = std::numeric_limits<std::int64_t>::max(), longest = 0;
  for (const std::uint32_t i : which) {
    shortest = std::min(shortest, units_->tokens(i));
    longest = std::max(longest, units_->tokens(i));
  }
  throw invalid(
      fmt::format("{}: none of {} has answer tokens within seq_length ({} tokens); they have "
                  "{} to {} tokens",
                  description_, all, layout.seq_length, shortest, longest),
      counts_.too_long > 0
          ? fmt::format("longer than seq_length ({}): {}; increase seq_length", layout.seq_length,
                        counted(counts_.too_long, units_->noun()))
          : fmt::format(
                "a non-empty answer must begin within seq_length: increase seq_length (up to the "
                "model's max_position_embeddings), or shorten the questions{}",
                units_->has_roles()
                    ? ""
                    : fmt::format("; 'primus data conversations --seq-length {}' shows what is learned",
                                  layout.seq_length)));
}

std::int64_t SftDataset::size() const { return std::numeric_limits<std::int64_t>::max(); }

bool SftDataset::has_labels(std::uint32_t unit) const {
  return units_->labels(unit, std::numeric_limits<std::int64_t>::max()) > 0;
}

// Returns the units that have a learned token, and counts the other units.
std::vector<std::uint32_t> SftDataset::usable(const std::vector<std::uint32_t>& which) {
  std::vector<std::uint32_t> kept;
  for (const std::uint32_t i : which) {
    const std::int64_t kept_length = units_->kept(i, room());
    const bool cut = units_->tokens(i) > kept_length;
    if (cut && layout_.leave_out_long) {
      ++counts_.too_long;
      continue;
    }
    const std::int64_t labels = units_->labels(i, room());
    if (labels == 0) {
      ++(has_labels(i) ? counts_.nothing_to_learn : counts_.unanswered);
      continue;
    }
    kept.push_back(i);
    ++counts_.units;
    counts_.truncated += cut ? 1 : 0;
    counts_.tokens += kept_length;
    counts_.learned += labels;
  }
  return kept;
}

void SftDataset::fill(const std::vector<std::uint32_t>& units) {
  if (units.empty()) return;
  std::vector<std::vector<std::uint32_t>> samples;
  if (!layout_.pack) {
    for (const std::uint32_t i : units) samples.push_back({i});
  } else {
    std::vector<std::uint32_t> order = units;
    if (layout_.random_fit) {
      shuffle(order, layout_.seed, Shuffle::kPacks);
    } else if (layout_.shuffle) {
      // Packs the longest units first, which leaves little unused space.
      std::ranges::stable_sort(order, std::greater<>(),
                               [this](std::uint32_t i) { return units_->kept(i, room()); });
    }
    FirstFit bins(order.size(), room());
    for (const std::uint32_t i : order) {
      const std::size_t bin = bins.put(units_->kept(i, room()));
      if (bin >= samples.size()) samples.resize(bin + 1);
      samples[bin].push_back(i);
    }
  }
  for (const std::vector<std::uint32_t>& sample : samples) {
    std::int64_t learned = 0;
    for (const std::uint32_t i : sample) learned += units_->divisor(i, room());
    members_.insert(members_.end(), sample.begin(), sample.end());
    ends_.push_back(members_.size());
    learned_.push_back(checked_cast<std::int32_t>(learned, "divisor of a sample"));
  }
}

std::span<const std::uint32_t> SftDataset::contents(std::size_t sample) const {
  const std::size_t begin = sample == 0 ? 0 : ends_[sample - 1];
  return std::span(members_).subspan(begin, ends_[sample] - begin);
}

void SftDataset::sample(std::int64_t draw, std::span<std::int32_t> tokens, std::span<float> loss_mask) const {
  std::ranges::fill(tokens, layout_.pad);
  std::ranges::fill(loss_mask, 0.0F);
  std::size_t at = 0;
  for (const std::uint32_t i : contents(order_->at(draw))) {
    units_->write(i, room(), tokens.subspan(at), loss_mask.subspan(std::min(at, loss_mask.size())));
    at += static_cast<std::size_t>(units_->kept(i, room()));
  }
}

std::vector<UnitDocument> SftDataset::texts_of(std::size_t sample) const {
  std::vector<UnitDocument> texts;
  for (const std::uint32_t i : contents(sample)) units_->documents(i, room(), texts);
  return texts;
}

void SftDataset::document_starts(std::int64_t draw, std::vector<std::int32_t>& starts) const {
  starts.clear();
  std::int64_t at = 0;
  for (const UnitDocument& text : texts_of(order_->at(draw))) {
    if (at < layout_.seq_length) starts.push_back(static_cast<std::int32_t>(at));
    at += text.tokens;
  }
  // The padding is a separate document.
  if (at < layout_.seq_length) starts.push_back(static_cast<std::int32_t>(at));
}

void SftDataset::document_marks(std::int64_t draw, std::vector<DocumentRole>& roles,
                                std::vector<float>& values) const {
  roles.clear();
  values.clear();
  if (!units_->has_roles()) return;
  std::int64_t at = 0;
  for (const UnitDocument& text : texts_of(order_->at(draw))) {
    roles.push_back(text.role);
    values.push_back(text.value);
    at += text.tokens;
  }
  if (at < layout_.seq_length) {
    roles.push_back(DocumentRole::kNone);
    values.push_back(0);
  }
}

double SftDataset::learned_tokens(std::int64_t draw) const { return learned_[order_->at(draw)]; }

std::uint64_t SftDataset::fingerprint() const {
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  const std::array<std::int64_t, 3> layout = {layout_.seq_length, layout_.pack, layout_.separate};
  XXH3_64bits_update(&state, layout.data(), sizeof layout);
  for (std::size_t sample = 0; sample < learned_.size(); ++sample) {
    for (const std::uint32_t i : contents(sample)) {
      units_->hash(i, room(), [&state](const void* bytes, std::size_t count) {
        XXH3_64bits_update(&state, bytes, count);
      });
    }
    XXH3_64bits_update(&state, &sample, sizeof sample);  // separates the samples in the hash
  }
  return XXH3_64bits_digest(&state);
}

namespace {

class SftOpener {
 public:
  SftOpener(const SftOptions& options, const Tokenizer& tokenizer, const ReadUnits& read)
      : options_(options),
        tokenizer_(tokenizer),
        read_(read),
        files_(find_conversations(options.dataset, options.train_split)) {}

  Datasets run() {
    Datasets result;
    if (!files_.divided && options_.train_split != "train") {
      result.notes.push_back(fmt::format("{} has no splits: all of it is read, not only '{}'",
                                         options_.dataset, options_.train_split));
    }
    if (std::string note = note_on_other_files(files_, options_.dataset); !note.empty())
      result.notes.push_back(std::move(note));
    if (options_.train_samples > 0) result.train = open_train(result);
    if (files_.has_evaluated() && !options_.can_evaluate) {
      result.facts.push_back(
          fmt::format("{}: files for validation and test are not read, because this stage evaluates nothing",
                      options_.dataset));
    }
    if (files_.has_evaluated()) {
      if (!options_.shares.empty()) {
        result.notes.push_back(
            fmt::format("{}: split ({}) has no effect, because validation or test data have their own files",
                        options_.dataset, options_.shares));
      }
      result.valid = open_file(files_.valid, options_.valid_samples, "validation", result);
      result.test = open_file(files_.test, options_.test_samples, "test", result);
    } else {
      result.valid = open_part(held_out_valid_, options_.valid_samples, "validation", result);
      result.test = open_part(held_out_test_, options_.test_samples, "test", result);
      result.held_out = !held_out_valid_.empty() || !held_out_test_.empty();
      note_unevaluated(result);
    }
    return result;
  }

  SftEpochs samples_of_epochs(double epochs) {
    Datasets unused;
    const auto train = open_train(unused);
    const double samples = std::ceil(epochs * static_cast<double>(train->samples()));
    return {std::max<std::int64_t>(1, static_cast<std::int64_t>(samples)), units_};
  }

 private:
  std::shared_ptr<const TrainingUnits> read(const std::vector<InputFile>& files) {
    const std::int64_t vocab = options_.vocab_size > 0 ? options_.vocab_size : tokenizer_.vocab_size();
    auto units =
        read_(files, {.vocab_size = vocab, .skip_bad = options_.skip_bad, .progress = options_.progress});
    if (units->size() > 0) return units;
    throw invalid(fmt::format("'{}' is empty, so it has no training data", files.front().path.string()),
                  fmt::format("put {} into it, one JSON object per line", noun_for(0, units->noun())));
  }

  static void note_reading(const TokenizedConversations& read, const std::string& name, Datasets& result) {
    if (std::string note = note_on_skipped(read, name); !note.empty())
      result.notes.push_back(std::move(note));
    for (std::string& note : notes_on_content(read, name)) result.notes.push_back(std::move(note));
    if (std::string fact = note_on_unused(read, name); !fact.empty()) result.facts.push_back(std::move(fact));
  }

  // If a part has several files, lists the files for the user, who may have added one by mistake.
  static void note_files(const std::vector<InputFile>& files, std::string_view part, Datasets& result) {
    constexpr std::size_t kShown = 8;
    if (files.size() < 2) return;
    std::string names;
    for (std::size_t i = 0; i < std::min(kShown, files.size()); ++i)
      names += (i > 0 ? ", " : "") + files[i].path.filename().string();
    if (files.size() > kShown) names += fmt::format(" and {} more", files.size() - kShown);
    result.facts.push_back(fmt::format("the {} set is read from {} files: {}", part, files.size(), names));
  }

  std::unique_ptr<const SftDataset> open_train(Datasets& result) {
    units_ = options_.units ? options_.units : read(files_.train);
    note_reading(units_->texts(), options_.dataset, result);
    note_files(files_.train, "training", result);
    const UnitRemarks remarks = units_->remarks();
    if (!remarks.fact.empty()) result.facts.push_back(fmt::format("{}: {}", options_.dataset, remarks.fact));
    if (!remarks.warning.empty())
      result.notes.push_back(fmt::format("{}: {}", options_.dataset, remarks.warning));
    std::vector<std::uint32_t> all = numbers_below(units_->size());
    if (!files_.has_evaluated()) hold_out(all, result);
    std::unique_ptr<const SftDataset> train =
        make(units_, all, options_.dataset, "train", options_.shuffle, result);
    result.train_fingerprint = train->fingerprint();
    return train;
  }

  bool is_usable(std::uint32_t unit) const {
    const std::int64_t room = options_.seq_length + (options_.last_token_is_input ? 0 : 1);
    const bool too_long = units_->tokens(unit) > room;
    return !(too_long && options_.inline_bos) && units_->labels(unit, room) > 0;
  }

  // Moves conversations for validation or test from `all` to `result`. Unusable conversations stay in `all`,
  // where they are counted.
  void hold_out(std::vector<std::uint32_t>& all, Datasets& result) {
    constexpr std::int64_t kFewest = 10;
    constexpr std::int64_t kHundredth = 100;
    std::vector<std::uint32_t> mixed = all;
    shuffle(mixed, options_.seed, Shuffle::kHeldOut);
    const auto rest = std::ranges::stable_partition(mixed, [this](std::uint32_t i) { return is_usable(i); });
    const std::vector<std::uint32_t> left_out(rest.begin(), rest.end());
    mixed.erase(rest.begin(), rest.end());
    const auto count = static_cast<std::int64_t>(mixed.size());
    std::vector<Share> shares;
    if (!options_.shares.empty()) {
      const std::array<bool, 3> drawn = {true, options_.valid_samples > 0, options_.test_samples > 0};
      shares = split_with_minimum(options_.shares, count, drawn, [](std::int64_t end) { return end - 1; });
    } else if (options_.valid_samples > 0) {
      if (std::ssize(mixed) < kFewest) {
        result.notes.push_back(
            fmt::format("{}: no validation set is held out, because there are fewer than {}",
                        options_.dataset, counted(kFewest, units_->noun())));
        return;
      }
      const std::int64_t held = (count + kHundredth - 1) / kHundredth;
      shares = {{0, count - held}, {count - held, count}, {count, count}};
    } else {
      return;
    }
    const auto part = [&mixed](const Share& share) {
      std::vector<std::uint32_t> members(mixed.begin() + share.first, mixed.begin() + share.last);
      std::ranges::sort(members);
      return members;
    };
    all = part(shares[0]);
    all.insert(all.end(), left_out.begin(), left_out.end());
    std::ranges::sort(all);
    held_out_valid_ = part(shares[1]);
    held_out_test_ = part(shares[2]);
  }

  std::unique_ptr<const Dataset> open_file(const std::vector<InputFile>& files, std::int64_t samples,
                                           std::string_view part, Datasets& result) {
    if (samples == 0 || files.empty()) return nullptr;
    const auto units = read(files);
    note_reading(units->texts(), files.front().path.string(), result);
    note_files(files, part, result);
    return make_evaluated(units, numbers_below(units->size()), files.front().path.string(), part, samples,
                          result);
  }

  std::unique_ptr<const Dataset> open_part(const std::vector<std::uint32_t>& members, std::int64_t samples,
                                           std::string_view part, Datasets& result) {
    if (samples == 0 || members.empty()) return nullptr;
    return make_evaluated(units_, members, options_.dataset, part, samples, result);
  }

  // Warns of conversations that are neither trained on nor evaluated.
  void note_unevaluated(Datasets& result) const {
    const bool evaluated = options_.valid_samples > 0 || options_.test_samples > 0;
    const std::size_t held_out = held_out_valid_.size() + held_out_test_.size();
    if (evaluated || held_out == 0) return;
    const char* const next =
        options_.can_evaluate
            ? "but no evaluation runs (eval_iters is 0): set eval_iters to the batches per evaluation (for "
              "example 4), or train on all of them with split=100,0,0"
            : "but this stage evaluates nothing: train on all of them with split=100,0,0";
    result.notes.push_back(fmt::format("{}: split {} holds out {}, {}", options_.dataset, options_.shares,
                                       counted(static_cast<std::int64_t>(held_out), units_->noun()), next));
  }

  std::unique_ptr<const Dataset> make_evaluated(std::shared_ptr<const TrainingUnits> units,
                                                const std::vector<std::uint32_t>& members,
                                                const std::string& name, std::string_view part,
                                                std::int64_t samples, Datasets& result) {
    auto made = make(std::move(units), members, name, part, /*shuffled=*/false, result);
    // `samples` is the number for all evaluations of a run together; the test is as long as one evaluation.
    const std::int64_t each = options_.test_samples > 0 ? std::min(samples, options_.test_samples) : samples;
    if (made->samples() < each) result.facts.push_back(describe_repeats(part, made->samples(), each));
    return made;
  }

  std::unique_ptr<const SftDataset> make(std::shared_ptr<const TrainingUnits> units,
                                         const std::vector<std::uint32_t>& members, const std::string& name,
                                         std::string_view part, bool shuffled, Datasets& result) const {
    auto made = std::make_unique<const SftDataset>(
        std::move(units), members,
        SftDataset::Layout{.seq_length = options_.seq_length,
                           .seed = options_.seed,
                           .pad = pad_of(tokenizer_),
                           .pack = options_.pack,
                           .separate = options_.separate,
                           .shuffle = shuffled,
                           .leave_out_long = options_.inline_bos,
                           .random_fit = options_.inline_bos,
                           .last_token_is_input = options_.last_token_is_input},
        fmt::format("{} ({})", name, part));
    describe(*made, result);
    return made;
  }

  void describe(const SftDataset& data, Datasets& result) const {
    const SftDataset::Counts& counts = data.counts();
    if (!units_->has_answers()) {
      result.facts.push_back(fmt::format("{}: {}, {}", data.description(),
                                         counted(counts.units, units_->noun()),
                                         counted(counts.tokens, "token")));
      note_left_out(data, result);
      return;
    }
    const double places = static_cast<double>(data.samples()) * static_cast<double>(options_.seq_length);
    result.facts.push_back(fmt::format(
        "{}: {} packed into {}, {:.1f} % full; the loss is over {} of {} tokens", data.description(),
        counted(counts.units, units_->noun()), counted(data.samples(), "sequence"),
        100 * std::min(1.0, static_cast<double>(counts.tokens) / places), counts.learned, counts.tokens));
    note_left_out(data, result);
  }

  void note_left_out(const SftDataset& data, Datasets& result) const {
    const SftDataset::Counts& counts = data.counts();
    const std::int64_t all = counts.units + counts.too_long + counts.nothing_to_learn + counts.unanswered;
    const auto warn = [&](std::string_view action, std::int64_t count, std::string_view reason) {
      if (count == 0) return;
      result.notes.push_back(fmt::format("{}: {} {} of {}: {}", data.description(), action, count,
                                         counted(all, units_->noun()), reason));
    };
    const std::string long_ones = fmt::format("longer than seq_length ({})", options_.seq_length);
    warn("truncated", counts.truncated, long_ones);
    warn("skipped", counts.too_long, long_ones);
    warn("skipped", counts.nothing_to_learn, units_->lack());
    warn("skipped", counts.unanswered, units_->lack_at_any_length());
  }

  const SftOptions& options_;
  const Tokenizer& tokenizer_;
  const ReadUnits& read_;
  ConversationFiles files_;
  std::shared_ptr<const TrainingUnits> units_;  // training data
  std::vector<std::uint32_t> held_out_valid_, held_out_test_;
};

void check(const SftOptions& options) {
  if (options.seq_length < 1) throw invalid(fmt::format("seq_length is {}", options.seq_length));
}

}  // namespace

ConversationWriter conversation_writer(const SftOptions& options, const Tokenizer& tokenizer) {
  ConversationStyle style = choose_style(options.format, tokenizer).style;
  style.inline_bos = options.inline_bos;
  return {std::move(style), tokenizer};
}

std::shared_ptr<const TrainingUnits> conversation_units(TokenizedConversations all) {
  return std::make_shared<const ConversationUnits>(std::move(all));
}

namespace {

ReadUnits conversation_reader(const SftOptions& options, const Tokenizer& tokenizer) {
  auto writer = std::make_shared<const ConversationWriter>(conversation_writer(options, tokenizer));
  return [writer](const std::vector<InputFile>& files, const ReadOptions& how) {
    return conversation_units(read_conversations(files, *writer, how));
  };
}

}  // namespace

Datasets open_sft_datasets(const SftOptions& options, const Tokenizer& tokenizer) {
  return open_unit_datasets(options, tokenizer, conversation_reader(options, tokenizer));
}

SftEpochs sft_samples_of_epochs(const SftOptions& options, const Tokenizer& tokenizer, double epochs) {
  return unit_samples_of_epochs(options, tokenizer, epochs, conversation_reader(options, tokenizer));
}

Datasets open_unit_datasets(const SftOptions& options, const Tokenizer& tokenizer, const ReadUnits& read) {
  check(options);
  return SftOpener(options, tokenizer, read).run();
}

SftEpochs unit_samples_of_epochs(const SftOptions& options, const Tokenizer& tokenizer, double epochs,
                                 const ReadUnits& read) {
  check(options);
  return SftOpener(options, tokenizer, read).samples_of_epochs(epochs);
}

}  // namespace primus::data
