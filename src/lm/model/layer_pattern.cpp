#include "lm/model/layer_pattern.h"

#include <charconv>
#include <string_view>

namespace primus {
namespace {

// Grammar:
// expression = term {"+" term}; term = list ["*" number] | number "*" list | "(" expression ")";
// list = "[" bit {"," bit} "]".
class Parser {
 public:
  Parser(std::string_view text, std::int64_t maximum) : text_(text), max_(maximum) {}

  std::optional<std::vector<bool>> all() {
    std::vector<bool> list;
    if (!expression(list, 0) || !text_.empty()) return std::nullopt;
    return list;
  }

 private:
  static constexpr int kDeepest = 8;

  bool take(char c) {
    if (text_.empty() || text_.front() != c) return false;
    text_.remove_prefix(1);
    return true;
  }

  bool number(std::int64_t& n) {
    const auto [stop, error] = std::from_chars(text_.data(), text_.data() + text_.size(), n);
    if (error != std::errc() || n < 0 || n > max_) return false;
    text_.remove_prefix(static_cast<std::size_t>(stop - text_.data()));
    return true;
  }

  bool expression(std::vector<bool>& list, int depth) {
    do {
      if (!term(list, depth)) return false;
    } while (take('+'));
    return true;
  }

  bool term(std::vector<bool>& list, int depth) {
    std::vector<bool> part;
    std::int64_t times = 1;
    const bool leading = !text_.empty() && text_.front() >= '0' && text_.front() <= '9';
    if (leading && (!number(times) || !take('*'))) return false;
    if (take('(')) {
      if (depth == kDeepest || !expression(part, depth + 1) || !take(')')) return false;
    } else if (!bits(part)) {
      return false;
    }
    if (!leading && take('*') && !number(times)) return false;
    if (static_cast<std::int64_t>(list.size()) + static_cast<std::int64_t>(part.size()) * times > max_) {
      return false;
    }
    for (std::int64_t i = 0; i < times; ++i) list.insert(list.end(), part.begin(), part.end());
    return true;
  }

  bool bits(std::vector<bool>& list) {
    if (!take('[')) return false;
    do {
      const bool one = take('1');
      if (!one && !take('0')) return false;
      if (static_cast<std::int64_t>(list.size()) == max_) return false;
      list.push_back(one);
    } while (take(','));
    return take(']');
  }

  std::string_view text_;
  std::int64_t max_;
};

}  // namespace

std::optional<LayerPattern> parse_layer_pattern(const std::vector<std::string>& words, std::int64_t maximum) {
  std::string text;
  bool list = words.size() > 1;
  for (const std::string& word : words) list = list && (word == "0" || word == "1");
  for (const std::string& word : words) {
    if (list && !text.empty()) text += ',';
    for (const char c : word) {
      if (c != ' ') text += c;
    }
  }
  if (list) text = "[" + text + "]";
  LayerPattern pattern;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), pattern.every);
  if (words.size() == 1 && error == std::errc() && stop == text.data() + text.size()) {
    if (pattern.every < 1) return std::nullopt;
    return pattern;
  }
  std::optional<std::vector<bool>> layers = Parser(text, maximum).all();
  if (!layers) return std::nullopt;
  return LayerPattern{0, std::move(*layers)};
}

}  // namespace primus
