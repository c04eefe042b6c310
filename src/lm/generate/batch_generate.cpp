#include "lm/generate/batch_generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/terminal/terminal.h"

namespace primus {
namespace {

// A text that is being written.
struct Running {
  std::size_t index;
  std::int64_t capacity;                 // of its sequence
  std::span<const std::int32_t> unread;  // of the prompt
  TextWriter writer;
  double began, written_from = 0;
  std::int32_t next = 0;  // once the prompt is read: the token to read
};

class Batch {
 public:
  Batch(BatchReader& reader, std::span<const BatchPrompt> prompts, const BatchEvents& events)
      : reader_(reader),
        prompts_(prompts),
        events_(events),
        running_(static_cast<std::size_t>(reader.settings().sequences)) {}

  void run() {
    check();
    while (true) {
      admit();
      if (read_prompts()) continue;
      if (!write_tokens()) return;
      if (events_.progress) events_.progress(tokens_);
    }
  }

 private:
  void check() const {
    const std::int64_t capacity = reader_.settings().capacity;
    for (std::size_t i = 0; i < prompts_.size(); ++i) {
      prompts_[i].settings.sampling.check();
      const auto size = static_cast<std::int64_t>(prompts_[i].tokens.size());
      if (size < 1 || size > capacity) {
        throw invalid(fmt::format("prompt {} has {} tokens; from 1 to {} fit", i, size, capacity));
      }
    }
  }

  // Prompts take free sequences, in order, as long as there are pages for all they may become.
  void admit() {
    for (std::size_t i = 0; i < running_.size() && next_ < prompts_.size(); ++i) {
      if (running_[i]) continue;
      const BatchPrompt& prompt = prompts_[next_];
      const std::int64_t room = room_for(prompt, reader_.settings().capacity);
      if (!reader_.reserve(static_cast<std::int64_t>(i), room)) return;
      running_[i].emplace(Running{.index = next_++,
                                  .capacity = room,
                                  .unread = prompt.tokens,
                                  .writer = TextWriter(prompt.settings),
                                  .began = steady_seconds()});
    }
  }

  // One pass over prompts that have more than their last token unread. How a prompt is cut depends on the
  // prompt alone. False: there is none.
  bool read_prompts() {
    inputs_.clear();
    std::int64_t room = reader_.settings().pass_tokens;
    for (std::size_t i = 0; i < running_.size(); ++i) {
      if (!running_[i] || running_[i]->unread.size() < 2) continue;
      const auto size =
          std::min(static_cast<std::int64_t>(running_[i]->unread.size()) - 1, reader_.settings().pass_tokens);
      if (size > room) continue;
      room -= size;
      inputs_.push_back(
          {static_cast<std::int64_t>(i), running_[i]->unread.first(static_cast<std::size_t>(size))});
    }
    if (inputs_.empty()) return false;
    reader_.read(inputs_);
    for (const BatchReader::Input& input : inputs_) {
      std::span<const std::int32_t>& unread = running_[static_cast<std::size_t>(input.sequence)]->unread;
      unread = unread.subspan(input.tokens.size());
    }
    return true;
  }

  // The next token of every text. False: there is none.
  bool write_tokens() {
    inputs_.clear();
    for (std::size_t i = 0; i < running_.size(); ++i) {
      if (!running_[i]) continue;
      Running& text = *running_[i];
      inputs_.push_back({static_cast<std::int64_t>(i),
                         text.unread.empty() ? std::span<const std::int32_t>(&text.next, 1) : text.unread});
    }
    if (inputs_.empty()) return false;
    reader_.read_next(inputs_, wanted());
    for (std::size_t row = 0; row < inputs_.size(); ++row) {
      const std::int64_t sequence = inputs_[row].sequence;
      Running& text = *running_[static_cast<std::size_t>(sequence)];
      if (!text.unread.empty()) {
        text.unread = {};
        text.written_from = steady_seconds();
      }
      const std::size_t before = text.writer.text().ids.size();
      const auto next = text.writer.next(reader_.next(row), reader_.length(sequence), text.capacity);
      tokens_ += static_cast<std::int64_t>(text.writer.text().ids.size() - before);
      if (next) {
        text.next = *next;
      } else {
        finish(sequence);
      }
    }
    return true;
  }

  // What all texts that are being written need. Those that may choose from other vocabularies need all
  // logits.
  WantedLogits wanted() const {
    std::optional<WantedLogits> all;
    for (const std::optional<Running>& text : running_) {
      if (!text) continue;
      const WantedLogits own = prompts_[text->index].settings.wanted();
      if (!all) all = own;
      if (own.likeliest == 0 || own.vocab != all->vocab) return {};
      all->likeliest = std::max(all->likeliest, own.likeliest);
    }
    return all.value_or(WantedLogits{});
  }

  void finish(std::int64_t sequence) {
    std::optional<Running>& text = running_[static_cast<std::size_t>(sequence)];
    Generation result = std::move(text->writer.text());
    result.prompt_seconds = text->written_from - text->began;
    result.seconds = steady_seconds() - text->written_from;
    const std::size_t index = text->index;
    text.reset();
    reader_.release(sequence);
    events_.done(index, std::move(result));
  }

  BatchReader& reader_;
  std::span<const BatchPrompt> prompts_;
  const BatchEvents& events_;
  std::vector<std::optional<Running>> running_;  // by sequence
  std::vector<BatchReader::Input> inputs_;
  std::size_t next_ = 0;  // prompt to be taken
  std::int64_t tokens_ = 0;
};

}  // namespace

std::int64_t room_for(const BatchPrompt& prompt, std::int64_t capacity) {
  return std::min(capacity, static_cast<std::int64_t>(prompt.tokens.size()) + prompt.settings.max_tokens);
}

void generate_batch(BatchReader& reader, std::span<const BatchPrompt> prompts, const BatchEvents& events) {
  Batch(reader, prompts, events).run();
}

}  // namespace primus
