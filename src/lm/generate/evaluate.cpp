#include "lm/generate/evaluate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "lm/data/corpus.h"
#include "lm/data/indexed_dataset.h"
#include "lm/data/json_lines.h"
#include "lm/data/made_by.h"
#include "lm/data/text_check.h"

namespace primus {
namespace {

class Evaluation {
 public:
  Evaluation(LossEvaluator& evaluator, const Tokenizer* tokenizer, const EvaluateOptions& options)
      : evaluator_(evaluator), tokenizer_(tokenizer), options_(options) {}

  void read(const std::string& input) {
    begin_part(0, 0, 0);
    data::IndexedDataset::exists(input) ? read_indexed(input) : read_text(input);
    ++inputs_read_;
  }

  // max_tokens limits the predicted tokens, which do not include the first added token.
  bool done() const { return options_.max_tokens > 0 && added_ > options_.max_tokens; }

  void read_indexed(const std::string& prefix) {
    const auto source = data::IndexedDataset::open(prefix);
    if (tokenizer_) data::check_made_by(prefix, *source, *tokenizer_);
    std::vector<std::int32_t> ids;
    for (std::int64_t document = 0; document < source->documents() && !done(); ++document) {
      const double documents = static_cast<double>(source->documents());
      begin_part(static_cast<double>(document) / documents, static_cast<double>(document + 1) / documents, 0);
      const std::int64_t end = source->document_start(document + 1);
      is_new_ = true;
      for (std::int64_t s = source->document_start(document); s < end && !done(); ++s) {
        ids.resize(static_cast<std::size_t>(source->length(s)));
        source->read(s, 0, ids);
        const std::span<const std::int32_t> added = within_limit(ids);
        data::check_vocabulary(*source, s, 0, added, evaluator_.vocab_size(), source->name());
        add(added);
        if (tokenizer_) {
          const bool ends = s + 1 == end && added.size() == ids.size();
          bytes_ += bytes_of(without_frame(added, s == source->document_start(document), ends));
        }
      }
      count_document();
    }
    bytes_known_ = bytes_known_ && tokenizer_;
  }

  void read_text(const std::string& pattern) {
    if (!tokenizer_) throw invalid("evaluating text needs a tokenizer", "name one with --tokenizer");
    const std::vector<data::InputFile> files = data::find_inputs({pattern});
    if (std::all_of(files.begin(), files.end(), [](const data::InputFile& file) { return file.size == 0; })) {
      throw invalid(fmt::format("'{}' is empty, so it has nothing to evaluate", pattern),
                    "put text into it, or name other data (--data)");
    }
    // Number of bytes in all files, in the files before the current one, and in the current file up to the
    // current block.
    std::uint64_t total = 0, before = 0, position = 0;
    for (const data::InputFile& file : files) total += file.size;
    std::size_t last = 0;
    data::ReaderHints hints = data::command_hints("--json-key");
    hints.skip_bad =
        "'primus data tokenize --skip-bad' skips such lines: set --data to the prefix that it writes";
    data::BlockReader reader(files);
    data::JsonLines lines({options_.json_key}, false, hints);
    data::TextBlock block;
    while (!done() && reader.next(block)) {
      const data::InputFile& file = reader.files()[block.file];
      for (; last < block.file; ++last) before += files[last].size;
      if (block.begins_file) position = 0;
      const auto share = [&](std::uint64_t bytes) {
        return static_cast<double>(before + bytes) / static_cast<double>(total);
      };
      begin_part(share(position), share(block.position), block.text.size());
      position = block.position;
      if (file.kind == data::InputKind::kText) {
        data::require_utf8(block, file.path.string(), false, hints.skip_bad);
        if (block.begins_file) begin_document();
        std::size_t begin = 0;
        for (const std::size_t end : block.parts) {
          add_text(std::string_view(block.text).substr(begin, end - begin));
          begin = end;
          if (done()) return;
        }
        if (block.ends_file) end_document();
        continue;
      }
      lines.read(block, file.path.string(), [&](std::span<const data::JsonTexts> keys) {
        if (done()) return;
        begin_document();
        for (const std::string& text : keys.front().strings()) add_text(text);
        end_document();
      });
    }
  }

  LossReport finish() {
    evaluator_.finish();
    tell(1);
    if (evaluator_.tokens() == 0) {
      throw invalid("no text to evaluate is given", "the data must hold at least two tokens");
    }
    LossReport report{.loss = evaluator_.mean(),
                      .perplexity = std::exp(evaluator_.mean()),
                      .bits_per_byte = {},
                      .tokens = evaluator_.tokens(),
                      .documents = documents_,
                      .bytes = bytes_};
    if (bytes_known_ && bytes_ > 0) {
      report.bits_per_byte = evaluator_.total() / std::numbers::ln2 / static_cast<double>(bytes_);
    }
    return report;
  }

 private:
  void begin_document() {
    is_new_ = true;
    add(tokenizer_->frame().before);
  }
  void count_document() {
    documents_ += is_new_ ? 1 : 0;
    is_new_ = false;
  }
  void end_document() {
    count_document();  // counts the document even if it is empty
    if (const auto end = document_end()) add({&*end, 1});
  }
  void add_text(std::string_view text) {
    ids_.clear();
    tokenizer_->encode(text, false, ids_);
    part_done_ += text.size();
    const std::span<const std::int32_t> added = add(ids_);
    bytes_ += added.size() == ids_.size() ? text.size() : bytes_of(added);
  }
  // Returns the number of bytes of the text of `ids`. Special tokens count with their names, because the text
  // contains these names.
  std::size_t bytes_of(std::span<const std::int32_t> ids) const {
    return tokenizer_->decode(ids, /*skip_special=*/false).size();
  }
  // Removes the tokens that begin_document() and end_document() add to a text: these tokens have no bytes.
  std::span<const std::int32_t> without_frame(std::span<const std::int32_t> ids, bool begins,
                                              bool ends) const {
    const std::vector<std::int32_t>& before = tokenizer_->frame().before;
    if (begins && ids.size() >= before.size() && std::ranges::equal(ids.first(before.size()), before))
      ids = ids.subspan(before.size());
    if (ends && !ids.empty() && ids.back() == document_end()) ids = ids.first(ids.size() - 1);
    return ids;
  }
  std::optional<std::int32_t> document_end() const {
    const SpecialIds& special = tokenizer_->special_ids();
    return special.eod ? special.eod : special.eos;
  }
  // Returns the first of `ids`: as many ids as max_tokens still allows.
  std::span<const std::int32_t> within_limit(std::span<const std::int32_t> ids) const {
    if (options_.max_tokens == 0) return ids;
    const std::int64_t room = options_.max_tokens + 1 - added_;
    return ids.first(std::min(ids.size(), static_cast<std::size_t>(std::max<std::int64_t>(room, 0))));
  }
  // Adds ids to the text, and returns the added ids.
  std::span<const std::int32_t> add(std::span<const std::int32_t> ids) {
    ids = within_limit(ids);
    if (!ids.empty()) count_document();
    added_ += static_cast<std::int64_t>(ids.size());
    evaluator_.add(ids);
    const double within =
        part_size_ == 0 ? 0 : static_cast<double>(part_done_) / static_cast<double>(part_size_);
    const double of_input = part_begin_ + (part_end_ - part_begin_) * std::min(1.0, within);
    double share =
        (static_cast<double>(inputs_read_) + of_input) / static_cast<double>(options_.inputs.size());
    if (options_.max_tokens > 0)
      share = std::max(share, static_cast<double>(added_) / static_cast<double>(options_.max_tokens + 1));
    tell(share);
    return ids;
  }
  void tell(double share) const {
    if (!options_.progress) return;
    options_.progress(
        {.tokens = evaluator_.tokens(), .loss = evaluator_.mean(), .share = std::min(1.0, share)});
  }
  // Begins a part of an input; the part has `size` bytes of text. During the part, progress goes from `begin`
  // to `end`, both fractions of the input.
  void begin_part(double begin, double end, std::size_t size) {
    part_begin_ = begin, part_end_ = end, part_size_ = size, part_done_ = 0;
  }

  LossEvaluator& evaluator_;
  const Tokenizer* tokenizer_;
  const EvaluateOptions& options_;
  std::vector<std::int32_t> ids_;
  std::int64_t added_ = 0;  // number of tokens passed to the evaluator
  std::int64_t documents_ = 0, inputs_read_ = 0;
  bool is_new_ = false;  // whether the current document is still to be counted
  double part_begin_ = 0, part_end_ = 0;
  std::size_t part_size_ = 0, part_done_ = 0;
  std::uint64_t bytes_ = 0;
  bool bytes_known_ = true;
};

}  // namespace

LossReport evaluate_loss(LossEvaluator& evaluator, const Tokenizer* tokenizer,
                         const EvaluateOptions& options) {
  Evaluation evaluation(evaluator, tokenizer, options);
  for (const std::string& input : options.inputs) {
    if (evaluation.done()) break;
    evaluation.read(input);
  }
  return evaluation.finish();
}

ConversationReport evaluate_conversations(LossEvaluator& evaluator,
                                          const data::TokenizedConversations& conversations,
                                          std::int64_t sequence,
                                          const std::function<void(const EvaluateProgress&)>& progress) {
  ConversationReport report;
  std::optional<std::int64_t> nearest_late;  // shortest context that reaches an answer that was left out
  for (std::size_t i = 0; i < conversations.size(); ++i) {
    const auto begin = static_cast<std::size_t>(conversations.begin(i));
    const auto length = static_cast<std::size_t>(std::min(conversations.tokens(i), sequence + 1));
    const auto tokens = std::span(conversations.ids).subspan(begin, length);
    const auto learned = std::span(conversations.learned).subspan(begin, length);
    const auto is_learned = [](std::uint8_t one) { return one != 0; };
    if (length < 2 || std::ranges::none_of(learned.subspan(1), is_learned)) {
      ++report.without_answer;
      const auto rest =
          std::span(conversations.learned)
              .subspan(begin + length, static_cast<std::size_t>(conversations.tokens(i)) - length);
      const auto first = std::ranges::find_if(rest, is_learned) - rest.begin();
      if (first < std::ssize(rest)) {
        const std::int64_t needed = static_cast<std::int64_t>(length) + first;
        nearest_late = std::min(nearest_late.value_or(needed), needed);
      }
      continue;
    }
    ++report.conversations;
    report.truncated += static_cast<std::int64_t>(length) < conversations.tokens(i) ? 1 : 0;
    evaluator.add_alone(tokens, learned);
    if (progress) {
      progress({.tokens = evaluator.tokens(),
                .loss = evaluator.mean(),
                .share = static_cast<double>(i + 1) / static_cast<double>(conversations.size())});
    }
  }
  evaluator.finish();
  if (evaluator.tokens() == 0 && nearest_late) {
    throw invalid(fmt::format("no answer begins within {} tokens (--seq-length), which is the part of a "
                              "conversation that is read",
                              sequence),
                  fmt::format("--seq-length {} reaches the first answer; the default is the seq_length with "
                              "which the model was trained",
                              *nearest_late));
  }
  if (evaluator.tokens() == 0) {
    throw invalid("no conversation has an answer to evaluate",
                  "'primus data conversations FILE --tokenizer MODEL' shows how they are read");
  }
  report.tokens = evaluator.tokens();
  report.loss = evaluator.mean();
  report.perplexity = std::exp(report.loss);
  return report;
}

}  // namespace primus
