// The parser of mathematical answers: recursive descent over characters, with a limit of nesting and of
// nodes.
#include <array>
#include <cctype>
#include <charconv>
#include <utility>

#include "lm/reward/math_tree.h"

namespace primus {
namespace {

using Node = std::unique_ptr<MathNode>;

constexpr int kMaxDepth = 48;
constexpr int kMaxNodes = 512;

constexpr std::array<std::string_view, 17> kFunctions = {"arcsin", "arccos", "arctan", "sinh", "cosh", "tanh",
                                                         "sin",    "cos",    "tan",    "cot",  "sec",  "csc",
                                                         "ln",     "log",    "exp",    "sqrt", "abs"};

struct NotMath {};

bool is_letter(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

Node make(MathKind kind, Node a = nullptr, Node b = nullptr) {
  auto node = std::make_unique<MathNode>();
  node->kind = kind;
  if (a != nullptr) node->children.push_back(std::move(a));
  if (b != nullptr) node->children.push_back(std::move(b));
  return node;
}

class MathParser {
 public:
  explicit MathParser(std::string_view text) : text_(text) {}

  Node parse() {
    Node node = list();
    if (!at_end()) throw NotMath();
    return node;
  }

 private:
  // Limits the nesting and the number of nodes, which bounds the time.
  class Level {
   public:
    explicit Level(MathParser& parser) : parser_(parser) {
      if (++parser.depth_ > kMaxDepth || ++parser.nodes_ > kMaxNodes * 16) throw NotMath();
    }
    ~Level() { --parser_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    MathParser& parser_;
  };

  void skip_space() {
    for (;;) {
      while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' ||
                                    text_[at_] == '\r' || text_[at_] == '~' || text_[at_] == '$')) {
        ++at_;
      }
      bool skipped = false;
      for (const std::string_view word :
           {"\\,", "\\;", "\\:", "\\!", "\\ ", "\\left", "\\right", "\\displaystyle", "\\quad", "\\qquad",
            "\\bigl", "\\bigr", "\\big", "\\(", "\\)", "\\[", "\\]"}) {
        if (!text_.substr(at_).starts_with(word)) continue;
        const std::size_t after = at_ + word.size();
        if (is_letter(word.back()) && after < text_.size() && is_letter(text_[after])) continue;
        at_ = after;
        skipped = true;
        break;
      }
      if (!skipped) return;
    }
  }
  bool at_end() {
    skip_space();
    return at_ >= text_.size();
  }
  char peek() { return at_end() ? '\0' : text_[at_]; }
  // Skips `word`. A word that ends with a letter must not be followed by a letter.
  bool take(std::string_view word) {
    skip_space();
    if (!text_.substr(at_).starts_with(word)) return false;
    const std::size_t after = at_ + word.size();
    if (word.size() > 1 && is_letter(word.back()) && after < text_.size() && is_letter(text_[after]))
      return false;
    at_ = after;
    return true;
  }
  void expect(std::string_view word) {
    if (!take(word)) throw NotMath();
  }

  Node list() {
    const Level level(*this);
    Node first = relation();
    if (peek() != ',' && peek() != ';') return first;
    Node set = make(MathKind::kSet, std::move(first));
    while (take(",") || take(";")) {
      take("\\text{and}");
      set->children.push_back(relation());
    }
    return set;
  }

  Node relation() {
    Node left = union_of();
    constexpr std::array<std::pair<std::string_view, std::string_view>, 14> kRelations = {{{"<=", "<="},
                                                                                           {"\\leq", "<="},
                                                                                           {"\\le", "<="},
                                                                                           {"\u2264", "<="},
                                                                                           {">=", ">="},
                                                                                           {"\\geq", ">="},
                                                                                           {"\\ge", ">="},
                                                                                           {"\u2265", ">="},
                                                                                           {"\\neq", "!="},
                                                                                           {"\\ne", "!="},
                                                                                           {"\\in", "in"},
                                                                                           {"=", "="},
                                                                                           {"<", "<"},
                                                                                           {">", ">"}}};
    for (const auto& [word, name] : kRelations) {
      if (!take(word)) continue;
      Node right = union_of();
      const bool swapped = name[0] == '>';
      Node node = swapped ? make(MathKind::kRelation, std::move(right), std::move(left))
                          : make(MathKind::kRelation, std::move(left), std::move(right));
      node->name = name;
      if (swapped) node->name[0] = '<';
      return node;
    }
    return left;
  }

  Node union_of() {
    Node first = sum();
    if (peek() != '\\') return first;
    Node all;
    while (take("\\cup")) {
      if (all == nullptr) all = make(MathKind::kUnion, std::move(first));
      all->children.push_back(sum());
    }
    return all != nullptr ? std::move(all) : std::move(first);
  }

  Node sum() {
    const Level level(*this);
    Node left = product();
    for (;;) {
      if (take("+")) {
        left = make(MathKind::kAdd, std::move(left), product());
      } else if (take("-") || take("\u2212")) {
        left = make(MathKind::kAdd, std::move(left), make(MathKind::kNegate, product()));
      } else if (take("\\pm")) {
        left = make(MathKind::kPlusMinus, std::move(left), product());
      } else {
        return left;
      }
      if (++nodes_ > kMaxNodes) throw NotMath();
    }
  }

  // Returns whether a factor follows without a multiplication sign.
  bool factor_follows() {
    const char c = peek();
    if (is_letter(c) || is_digit(c) || c == '(' || c == '.' || c == '{') return true;
    if (c != '\\') return text_.substr(std::min(at_, text_.size())).starts_with("\u03c0");
    for (const std::string_view word :
         {"\\cup", "\\le", "\\ge", "\\ne", "\\in", "\\pm", "\\}", "\\rangle", "\\%"}) {
      const std::string_view rest = text_.substr(at_);
      if (rest.starts_with("\\infty") || rest.starts_with("\\left")) return true;
      if (rest.starts_with(word)) return false;
    }
    return true;
  }

  Node product() {
    Node left = signed_power();
    for (;;) {
      if (take("\\cdot") || take("\\times") || take("*") || take("\u00b7") || take("\u00d7")) {
        left = make(MathKind::kMultiply, std::move(left), signed_power());
      } else if (take("/") || take("\\div") || take("\u00f7")) {
        left = make(MathKind::kDivide, std::move(left), signed_power());
      } else if (skip_unit()) {
        continue;
      } else if (factor_follows()) {
        left = make(MathKind::kMultiply, std::move(left), power());
      } else {
        return left;
      }
      if (++nodes_ > kMaxNodes) throw NotMath();
    }
  }

  // Skips a unit or a word: \text{ cm}, \mathrm{m}^2.
  bool skip_unit() {
    for (const std::string_view word : {"\\text{", "\\mathrm{", "\\textrm{", "\\mbox{"}) {
      if (!take(word)) continue;
      const std::size_t close = text_.find('}', at_);
      if (close == std::string_view::npos) throw NotMath();
      at_ = close + 1;
      if (take("^")) atom();
      return true;
    }
    return false;
  }

  Node signed_power() {
    const Level level(*this);
    if (take("-") || take("\u2212")) return make(MathKind::kNegate, signed_power());
    if (take("+")) return signed_power();
    if (take("\\pm")) {
      Node zero = make(MathKind::kNumber);
      return make(MathKind::kPlusMinus, std::move(zero), signed_power());
    }
    return power();
  }

  Node power() {
    Node base = atom();
    for (;;) {
      if (take("^\\circ") || take("^{\\circ}") || take("\u00b0") || take("\\degree")) {
        continue;  // ignores the unit: an answer in degrees equals the plain number
      }
      if (take("**") || take("^")) {
        const Level level(*this);
        Node exponent = peek() == '{' ? atom() : signed_exponent();
        return make(MathKind::kPower, std::move(base), std::move(exponent));
      }
      if (take("!")) {
        base = make(MathKind::kFactorial, std::move(base));
      } else if (take("\\%") || take("%")) {
        base = make(MathKind::kPercent, std::move(base));
      } else {
        return base;
      }
      if (++nodes_ > kMaxNodes) throw NotMath();
    }
  }
  // Parses an exponent. The exponent of x^23 is 23, as in plain text (in LaTeX, it would be 2).
  Node signed_exponent() {
    const Level level(*this);
    if (take("-") || take("\u2212")) return make(MathKind::kNegate, signed_exponent());
    return power();
  }

  Node braced() {
    expect("{");
    Node node = sum();
    expect("}");
    return node;
  }
  // Parses an argument of \frac or \sqrt: {...}, or one digit or letter.
  Node argument() {
    if (peek() == '{') return braced();
    if (is_digit(peek())) {
      Node node = make(MathKind::kNumber);
      node->value = text_[at_++] - '0';
      return node;
    }
    return atom();
  }

  Node atom() {
    const Level level(*this);
    const char c = peek();
    if (is_digit(c) || c == '.') return number();
    if (c == '{') return braced();
    if (c == '(' || c == '[') return bracket();
    if (c == '|') {
      ++at_;
      Node inner = sum();
      expect("|");
      return function("abs", std::move(inner));
    }
    if (take("\\frac") || take("\\dfrac") || take("\\tfrac") || take("\\cfrac")) return fraction();
    if (text_.substr(at_).starts_with("\\frac") || text_.substr(at_).starts_with("\\sqrt")) {
      const bool root = text_[at_ + 1] == 's';
      at_ += 5;  // \frac12 and \sqrtx, where a letter may follow
      return root ? square_root() : fraction();
    }
    if (take("\\{")) {
      Node set = make(MathKind::kSet);
      if (take("\\}")) return set;
      ++brackets_;
      do set->children.push_back(relation());
      while (take(",") || take(";"));
      expect("\\}");
      --brackets_;
      return set;
    }
    if (take("\u221a")) return square_root();
    return named();
  }

  Node fraction() {
    Node top = argument();
    return make(MathKind::kDivide, std::move(top), argument());
  }

  Node square_root() {
    Node degree;
    if (take("[")) {
      degree = sum();
      expect("]");
    } else {
      degree = make(MathKind::kNumber);
      degree->value = 2;
    }
    Node inner = argument();
    return make(MathKind::kRoot, std::move(inner), std::move(degree));
  }

  Node function(std::string name, Node inner) {
    Node node = make(MathKind::kFunction, std::move(inner));
    node->name = std::move(name);
    return node;
  }

  Node number() {
    std::string digits;
    const auto run = [&] {
      while (at_ < text_.size() && is_digit(text_[at_])) digits += text_[at_++];
    };
    run();
    const auto group = [&](std::string_view comma) {
      const std::string_view rest = text_.substr(at_);
      return rest.starts_with(comma) && rest.size() >= comma.size() + 3 && is_digit(rest[comma.size()]) &&
             is_digit(rest[comma.size() + 1]) && is_digit(rest[comma.size() + 2]) &&
             !(rest.size() > comma.size() + 3 && is_digit(rest[comma.size() + 3]));
    };
    // Commas separate thousands, except in tuples and sets, where commas separate elements.
    if (digits.size() <= 3) {
      for (const std::string_view comma : {"{,}", "\\,", "\\!", ","}) {
        while (group(comma) && (comma != "," || brackets_ == 0)) {
          at_ += comma.size();
          run();
        }
      }
    }
    if (at_ < text_.size() && text_[at_] == '.') {
      digits += text_[at_++];
      run();
    }
    Node node = make(MathKind::kNumber);
    const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), node->value);
    if (result.ec != std::errc() || digits == ".") throw NotMath();
    return node;
  }

  Node bracket() {
    const char open = text_[at_++];
    ++brackets_;
    std::vector<Node> parts;
    do parts.push_back(relation());
    while (take(",") || take(";"));
    --brackets_;
    const char close = peek();
    if (close != ')' && close != ']') throw NotMath();
    ++at_;
    if (parts.size() == 1 && open == '(' && close == ')') return std::move(parts.front());
    if (parts.size() == 1 && open == '[' && close == ']') {
      const bool is_list = parts.front()->kind != MathKind::kRelation;
      if (!is_list) throw NotMath();
    }
    Node node = make(MathKind::kTuple);
    node->name = std::string{open, close};
    node->children = std::move(parts);
    return node;
  }

  // Parses a function, a constant or a variable.
  Node named() {
    const bool latex = text_.substr(at_).starts_with("\\");
    for (const std::string_view name : kFunctions) {
      const std::string word = (latex ? "\\" : "") + std::string(name);
      if (!take(word)) continue;
      if (name == "sqrt") return square_root();
      Node base;
      if (name == "log" && take("_")) base = argument();
      Node exponent;
      if (take("^")) exponent = argument();
      Node node = function(std::string(name), power());
      if (base != nullptr) node = make(MathKind::kDivide, std::move(node), function("log", std::move(base)));
      if (exponent != nullptr) node = make(MathKind::kPower, std::move(node), std::move(exponent));
      return node;
    }
    Node node = make(MathKind::kVariable);
    if (take("\u03c0") || take("pi")) {
      node->name = "\\pi";
    } else if (take("\u221e") || take("infinity") || take("oo")) {
      node->name = "\\infty";
    } else if (latex) {
      node->name = "\\";
      ++at_;
      while (at_ < text_.size() && is_letter(text_[at_])) node->name += text_[at_++];
      if (node->name.size() < 2) throw NotMath();
    } else {
      // Two or more letters that do not name a function are a word, not a product of variables.
      const bool letter = is_letter(peek());
      if (!letter) throw NotMath();
      node->name = std::string(1, text_[at_++]);
      std::size_t run = 1;
      for (std::size_t i = at_; i < text_.size() && is_letter(text_[i]); ++i) ++run;
      constexpr std::size_t kMaxVariablesInARow = 3;
      if (run > kMaxVariablesInARow) throw NotMath();
    }
    if (take("_")) {
      const std::size_t begin = at_;
      argument();
      node->name += "_" + std::string(text_.substr(begin, at_ - begin));
    }
    return node;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int depth_ = 0, nodes_ = 0, brackets_ = 0;
};

}  // namespace

std::unique_ptr<MathNode> parse_math(std::string_view text) {
  try {
    return MathParser(text).parse();
  } catch (const NotMath&) {
    return nullptr;
  }
}

}  // namespace primus
