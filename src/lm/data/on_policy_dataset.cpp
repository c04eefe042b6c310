#include "lm/data/on_policy_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "lm/data/prompt.h"

namespace primus::data {
namespace {

// Conversations whose last answer the model may generate again.
class RepeatableUnits final : public TrainingUnits {
 public:
  RepeatableUnits(TokenizedConversations all, AnswerLimits limits)
      : units_(conversation_units(std::move(all))), limits_(limits), lack_(lack_of(limits)) {}

  const TokenizedConversations& texts() const override { return units_->texts(); }
  std::string_view noun() const override { return limits_.only_prompts ? "prompt" : units_->noun(); }
  std::string_view lack() const override { return lack_; }
  std::string_view lack_at_any_length() const override {
    return limits_.only_prompts ? "longer than max_prompt_length"
                                : "no answer, or more tokens than max_prompt_length before it";
  }
  std::string_view remedy() const override {
    return "increase seq_length, and max_prompt_length if it is set, or decrease max_completion_length";
  }
  bool has_answers() const override { return !limits_.only_prompts; }
  std::size_t size() const override { return units_->size(); }
  std::int64_t tokens(std::size_t unit) const override { return units_->tokens(unit); }
  std::int64_t kept(std::size_t unit, std::int64_t room) const override { return units_->kept(unit, room); }

  std::int64_t labels(std::size_t unit, std::int64_t room) const override {
    const std::int64_t count = limits_.only_prompts ? 1 : units_->labels(unit, room);
    if (count == 0) return 0;
    const std::int64_t prompt = prompt_tokens(unit, room);
    if (prompt > limits_.max_prompt_length.value_or(prompt)) return 0;
    // The decoder has room for seq_length tokens, which is one less than a sample has.
    return prompt >= room - limits_.max_completion_length ? 0 : count;
  }

  void write(std::size_t unit, std::int64_t room, std::span<std::int32_t> tokens,
             std::span<float> mask) const override {
    units_->write(unit, room, tokens, mask);
    // The place of the answer's first token marks the end of the prompt.
    if (limits_.only_prompts) mask[static_cast<std::size_t>(units_->tokens(unit) - 1)] = 1;
  }
  void documents(std::size_t unit, std::int64_t room, std::vector<UnitDocument>& out) const override {
    units_->documents(unit, room, out);
  }
  void hash(std::size_t unit, std::int64_t room,
            FunctionRef<void(const void*, std::size_t)> update) const override {
    units_->hash(unit, room, update);
  }

 private:
  static std::string lack_of(const AnswerLimits& limits) {
    const std::string room =
        fmt::format("no room for an answer of {} tokens (max_completion_length) within seq_length",
                    limits.max_completion_length);
    return limits.only_prompts ? room : "no answer tokens within seq_length, or " + room;
  }

  // Returns the number of tokens before the last answer of the truncated unit, which has a label.
  std::int64_t prompt_tokens(std::size_t unit, std::int64_t room) const {
    if (limits_.only_prompts) return units_->tokens(unit);
    const TokenizedConversations& all = units_->texts();
    const auto learned = [&](std::int64_t token) {
      return all.learned[static_cast<std::size_t>(all.begin(unit) + token)] != 0;
    };
    std::int64_t begin = units_->kept(unit, room);
    while (begin > 1 && !learned(begin - 1)) --begin;
    while (begin > 1 && learned(begin - 1)) --begin;
    return begin;
  }

  const std::shared_ptr<const TrainingUnits> units_;
  const AnswerLimits limits_;
  const std::string lack_;
};

// Reads the prompts of records as tokens. None of them is learned.
class PromptTokens final : public RecordReader {
 public:
  explicit PromptTokens(const ConversationWriter& writer) : writer_(writer) {}

  void prepare(std::size_t /*slots*/, int threads) override {
    scratch_.resize(static_cast<std::size_t>(threads));
  }
  std::string_view name() const override { return "a prompt"; }
  void read(JsonReader& json, std::size_t /*slot*/, int thread, TokenizedRecord& out) override {
    Prompt& prompt = scratch_[static_cast<std::size_t>(thread)];
    read_prompt(json, prompt, writer_.members());
    json.finish();
    out = {.unused = prompt.conversation.unused};
    out.tokens.ids = writer_.training_prompt(prompt.conversation);
    out.tokens.learned.assign(out.tokens.ids.size(), 0);
    if (out.tokens.ids.empty()) throw invalid("the prompt has no tokens", "write a question");
  }

 private:
  const ConversationWriter& writer_;
  std::vector<Prompt> scratch_;  // one for each thread
};

ReadUnits reader_of(const SftOptions& options, const Tokenizer& tokenizer) {
  PRIMUS_CHECK("open_on_policy_datasets", options.own_answers.has_value() && !options.pack);
  auto writer = std::make_shared<const ConversationWriter>(conversation_writer(options, tokenizer));
  return
      [writer, limits = *options.own_answers](const std::vector<InputFile>& files, const ReadOptions& how) {
        TokenizedConversations all;
        if (limits.only_prompts) {
          PromptTokens reader(*writer);
          all = read_records(files, reader, how);
        } else {
          all = read_conversations(files, *writer, how);
        }
        return std::make_shared<const RepeatableUnits>(std::move(all), limits);
      };
}

struct Row {
  std::vector<std::int32_t> tokens;
  std::vector<float> mask;
};

Row row_of(const Dataset& rows, std::int64_t record) {
  const auto length = static_cast<std::size_t>(rows.seq_length());
  Row row{std::vector<std::int32_t>(length + 1), std::vector<float>(length)};
  rows.sample(record, row.tokens, row.mask);
  return row;
}

// Returns the number of inputs up to the last one whose label is learned.
std::int64_t inputs_of(const Row& row) {
  const auto last = std::find(row.mask.rbegin(), row.mask.rend(), 1.0F);
  PRIMUS_CHECK("OnPolicyDataset", last != row.mask.rend());
  return row.mask.rend() - last;
}

}  // namespace

const OnPolicyDataset& OnPolicyDataset::of(const Dataset& dataset) {
  const auto* const rows = dynamic_cast<const OnPolicyDataset*>(&dataset);
  PRIMUS_CHECK("OnPolicyDataset::of", rows != nullptr);
  return *rows;
}

std::vector<std::int32_t> OnPolicyDataset::prompt(std::int64_t record) const {
  Row row = row_of(*rows_, record);
  std::int64_t tokens = inputs_of(row);
  while (tokens > 1 && row.mask[static_cast<std::size_t>(tokens - 2)] == 1.0F) --tokens;
  row.tokens.resize(static_cast<std::size_t>(tokens));
  return std::move(row.tokens);
}

LearnedRow OnPolicyDataset::conversation(std::int64_t record) const {
  Row row = row_of(*rows_, record);
  const std::int64_t inputs = inputs_of(row);
  row.tokens.resize(static_cast<std::size_t>(inputs + 1));
  LearnedRow out{.tokens = std::move(row.tokens), .learned = {0}};
  for (std::int64_t t = 0; t < inputs; ++t)
    out.learned.push_back(row.mask[static_cast<std::size_t>(t)] == 1.0F ? 1 : 0);
  return out;
}

void OnPolicyDataset::document_starts(std::int64_t index, std::vector<std::int32_t>& starts) const {
  rows_->document_starts(index, starts);
}

Datasets open_on_policy_datasets(const SftOptions& options, const Tokenizer& tokenizer) {
  Datasets all = open_unit_datasets(options, tokenizer, reader_of(options, tokenizer));
  if (all.train) all.train = std::make_unique<OnPolicyDataset>(std::move(all.train));
  return all;
}

SftEpochs on_policy_samples_of_epochs(const SftOptions& options, const Tokenizer& tokenizer, double epochs) {
  return unit_samples_of_epochs(options, tokenizer, epochs, reader_of(options, tokenizer));
}

std::vector<std::int32_t> end_ids_of_answers(const SftOptions& options, const Tokenizer& tokenizer) {
  std::vector<std::int32_t> ids = {conversation_writer(options, tokenizer).end_id()};
  const std::optional<std::int32_t> end = end_of_text(tokenizer);
  if (end && *end != ids.front()) ids.push_back(*end);
  return ids;
}

}  // namespace primus::data
