#include "lm/data/conversation_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "lm/data/model_template.h"

namespace primus::data {
namespace {

struct Named {
  std::string_view name;
  ConversationFormat format;
};
// The names of all formats. If a format has several names, its first name is the one shown to users.
constexpr std::array<Named, 12> kNames = {{{"alpaca", ConversationFormat::kAlpaca},
                                           {"squad", ConversationFormat::kSquad},
                                           {"bridge_squad", ConversationFormat::kSquad},
                                           {"chatml", ConversationFormat::kChatMl},
                                           {"messages", ConversationFormat::kChatMl},
                                           {"openai", ConversationFormat::kChatMl},
                                           {"llama3", ConversationFormat::kLlama3},
                                           {"mistral", ConversationFormat::kMistral},
                                           {"gemma", ConversationFormat::kGemma},
                                           {"phi3", ConversationFormat::kPhi3},
                                           {"phi4", ConversationFormat::kPhi4},
                                           {"zephyr", ConversationFormat::kZephyr}}};

constexpr TurnMarks kChatMl{.open = "<|im_start|>", .middle = "\n", .end = "<|im_end|>", .after = "\n"};
constexpr TurnMarks kLlama3{.open = "<|start_header_id|>",
                            .middle = "<|end_header_id|>\n\n",
                            .end = "<|eot_id|>",
                            .after = "",
                            .trimmed = true};
constexpr TurnMarks kGemma{.open = "<start_of_turn>",
                           .middle = "\n",
                           .end = "<end_of_turn>",
                           .after = "\n",
                           .assistant = "model",
                           .system_turn = false,
                           .trimmed = true,
                           .any_role = false};
constexpr TurnMarks kPhi3{.open = "<|", .middle = "|>\n", .end = "<|end|>", .after = "\n"};
constexpr TurnMarks kPhi4{.open = "<|im_start|>", .middle = "<|im_sep|>", .end = "<|im_end|>", .after = ""};
constexpr TurnMarks kZephyr{.open = "<|", .middle = "|>\n", .end = "", .after = "\n", .any_role = false};

// Returns the special tokens that a format requires.
std::vector<std::string_view> tokens_of(ConversationFormat format) {
  switch (format) {
    case ConversationFormat::kChatMl:
      return {"<|im_start|>", "<|im_end|>"};
    case ConversationFormat::kPhi4:
      return {"<|im_start|>", "<|im_sep|>", "<|im_end|>"};
    case ConversationFormat::kLlama3:
      return {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"};
    case ConversationFormat::kGemma:
      return {"<start_of_turn>", "<end_of_turn>"};
    case ConversationFormat::kPhi3:
      return {"<|end|>"};
    case ConversationFormat::kAlpaca:
    case ConversationFormat::kSquad:
    case ConversationFormat::kMistral:
    case ConversationFormat::kZephyr:
    case ConversationFormat::kTemplate:
      return {};
  }
  return {};
}

bool is_learned(const Message& answer) { return answer.learned && !is_blank(answer.text); }

std::string_view without_spaces(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(' ');
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(' ') - begin + 1);
}

// Returns the id of `text` if it is encoded as exactly one token.
std::optional<std::int32_t> single_token(const Tokenizer& tokenizer, std::string_view text) {
  const std::optional<std::int32_t> id = tokenizer.token_id(text);
  if (id && tokenizer.encode(text, false) == std::vector<std::int32_t>{*id}) return id;
  return std::nullopt;
}

// Characters that Python's str.strip removes. Jinja's trim removes the same characters.
constexpr std::array<std::string_view, 29> kBlanks = {
    " ",      "\t",     "\n",     "\v",     "\f",     "\r",     "\x1c",   "\x1d",   "\x1e",   "\x1f",
    "\u0085", "\u00a0", "\u1680", "\u2000", "\u2001", "\u2002", "\u2003", "\u2004", "\u2005", "\u2006",
    "\u2007", "\u2008", "\u2009", "\u200a", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000"};

std::string_view trimmed(std::string_view text) {
  const auto take = [&](auto is_at, auto remove) {
    for (const std::string_view* blank = kBlanks.begin(); blank != kBlanks.end();) {
      const bool found = is_at(*blank);
      if (found) remove(blank->size());
      blank = found ? kBlanks.begin() : blank + 1;
    }
  };
  take([&](std::string_view blank) { return text.starts_with(blank); },
       [&](std::size_t size) { text.remove_prefix(size); });
  take([&](std::string_view blank) { return text.ends_with(blank); },
       [&](std::size_t size) { text.remove_suffix(size); });
  return text;
}

// Joins a question and its context.
std::string with_context(const Message& message, bool trim) {
  std::string text = message.text;
  if (!message.context.empty()) text += "\n\n" + message.context;
  return trim ? std::string(trimmed(text)) : text;
}

// Returns a text that the tokenizer encodes as `ids`; empty if none was found.
std::string spelled(const Tokenizer& tokenizer, const std::vector<std::int32_t>& ids) {
  std::string text;
  for (const std::int32_t id : ids) text += tokenizer.token_text(id);
  return tokenizer.encode(text, false) == ids ? text : "";
}

// Returns the index of the byte in `text` at which each token's first character begins. The token may contain
// only a part of this character. Ignores white space that the tokenizer adds or removes at the borders of
// texts. Returns nullopt if the tokens do not spell the text, for example because the tokenizer changes
// letters.
std::optional<std::vector<std::size_t>> token_starts(const Tokenizer& tokenizer, std::string_view text,
                                                     const std::vector<std::int32_t>& ids) {
  const auto is_white = [](char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; };
  std::vector<std::size_t> starts;
  starts.reserve(ids.size());
  StreamDecoder decoder(tokenizer, /*skip_special=*/false);
  std::size_t at = 0;
  std::size_t pending = 0;  // tokens at the end of `starts` of which no character is complete yet
  const auto spell = [&](std::string_view piece) {
    bool begun = false;
    const auto begin = [&] {
      if (begun) return;
      begun = true;
      std::fill(starts.end() - static_cast<std::ptrdiff_t>(pending), starts.end(), at);
      pending = 0;
    };
    if (text.substr(at, piece.size()) == piece) {
      if (!piece.empty()) begin();
      at += piece.size();
      return true;
    }
    for (std::size_t i = 0; i < piece.size();) {
      if (at < text.size() && piece[i] == text[at]) {
        begin();
        ++i;
        ++at;
      } else if (at < text.size() && is_white(text[at])) {
        ++at;
      } else if (is_white(piece[i])) {
        ++i;
      } else {
        return false;
      }
    }
    return true;
  };
  for (const std::int32_t id : ids) {
    starts.push_back(at);
    ++pending;
    if (!spell(decoder.push(id))) return std::nullopt;
  }
  if (!spell(decoder.finish())) return std::nullopt;
  const bool ends = text.find_first_not_of(" \n\t\r", at) == std::string_view::npos;
  return ends ? std::optional(std::move(starts)) : std::nullopt;
}

}  // namespace

std::optional<ConversationFormat> conversation_format(std::string_view name) {
  const auto found = std::ranges::find(kNames, name, &Named::name);
  return found == kNames.end() ? std::nullopt : std::optional(found->format);
}

std::string_view name_of(ConversationFormat format) {
  if (format == ConversationFormat::kTemplate) return "template";
  return std::ranges::find(kNames, format, &Named::format)->name;
}

const TurnMarks* turn_marks(ConversationFormat format) {
  switch (format) {
    case ConversationFormat::kChatMl:
      return &kChatMl;
    case ConversationFormat::kLlama3:
      return &kLlama3;
    case ConversationFormat::kGemma:
      return &kGemma;
    case ConversationFormat::kPhi3:
      return &kPhi3;
    case ConversationFormat::kPhi4:
      return &kPhi4;
    case ConversationFormat::kZephyr:
      return &kZephyr;
    case ConversationFormat::kAlpaca:
    case ConversationFormat::kSquad:
    case ConversationFormat::kMistral:
    case ConversationFormat::kTemplate:
      return nullptr;
  }
  return nullptr;
}

bool can_write(ConversationFormat format, const Tokenizer& tokenizer) {
  const TurnMarks* const marks = turn_marks(format);
  const bool ends_itself = marks && !marks->end.empty();
  return (ends_itself || end_of_text(tokenizer)) &&
         std::ranges::all_of(tokens_of(format), [&](std::string_view token) {
           return single_token(tokenizer, token).has_value();
         });
}

std::optional<std::int32_t> end_of_text(const Tokenizer& tokenizer) {
  const SpecialIds& special = tokenizer.special_ids();
  return special.eos ? special.eos : special.eod;
}

std::vector<std::int32_t> beginning_of(const ConversationStyle& style, const Tokenizer& tokenizer) {
  if (!style.begins_with_bos) return tokenizer.frame().before;
  const std::optional<std::int32_t> bos = tokenizer.special_ids().bos;
  if (!*style.begins_with_bos || !bos) return {};
  return {*bos};
}

ConversationWriter::ConversationWriter(ConversationStyle style, const Tokenizer& tokenizer,
                                       std::string choice)
    : style_(std::move(style)),
      tokenizer_(tokenizer),
      choice_(std::move(choice)),
      beginning_(beginning_of(style_, tokenizer)) {
  if (style_.own) {
    read_own_template();
    return;
  }
  for (const std::string_view token : tokens_of(style_.format)) {
    if (single_token(tokenizer, token)) continue;
    throw invalid(
        fmt::format("the conversation format needs the special token {}, which the tokenizer ({}) lacks",
                    token, tokenizer.name()),
        set_format("alpaca") + ", or use a tokenizer that has the format's tokens");
  }
  const TurnMarks* const marks = turn_marks(style_.format);
  set_end(marks && !marks->end.empty() ? tokenizer.token_id(marks->end) : end_of_text(tokenizer));
  if (style_.format == ConversationFormat::kMistral && style_.space_in) answer_prefix_ = " ";
  end_text_ = spelled(tokenizer, {end_});
  beginning_text_ = spelled(tokenizer, beginning_);
}

void ConversationWriter::set_end(std::optional<std::int32_t> end) {
  if (!end) {
    throw invalid(fmt::format("the tokenizer ({}) has no end-of-text token, which every answer needs",
                              tokenizer_.name()),
                  "use a tokenizer with an eos_token, or one with <|im_end|> and " + set_format("chatml"));
  }
  end_ = *end;
}

// Finds out how the template ends an answer, and what it writes between a question and its answer.
void ConversationWriter::read_own_template() {
  if (style_.inline_bos) {
    throw invalid("sft_bridge_compat_inline_bos does not work with the model's own chat template",
                  set_format("chatml") + ", or omit it");
  }
  const auto around = style_.own->around_answer();
  const std::vector<std::int32_t> after =
      around ? tokenizer_.encode(around->after, false) : std::vector<std::int32_t>();
  const auto end = std::ranges::find_if(after, [this](std::int32_t id) { return tokenizer_.is_special(id); });
  ends_answers_ = !around || end != after.end();
  set_end(end != after.end() ? std::optional(*end) : end_of_text(tokenizer_));
  if (around && is_blank(around->before)) answer_prefix_ = around->before;
}

std::string ConversationWriter::set_format(std::string_view name) const {
  std::string hint = fmt::format("set {}{}", choice_, name);
  const auto is_missing = [this](std::string_view token) { return !single_token(tokenizer_, token); };
  if (name == "chatml" && std::ranges::any_of(tokens_of(ConversationFormat::kChatMl), is_missing))
    hint += ", with a tokenizer that has <|im_start|> and <|im_end|>";
  return hint;
}

void ConversationWriter::require_role(const Message& message) const {
  if (message.role == kUser || message.role == kAssistant || message.role == kSystem) return;
  throw invalid(
      fmt::format("the format {} does not support the role '{}'", name_of(style_.format), message.role),
      set_format("chatml"));
}

std::vector<ConversationWriter::Piece> ConversationWriter::alpaca(const std::vector<Message>& messages,
                                                                  bool open) const {
  std::vector<Piece> pieces;
  std::string prompt(kAlpacaPreamble);
  bool begun = false;  // whether a turn was already written, so that a system text can no longer follow
  const auto separate = [&] {
    if (!begun || prompt.empty()) prompt += "\n\n";
    begun = true;
  };
  for (const Message& message : messages) {
    require_role(message);
    if (message.role == kSystem) {
      if (begun || &message != &messages.front()) {
        throw invalid("the format alpaca supports only one system message, at the beginning",
                      set_format("chatml"));
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
  const std::size_t turns = open ? 1 : 2;
  if (messages.size() != turns || messages[0].role != kUser || (!open && messages[1].role != kAssistant)) {
    throw invalid("the format squad needs exactly one question and one answer",
                  set_format("chatml") + ", or alpaca");
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

std::vector<Message> ConversationWriter::prepared(const std::vector<Message>& messages,
                                                  bool system_turn) const {
  std::vector<Message> all = messages;
  const bool has_system = !all.empty() && all.front().role == kSystem;
  if (!has_system && !style_.default_system.empty())
    all.insert(all.begin(), {std::string(kSystem), style_.default_system, {}});
  if (all.empty() || all.front().role != kSystem) return all;
  const bool trim = turn_marks(style_.format) && turn_marks(style_.format)->trimmed;
  const bool is_empty = (trim ? trimmed(all.front().text) : std::string_view(all.front().text)).empty();
  if (system_turn && !is_empty) return all;
  const std::string system = std::move(all.front().text);
  all.erase(all.begin());
  if (is_empty) return all;
  if (all.empty() || all.front().role != kUser) {
    throw invalid(
        fmt::format("the format {} writes the system message before the first question, which is missing",
                    name_of(style_.format)),
        set_format("chatml"));
  }
  all.front().text = fmt::format("{}\n\n{}", trim ? trimmed(system) : std::string_view(system),
                                 with_context(all.front(), trim));
  all.front().context.clear();
  return all;
}

std::vector<ConversationWriter::Piece> ConversationWriter::mistral(const std::vector<Message>& messages,
                                                                   bool open) const {
  std::vector<Piece> pieces;
  std::string prompt;
  for (const Message& message : prepared(messages, false)) {
    if (message.role != kUser && message.role != kAssistant)
      throw invalid(fmt::format("the format mistral does not allow the role '{}' here", message.role),
                    "a system message must come first; other roles are not supported");
    if (message.role == kAssistant) {
      pieces.push_back({std::exchange(prompt, {})});
      pieces.push_back({std::string(answer_prefix()) + message.text, is_learned(message), true});
    } else {
      prompt += fmt::format("[INST]{}{}{}[/INST]", style_.space_in ? " " : "", with_context(message, false),
                            style_.space_out ? " " : "");
    }
  }
  if (!prompt.empty() || (open && pieces.empty())) pieces.push_back({std::move(prompt)});
  return pieces;
}

std::vector<ConversationWriter::Piece> ConversationWriter::turns(const TurnMarks& marks,
                                                                 const std::vector<Message>& messages,
                                                                 bool open) const {
  const std::string end = marks.end.empty() ? tokenizer_.token_text(end_) : std::string(marks.end);
  std::vector<Piece> pieces;
  std::string prompt;
  const auto begin_turn = [&](std::string_view role) {
    if (!pieces.empty() && prompt.empty())
      prompt += marks.after;  // an answer precedes; its piece lacks the
                              // text that follows a turn
    prompt += fmt::format("{}{}{}", marks.open, role, marks.middle);
  };
  for (const Message& message : prepared(messages, marks.system_turn)) {
    if (message.role == kSystem && message.text.empty()) continue;
    if (!marks.any_role) require_role(message);
    if (message.role == kSystem && !marks.system_turn) {
      throw invalid(fmt::format("the format {} supports only one system message, at the beginning",
                                name_of(style_.format)),
                    set_format("chatml"));
    }
    const std::string text = with_context(message, marks.trimmed);
    if (message.role == kAssistant) {
      begin_turn(marks.assistant);
      pieces.push_back({std::exchange(prompt, {})});
      pieces.push_back({text, is_learned(message), true});
    } else {
      begin_turn(message.role);
      prompt += text;
      prompt += end;
      prompt += marks.after;
    }
  }
  if (open) begin_turn(marks.assistant);
  if (!open && prompt.ends_with(marks.after)) prompt.resize(prompt.size() - marks.after.size());
  if (!prompt.empty()) pieces.push_back({std::move(prompt)});
  return pieces;
}

std::vector<ConversationWriter::Piece> ConversationWriter::pieces(const std::vector<Message>& messages,
                                                                  bool open) const {
  if (const TurnMarks* const marks = turn_marks(style_.format)) return turns(*marks, messages, open);
  if (style_.format == ConversationFormat::kMistral) return mistral(messages, open);
  return style_.format == ConversationFormat::kSquad ? squad(messages, open) : alpaca(messages, open);
}

void ConversationWriter::write(const Conversation& conversation, LearnedTokens& out) const {
  style_.own ? write_by_template(conversation, out) : encode(pieces(conversation.messages, false), out);
}

std::vector<std::int32_t> ConversationWriter::prompt_of(Conversation conversation) const {
  if (style_.own) {
    if (conversation.tools.empty()) conversation.tools = tools_;
    return tokenizer_.encode(style_.own->prompt(conversation), false);
  }
  LearnedTokens tokens;
  encode(pieces(conversation.messages, true), tokens);
  return std::move(tokens.ids);
}

std::vector<std::int32_t> ConversationWriter::training_prompt(const Conversation& conversation) const {
  if (!style_.own) return prompt(conversation.messages);
  return tokenizer_.encode(style_.own->training_prompt(conversation), false);
}

std::vector<std::int32_t> ConversationWriter::training_text(const Conversation& conversation) const {
  if (style_.own) return tokenizer_.encode(style_.own->training_text(conversation), false);
  LearnedTokens tokens;
  encode(pieces(conversation.messages, false), tokens);
  return std::move(tokens.ids);
}

std::vector<std::int32_t> ConversationWriter::continuation(const Conversation& conversation,
                                                           std::size_t answer) const {
  std::string text;
  const std::string end = tokenizer_.token_text(end_);
  if (style_.own) {
    text = style_.own->continuation(conversation, answer);
    const std::size_t at = text.find(end);
    if (at != std::string::npos && is_blank(std::string_view(text).substr(0, at))) {
      text.erase(0, at + end.size());
    } else if (ends_answers_) {
      throw invalid(
          fmt::format("the model's chat template does not write {} after an answer that messages follow",
                      end),
          "choose a format by name (sft_conversation_format)");
    }
  } else {
    const std::vector<Piece> all = pieces(conversation.messages, true);
    const auto last = std::ranges::find_if(all.rbegin(), all.rend(), &Piece::ends);
    for (auto piece = last.base(); piece != all.end(); ++piece) text += piece->text;
  }
  std::vector<std::int32_t> ids;
  encode_behind(style_.own && ends_answers_ ? std::string_view(end) : std::string_view(end_text_), text, ids);
  return ids;
}

void ConversationWriter::offer_tools(std::string tools) {
  if (!style_.own) {
    throw invalid(fmt::format("the format {} does not support tools", name_of(style_.format)),
                  "use a model whose chat template writes tools, and its format (auto)");
  }
  style_.own->training_prompt(
      {.messages = {{std::string(kUser), "Is this a question?", {}}}, .tools = tools});
  tools_ = std::move(tools);
}

void ConversationWriter::write_by_template(const Conversation& conversation, LearnedTokens& out) const {
  out.ids.clear();
  out.learned.clear();
  out.starts.clear();
  for (const LearnedText& text : style_.own->texts(conversation)) {
    const std::size_t begin = out.ids.size();
    out.starts.push_back(static_cast<std::int64_t>(begin));
    const std::vector<std::int32_t> ids = tokenizer_.encode(text.text, false);
    const std::optional<std::vector<std::size_t>> starts = token_starts(tokenizer_, text.text, ids);
    if (!starts) {
      encode_in_parts(text, out);
      continue;
    }
    out.ids.insert(out.ids.end(), ids.begin(), ids.end());
    out.learned.resize(out.ids.size(), 0);
    for (const auto& [from, to] : text.learned) {
      const auto first = std::ranges::lower_bound(*starts, from) - starts->begin();
      auto last = std::ranges::lower_bound(*starts, to) - starts->begin();
      // White space after the token that ends the answer is not learned.
      if (!text.marked_by_template) {
        const auto rest = text.text.substr(0, to).find_last_not_of(" \t\r\n") + 1;
        const auto blank = std::max(first, std::ranges::lower_bound(*starts, rest) - starts->begin());
        if (blank > first && tokenizer_.is_special(ids[static_cast<std::size_t>(blank) - 1])) last = blank;
      }
      std::fill(out.learned.begin() + static_cast<std::ptrdiff_t>(begin) + first,
                out.learned.begin() + static_cast<std::ptrdiff_t>(begin) + last, std::uint8_t{1});
    }
  }
}

void ConversationWriter::encode_in_parts(const LearnedText& text, LearnedTokens& out) const {
  const std::string_view all = text.text;
  std::size_t done = 0;
  const auto add = [&](std::size_t end, bool learned) {
    const std::string_view part = all.substr(done, end - done);
    if (!part.empty() && done == 0) {
      tokenizer_.encode(part, false, out.ids);
    } else if (!part.empty()) {
      encode_behind(all.substr(0, done), part, out.ids);
    }
    out.learned.resize(out.ids.size(), learned ? 1 : 0);
    done = end;
  };
  for (const auto& [from, to] : text.learned) {
    std::size_t end = to;
    if (!text.marked_by_template) {
      const std::size_t rest = std::max(from, all.substr(0, to).find_last_not_of(" \t\r\n") + 1);
      const std::vector<std::int32_t> ids = tokenizer_.encode(all.substr(from, rest - from), false);
      if (!ids.empty() && tokenizer_.is_special(ids.back())) end = rest;
    }
    add(from, false);
    add(end, true);
  }
  add(all.size(), false);
}

void ConversationWriter::encode(const std::vector<Piece>& pieces, LearnedTokens& out) const {
  out.ids.clear();
  out.learned.clear();
  out.starts.assign(1, 0);
  std::string_view before;  // preceding text with which the next piece could merge
  for (const Piece& piece : pieces) {
    if (style_.inline_bos) {
      tokenizer_.encode(piece.text, true, out.ids);
    } else if (&piece != &pieces.front()) {
      encode_behind(before, piece.text, out.ids);
    } else if (!beginning_text_.empty()) {
      tokenizer_.encode(beginning_text_ + piece.text, false, out.ids);
    } else {
      out.ids = beginning_;
      tokenizer_.encode(piece.text, false, out.ids);
    }
    if (piece.ends) out.ids.push_back(end_);
    out.learned.resize(out.ids.size(), piece.learned ? 1 : 0);
    before = piece.ends ? std::string_view(end_text_) : std::string_view(piece.text);
  }
}

void ConversationWriter::encode_behind(std::string_view before, std::string_view text,
                                       std::vector<std::int32_t>& ids) const {
  // A tokenizer may insert something at the start of every text (SentencePiece inserts a space). Therefore
  // encodes a prefix followed by `text`, and removes the ids of the prefix. The prefix is `before`, a newline
  // or a letter: the first of these that does not merge with `text`.
  for (const std::string_view front : {before, std::string_view("\n"), std::string_view("a")}) {
    if (front.empty()) continue;
    const std::vector<std::int32_t> of_front = tokenizer_.encode(front, false);
    const std::vector<std::int32_t> all = tokenizer_.encode(std::string(front).append(text), false);
    if (of_front.size() > all.size() || !std::equal(of_front.begin(), of_front.end(), all.begin())) continue;
    ids.insert(ids.end(), all.begin() + static_cast<std::ptrdiff_t>(of_front.size()), all.end());
    return;
  }
  tokenizer_.encode(text, false, ids);
}

}  // namespace primus::data
