#include "lm/tokenizer/text/regex_dialect.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/system/thread_pool.h"
#include "base/text/excerpt.h"
#include "lm/tokenizer/text/newer_characters.h"

namespace primus {

namespace {

// Members of the classes that differ between the two dialects. PCRE2's \s also includes U+180E, which left
// White_Space in Unicode 6.3; PCRE2's \w lacks marks and connectors. Oniguruma's \w and \b also count the
// superscripts and fractions of Latin-1 as word characters, except for a \w inside a class.
constexpr std::string_view kSpaces =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kNonSpaces =
    R"(\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027})"
    R"(\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff})";
constexpr std::string_view kWordCharacters =
    R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{24b6}-\x{24e9}\x{1f130}-\x{1f149}\x{1f150}-\x{1f169}\x{1f170}-\x{1f189})";
constexpr std::string_view kLatinNumbers = R"(\x{b2}\x{b3}\x{b9}\x{bc}-\x{be})";

using CharacterTest = FunctionRef<bool(char32_t)>;

bool in_category(std::string_view category, std::string_view wanted) {
  if (wanted == "LC") return category == "Lu" || category == "Ll" || category == "Lt";
  return category.starts_with(wanted);
}

bool is_word(std::string_view category) {
  constexpr std::array<std::string_view, 5> kParts = {"L", "M", "Nd", "Nl", "Pc"};
  return std::ranges::any_of(kParts,
                             [category](std::string_view part) { return category.starts_with(part); });
}

std::string range_text(char32_t first, char32_t last) {
  const auto code = [](char32_t c) { return fmt::format("\\x{{{:x}}}", static_cast<std::uint32_t>(c)); };
  return first == last ? code(first) : code(first) + "-" + code(last);
}

// Returns the newer characters that satisfy `wanted`, as items of a class.
std::string newer_items(FunctionRef<bool(const unicode::NewerCharacters&)> wanted) {
  std::string items;
  for (const unicode::NewerCharacters& newer : unicode::newer_characters()) {
    if (wanted(newer)) items += range_text(newer.first, newer.last);
  }
  return items;
}

// Returns all characters that satisfy `wanted`, as items of a class. Skips surrogates, which UTF-8 excludes.
std::string spelled_out(CharacterTest wanted) {
  std::string items;
  std::optional<char32_t> first;
  for (char32_t c = 0; c <= 0x110000; ++c) {
    const bool member = c < 0x110000 && (c < 0xD800 || c > 0xDFFF) && wanted(c);
    if (member && !first) first = c;
    if (!member && first) {
      items += range_text(*first, c - 1);
      first.reset();
    }
  }
  return items;
}

struct CategoryName {
  std::string_view code, name;  // the name is in canonical() form
};
constexpr std::array<CategoryName, 40> kCategories = {{{"L", "letter"},
                                                       {"LC", "casedletter"},
                                                       {"Lu", "uppercaseletter"},
                                                       {"Ll", "lowercaseletter"},
                                                       {"Lt", "titlecaseletter"},
                                                       {"Lm", "modifierletter"},
                                                       {"Lo", "otherletter"},
                                                       {"M", "mark"},
                                                       {"Mn", "nonspacingmark"},
                                                       {"Mc", "spacingmark"},
                                                       {"Me", "enclosingmark"},
                                                       {"N", "number"},
                                                       {"Nd", "decimalnumber"},
                                                       {"Nd", "digit"},
                                                       {"Nl", "letternumber"},
                                                       {"No", "othernumber"},
                                                       {"P", "punctuation"},
                                                       {"P", "punct"},
                                                       {"Pc", "connectorpunctuation"},
                                                       {"Pd", "dashpunctuation"},
                                                       {"Ps", "openpunctuation"},
                                                       {"Pe", "closepunctuation"},
                                                       {"Pi", "initialpunctuation"},
                                                       {"Pf", "finalpunctuation"},
                                                       {"Po", "otherpunctuation"},
                                                       {"S", "symbol"},
                                                       {"Sm", "mathsymbol"},
                                                       {"Sc", "currencysymbol"},
                                                       {"Sk", "modifiersymbol"},
                                                       {"So", "othersymbol"},
                                                       {"Z", "separator"},
                                                       {"Zs", "spaceseparator"},
                                                       {"Zl", "lineseparator"},
                                                       {"Zp", "paragraphseparator"},
                                                       {"C", "other"},
                                                       {"Cc", "control"},
                                                       {"Cf", "format"},
                                                       {"Cn", "unassigned"},
                                                       {"Co", "privateuse"},
                                                       {"Cs", "surrogate"}}};

// A property that no character has lost since Unicode 14. `newer` selects the newer characters that have the
// property.
struct BinaryProperty {
  std::string_view name, pcre_name;
  bool (*newer)(const unicode::NewerCharacters&);
};
bool none(const unicode::NewerCharacters&) { return false; }
bool upper(const unicode::NewerCharacters& newer) { return newer.category == "Lu"; }
bool emoji(const unicode::NewerCharacters& newer) {
  return newer.category == "So" &&
         (newer.first == 0x1F6DC || (newer.first >= 0x1FA70 && newer.last < 0x1FB00));
}
constexpr std::array<BinaryProperty, 8> kBinaryProperties = {
    {{"any", "Any", none},
     {"ascii", "ASCII", none},
     {"emoji", "Emoji", emoji},
     {"emojimodifier", "Emoji_Modifier", none},
     {"emojipresentation", "Emoji_Presentation", emoji},
     {"extendedpictographic", "Extended_Pictographic", none},
     {"upper", "Uppercase", upper},
     {"uppercase", "Uppercase", upper}}};

// Returns a name in a form for comparisons, which ignore case, blanks, '_' and '-'.
std::string canonical(std::string_view name) {
  std::string result;
  for (const char c : name) {
    if (c == ' ' || c == '_' || c == '-') continue;
    result += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return result;
}

// The members of \p{...}, \d or \w, as items of a class.
struct Class {
  std::string members;
  std::string others;  // items of the complement, if requested; empty if it cannot be written as items
};

// Returns the members of a category. `with_others`: also computes the complement, which takes milliseconds.
Class category_class(std::string_view code, bool exact, bool with_others) {
  const std::string name(code == "LC" ? "L&" : code);
  if (!exact) return {fmt::format("\\p{{{}}}", name), fmt::format("\\P{{{}}}", name)};
  Class result;
  if (code == "C" || code == "Cn") {
    result.members = spelled_out([&](char32_t c) { return in_category(unicode::category(c), code); });
  } else {
    result.members = fmt::format("\\p{{{}}}", name) + newer_items([&](const unicode::NewerCharacters& newer) {
                       return in_category(newer.category, code);
                     });
  }
  if (with_others)
    result.others = spelled_out([&](char32_t c) { return !in_category(unicode::category(c), code); });
  return result;
}

// Returns the members that \w has inside a class.
Class word_class(bool exact, bool with_others) {
  Class words{std::string(kWordCharacters), {}};
  if (exact) words.members += newer_items([](const auto& newer) { return is_word(newer.category); });
  if (with_others) {
    words.others = spelled_out([](char32_t c) {
      const bool circled = (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
                           (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
      return !circled && !is_word(unicode::category(c));
    });
  }
  return words;
}

// Rewrites the parts of a pattern that Oniguruma (in its default Ruby syntax) and PCRE2 interpret
// differently, and refuses the parts that cannot be rewritten.
class Translator {
 public:
  Translator(std::string_view pattern, bool exact) : pattern_(pattern), exact_(exact) {}

  std::string run() {
    constexpr std::size_t kLongest = 1 << 20;
    while (at_ < pattern_.size()) {
      if (out_.size() > kLongest) refuse("its classes have too many members");
      const char c = pattern_[at_];
      if (c == '\\') {
        escape();
      } else if (in_class_) {
        class_character(c);
      } else {
        character(c);
      }
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    throw unsupported(fmt::format("the regular expression {} is not supported: {}", excerpt(pattern_), what));
  }
  bool next_is(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }
  void copy(std::size_t count) {
    out_ += pattern_.substr(at_, count);
    at_ += count;
  }

  void escape() {
    if (at_ + 1 == pattern_.size()) refuse("it ends in a backslash");
    const char c = pattern_[at_ + 1];
    constexpr std::string_view kDifferent = "hHKGXyYOZzARNgkCMc";
    if (kDifferent.find(c) != std::string_view::npos) refuse(fmt::format("\\{}", c));
    if (c == 'p' || c == 'P') return property(c == 'P');
    if (c == 'u') return code_point();
    // The braces of a code point are not a repetition count.
    if (next_is("\\x{")) return copy(std::min(pattern_.find('}', at_), pattern_.size() - 1) + 1 - at_);
    at_ += 2;
    if (c == 's' || c == 'S') {
      put({std::string(kSpaces), std::string(kNonSpaces)}, c == 'S');
    } else if (c == 'd' || c == 'D') {
      put(category("Nd", wants_others(c == 'D')), c == 'D');
    } else if (c == 'w' || c == 'W') {
      require_case();
      put(words(wants_others(c == 'W')), c == 'W');
    } else if ((c == 'b' || c == 'B') && !in_class_) {
      const std::string word = word_class(exact_, false).members + std::string(kLatinNumbers);
      out_ += c == 'b' ? fmt::format("(?:(?<=[{0}])(?![{0}])|(?<![{0}])(?=[{0}]))", word)
                       : fmt::format("(?:(?<=[{0}])(?=[{0}])|(?<![{0}])(?![{0}]))", word);
    } else {
      out_ += pattern_.substr(at_ - 2, 2);
    }
  }

  // Translates \uHHHH.
  void code_point() {
    const std::string_view digits = pattern_.substr(at_ + 2, 4);
    if (digits.size() < 4 || !std::ranges::all_of(digits, [](unsigned char c) { return std::isxdigit(c); }))
      refuse("\\u without four hexadecimal digits");
    out_ += fmt::format("\\x{{{}}}", digits);
    at_ += 6;
  }

  // Translates \p{Name}, \P{Name} and \p{^Name}.
  void property(bool negated) {
    const std::size_t close = pattern_.find('}', at_);
    if (pattern_.substr(at_ + 2, 1) != "{" || close == std::string_view::npos)
      refuse("a property without braces");
    std::string_view name = pattern_.substr(at_ + 3, close - at_ - 3);
    at_ = close + 1;
    if (name.starts_with('^')) {
      name.remove_prefix(1);
      negated = !negated;
    }
    put(class_named(name, wants_others(negated)), negated);
  }

  // Caches each class for one pattern, because some classes require a pass over all characters.
  template <class Make>
  const Class& made_once(const std::string& name, const Make& make) const {
    const auto it = made_.find(name);
    return it != made_.end() ? it->second : made_.emplace(name, make()).first->second;
  }
  const Class& category(std::string_view code, bool with_others) const {
    return made_once(fmt::format("{} {}", code, with_others),
                     [&] { return category_class(code, exact_, with_others); });
  }

  Class words(bool with_others) const {
    Class result =
        made_once(fmt::format("word {}", with_others), [&] { return word_class(exact_, with_others); });
    if (!in_class_) result.members += kLatinNumbers;
    return result;
  }

  Class class_named(std::string_view given, bool with_others) const {
    const std::string name = canonical(given);
    for (const CategoryName& category : kCategories) {
      if (name != category.name && name != canonical(category.code)) continue;
      constexpr std::string_view kWithoutCase = "NPSZ";
      if (kWithoutCase.find(category.code.front()) == std::string_view::npos) require_case();
      return this->category(category.code, with_others);
    }
    if (name == "space" || name == "whitespace") return {std::string(kSpaces), std::string(kNonSpaces)};
    require_case();
    if (name == "word") return words(with_others);
    for (const BinaryProperty& property : kBinaryProperties) {
      if (name != property.name) continue;
      return {fmt::format("\\p{{{}}}", property.pcre_name) + (exact_ ? newer_items(property.newer) : ""), {}};
    }
    // The name is a script. PCRE2 would interpret a bare script name as script extensions. PCRE2 itself
    // reports an unknown script.
    if (name == "unknown" || !std::ranges::all_of(name, [](unsigned char c) { return std::isalnum(c); }))
      refuse(fmt::format("the property '{}'", given));
    const auto of_script = [&name](const unicode::NewerCharacters& newer) {
      return name == newer.script || name == newer.short_script;
    };
    return {fmt::format("\\p{{sc:{}}}", name) + (exact_ ? newer_items(of_script) : ""), {}};
  }

  bool wants_others(bool negated) const { return in_class_ && negated; }
  // Refuses properties in a class if case is ignored. In this case, Oniguruma folds the properties, and PCRE2
  // does not.
  void require_case() const {
    if (in_class_ && ignores_case_.back()) refuse("a property in a class where case is ignored");
  }

  void put(const Class& what, bool negated) {
    if (in_class_ && out_.ends_with('-') && !out_.ends_with("[-") && !out_.ends_with("[^-") &&
        !out_.ends_with("\\-"))
      refuse("a range that ends in a property");
    const bool single = what.members.starts_with("\\p") && what.members.find('}') + 1 == what.members.size();
    if (!in_class_ && single) {
      out_ += negated ? "\\P" + what.members.substr(2) : what.members;
    } else if (!in_class_) {
      out_ += fmt::format("[{}{}]", negated ? "^" : "", what.members);
    } else if (!negated) {
      out_ += what.members;
    } else if (!what.others.empty()) {
      out_ += what.others;
    } else {
      refuse("a negated property inside a class");
    }
  }

  void class_character(char c) {
    if (c == '[') refuse("a class inside a class");
    if (next_is("&&")) refuse("an intersection of classes");
    if (c == ']') in_class_ = false;
    copy(1);
  }

  void character(char c) {
    if (c == '[') {
      in_class_ = true;
      copy(next_is("[^") ? 2 : 1);
      if (next_is("]")) copy(1);  // a "]" directly after the opening is a member of the class
      return;
    }
    if (next_is("{,")) refuse("a repetition without a lower bound");
    // In PCRE2, the + makes the quantifier possessive. In Oniguruma, the + is a second repetition.
    if (next_is("}+")) refuse("a + after a counted repetition");
    if (next_is("(*")) refuse("(*");
    if (next_is("(?")) return group();
    if (c == '(') ignores_case_.push_back(ignores_case_.back());
    if (c == ')' && ignores_case_.size() > 1) ignores_case_.pop_back();
    copy(1);
  }

  void group() {
    if (next_is("(?i)")) {
      // Inside an expression, Ruby's (?i) extends over the alternatives that follow.
      if (at_ != 0) refuse("(?i) after the beginning");
      ignores_case_.back() = true;
      return copy(4);
    }
    for (const std::string_view opening : {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"}) {
      if (!next_is(opening)) continue;
      ignores_case_.push_back(ignores_case_.back() || opening == "(?i:");
      return copy(opening.size());
    }
    refuse("a group that starts with " + std::string(pattern_.substr(at_, 3)));
  }

  std::string_view pattern_;
  bool exact_;
  mutable std::map<std::string, Class> made_;
  std::size_t at_ = 0;
  bool in_class_ = false;
  std::vector<bool> ignores_case_ = {false};  // one entry for each open group
  std::string out_;
};

}  // namespace

PcrePattern to_pcre(std::string_view pattern) {
  return {Translator(pattern, false).run(), Translator(pattern, true).run()};
}

}  // namespace primus
