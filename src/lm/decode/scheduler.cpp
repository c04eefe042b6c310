#include "lm/decode/scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>

#include "base/check.h"
#include "base/error.h"
#include "base/terminal/terminal.h"

namespace primus {

DecodeScheduler::DecodeScheduler(engine::Rank& rank, const LanguageModel& model,
                                 const ReaderSettings& settings, Agree agree,
                                 const engine::RowAdapters* adapters)
    : reader_(rank, model, settings, adapters), agree_(std::move(agree)) {}

void DecodeScheduler::check(const DecodeRequest& request) const {
  request.settings.sampling.check();
  PRIMUS_CHECK("DecodeScheduler", request.model < reader_.models());
  const std::int64_t size = std::ssize(request.prompt), vocab = reader_.config().vocab;
  if (size < 1 || size > capacity()) {
    throw invalid(fmt::format("a prompt has {} tokens; it must have 1 to {}", size, capacity()),
                  "shorten it, or choose a larger context");
  }
  for (const std::int32_t id : request.prompt) {
    if (id < 0 || id >= vocab)
      throw invalid(fmt::format("token {} is outside the vocabulary of {}", id, vocab));
  }
}

DecodeScheduler::Id DecodeScheduler::submit(DecodeRequest request) {
  check(request);
  auto text = std::make_shared<Text>();
  text->tokens = request.prompt;
  text->request = std::move(request);
  texts_.emplace(next_, std::move(text));
  waiting_.insert(next_);
  return next_++;
}

bool DecodeScheduler::cancel(Id id) {
  if (!texts_.contains(id)) return false;
  erase(id);
  return true;
}

void DecodeScheduler::erase(Id id) {
  if (running_.contains(id)) stop_running(id);
  if (held_.contains(id) && text(id).sequence >= 0) reader_.release(text(id).sequence);
  waiting_.erase(id);
  held_.erase(id);
  texts_.erase(id);
}

void DecodeScheduler::extend(Id id, std::span<const std::int32_t> tokens) {
  PRIMUS_CHECK("DecodeScheduler::extend", held_.contains(id));
  Text& t = text(id);
  const std::int64_t added = std::ssize(tokens), length = std::ssize(t.tokens);
  const std::int64_t room = std::min(t.request.settings.max_tokens - t.written, capacity() - length);
  if (added < 1 || added >= room) {
    throw invalid(fmt::format("{} tokens are appended to a text; there must be 1 to {}", added, room - 1),
                  "shorten them, or choose a larger context");
  }
  for (const std::int32_t token : tokens) {
    if (token < 0 || token >= reader_.config().vocab) {
      throw invalid(fmt::format("token {} is outside the vocabulary of {}", token, reader_.config().vocab));
    }
  }
  t.tokens.insert(t.tokens.end(), tokens.begin(), tokens.end());
  t.written += added;
  held_.erase(id);
  (t.sequence >= 0 ? running_ : waiting_).insert(id);
}

void DecodeScheduler::stop_running(Id id) {
  reader_.release(text(id).sequence);
  text(id).sequence = -1;
  running_.erase(id);
}

std::int64_t DecodeScheduler::unread(const Text& text) const {
  return std::ssize(text.tokens) - reader_.length(text.sequence);
}

// Returns whether another text is currently reading a prefix that both texts share. A prefix that is too
// short to wait for is ignored.
bool DecodeScheduler::is_read_elsewhere(const Text& text) const {
  constexpr std::int64_t kShort = 16;
  const auto maximum = std::span(text.tokens).first(text.tokens.size() - 1);
  const std::int64_t now = reader_.shared(text.tokens, text.request.model);
  for (const Id id : running_) {
    const Text& other = *texts_.at(id);
    if (other.request.model != text.request.model) continue;
    const std::int64_t common = std::ranges::mismatch(maximum, other.tokens).in1 - maximum.begin();
    if (common < kShort || common <= now || reader_.length(other.sequence) >= common) continue;
    if (reader_.can_share(common, std::ssize(other.tokens) - 1)) return true;
  }
  return false;
}

// Returns the number of sequences of the reader that no text uses.
std::int64_t DecodeScheduler::free_sequences() const {
  std::int64_t used = running();
  for (const Id id : held_) used += texts_.at(id)->sequence >= 0 ? 1 : 0;
  return reader_.settings().sequences - used;
}

// Returns the youngest text that has pages. Held texts come first, because they are not read now.
DecodeScheduler::Id DecodeScheduler::youngest_with_pages() const {
  for (auto id = held_.rbegin(); id != held_.rend(); ++id)
    if (texts_.at(*id)->sequence >= 0) return *id;
  return *running_.rbegin();
}

// Lets waiting texts run, the oldest first, while there are pages for their tokens. If a text must wait for
// pages, later texts wait, too. If a text waits until another text has read a shared prefix, later texts need
// not wait.
void DecodeScheduler::admit() {
  for (auto next = waiting_.begin(); next != waiting_.end() && free_sequences() > 0;) {
    const Id id = *next++;
    Text& t = text(id);
    if (is_read_elsewhere(t)) continue;
    const std::int64_t sequence = *reader_.begin(t.tokens, t.request.model);
    // Reserves the pages now, so that only the remaining pages are available to later texts.
    if (!reader_.reserve(sequence, std::ssize(t.tokens))) {
      reader_.release(sequence);
      return;
    }
    t.sequence = sequence;
    if (t.began == 0) t.began = steady_seconds();
    counts_.shared += reader_.length(sequence);
    waiting_.erase(id);
    running_.insert(id);
  }
}

// Reserves pages for a text. If too few pages are free, younger texts give up their pages. Returns false if
// this text is itself the youngest and gives up its pages.
bool DecodeScheduler::make_room(Id id, std::int64_t length) {
  while (!reader_.reserve(text(id).sequence, length)) {
    const Id youngest = youngest_with_pages();
    stop_running(youngest);
    if (!held_.contains(youngest)) waiting_.insert(youngest);
    ++counts_.preemptions;
    if (youngest == id) return false;
  }
  return true;
}

// Returns how many tokens of prompts a step reads if it also generates a token of `generating` texts. At
// least half of a full step is for prompts, as long as a pass has room, because many texts must not stop the
// reading.
std::int64_t DecodeScheduler::room_for_prompts(std::int64_t generating) const {
  const ReaderSettings& settings = reader_.settings();
  const std::int64_t maximum = settings.pass_tokens, beside = settings.generating_pass_tokens;
  if (generating == 0 || beside == 0) return maximum - generating;
  return std::min(maximum, std::max(beside, generating + beside / 2)) - generating;
}

// Plans a step. A step reads the single unread token of each text that is being generated. A step also reads
// prompts, the oldest prompt first. If it reads the last token of a prompt, it also generates a token.
void DecodeScheduler::plan() {
  inputs_.clear();
  telling_.clear();
  std::int64_t generating = 0;
  for (const Id id : running_) generating += unread(text(id)) == 1 ? 1 : 0;
  std::int64_t room = room_for_prompts(generating);
  std::vector<std::pair<Id, BatchReader::Input>> all;
  for (const Id id : std::vector<Id>(running_.begin(), running_.end())) {
    Text& t = text(id);
    if (t.sequence < 0) continue;  // the text has just given up its pages
    const std::int64_t left = unread(t), length = reader_.length(t.sequence);
    const std::int64_t count = left == 1 ? 1 : std::min(left, room);
    if (count == 0) continue;
    if (!make_room(id, length + count)) break;
    if (left > 1) room -= count;
    const auto tokens = std::span<const std::int32_t>(t.tokens).subspan(static_cast<std::size_t>(length),
                                                                        static_cast<std::size_t>(count));
    const TokenDraw draw = draw_of(t.request.settings.sampling, std::ssize(t.tokens));
    all.push_back({id, {t.sequence, tokens, count == left, draw}});
  }
  std::ranges::sort(all, {}, [&](const auto& planned) { return reader_.place(planned.second.sequence); });
  for (const auto& [id, input] : all) {
    inputs_.push_back(input);
    if (input.tells) telling_.push_back(id);
  }
}

// Returns the logits that suffice for all texts that get a token. If texts have different vocabularies, all
// logits are needed.
WantedLogits DecodeScheduler::wanted() const {
  std::optional<WantedLogits> all;
  for (const Id id : telling_) {
    const WantedLogits own = texts_.at(id)->request.settings.wanted();
    if (!all) all = own;
    all->log_probs = all->log_probs || own.log_probs;
    all->draws = all->draws && own.draws;
    if (own.vocab != all->vocab) {
      all->top_k = all->vocab = 0;
      all->draws = false;
      continue;
    }
    all->top_k = own.top_k == 0 || all->top_k == 0 ? 0 : std::max(all->top_k, own.top_k);
  }
  return all.value_or(WantedLogits{});
}

bool DecodeScheduler::step() {
  admit();
  plan();
  if (inputs_.empty()) {
    PRIMUS_CHECK("DecodeScheduler::step", texts_.empty() || !held_.empty());
    return false;
  }
  reader_.read(inputs_, wanted());
  ++counts_.steps;
  for (const BatchReader::Input& input : inputs_) counts_.read += std::ssize(input.tokens);
  if (!telling_.empty()) choose();
  return true;
}

void DecodeScheduler::choose() {
  constexpr std::int32_t kNone = -1;
  std::vector<std::int32_t> chosen(telling_.size(), kNone);
  std::exception_ptr failure;
  std::vector<Id> failed;
  bool log_probs = false;
  for (std::size_t i = 0; i < telling_.size(); ++i) {
    const Text& t = text(telling_[i]);
    const GenerateSettings& settings = t.request.settings;
    if (t.written >= settings.max_tokens) continue;
    log_probs = log_probs || settings.log_probs;
    NextLogits logits = reader_.next(i);
    if (settings.vocab > 0 && logits.ids.empty())
      logits.values =
          logits.values.first(std::min(logits.values.size(), static_cast<std::size_t>(settings.vocab)));
    try {
      chosen[i] = sample_token(logits, settings.sampling, std::ssize(t.tokens));
    } catch (const Error&) {
      failure = std::current_exception();
      failed.push_back(telling_[i]);
    }
  }
  if (agree_) agree_(chosen);
  std::vector<float> values;
  if (log_probs) {
    std::vector<std::int32_t> ids = chosen;
    std::ranges::replace(ids, kNone, 0);
    values = reader_.log_probs(ids);
  }
  std::vector<Shown> shown;
  for (std::size_t i = 0; i < telling_.size(); ++i) {
    if (std::ranges::find(failed, telling_[i]) != failed.end()) continue;
    shown.push_back(write(telling_[i], chosen[i]));
    Shown& last = shown.back();
    if (last.text->request.settings.log_probs && chosen[i] != kNone) last.token.log_prob = values[i];
  }
  for (const Id id : failed) erase(id);
  // Before the callbacks run, all texts are in a consistent state.
  for (const Shown& s : shown) {
    // The callback of another text has cancelled this text.
    if (s.token.end == std::nullopt && !texts_.contains(s.id)) continue;
    const auto& on_token = s.text->request.on_token;
    if (on_token && !on_token(s.token)) cancel(s.id);
  }
  if (failure) std::rethrow_exception(failure);
}

// Appends the chosen token to its text.
DecodeScheduler::Shown DecodeScheduler::write(Id id, std::int32_t chosen) {
  const std::shared_ptr<Text> t = texts_.at(id);
  const GenerateSettings& settings = t->request.settings;
  Shown shown{t, id, {.id = chosen, .began = t->began}};
  const std::int64_t length = std::ssize(t->tokens);
  if (chosen < 0) {
    shown.token.end = StopReason::kMaxTokens;
  } else if (std::ranges::find(settings.stop_ids, chosen) != settings.stop_ids.end()) {
    shown.token.end = StopReason::kStopToken;
    if (t->request.holds) {
      t->tokens.push_back(chosen);
      ++t->written;
      running_.erase(id);
      held_.insert(id);
      return shown;
    }
  } else {
    t->tokens.push_back(chosen);
    ++t->written;
    ++counts_.written;
    if (length == capacity()) {
      shown.token.end = StopReason::kContextFull;
    } else if (t->written >= settings.max_tokens) {
      shown.token.end = StopReason::kMaxTokens;
    }
  }
  if (shown.token.end) erase(id);
  return shown;
}

}  // namespace primus
