#include "lm/data/conversation_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"

namespace primus::data {
namespace {

constexpr std::string_view kAlpacaPreamble =
    "Below is an instruction that describes a task. Write a response that appropriately completes the "
    "request.";

bool is_blank(std::string_view text) { return text.find_first_not_of(" \t\r\n") == std::string_view::npos; }

bool is_learned(const Message& answer) { return answer.learned && !is_blank(answer.text); }

std::string_view without_spaces(std::string_view text) {
  const size_t begin = text.find_first_not_of(' ');
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(' ') - begin + 1);
}

// Whether the format has a name for it.
void require_role(const Message& message, std::string_view format) {
  if (message.role == kUser || message.role == kAssistant || message.role == kSystem) return;
  throw invalid(fmt::format("the format {} has no turns of the role '{}'", format, message.role),
                "set sft_conversation_format: messages");
}

// The id of a token that must be one by itself, as written.
int32_t require_token(const Tokenizer& tokenizer, std::string_view text) {
  const std::optional<int32_t> id = tokenizer.token_id(text);
  if (id && tokenizer.encode(text, false) == std::vector<int32_t>{*id}) return *id;
  throw invalid(
      fmt::format("the conversation format is written with the special token {}, which the "
                  "tokenizer ({}) does not have",
                  text, tokenizer.name()),
      "set sft_conversation_format: alpaca, or take a tokenizer that has <|im_start|> and <|im_end|>");
}

}  // namespace

std::optional<ConversationFormat> conversation_format(std::string_view name) {
  if (name == "alpaca") return ConversationFormat::kAlpaca;
  if (name == "squad" || name == "bridge_squad") return ConversationFormat::kSquad;
  if (name == "chatml" || name == "messages" || name == "openai") return ConversationFormat::kChatMl;
  return std::nullopt;
}

ConversationWriter::ConversationWriter(ConversationFormat format, const Tokenizer& tokenizer, bool inline_bos)
    : format_(format), tokenizer_(tokenizer), inline_bos_(inline_bos) {
  if (format == ConversationFormat::kChatMl) {
    require_token(tokenizer, kTurnBegin);
    end_ = require_token(tokenizer, kTurnEnd);
    return;
  }
  const SpecialIds& special = tokenizer.special_ids();
  const std::optional<int32_t> end = special.eos ? special.eos : special.eod;
  if (!end) {
    throw invalid(fmt::format("the tokenizer ({}) has no token that ends a text, and an answer must end",
                              tokenizer.name()),
                  "take one that has (eos_token), or sft_conversation_format: messages with <|im_end|>");
  }
  end_ = *end;
}

std::vector<ConversationWriter::Piece> ConversationWriter::alpaca(const std::vector<Message>& messages,
                                                                  bool open) const {
  std::vector<Piece> pieces;
  std::string prompt(kAlpacaPreamble);
  bool begun = false;  // a turn is there, and the place of a system's text is behind
  const auto separate = [&] {
    if (!begun || prompt.empty()) prompt += "\n\n";
    begun = true;
  };
  for (const Message& message : messages) {
    require_role(message, "alpaca");
    if (message.role == kSystem) {
      if (begun || &message != &messages.front()) {
        throw invalid("the format alpaca has one system turn, at the beginning",
                      "set sft_conversation_format: messages");
      }
      if (!message.text.empty()) prompt = message.text;
    } else if (message.role == kUser) {
      separate();
      prompt += fmt::format("### Instruction:\n{}\n\n", message.text);
      if (!message.context.empty()) prompt += fmt::format("### Input:\n{}\n\n", message.context);
    } else {
      separate();
      pieces.push_back({std::exchange(prompt, {}) + "### Response:\n"});
      pieces.push_back({message.text, is_learned(message), true});
    }
  }
  if (open) {
    separate();
    prompt += "### Response:\n";
  }
  if (!prompt.empty()) pieces.push_back({std::move(prompt)});
  return pieces;
}

std::vector<ConversationWriter::Piece> ConversationWriter::squad(const std::vector<Message>& messages,
                                                                 bool open) const {
  const size_t turns = open ? 1 : 2;
  if (messages.size() != turns || messages[0].role != kUser || (!open && messages[1].role != kAssistant)) {
    throw invalid("the format squad has one question and one answer, and this conversation has other turns",
                  "set sft_conversation_format: messages, or alpaca");
  }
  std::vector<Piece> pieces{
      {fmt::format("Context: {} Question: {} Answer:", without_spaces(messages[0].context),
                   without_spaces(messages[0].text))}};
  if (!open) {
    const std::string_view answer = without_spaces(messages[1].text);
    pieces.push_back({fmt::format(" {}", answer), is_learned(messages[1]), true});
  }
  return pieces;
}

std::vector<ConversationWriter::Piece> ConversationWriter::chatml(const std::vector<Message>& messages,
                                                                  bool open) const {
  std::vector<Piece> pieces;
  std::string prompt;
  bool begun = false;
  const auto begin_turn = [&](std::string_view role) {
    prompt += fmt::format("{}{}{}\n", std::exchange(begun, true) ? "\n" : "", kTurnBegin, role);
  };
  for (const Message& message : messages) {
    if (message.role == kSystem && message.text.empty()) continue;
    begin_turn(message.role);
    if (message.role == kAssistant) {
      pieces.push_back({std::exchange(prompt, {})});
      pieces.push_back({message.text, is_learned(message), true});
    } else {
      prompt += message.text;
      if (!message.context.empty()) prompt += "\n\n" + message.context;
      prompt += kTurnEnd;
    }
  }
  if (open) begin_turn(kAssistant);
  if (!prompt.empty()) pieces.push_back({std::move(prompt)});
  return pieces;
}

std::vector<ConversationWriter::Piece> ConversationWriter::pieces(const std::vector<Message>& messages,
                                                                  bool open) const {
  switch (format_) {
    case ConversationFormat::kAlpaca:
      return alpaca(messages, open);
    case ConversationFormat::kSquad:
      return squad(messages, open);
    case ConversationFormat::kChatMl:
      return chatml(messages, open);
  }
  return {};
}

void ConversationWriter::write(const Conversation& conversation, LearnedTokens& out) const {
  encode(pieces(conversation.messages, false), out);
}

std::vector<int32_t> ConversationWriter::prompt(const std::vector<Message>& messages) const {
  LearnedTokens tokens;
  encode(pieces(messages, true), tokens);
  return std::move(tokens.ids);
}

void ConversationWriter::encode(const std::vector<Piece>& pieces, LearnedTokens& out) const {
  out.ids.clear();
  out.learned.clear();
  std::string_view before;  // what the next piece could merge with
  for (const Piece& piece : pieces) {
    if (inline_bos_) {
      tokenizer_.encode(piece.text, true, out.ids);
    } else if (&piece == &pieces.front()) {
      out.ids = tokenizer_.frame().before;
      tokenizer_.encode(piece.text, false, out.ids);
    } else {
      encode_behind(before, piece.text, out.ids);
    }
    if (piece.ends) out.ids.push_back(end_);
    out.learned.resize(out.ids.size(), piece.learned ? 1 : 0);
    before = piece.ends ? std::string_view() : std::string_view(piece.text);
  }
}

void ConversationWriter::encode_behind(std::string_view before, std::string_view text,
                                       std::vector<int32_t>& ids) const {
  // A tokenizer may put something in front of every text (SentencePiece does a space): so `text` is encoded
  // behind another one, whose ids are then taken off. A line end and a word are tried where `before` merges
  // with it.
  for (const std::string_view front : {before, std::string_view("\n"), std::string_view("a")}) {
    if (front.empty()) continue;
    const std::vector<int32_t> of_front = tokenizer_.encode(front, false);
    const std::vector<int32_t> all = tokenizer_.encode(std::string(front).append(text), false);
    if (of_front.size() > all.size() || !std::equal(of_front.begin(), of_front.end(), all.begin())) continue;
    ids.insert(ids.end(), all.begin() + static_cast<std::ptrdiff_t>(of_front.size()), all.end());
    return;
  }
  tokenizer_.encode(text, false, ids);
}

}  // namespace primus::data
