#include "lm/generate/conversation.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "lm/tokenizer/simple.h"

namespace primus {
namespace {

constexpr std::string_view kUser = "User: ", kAssistant = "\nAssistant:", kNextTurn = "\nUser:";

// Passes generated text on immediately. Holds back the last characters if they may be the beginning of the
// user's next turn.
class ReplyText {
 public:
  explicit ReplyText(const std::function<bool(std::string_view)>& on_text) : on_text_(on_text) {}

  // Adds a piece of text. Returns false when the reply is complete.
  bool push(std::string_view piece) {
    text_ += piece;
    if (shown_ == 0 && text_.starts_with(' ')) shown_ = 1;  // skips the space after "Assistant:"
    const std::size_t found = text_.find(kNextTurn);
    if (found != std::string::npos) {
      text_.resize(found);
      next_turn_ = true;
      show(found);
      return false;
    }
    std::size_t held = std::min(kNextTurn.size() - 1, text_.size());
    while (!text_.ends_with(kNextTurn.substr(0, held))) --held;
    return show(text_.size() - held);
  }
  void finish(std::string_view rest) {
    if (push(rest)) show(text_.size());
  }
  bool next_turn() const { return next_turn_; }
  const std::string& text() const { return text_; }

 private:
  bool show(std::size_t end) {
    if (end <= shown_) return true;
    const bool more = !on_text_ || on_text_(std::string_view(text_).substr(shown_, end - shown_));
    shown_ = end;
    return more;
  }

  const std::function<bool(std::string_view)>& on_text_;
  std::string text_;
  std::size_t shown_ = 0;
  bool next_turn_ = false;
};

}  // namespace

Conversation::Conversation(DecodeScheduler& decoder, const Tokenizer& tokenizer, GenerateSettings settings,
                           const data::ConversationWriter* writer, std::string system)
    : decoder_(&decoder), tokenizer_(&tokenizer), writer_(nullptr), system_(std::move(system)) {
  use(decoder, tokenizer, std::move(settings), writer);
  clear();
}

bool Conversation::use(DecodeScheduler& decoder, const Tokenizer& tokenizer, GenerateSettings settings,
                       const data::ConversationWriter* writer) {
  if (!system_.empty() && !(writer && writer->has_system())) {
    throw invalid("this format does not support a system message",
                  "omit --system, or choose a format that supports it: --template chatml or alpaca");
  }
  const bool goes_on =
      writer ? writer_ != nullptr
             : writer_ == nullptr && make_same_ids(tokenizer_->fingerprint(), tokenizer.fingerprint());
  decoder_ = &decoder;
  tokenizer_ = &tokenizer;
  settings_ = std::move(settings);
  writer_ = writer;
  if (writer_) settings_.stop_ids.push_back(writer_->end_id());
  if (!goes_on) clear();
  return goes_on;
}

void Conversation::clear() {
  turns_.clear();
  messages_ = data::with_system(system_);
  tokens_ = tokenizer_->frame().before;
  prefix_ = tokens_.size();
}

// Drops complete turns, the oldest first, until `tokens` more tokens and a reply fit into the context, or no
// turn is left. Returns the number of dropped turns.
std::size_t Conversation::make_room(std::size_t tokens) {
  const std::int64_t reserve = std::min(settings_.max_tokens, decoder_->capacity() / 2);
  const auto room = static_cast<std::size_t>(decoder_->capacity() - reserve);
  std::size_t forgotten = 0;
  auto size_after = [&] {
    const std::size_t kept_from = forgotten < turns_.size() ? turns_[forgotten] : tokens_.size();
    return prefix_ + (tokens_.size() - kept_from) + tokens;
  };
  while (forgotten < turns_.size() && size_after() > room) ++forgotten;
  if (forgotten == 0) return 0;
  const std::size_t kept_from = forgotten < turns_.size() ? turns_[forgotten] : tokens_.size();
  tokens_.erase(tokens_.begin() + static_cast<std::ptrdiff_t>(prefix_),
                tokens_.begin() + static_cast<std::ptrdiff_t>(kept_from));
  turns_.erase(turns_.begin(), turns_.begin() + static_cast<std::ptrdiff_t>(forgotten));
  for (std::size_t& turn : turns_) turn -= kept_from - prefix_;
  return forgotten;
}

Conversation::Reply Conversation::say(std::string_view user,
                                      const std::function<bool(std::string_view)>& on_text) {
  if (writer_) return answer_formatted(user, on_text);
  std::string turn = turns_.empty() ? std::string() : "\n";
  turn.append(kUser).append(user).append(kAssistant);
  const std::vector<std::int32_t> ids = tokenizer_->encode(turn, false);
  Reply reply;
  reply.forgotten_turns = make_room(ids.size());
  // If a turn is longer than the context, drops its beginning.
  const auto kept =
      fit_prompt(ids, decoder_->capacity() - static_cast<std::int64_t>(prefix_), settings_.max_tokens);
  reply.prompt_tokens = ids.size();
  reply.lost_tokens = ids.size() - kept.size();
  turns_.push_back(tokens_.size());
  tokens_.insert(tokens_.end(), kept.begin(), kept.end());

  StreamDecoder stream(*tokenizer_);
  ReplyText text(on_text);
  const Generation generation =
      generate(*decoder_, tokens_, settings_, [&](std::int32_t id) { return text.push(stream.push(id)); });
  if (!text.next_turn()) text.finish(stream.finish());

  // The model may have begun the user's next turn. That text is dropped, so the next turn reads the reply
  // again without that text.
  const std::vector<std::int32_t> written =
      text.next_turn() ? tokenizer_->encode(text.text(), false) : generation.ids;
  tokens_.insert(tokens_.end(), written.begin(), written.end());
  reply.text = text.text().substr(text.text().starts_with(' ') ? 1 : 0);
  reply.reason = generation.reason;
  return reply;
}

Conversation::Reply Conversation::answer_formatted(std::string_view user,
                                                   const std::function<bool(std::string_view)>& on_text) {
  Reply reply;
  // Index of the first turn in messages_.
  const auto first = static_cast<std::ptrdiff_t>(system_.empty() ? 0 : 1);
  if (!writer_->has_turns()) messages_.clear();
  messages_.push_back({std::string(data::kUser), std::string(user), {}});
  const std::int64_t reserve = std::min(settings_.max_tokens, decoder_->capacity() / 2);
  std::vector<std::int32_t> ids = writer_->prompt(messages_);
  while (static_cast<std::int64_t>(ids.size()) > decoder_->capacity() - reserve &&
         std::ssize(messages_) > first + 1) {
    messages_.erase(messages_.begin() + first, messages_.begin() + first + 2);
    ids = writer_->prompt(messages_);
    ++reply.forgotten_turns;
  }
  // If the turn is longer than the context, drops its beginning.
  const auto kept = fit_prompt(ids, decoder_->capacity(), settings_.max_tokens);
  reply.prompt_tokens = ids.size();
  reply.lost_tokens = ids.size() - kept.size();
  tokens_.assign(kept.begin(), kept.end());

  StreamDecoder stream(*tokenizer_);
  const auto show = [&](std::string piece) {
    const std::string_view prefix = writer_->answer_prefix();
    if (reply.text.empty() && !prefix.empty() && piece.starts_with(prefix)) piece.erase(0, prefix.size());
    reply.text += piece;
    return !on_text || piece.empty() || on_text(piece);
  };
  const Generation generation =
      generate(*decoder_, tokens_, settings_, [&](std::int32_t id) { return show(stream.push(id)); });
  show(stream.finish());
  tokens_.insert(tokens_.end(), generation.ids.begin(), generation.ids.end());
  messages_.push_back({std::string(data::kAssistant), reply.text, {}});
  reply.reason = generation.reason;
  return reply;
}

}  // namespace primus
