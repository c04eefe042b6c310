#include "lm/data/preference_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "lm/data/conversation_format.h"

namespace primus::data {
namespace {

class PreferenceReader final : public RecordReader {
 public:
  PreferenceReader(const ConversationWriter& writer, PreferenceKind kind, TokenizedPreferences& all)
      : writer_(writer), kind_(kind), all_(all) {}

  void prepare(std::size_t slots, int threads) override {
    scratch_.resize(static_cast<std::size_t>(threads));
    if (done_.size() < slots) done_.resize(slots);
  }
  std::string_view name() const override {
    return kind_ == PreferenceKind::kLabelled ? "an answer with a label" : "a pair of answers";
  }

  void read(JsonReader& json, std::size_t slot, int thread, TokenizedRecord& out) override {
    Scratch& scratch = scratch_[static_cast<std::size_t>(thread)];
    read_preference(json, kind_, scratch.record, writer_.members());
    json.finish();
    out = {.unused = scratch.record.unused};
    out.tokens.starts.clear();
    Done& done = done_[slot];
    done.margin = scratch.record.margin;
    done.preferred.clear();
    for (const Preference::Text& text : scratch.record.texts) {
      writer_.write(text.conversation, scratch.tokens);
      if (std::ranges::find(scratch.tokens.learned, std::uint8_t{1}) == scratch.tokens.learned.end())
        throw invalid("an answer of the record has no text of the assistant",
                      "write the answer as text or as a message of the role assistant, or remove the record");
      if (scratch.tokens.starts.size() > 1) {
        throw invalid("the model's chat template writes the answer of the record as several texts",
                      "write each turn of the assistant as a separate record");
      }
      out.tokens.starts.push_back(static_cast<std::int64_t>(out.tokens.ids.size()));
      out.tokens.ids.insert(out.tokens.ids.end(), scratch.tokens.ids.begin(), scratch.tokens.ids.end());
      out.tokens.learned.insert(out.tokens.learned.end(), scratch.tokens.learned.begin(),
                                scratch.tokens.learned.end());
      done.preferred.push_back(text.preferred ? 1 : 0);
    }
  }

  void added(std::size_t slot) override {
    const Done& done = done_[slot];
    all_.preferred.insert(all_.preferred.end(), done.preferred.begin(), done.preferred.end());
    all_.margins.insert(all_.margins.end(), done.preferred.size(), done.margin);
  }

 private:
  struct Scratch {
    Preference record;
    LearnedTokens tokens;
  };
  struct Done {
    std::vector<std::uint8_t> preferred;  // one entry per text of the record
    float margin = 0;
  };

  const ConversationWriter& writer_;
  const PreferenceKind kind_;
  TokenizedPreferences& all_;
  std::vector<Scratch> scratch_;  // one for each thread
  std::vector<Done> done_;        // one for each record that is read together with others
};

// Functions for both kinds of units: pairs and labelled answers. Each text of a unit combines the prompt of
// one conversation with the answer of the same or of another conversation.
class PreferenceUnits : public TrainingUnits {
 public:
  explicit PreferenceUnits(TokenizedPreferences all) : all_(std::move(all)) {
    answers_.reserve(all_.texts.size());
    for (std::size_t i = 0; i < all_.texts.size(); ++i) {
      const auto begin = all_.texts.learned.begin() + all_.texts.begin(i);
      answers_.push_back(std::find(begin, begin + all_.texts.tokens(i), std::uint8_t{1}) - begin);
    }
  }

  const TokenizedConversations& texts() const override { return all_.texts; }
  bool has_roles() const override { return true; }
  std::int64_t tokens(std::size_t unit) const override {
    std::int64_t sum = 0;
    for (const Text& text : of(unit)) sum += length(text);
    return sum;
  }
  std::int64_t kept(std::size_t unit, std::int64_t room) const override {
    const std::int64_t longest = longest_text(unit, room);
    std::int64_t sum = 0;
    for (const Text& text : of(unit)) sum += std::min(length(text), longest);
    return sum;
  }
  std::int64_t labels(std::size_t unit, std::int64_t room) const override {
    const std::int64_t longest = longest_text(unit, room);
    std::int64_t sum = 0;
    for (const Text& text : of(unit)) {
      std::int64_t of_text = 0;
      for_each_token(text, longest, [&](std::int64_t at, std::int32_t, bool learned) {
        of_text += at > 0 && learned ? 1 : 0;
      });
      if (of_text == 0) return 0;
      sum += of_text;
    }
    return is_comparable(unit) ? sum : 0;
  }
  std::int64_t divisor(std::size_t /*unit*/, std::int64_t /*room*/) const override { return 1; }
  void write(std::size_t unit, std::int64_t room, std::span<std::int32_t> tokens,
             std::span<float> mask) const override {
    const std::int64_t longest = longest_text(unit, room);
    std::size_t begin = 0;
    for (const Text& text : of(unit)) {
      for_each_token(text, longest, [&](std::int64_t at, std::int32_t id, bool learned) {
        const std::size_t place = begin + static_cast<std::size_t>(at);
        tokens[place] = id;
        if (at > 0 && learned) mask[place - 1] = 1;
      });
      begin += static_cast<std::size_t>(std::min(length(text), longest));
    }
  }
  void documents(std::size_t unit, std::int64_t room, std::vector<UnitDocument>& out) const override {
    const std::int64_t longest = longest_text(unit, room);
    for (const Text& text : of(unit)) {
      out.push_back(
          {.tokens = std::min(length(text), longest), .role = text.role, .value = all_.margins[text.answer]});
    }
  }
  void hash(std::size_t unit, std::int64_t room,
            FunctionRef<void(const void*, std::size_t)> update) const override {
    const std::int64_t longest = longest_text(unit, room);
    for (const Text& text : of(unit)) {
      std::vector<std::int32_t> ids;
      std::vector<std::uint8_t> learned;
      for_each_token(text, longest, [&](std::int64_t, std::int32_t id, bool is_learned) {
        ids.push_back(id);
        learned.push_back(is_learned ? 1 : 0);
      });
      update(ids.data(), ids.size() * sizeof(std::int32_t));
      update(learned.data(), learned.size());
      update(&text.role, sizeof text.role);
      update(&all_.margins[text.answer], sizeof(float));
    }
  }

 protected:
  // Consists of the prompt of the text with index `prompt` and the answer of the text with index `answer`.
  // The indices differ only in a mismatched text.
  struct Text {
    std::size_t prompt = 0, answer = 0;
    DocumentRole role = DocumentRole::kNone;
  };
  struct Texts {
    std::array<Text, 2> all;
    std::size_t count = 0;
    const Text* begin() const { return all.data(); }
    const Text* end() const { return all.data() + count; }
  };
  virtual Texts of(std::size_t unit) const = 0;
  // Returns whether the texts of the unit differ.
  virtual bool is_comparable(std::size_t /*unit*/) const { return true; }

  std::span<const std::int32_t> prompt_of(std::size_t text) const {
    return {all_.texts.ids.data() + all_.texts.begin(text), static_cast<std::size_t>(answers_[text])};
  }
  std::span<const std::int32_t> ids_of(std::size_t text) const {
    return {all_.texts.ids.data() + all_.texts.begin(text),
            static_cast<std::size_t>(all_.texts.tokens(text))};
  }
  const TokenizedPreferences& all() const { return all_; }

 private:
  std::int64_t length(const Text& text) const {
    return answers_[text.prompt] + all_.texts.tokens(text.answer) - answers_[text.answer];
  }
  // Returns the largest number of tokens per text with which the unit fits into `room` tokens.
  std::int64_t longest_text(std::size_t unit, std::int64_t room) const {
    const Texts texts = of(unit);
    std::int64_t shorter = length(texts.all[0]), longer = shorter;
    if (texts.count == 1) return std::min(longer, room);
    const std::int64_t second = length(texts.all[1]);
    shorter = std::min(shorter, second);
    longer = std::max(longer, second);
    if (shorter + longer <= room) return longer;
    return std::max(room / 2, room - shorter);
  }
  // Calls visit(index, id, learned) for the first `longest` tokens of a text.
  template <class Visit>
  void for_each_token(const Text& text, std::int64_t longest, Visit&& visit) const {
    const std::int64_t count = std::min(length(text), longest), split = answers_[text.prompt];
    const auto prompt = static_cast<std::size_t>(all_.texts.begin(text.prompt)),
               answer = static_cast<std::size_t>(all_.texts.begin(text.answer) + answers_[text.answer]);
    for (std::int64_t at = 0; at < count; ++at) {
      const std::size_t from =
          at < split ? prompt + static_cast<std::size_t>(at) : answer + static_cast<std::size_t>(at - split);
      visit(at, all_.texts.ids[from], all_.texts.learned[from] != 0);
    }
  }

  const TokenizedPreferences all_;
  std::vector<std::int64_t> answers_;  // for each text: index of the first token of its answer
};

class PairUnits final : public PreferenceUnits {
 public:
  using PreferenceUnits::PreferenceUnits;

  std::string_view noun() const override { return "pair"; }
  std::string_view lack() const override { return "an answer without tokens within seq_length"; }
  std::string_view lack_at_any_length() const override { return "two equal answers or an empty answer"; }
  UnitRemarks remarks() const override {
    const std::int64_t count = contradicting_pairs(all());
    if (count == 0) return {};
    return {
        .fact = {},
        .warning = fmt::format("{} of {} pairs contradict each other: the answer that one of them chooses, "
                               "another one rejects for the same prompt; remove one of the two",
                               count, size())};
  }
  std::size_t size() const override { return texts().size() / 2; }

 private:
  Texts of(std::size_t unit) const override {
    const std::size_t chosen = 2 * unit, rejected = chosen + 1;
    return {{{{chosen, chosen, DocumentRole::kChosen}, {rejected, rejected, DocumentRole::kRejected}}}, 2};
  }
  bool is_comparable(std::size_t unit) const override {
    return !std::ranges::equal(ids_of(2 * unit), ids_of(2 * unit + 1));
  }
};

class LabelledUnits final : public PreferenceUnits {
 public:
  explicit LabelledUnits(TokenizedPreferences all) : PreferenceUnits(std::move(all)) {
    const std::size_t count = texts().size();
    const auto before = [count](std::size_t i) { return i == 0 ? count - 1 : i - 1; };
    other_.resize(count);
    for (std::size_t i = 0; i < count; ++i) other_[i] = before(i);
    // The second pass is for examples at the beginning, whose previous examples are at the end of the files.
    for (std::size_t turn = 0; turn < 2 * count; ++turn) {
      const std::size_t i = turn % count, last = before(i);
      if (std::ranges::equal(prompt_of(i), prompt_of(last))) other_[i] = other_[last];
    }
    for (std::size_t i = 0; i < count; ++i) {
      if (std::ranges::equal(prompt_of(i), prompt_of(other_[i]))) other_[i] = before(i);
    }
  }

  std::string_view noun() const override { return "example"; }
  UnitRemarks remarks() const override {
    const std::int64_t good = std::ranges::count(all().preferred, std::uint8_t{1});
    const std::int64_t bad = std::ssize(all().preferred) - good;
    UnitRemarks remarks{.fact = fmt::format("labelled answers: {} good, {} bad", good, bad)};
    if (good == 0 || bad == 0) {
      remarks.warning = fmt::format(
          "no answer is labelled {}: nothing is compared, so training only makes the answers {} probable; "
          "add "
          "answers of this kind, or learn good answers with 'primus train posttrain'",
          bad == 0 ? "bad" : "good", bad == 0 ? "more" : "less");
    } else if (constexpr std::int64_t kUneven = 2; std::max(good, bad) > kUneven * std::min(good, bad)) {
      remarks.fact += " (desirable_weight and undesirable_weight can balance them)";
    }
    return remarks;
  }
  std::size_t size() const override { return texts().size(); }

 private:
  Texts of(std::size_t unit) const override {
    const DocumentRole role =
        this->all().preferred[unit] != 0 ? DocumentRole::kChosen : DocumentRole::kRejected;
    return {{{{unit, unit, role}, {unit, other_[unit], DocumentRole::kMismatched}}}, 2};
  }

  std::vector<std::size_t> other_;  // for each example: the example with its mismatched answer
};

ReadUnits reader_of(const SftOptions& options, PreferenceKind kind, const Tokenizer& tokenizer) {
  auto writer = std::make_shared<const ConversationWriter>(conversation_writer(options, tokenizer));
  return [writer, kind](const std::vector<InputFile>& files,
                        const ReadOptions& how) -> std::shared_ptr<const TrainingUnits> {
    TokenizedPreferences all = read_preferences(files, kind, *writer, how);
    if (kind != PreferenceKind::kLabelled) return std::make_shared<const PairUnits>(std::move(all));
    return std::make_shared<const LabelledUnits>(std::move(all));
  };
}

}  // namespace

TokenizedPreferences read_preferences(const std::vector<InputFile>& files, PreferenceKind kind,
                                      const ConversationWriter& writer, const ReadOptions& options) {
  TokenizedPreferences all;
  PreferenceReader reader(writer, kind, all);
  all.texts = read_records(files, reader, options);
  return all;
}

std::int64_t contradicting_pairs(const TokenizedPreferences& all) {
  const auto hash = [&](std::size_t text) {
    return std::hash<std::string_view>()(
        {reinterpret_cast<const char*>(all.texts.ids.data() + all.texts.begin(text)),
         static_cast<std::size_t>(all.texts.tokens(text)) * sizeof(std::int32_t)});
  };
  std::set<std::pair<std::size_t, std::size_t>> orders;
  std::vector<std::pair<std::size_t, std::size_t>> pairs;
  for (std::size_t text = 0; text + 1 < all.texts.size(); text += 2)
    orders.insert(pairs.emplace_back(hash(text), hash(text + 1)));
  return std::ranges::count_if(pairs, [&](const auto& pair) {
    return pair.first != pair.second && orders.contains({pair.second, pair.first});
  });
}

std::optional<PreferenceKind> kind_of_first_record(const std::vector<InputFile>& files) {
  bool chosen = false, rejected = false, completion = false, label = false;
  try {
    TextBlock block;
    BlockReader blocks(files);
    while (blocks.next(block) && block.text.find_first_not_of(" \t\r\n") == std::string::npos) {
    }
    JsonReader json(block.text, "", {.python = true});
    if (json.peek() == JsonReader::Kind::kArray) {
      json.begin_array();
      if (!json.next_element()) return std::nullopt;
    }
    json.begin_object();
    for (std::string key; json.next_key(key); json.skip()) {
      const JsonReader::Kind kind = json.peek();
      if (kind == JsonReader::Kind::kNull) continue;
      chosen = chosen || key == "chosen";
      rejected = rejected || key == "rejected";
      completion = completion || key == "completion";
      label =
          label || (key == "label" && (kind == JsonReader::Kind::kBool || kind == JsonReader::Kind::kNumber));
    }
  } catch (const Error&) {
    return std::nullopt;  // the reader of the records reports the error with its place
  }
  if (chosen && rejected) return PreferenceKind::kPairs;
  if (completion && label) return PreferenceKind::kLabelled;
  return std::nullopt;
}

Datasets open_preference_datasets(const SftOptions& options, PreferenceKind kind,
                                  const Tokenizer& tokenizer) {
  return open_unit_datasets(options, tokenizer, reader_of(options, kind, tokenizer));
}

SftEpochs preference_samples_of_epochs(const SftOptions& options, PreferenceKind kind,
                                       const Tokenizer& tokenizer, double epochs) {
  return unit_samples_of_epochs(options, tokenizer, epochs, reader_of(options, kind, tokenizer));
}

}  // namespace primus::data
