#include "lm/generate/batch_generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"

namespace primus {
namespace {

// An error of the logits of a model.
struct ModelError {
  std::size_t model = 0;
  std::exception_ptr error;
};

DecodeRequest request_of(const BatchPrompt& prompt) {
  return {.prompt = prompt.tokens, .settings = prompt.settings, .model = prompt.model};
}

void check(const DecodeScheduler& decoder, std::span<const BatchPrompt> prompts) {
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    try {
      decoder.check(request_of(prompts[i]));
    } catch (const Error& error) {
      throw Error(error.kind(), fmt::format("prompt {}: {}", i, error.what()), error.hint());
    }
  }
}

// The texts of a batch while they are generated.
class Texts {
 public:
  Texts(DecodeScheduler& decoder, std::span<const BatchPrompt> prompts, const BatchEvents& events)
      : decoder_(decoder), prompts_(prompts), writers_(prompts.size()), done_(prompts.size()) {
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      DecodeRequest request = request_of(prompts[i]);
      request.on_token = [this, i, &events](const DecodedToken& token) {
        writers_[i].push(token);
        if (!token.end) return true;
        done_[i] = true;
        events.done(i, Generation(writers_[i].text()));
        return true;
      };
      ids_.push_back(decoder.submit(std::move(request)));
    }
  }

  // Returns the lowest model of which a text has ended without a result.
  std::optional<std::size_t> failed_model() const {
    std::optional<std::size_t> lowest;
    for (std::size_t i = 0; i < ids_.size(); ++i) {
      if (done_[i] || cancelled_.contains(ids_[i]) || decoder_.has(ids_[i])) continue;
      lowest = std::min(lowest.value_or(prompts_[i].model), prompts_[i].model);
    }
    return lowest;
  }
  // Ends all texts of this model and of later ones.
  void cancel_from(std::size_t model) {
    for (std::size_t i = 0; i < ids_.size(); ++i) {
      if (prompts_[i].model < model) continue;
      decoder_.cancel(ids_[i]);
      cancelled_.insert(ids_[i]);
    }
  }

 private:
  DecodeScheduler& decoder_;
  std::span<const BatchPrompt> prompts_;
  std::vector<TextWriter> writers_;
  std::vector<bool> done_;
  std::vector<DecodeScheduler::Id> ids_;
  std::set<DecodeScheduler::Id> cancelled_;
};

// Generates the texts of one turn. Prompts start in order, and texts end in any order. Returns an error of
// the logits after the texts of earlier models have ended.
std::optional<ModelError> generate_until_error(DecodeScheduler& decoder, std::span<const BatchPrompt> prompts,
                                               const BatchEvents& events) {
  check(decoder, prompts);
  Texts texts(decoder, prompts, events);
  const std::int64_t before = decoder.counts().written;
  std::optional<ModelError> failure;
  while (true) {
    try {
      if (!decoder.step()) return failure;
    } catch (const Error& error) {
      const std::optional<std::size_t> model = texts.failed_model();
      const bool of_logits = error.kind() == ErrorKind::kNumerics && model;
      texts.cancel_from(of_logits ? *model : 0);
      if (!of_logits) throw;
      failure = {*model, std::current_exception()};
      continue;
    } catch (...) {
      texts.cancel_from(0);
      throw;
    }
    if (events.progress) events.progress(decoder.counts().written - before);
  }
}

// Reports results in order.
class OrderedResults {
 public:
  OrderedResults(const BatchEvents& events) : events_(events) {}

  void add(std::size_t index, Generation&& text) {
    waiting_.emplace(index, std::move(text));
    for (auto next = waiting_.find(reported_); next != waiting_.end(); next = waiting_.find(++reported_)) {
      events_.done(reported_, std::move(next->second));
      waiting_.erase(next);
    }
  }

 private:
  const BatchEvents& events_;
  std::map<std::size_t, Generation> waiting_;  // results that wait for earlier ones
  std::size_t reported_ = 0;
};

// Returns the models that generate at the same time, in the order of their first models.
std::vector<std::vector<std::size_t>> turns_of(const AdapterDecoder& decoder, std::size_t models) {
  const std::vector<std::size_t> together = decoder.batched();
  std::vector<std::vector<std::size_t>> turns;
  for (std::size_t model = 0; model < models; ++model) {
    if (std::ranges::find(together, model) == together.end()) {
      turns.push_back({model});
    } else if (model == together.front()) {
      turns.push_back(together);
    }
  }
  return turns;
}

}  // namespace

std::int64_t room_for(const BatchPrompt& prompt, std::int64_t capacity) {
  return std::min(capacity, static_cast<std::int64_t>(prompt.tokens.size()) + prompt.settings.max_tokens);
}

ReaderSettings reader_for(std::span<const BatchPrompt> prompts, std::int64_t together, DType compute,
                          std::int64_t max_positions) {
  ReaderSettings reader{.compute = compute, .capacity = 1, .pass_tokens = 1};
  if (prompts.empty()) return reader;
  reader.sequences = std::min<std::int64_t>(together, std::ssize(prompts));
  for (const BatchPrompt& prompt : prompts)
    reader.capacity = std::max(reader.capacity, room_for(prompt, max_positions));
  // The number of cache pages that each sequence needs. Memory is allocated for the longest sequences that
  // may be decoded together.
  std::vector<std::int64_t> pages, tokens;
  for (const BatchPrompt& prompt : prompts) {
    pages.push_back(reader.pages_for(room_for(prompt, reader.capacity)));
    tokens.push_back(std::ssize(prompt.tokens));
  }
  const auto sum_of_largest = [&](std::vector<std::int64_t>& sizes) {
    std::sort(sizes.begin(), sizes.end(), std::greater<>());
    return std::accumulate(sizes.begin(), sizes.begin() + reader.sequences, std::int64_t{0});
  };
  reader.pages = sum_of_largest(pages);
  reader.pass_tokens = sum_of_largest(tokens);
  return reader;
}

void generate_by_models(AdapterDecoder& decoder, std::span<const std::vector<BatchPrompt>> prompts,
                        const BatchEvents& events) {
  std::vector<std::size_t> first(prompts.size() + 1, 0);  // index of the first prompt of each model
  for (std::size_t model = 0; model < prompts.size(); ++model)
    first[model + 1] = first[model] + prompts[model].size();
  OrderedResults results(events);
  std::optional<ModelError> failure;
  std::int64_t before = 0, written = 0;  // tokens of earlier turns, and of all
  for (const std::vector<std::size_t>& turn : turns_of(decoder, prompts.size())) {
    std::vector<BatchPrompt> own;
    std::vector<std::size_t> indices;
    for (const std::size_t model : turn) {
      if (failure && model >= failure->model) break;
      for (std::size_t i = 0; i < prompts[model].size(); ++i) {
        own.push_back(prompts[model][i]);
        own.back().model = turn.size() > 1 ? model : 0;
        indices.push_back(first[model] + i);
      }
    }
    if (own.empty()) continue;
    before = written;
    const auto report = [&](std::size_t i, Generation&& text) { results.add(indices[i], std::move(text)); };
    const auto progress = [&](std::int64_t tokens) {
      written = before + tokens;
      if (events.progress) events.progress(written);
    };
    std::optional<ModelError> failed =
        generate_until_error(turn.size() > 1 ? decoder.use_batch() : decoder.use(turn.front()), own,
                             {.done = report, .progress = progress});
    if (!failed) continue;
    if (turn.size() == 1) failed->model = turn.front();
    failure = std::move(failed);
  }
  if (failure) std::rethrow_exception(failure->error);
}

}  // namespace primus
