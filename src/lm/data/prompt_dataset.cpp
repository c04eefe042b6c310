#include "lm/data/prompt_dataset.h"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/text/counted.h"
#include "lm/data/chat_template.h"
#include "lm/data/conversation_files.h"
#include "lm/data/prompt.h"

namespace primus::data {
namespace {

// Returns the text of a question with its context.
std::string text_of(const Message& question) {
  return question.context.empty() ? question.text : question.text + "\n\n" + question.context;
}

// Writes prompts as tokens: in a conversation format, or as plain texts.
class PromptWriter {
 public:
  PromptWriter(const std::string& format, const Tokenizer& tokenizer) : tokenizer_(tokenizer) {
    const auto chosen = choose_prompt_style(format, tokenizer);
    if (chosen) writer_ = std::make_shared<const ConversationWriter>(chosen->style, tokenizer);
    fact_ =
        fmt::format("prompts are written as {} ({})", chosen ? name_of(chosen->style.format) : kPlainPrompts,
                    chosen                    ? chosen->why
                    : format == kPlainPrompts ? "chosen"
                                              : "the model has no chat template");
  }

  Members members() const { return writer_ ? writer_->members() : Members::kText; }
  const std::string& fact() const { return fact_; }
  const std::shared_ptr<const ConversationWriter>& writer() const { return writer_; }

  std::vector<std::int32_t> ids(const Conversation& conversation) const {
    if (writer_) return writer_->training_prompt(conversation);
    const std::vector<Message>& messages = conversation.messages;
    if (messages.size() != 1 || messages.front().role != kUser) {
      throw invalid(
          "the prompt has several messages, but the model has no chat template that writes them",
          "choose a format by name: sft_conversation_format=chatml (docs/posttrain.md), or write the "
          "prompt as a text");
    }
    std::vector<std::int32_t> ids = tokenizer_.frame().before;
    tokenizer_.encode(text_of(messages.front()), false, ids);
    return ids;
  }

  std::vector<std::int32_t> end_ids() const {
    std::vector<std::int32_t> ids;
    if (writer_) ids.push_back(writer_->end_id());
    const auto end = end_of_text(tokenizer_);
    if (end && std::ranges::find(ids, *end) == ids.end()) ids.push_back(*end);
    return ids;
  }

 private:
  const Tokenizer& tokenizer_;
  std::shared_ptr<const ConversationWriter> writer_;
  std::string fact_;
};

// Tokenizes the prompts of records, and keeps the records.
class PromptReader final : public RecordReader {
 public:
  PromptReader(const PromptWriter& writer, const std::string& tools) : writer_(writer), tools_(tools) {}

  void prepare(std::size_t slots, int threads) override {
    scratch_.resize(static_cast<std::size_t>(threads));
    if (done_.size() < slots) done_.resize(slots);
  }
  std::string_view name() const override { return "a prompt"; }

  void read(JsonReader& json, std::size_t slot, int thread, TokenizedRecord& out) override {
    Prompt& prompt = scratch_[static_cast<std::size_t>(thread)];
    Done& done = done_[slot];
    JsonReader whole = json;
    done.text = whole.skip();
    read_prompt(json, prompt, writer_.members());
    json.finish();
    if (!nlohmann::json::accept(done.text)) {
      throw invalid("the record has NaN, Infinity or a broken escape, which is no JSON",
                    "write null, or remove the record");
    }
    done.columns = prompt.columns;
    if (prompt.conversation.tools.empty()) prompt.conversation.tools = tools_;
    out = {.unused = prompt.conversation.unused};
    out.tokens.ids = writer_.ids(prompt.conversation);
    out.tokens.learned.assign(out.tokens.ids.size(), 0);
    if (out.tokens.ids.empty()) throw invalid("the prompt has no tokens", "write a question");
  }

  void added(std::size_t slot) override {
    const Done& done = done_[slot];
    records_ += done.text;
    record_ends_.push_back(records_.size());
    for (const std::string& column : done.columns) ++columns_[column];
  }

  const std::string& records() const { return records_; }
  const std::vector<std::size_t>& record_ends() const { return record_ends_; }
  const std::map<std::string, std::int64_t>& columns() const { return columns_; }

 private:
  struct Done {
    std::string_view text;  // a view into memory that exists until added() was called
    std::vector<std::string> columns;
  };

  const PromptWriter& writer_;
  const std::string& tools_;
  std::vector<Prompt> scratch_;  // one for each thread
  std::vector<Done> done_;       // one for each record that is read together with others
  std::string records_;
  std::vector<std::size_t> record_ends_;
  std::map<std::string, std::int64_t> columns_;
};

std::int32_t padding_of(const Tokenizer& tokenizer) {
  const SpecialIds& special = tokenizer.special_ids();
  return special.pad.value_or(end_of_text(tokenizer).value_or(0));
}

}  // namespace

std::span<const std::int32_t> Prompts::prompt_ids(std::int64_t index) const {
  const auto at = static_cast<std::size_t>(index);
  const std::size_t begin = at == 0 ? 0 : id_ends_[at - 1];
  return std::span(ids_).subspan(begin, id_ends_[at] - begin);
}

std::string Prompts::prompt_text(std::int64_t index) const {
  return tokenizer_->decode(prompt_ids(index), /*skip_special=*/false);
}

std::string Prompts::plain_text(std::int64_t index) const {
  return text_of(conversation(index).messages.front());
}

nlohmann::json Prompts::record(std::int64_t index) const {
  const auto at = static_cast<std::size_t>(index);
  const std::size_t begin = at == 0 ? 0 : record_ends_[at - 1];
  return nlohmann::json::parse(std::string_view(records_).substr(begin, record_ends_[at] - begin));
}

Conversation Prompts::conversation(std::int64_t index) const {
  const auto at = static_cast<std::size_t>(index);
  const std::size_t begin = at == 0 ? 0 : record_ends_[at - 1];
  JsonReader json(std::string_view(records_).substr(begin, record_ends_[at] - begin), "record");
  Prompt prompt;
  read_prompt(json, prompt, writer_ ? writer_->members() : Members::kText);
  if (prompt.conversation.tools.empty()) prompt.conversation.tools = tools_;
  return std::move(prompt.conversation);
}

std::vector<std::int32_t> Prompts::continuation(const Conversation& conversation, std::size_t answer) const {
  if (writer_) return writer_->continuation(conversation, answer);
  std::string text;
  for (std::size_t i = answer + 1; i < conversation.messages.size(); ++i)
    text += conversation.messages[i].text;
  return tokenizer_->encode(text, false);
}

std::uint64_t Prompts::fingerprint() const {
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  XXH3_64bits_update(&state, ids_.data(), ids_.size() * sizeof(std::int32_t));
  XXH3_64bits_update(&state, id_ends_.data(), id_ends_.size() * sizeof(std::size_t));
  XXH3_64bits_update(&state, records_.data(), records_.size());
  return XXH3_64bits_digest(&state);
}

// Reads the files of prompts.
class PromptFiles {
 public:
  PromptFiles(const PromptOptions& options, const Tokenizer& tokenizer)
      : options_(options), tokenizer_(tokenizer) {}

  std::shared_ptr<const Prompts> read() {
    const ConversationFiles files = find_conversations(options_.dataset, options_.train_split);
    const PromptWriter writer(options_.format, tokenizer_);
    if (!options_.tools.empty() && writer.members() != Members::kAll) {
      throw invalid("the format of the prompts cannot write tools",
                    "use a model whose chat template writes tools, with sft_conversation_format: auto");
    }
    if (!options_.tools.empty()) require_tools(writer);
    PromptReader reader(writer, options_.tools);
    const TokenizedConversations all = read_records(
        files.train, reader,
        {.workers = options_.workers, .skip_bad = options_.skip_bad, .progress = options_.progress});
    if (all.size() == 0) {
      throw invalid(
          fmt::format("'{}' is empty, so it has no training data", files.train.front().path.string()),
          "put prompts into it, one JSON object per line: {\"prompt\": \"3+4=\", \"answer\": \"7\"}");
    }
    keep(all, reader);
    Prompts& p = *prompts_;
    p.tokenizer_ = &tokenizer_;
    p.writer_ = writer.writer();
    p.tools_ = options_.tools;
    p.end_ids_ = writer.end_ids();
    p.columns_ = reader.columns();
    p.facts_.push_back(writer.fact());
    note_files(files);
    if (std::string note = note_on_skipped(all, options_.dataset); !note.empty())
      p.notes_.push_back(std::move(note));
    if (std::string fact = note_on_unused(all, options_.dataset); !fact.empty())
      p.facts_.push_back(std::move(fact));
    note_long(all);
    describe();
    return prompts_;
  }

 private:
  // Refuses tools that the chat template leaves out of prompts.
  void require_tools(const PromptWriter& writer) const {
    try {
      writer.ids({.messages = {{std::string(kUser), "Is this a question?", {}}}, .tools = options_.tools});
    } catch (const Error& error) {
      throw invalid(fmt::format("the tools of the key 'tools' cannot be offered: {}", error.what()),
                    "use a model whose chat template writes tools, or leave out the key 'tools'");
    }
  }

  // Copies the prompts that are short enough, with their records.
  void keep(const TokenizedConversations& all, const PromptReader& reader) {
    Prompts& p = *prompts_;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::int64_t tokens = all.tokens(i);
      longest_of_all_ = std::max(longest_of_all_, tokens);
      if (tokens > options_.max_prompt_length) continue;
      p.longest_ = std::max(p.longest_, tokens);
      p.ids_.insert(p.ids_.end(), all.ids.begin() + all.begin(i), all.ids.begin() + all.ends[i]);
      p.id_ends_.push_back(p.ids_.size());
      const std::size_t begin = i == 0 ? 0 : reader.record_ends()[i - 1];
      p.records_.append(reader.records(), begin, reader.record_ends()[i] - begin);
      p.record_ends_.push_back(p.records_.size());
    }
    p.ids_.shrink_to_fit();
    p.records_.shrink_to_fit();
  }

  void note_files(const ConversationFiles& files) {
    Prompts& p = *prompts_;
    if (!files.divided && options_.train_split != "train") {
      p.notes_.push_back(fmt::format("{} has no splits: all of it is read, not only '{}'", options_.dataset,
                                     options_.train_split));
    }
    if (std::string note = note_on_other_files(files, options_.dataset); !note.empty())
      p.notes_.push_back(std::move(note));
    if (files.has_evaluated()) {
      p.facts_.push_back(
          fmt::format("{}: files for validation and test are not read, because this stage "
                      "evaluates nothing",
                      options_.dataset));
    }
  }

  void note_long(const TokenizedConversations& all) {
    const std::size_t left_out = all.size() - prompts_->id_ends_.size();
    if (left_out == 0) return;
    const std::string what =
        fmt::format("{}: left out {} of {}: longer than {} tokens (max_prompt_length); the longest has {}",
                    options_.dataset, left_out, counted(std::ssize(all), "prompt"),
                    options_.max_prompt_length, longest_of_all_);
    if (left_out < all.size()) {
      prompts_->notes_.push_back(what);
      return;
    }
    throw invalid(what, fmt::format("increase max_prompt_length, and seq_length if it is less than "
                                    "max_prompt_length + max_completion_length"));
  }

  void describe() {
    Prompts& p = *prompts_;
    p.facts_.push_back(fmt::format("{}: {} of up to {}, mean {:.1f}", options_.dataset,
                                   counted(p.size(), "prompt"), counted(p.longest_, "token"),
                                   static_cast<double>(p.ids_.size()) / static_cast<double>(p.size())));
    if (p.columns_.empty()) return;
    std::vector<std::string_view> names;
    for (const auto& [name, count] : p.columns_) names.push_back(name);
    p.facts_.push_back(fmt::format("columns for rewards: {}", fmt::join(names, ", ")));
  }

  const PromptOptions& options_;
  const Tokenizer& tokenizer_;
  std::shared_ptr<Prompts> prompts_ = std::make_shared<Prompts>();
  std::int64_t longest_of_all_ = 0;
};

const PromptDataset& PromptDataset::of(const Dataset& dataset) {
  const auto* const prompts = dynamic_cast<const PromptDataset*>(&dataset);
  PRIMUS_CHECK("PromptDataset::of", prompts != nullptr);
  return *prompts;
}

PromptDataset::PromptDataset(std::shared_ptr<const Prompts> prompts, const PromptOptions& options,
                             std::int32_t pad)
    : prompts_(std::move(prompts)),
      seq_length_(options.seq_length),
      num_generations_(options.num_generations),
      step_samples_(options.step_samples),
      num_iterations_(options.num_iterations),
      pad_(pad),
      description_(options.dataset + " (train)"),
      order_(prompt_order(*prompts_, options)) {
  PRIMUS_CHECK("PromptDataset", prompts_->size() > 0 && prompts_->longest() <= seq_length_);
}

std::int64_t PromptDataset::size() const { return std::numeric_limits<std::int64_t>::max(); }

std::int64_t PromptDataset::record_of(std::int64_t index) const {
  const std::int64_t step = index / step_samples_, distinct = step / num_iterations_;
  const std::int64_t sample = distinct * step_samples_ + index % step_samples_;
  return static_cast<std::int64_t>(order_->at(sample / num_generations_));
}

void PromptDataset::sample(std::int64_t index, std::span<std::int32_t> tokens,
                           std::span<float> loss_mask) const {
  std::ranges::fill(loss_mask, 0.0F);
  const auto ids = prompts_->prompt_ids(record_of(index));
  std::ranges::fill(std::ranges::copy(ids, tokens.begin()).out, tokens.end(), pad_);
}

void PromptDataset::document_starts(std::int64_t index, std::vector<std::int32_t>& starts) const {
  const auto tokens = static_cast<std::int32_t>(prompts_->prompt_ids(record_of(index)).size());
  starts.assign(1, 0);
  // The padding is a separate document.
  if (tokens < seq_length_) starts.push_back(tokens);
}

std::shared_ptr<const EpochOrder> prompt_order(const Prompts& prompts, const PromptOptions& options) {
  return std::make_shared<const EpochOrder>(static_cast<std::size_t>(prompts.size()), options.seed,
                                            options.shuffle);
}

namespace {

std::shared_ptr<const Prompts> prompts_of(const PromptOptions& options, const Tokenizer& tokenizer) {
  return options.prompts ? options.prompts : PromptFiles(options, tokenizer).read();
}

}  // namespace

Datasets open_prompt_dataset(const PromptOptions& options, const Tokenizer& tokenizer) {
  std::shared_ptr<const Prompts> prompts = prompts_of(options, tokenizer);
  Datasets result;
  result.notes = prompts->notes();
  result.facts = prompts->facts();
  result.train_fingerprint = prompts->fingerprint();
  result.train = std::make_unique<PromptDataset>(std::move(prompts), options, padding_of(tokenizer));
  return result;
}

PromptEpochs prompt_samples_of_epochs(const PromptOptions& options, const Tokenizer& tokenizer,
                                      double epochs) {
  PromptEpochs result{.prompts = prompts_of(options, tokenizer)};
  const double prompts = std::ceil(epochs * static_cast<double>(result.prompts->size()));
  result.samples = std::max<std::int64_t>(1, static_cast<std::int64_t>(prompts)) * options.num_generations *
                   options.num_iterations;
  return result;
}

}  // namespace primus::data
