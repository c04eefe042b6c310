#include "lm/tokenizer/huggingface/added_tokens.h"

#include <algorithm>
#include <utility>

#include "lm/tokenizer/text/unicode.h"

namespace primus {

namespace {

bool character_is(std::string_view character, unicode::Properties bits) {
  const char* p = character.data();
  return (unicode::properties()[unicode::decode(p)] & bits) != 0;
}

// Returns the last character of non-empty valid UTF-8.
std::string_view last_character(std::string_view text) {
  std::size_t begin = text.size() - 1;
  while ((static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  return text.substr(begin);
}

bool ends_with_word(std::string_view text) {
  return !text.empty() && character_is(last_character(text), unicode::kWord);
}

bool starts_with_word(std::string_view text) { return !text.empty() && character_is(text, unicode::kWord); }

// Returns the start of the spaces at the end of `text`, not before `from`.
std::size_t trailing_spaces(std::string_view text, std::size_t from) {
  while (text.size() > from && character_is(last_character(text), unicode::kSpace)) {
    text.remove_suffix(last_character(text).size());
  }
  return std::max(text.size(), from);
}

std::size_t leading_spaces(std::string_view text) {
  std::size_t count = 0;
  while (count < text.size() && character_is(text.substr(count), unicode::kSpace)) {
    count += static_cast<std::size_t>(unicode::char_length(text[count]));
  }
  return count;
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens, const std::vector<std::string>& contents)
    : tokens_(std::move(tokens)) {
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    if (!contents[i].empty()) entries_.push_back({contents[i], i});
  }
  const auto by_content = [](const Entry& a, const Entry& b) { return a.content < b.content; };
  std::stable_sort(entries_.begin(), entries_.end(), by_content);
  // Keeps the last of several entries with equal contents.
  const auto last = std::unique(entries_.rbegin(), entries_.rend(),
                                [](const Entry& a, const Entry& b) { return a.content == b.content; });
  entries_.erase(entries_.begin(), last.base());
  for (const Entry& entry : entries_) ++first_byte_[static_cast<unsigned char>(entry.content[0]) + 1u];
  for (std::size_t byte = 0; byte < 256; ++byte) first_byte_[byte + 1] += first_byte_[byte];
}

const AddedToken* AddedTokenMatcher::longest(std::string_view text, std::size_t& length) const {
  const AddedToken* found = nullptr;
  const auto first = static_cast<unsigned char>(text[0]);
  auto low = entries_.begin() + static_cast<std::ptrdiff_t>(first_byte_[first]);
  auto high = entries_.begin() + static_cast<std::ptrdiff_t>(first_byte_[first + 1u]);
  // [low, high) are the entries that begin with text[0, i); the shortest entry comes first.
  for (std::size_t i = 1; low != high; ++i) {
    if (low->content.size() == i) {
      found = &tokens_[low->token];
      length = i;
      ++low;
    }
    if (i == text.size()) break;
    const auto byte_at = [i](const Entry& entry) { return static_cast<unsigned char>(entry.content[i]); };
    const auto next = static_cast<unsigned char>(text[i]);
    low = std::partition_point(low, high, [&](const Entry& entry) { return byte_at(entry) < next; });
    high = std::partition_point(low, high, [&](const Entry& entry) { return byte_at(entry) == next; });
  }
  return found;
}

void AddedTokenMatcher::split(std::string_view text,
                              FunctionRef<void(std::string_view, std::int32_t)> sink) const {
  std::size_t given = 0;  // the text before this offset went to `sink`
  // The spaces after the last token with rstrip. Stored, because tokens of blanks would otherwise scan the
  // same spaces repeatedly.
  std::size_t spaces_begin = 0, spaces_end = 0;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t length = 0;
    const AddedToken* const found = longest(text.substr(at), length);
    if (found == nullptr) {
      ++at;
      continue;
    }
    const AddedToken& token = *found;
    std::size_t begin = at;
    std::size_t end = at + length;
    at = end;
    if (token.single_word && (ends_with_word(text.substr(0, begin)) || starts_with_word(text.substr(end))))
      continue;
    // The previous token may have consumed these spaces already.
    if (token.lstrip) begin = trailing_spaces(text.substr(0, begin), std::min(given, begin));
    if (token.rstrip) {
      if (end < spaces_begin || end >= spaces_end) {
        spaces_begin = end;
        spaces_end = end + leading_spaces(text.substr(end));
      }
      end = std::max(end, spaces_end);
    }
    if (given < begin) sink(text.substr(given, begin - given), -1);
    sink(text.substr(begin, end - begin), token.id);
    given = end;
  }
  if (given < text.size()) sink(text.substr(given), -1);
}

}  // namespace primus
