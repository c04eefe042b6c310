#include "lm/tokenizer/text/pretokenize.h"

#include <vector>

#include "lm/tokenizer/text/regex.h"
#include "lm/tokenizer/text/unicode.h"

namespace primus {

using unicode::kLetter;
using unicode::kLowerLike;
using unicode::kNewline;
using unicode::kNumber;
using unicode::kSpace;
using unicode::kUpperLike;
using unicode::kWord;
using unicode::Properties;

const std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

const std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string_view kO200kPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string_view kMegatronPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

namespace {

// Reads characters of valid UTF-8, together with their property bits.
class Reader {
 public:
  explicit Reader(const char* end) : table_(unicode::properties()), end_(end) {}

  // Returns the bits of the character at `p`, and its end in `next`. At the end of the text, returns 0 and
  // sets next = p.
  Properties at(const char* p, const char*& next) const {
    if (p == end_) return next = p, 0;
    if (static_cast<unsigned char>(*p) < 0x80) return next = p + 1, table_.ascii(*p);
    next = p;
    return table_[unicode::decode(next)];
  }
  bool is(const char* p, Properties bits) const {
    const char* next;
    return (at(p, next) & bits) != 0;
  }
  // Returns the end of the run of characters from `p` that have one of `bits`.
  const char* skip(const char* p, Properties bits) const {
    const char* next;
    while ((at(p, next) & bits) != 0) p = next;
    return p;
  }
  // Returns the end of the run of characters from `p` that have none of `bits`.
  const char* skip_other(const char* p, Properties bits) const {
    const char* next;
    while (p != end_ && (at(p, next) & bits) == 0) p = next;
    return p;
  }
  const char* end() const { return end_; }

 private:
  const unicode::PropertyTable& table_;
  const char* end_;
};

// Matches \s+(?!\S)|\s+ : a run of spaces, without its last space if more text follows. `p` is at a space.
const char* match_spaces(const Reader& reader, const char* p) {
  const char* last = p;
  const char* stop = p;
  const char* next;
  while ((reader.at(stop, next) & kSpace) != 0) {
    last = stop;
    stop = next;
  }
  return stop == reader.end() || last == p ? stop : last;
}

// Matches \s*[\r\n]+ : the run of spaces up to its last line end. Returns null if the run has no line end.
const char* match_line_ends(const Reader& reader, const char* p) {
  const char* result = nullptr;
  const char* next;
  while (true) {
    const Properties bits = reader.at(p, next);
    if ((bits & kSpace) == 0) return result;
    if ((bits & kNewline) != 0) result = next;
    p = next;
  }
}

// Matches (?i:'s|'t|'re|'ve|'m|'ll|'d), with or without (?i). Returns the end of the match at `p`, or null.
// The only non-ASCII character that folds to one of these letters is U+017F, the long s.
template <bool kIgnoreCase>
const char* match_contraction(const char* p, const char* end) {
  if (p == end || *p != '\'') return nullptr;
  const auto letter = [end](const char* at) {
    if (at >= end) return '\0';
    return kIgnoreCase && *at >= 'A' && *at <= 'Z' ? static_cast<char>(*at + 32) : *at;
  };
  const char first = letter(p + 1);
  const char second = letter(p + 2);
  switch (first) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return p + 2;
    case 'r':
    case 'v':
      return second == 'e' ? p + 3 : nullptr;
    case 'l':
      return second == 'l' ? p + 3 : nullptr;
    case '\xC5':
      return kIgnoreCase && second == '\xBF' ? p + 3 : nullptr;
    default:
      return nullptr;
  }
}

// Each matcher returns the end of the match that begins at `p`. Every character is part of a match.
struct Gpt2Matcher {
  const char* operator()(const Reader& reader, const char* p) const {
    if (const char* stop = match_contraction<false>(p, reader.end())) return stop;
    const char* word = *p == ' ' ? p + 1 : p;
    const char* next;
    const Properties bits = reader.at(word, next);
    if ((bits & kLetter) != 0) return reader.skip(next, kLetter);
    if ((bits & kNumber) != 0) return reader.skip(next, kNumber);
    if (next != word && (bits & kSpace) == 0) return reader.skip_other(next, kSpace | kLetter | kNumber);
    return match_spaces(reader, p);
  }
};

// Matches [^\s\p{L}\p{N}]+ after an optional blank, then any of \r \n and, if kSlash, '/'. Returns null if
// there is no match.
template <bool kSlash>
const char* match_symbols(const Reader& reader, const char* p) {
  const char* const symbols = *p == ' ' ? p + 1 : p;
  const char* stop = reader.skip_other(symbols, kSpace | kLetter | kNumber);
  if (stop == symbols) return nullptr;
  while (stop != reader.end() && (*stop == '\r' || *stop == '\n' || (kSlash && *stop == '/'))) ++stop;
  return stop;
}

// Matches \p{N}{1,max}; `next` is after the first number character.
const char* match_digits(const Reader& reader, const char* next, int max) {
  const char* stop = next;
  for (int count = 1; count < max && (reader.at(stop, next) & kNumber) != 0; ++count) stop = next;
  return stop;
}

// The expressions of Llama 3 (kDigits = 3) and Qwen 2 (kDigits = 1).
template <int kDigits>
struct Cl100kMatcher {
  const char* operator()(const Reader& reader, const char* p) const {
    const char* next;
    const Properties bits = reader.at(p, next);
    if ((bits & kLetter) != 0) return reader.skip(next, kLetter);
    if ((bits & kNumber) != 0) return match_digits(reader, next, kDigits);
    if (const char* stop = match_contraction<true>(p, reader.end())) return stop;
    if ((bits & kNewline) == 0 && reader.is(next, kLetter)) return reader.skip(next, kLetter);
    if (const char* stop = match_symbols<false>(reader, p)) return stop;
    if (const char* stop = match_line_ends(reader, p)) return stop;
    return match_spaces(reader, p);
  }
};

// The expression of o200k. The variant without contractions and with single digits is the expression of
// Megatron's TikTokenizer.
template <bool kContractions, int kDigits>
struct O200kMatcher {
  const char* operator()(const Reader& reader, const char* p) const {
    const char* next;
    const Properties bits = reader.at(p, next);
    const bool may_lead = (bits & (kNewline | kLetter | kNumber)) == 0;
    const char* word = may_lead ? match_capitalised(reader, next) : nullptr;
    if (word == nullptr) word = match_capitalised(reader, p);
    if (word == nullptr && may_lead && reader.is(next, kUpperLike)) word = reader.skip(next, kUpperLike);
    if (word == nullptr && (bits & kUpperLike) != 0) word = reader.skip(next, kUpperLike);
    if (word != nullptr) {
      if (!kContractions) return word;
      const char* const contraction = match_contraction<true>(word, reader.end());
      return contraction != nullptr ? contraction : word;
    }
    if ((bits & kNumber) != 0) return match_digits(reader, next, kDigits);
    if (const char* stop = match_symbols<true>(reader, p)) return stop;
    if (const char* stop = match_line_ends(reader, p)) return stop;
    return match_spaces(reader, p);
  }

 private:
  // Matches U*L+, where U and L are the upper- and lower-like classes, which share modifiers and marks.
  // Returns null if there is no match.
  static const char* match_capitalised(const Reader& reader, const char* p) {
    const char* last_shared = nullptr;  // end of the last character of U* that belongs to both classes
    const char* next;
    while (true) {
      const Properties bits = reader.at(p, next);
      if ((bits & kUpperLike) == 0) break;
      if ((bits & kLowerLike) != 0) last_shared = next;
      p = next;
    }
    return reader.is(p, kLowerLike) ? reader.skip(p, kLowerLike) : last_shared;
  }
};

// A pre-tokenizer that cuts with one of the matchers above. The matches leave no gaps.
template <class Matcher>
class KnownSplit final : public PreTokenizer {
 public:
  void split(Piece piece, TextBudget&, PieceSink sink) const override {
    const char* p = piece.text.data();
    const Reader reader(p + piece.text.size());
    const Matcher matcher;
    while (p != reader.end()) {
      const char* const stop = matcher(reader, p);
      sink({{p, static_cast<std::size_t>(stop - p)}, piece.at_start});
      piece.at_start = false;
      p = stop;
    }
  }
};

// Collects matches and gaps, and joins them according to the behaviour.
class Splitter {
 public:
  Splitter(Piece piece, SplitBehavior behavior, bool invert)
      : piece_(piece), behavior_(behavior), invert_(invert) {}

  void match(std::size_t begin, std::size_t end) {
    add(covered_, begin, invert_);
    add(begin, end, !invert_);
    covered_ = end;
  }

  void finish(PieceSink sink) {
    add(covered_, piece_.text.size(), invert_);
    if (behavior_ == SplitBehavior::kMergedWithNext) join_backwards();
    for (const Part& part : parts_) {
      if (behavior_ == SplitBehavior::kRemoved && part.matched) continue;
      sink({piece_.text.substr(part.begin, part.end - part.begin), piece_.at_start && part.begin == 0});
    }
  }

 private:
  struct Part {
    std::size_t begin, end;
    bool matched;
  };

  void add(std::size_t begin, std::size_t end, bool matched) {
    if (begin == end) return;
    const bool join =
        !parts_.empty() && ((behavior_ == SplitBehavior::kContiguous && parts_.back().matched == matched) ||
                            (behavior_ == SplitBehavior::kMergedWithPrevious && matched && !last_matched_));
    if (join) {
      parts_.back().end = end;
    } else {
      parts_.push_back({begin, end, matched});
    }
    last_matched_ = matched;
  }

  // Joins each match with the part after the match, if that part is not a match.
  void join_backwards() {
    std::vector<Part> joined;
    bool next_matched = false;
    for (auto part = parts_.rbegin(); part != parts_.rend(); ++part) {
      if (part->matched && !next_matched && !joined.empty()) {
        joined.back().begin = part->begin;
      } else {
        joined.push_back(*part);
      }
      next_matched = part->matched;
    }
    parts_.assign(joined.rbegin(), joined.rend());
  }

  Piece piece_;
  SplitBehavior behavior_;
  bool invert_;
  bool last_matched_ = false;
  std::size_t covered_ = 0;
  std::vector<Part> parts_;
};

class RegexSplit final : public PreTokenizer {
 public:
  RegexSplit(std::string_view regex, SplitBehavior behavior, bool invert)
      : regex_(regex), behavior_(behavior), invert_(invert) {}
  void split(Piece piece, TextBudget& budget, PieceSink sink) const override {
    Splitter splitter(piece, behavior_, invert_);
    regex_.for_each_match(piece.text, budget,
                          [&](std::size_t begin, std::size_t end) { splitter.match(begin, end); });
    splitter.finish(sink);
  }

 private:
  Regex regex_;
  SplitBehavior behavior_;
  bool invert_;
};

class TextSplit final : public PreTokenizer {
 public:
  TextSplit(std::string_view text, SplitBehavior behavior, bool invert)
      : text_(text), behavior_(behavior), invert_(invert) {}
  void split(Piece piece, TextBudget&, PieceSink sink) const override {
    Splitter splitter(piece, behavior_, invert_);
    std::size_t at = 0;
    while (!text_.empty() && (at = piece.text.find(text_, at)) != std::string_view::npos) {
      splitter.match(at, at + text_.size());
      at += text_.size();
    }
    splitter.finish(sink);
  }

 private:
  std::string text_;
  SplitBehavior behavior_;
  bool invert_;
};

class PropertySplit final : public PreTokenizer {
 public:
  PropertySplit(Properties properties, SplitBehavior behavior)
      : properties_(properties), behavior_(behavior) {}
  void split(Piece piece, TextBudget&, PieceSink sink) const override {
    Splitter splitter(piece, behavior_, false);
    const char* const begin = piece.text.data();
    const Reader reader(begin + piece.text.size());
    const char* next;
    for (const char* p = begin; p != reader.end(); p = next) {
      if ((reader.at(p, next) & properties_) == 0) continue;
      splitter.match(static_cast<std::size_t>(p - begin), static_cast<std::size_t>(next - begin));
    }
    splitter.finish(sink);
  }

 private:
  Properties properties_;
  SplitBehavior behavior_;
};

class WhitespaceWords final : public PreTokenizer {
 public:
  void split(Piece piece, TextBudget&, PieceSink sink) const override {
    const char* const begin = piece.text.data();
    const Reader reader(begin + piece.text.size());
    for (const char* p = begin; (p = reader.skip(p, kSpace)) != reader.end();) {
      const char* const stop =
          reader.is(p, kWord) ? reader.skip(p, kWord) : reader.skip_other(p, kWord | kSpace);
      sink({{p, static_cast<std::size_t>(stop - p)}, piece.at_start && p == begin});
      p = stop;
    }
  }
};

constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
}  // namespace

std::unique_ptr<PreTokenizer> make_regex_split(std::string_view regex, SplitBehavior behavior, bool invert) {
  // The matches of these expressions leave no gaps. Isolating the matches is therefore the same as removing
  // the gaps.
  const bool matches_kept =
      (behavior == SplitBehavior::kIsolated) || (behavior == SplitBehavior::kRemoved && invert);
  if (matches_kept) {
    if (regex == kGpt2Pattern) return std::make_unique<KnownSplit<Gpt2Matcher>>();
    if (regex == kLlama3Pattern) return std::make_unique<KnownSplit<Cl100kMatcher<3>>>();
    if (regex == kQwen2Pattern) return std::make_unique<KnownSplit<Cl100kMatcher<1>>>();
    if (regex == kO200kPattern) return std::make_unique<KnownSplit<O200kMatcher<true, 3>>>();
    if (regex == kMegatronPattern) return std::make_unique<KnownSplit<O200kMatcher<false, 1>>>();
  }
  return std::make_unique<RegexSplit>(regex, behavior, invert);
}

std::unique_ptr<PreTokenizer> make_text_split(std::string_view text, SplitBehavior behavior, bool invert) {
  return std::make_unique<TextSplit>(text, behavior, invert);
}

std::unique_ptr<PreTokenizer> make_property_split(Properties properties, SplitBehavior behavior) {
  return std::make_unique<PropertySplit>(properties, behavior);
}

std::unique_ptr<PreTokenizer> make_whitespace_words() { return std::make_unique<WhitespaceWords>(); }

}  // namespace primus
