// Tests that files, functions and member lists stay short (CONTRIBUTING.md has the limits).
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace primus {
namespace {

namespace fs = std::filesystem;

constexpr int kSourceLines = 600, kHeaderLines = 250, kFunctionLines = 80, kMembers = 20;

// Exceptions with their current sizes, which may only shrink: tables of facts and of arguments, whose rows
// are independent values.
const std::map<std::string, int> kLongFiles = {};
const std::map<std::string, int> kLongFunctions = {};
const std::map<std::string, int> kLongLists = {{"struct CudnnProblem", 29},        {"struct Gpu", 25},
                                               {"struct HostFacts", 31},           {"struct KeySpec", 23},
                                               {"struct Parameter", 29},           {"struct SuperBlock", 21},
                                               {"struct TrainBenchmarkReport", 22}};

int allowed(const std::map<std::string, int>& exceptions, const std::string& name, int limit) {
  const auto found = exceptions.find(name);
  return found == exceptions.end() ? limit : found->second;
}

// Returns the text without comments and quoted text. Line breaks are kept.
std::string code_of(const std::string& text) {
  std::string code;
  const auto skip = [&](std::size_t from, std::size_t end) {
    code.append(static_cast<std::size_t>(std::count(text.begin() + static_cast<std::ptrdiff_t>(from),
                                                    text.begin() + static_cast<std::ptrdiff_t>(end), '\n')),
                '\n');
    return end;
  };
  const auto after = [&](std::string_view what, std::size_t at) {
    const std::size_t found = text.find(what, at);
    return found == std::string::npos ? text.size() : found + what.size();
  };
  for (std::size_t at = 0; at < text.size();) {
    const std::string_view rest = std::string_view(text).substr(at);
    const bool in_word = at > 0 && std::isalnum(static_cast<unsigned char>(text[at - 1]));
    if (rest.starts_with("//")) {
      at = std::min(text.find('\n', at), text.size());
    } else if (rest.starts_with("/*")) {
      at = skip(at, after("*/", at));
    } else if (!in_word && rest.starts_with("R\"")) {
      const std::size_t open = text.find('(', at);
      at = skip(at, after(")" + text.substr(at + 2, open - at - 2) + "\"", open));
      code += "\"\"";
    } else if (rest[0] == '"' || (rest[0] == '\'' && !in_word)) {
      std::size_t end = at + 1;
      while (end < text.size() && text[end] != rest[0] && text[end] != '\n') end += text[end] == '\\' ? 2 : 1;
      at = end + 1;
      code += "\"\"";
    } else {
      code += text[at++];
    }
  }
  return code;
}

std::string without_brackets(std::string text, char open, char close) {
  for (std::size_t end; (end = text.find(close)) != std::string::npos;) {
    const std::size_t begin = text.rfind(open, end);
    if (begin == std::string::npos) {
      text.erase(end, 1);
    } else {
      text.erase(begin, end - begin + 1);
    }
  }
  return text;
}

struct Found {
  enum class Kind { kFunction, kClass } kind;
  std::string name;
  int line, size;  // lines of a function, or members of a class
};

// Finds functions and classes of a file by its braces. Supports the C++ that this project uses.
class Scanner {
 public:
  explicit Scanner(const std::string& code) {
    int line = 1;
    bool directive = false;
    for (std::size_t at = 0; at < code.size(); ++at) {
      const char c = code[at];
      if (c == '\n') {
        ++line;
        if (at == 0 || code[at - 1] != '\\') directive = false;
      }
      if (c == '#' && (head_.empty() || blank(head_))) directive = true;
      if (!directive) take(c, line);
    }
  }
  const std::vector<Found>& found() const { return found_; }

 private:
  enum class Kind { kNamespace, kClass, kEnum, kFunction, kOther };
  struct Scope {
    Kind kind;
    std::string head;
    int line, members;
  };

  static bool blank(const std::string& text) {
    return std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isspace(c); });
  }
  bool within(Kind kind) const {
    return std::any_of(scopes_.begin(), scopes_.end(), [&](const Scope& s) { return s.kind == kind; });
  }

  void take(char c, int line) {
    if (c == '{') return open(line);
    if (c == '}') return close(line);
    if (within(Kind::kFunction) || within(Kind::kOther)) return;
    if (c == ';') {
      if (!scopes_.empty() && scopes_.back().kind == Kind::kClass) scopes_.back().members += members(head_);
      head_.clear();
      return;
    }
    if (blank(head_) && !std::isspace(static_cast<unsigned char>(c))) begun_ = line;
    head_ += c;
    static const std::regex access("\\s*(public|private|protected):$");
    if (c == ':' && std::regex_match(head_, access)) head_.clear();
  }

  void open(int line) {
    const Kind kind = within(Kind::kFunction) || within(Kind::kOther) ? Kind::kOther : kind_of(head_);
    scopes_.push_back({kind, head_, blank(head_) ? line : begun_, 0});
    if (kind != Kind::kOther) head_.clear();
  }

  void close(int line) {
    if (scopes_.empty()) return;
    const Scope scope = scopes_.back();
    scopes_.pop_back();
    if (scope.kind == Kind::kFunction)
      found_.push_back({Found::Kind::kFunction, scope.head, scope.line, line - scope.line + 1});
    if (scope.kind == Kind::kClass) {
      static const std::regex form("(class|struct|union)\\s+(?:alignas\\([^)]*\\)\\s*)?(\\w+)");
      std::smatch match;
      const std::string head = without_brackets(scope.head, '<', '>');
      if (std::regex_search(head, match, form))
        found_.push_back(
            {Found::Kind::kClass, match[1].str() + " " + match[2].str(), scope.line, scope.members});
    }
    if (scope.kind != Kind::kOther) head_.clear();
  }

  static Kind kind_of(const std::string& head) {
    static const std::regex space("\\bnamespace\\b|^\\s*extern\\s*\"\"\\s*$"), enumeration("\\benum\\b"),
        type("\\b(class|struct|union)\\b"), equals("operator\\s*[^\\s(]*=|[<>=!]="),
        alignment("alignas\\([^)]*\\)");
    if (std::regex_search(head, space)) return Kind::kNamespace;
    const std::string outside = without_brackets(head, '(', ')');
    if (std::regex_search(outside, enumeration)) return Kind::kEnum;
    const std::string plain = std::regex_replace(head, alignment, "");
    if (plain.find('(') == std::string::npos)
      return std::regex_search(without_brackets(plain, '<', '>'), type) ? Kind::kClass : Kind::kOther;
    return std::regex_replace(outside, equals, "").find('=') == std::string::npos ? Kind::kFunction
                                                                                  : Kind::kOther;
  }

  // Returns how many members a declaration adds: 0 if it declares no variable.
  static int members(const std::string& declaration) {
    static const std::regex other(
        "^\\s*(using|friend|static|typedef|template|enum|union|struct\\s+\\w+\\s*$|class\\s+\\w+\\s*$)\\b");
    if (blank(declaration) || std::regex_search(declaration, other)) return 0;
    const std::string plain = without_brackets(declaration, '<', '>');
    const std::string name = plain.substr(0, plain.find('='));
    if (name.find('(') != std::string::npos || name.find("operator") != std::string::npos) return 0;
    const std::string outside = without_brackets(plain, '(', ')');
    return 1 + static_cast<int>(std::count(outside.begin(), outside.end(), ','));
  }

  std::string head_;  // the next declaration, up to its brace or semicolon
  int begun_ = 0;     // line where it begins
  std::vector<Scope> scopes_;
  std::vector<Found> found_;
};

std::string read(const fs::path& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<Found> scanned(const std::string& text) { return Scanner(code_of(text)).found(); }

TEST(Sizes, AScannerCounts) {
  const std::vector<Found> found = scanned(R"(
namespace a {
struct Point {  // { not a brace
  double x = 0, y = 0;
  std::function<void(int)> moved = {};
  std::string text = "}";
  static constexpr int kZero = 0;
  double length() const { return x; }
};
void f(int a,
       int b = 3) {
  if (a) {
    g();
  }
}
constexpr int kTable[] = {1, 2, 3};
}
)");
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found[0].size, 1);
  EXPECT_EQ(found[1].name, "struct Point");
  EXPECT_EQ(found[1].size, 4);
  EXPECT_EQ(found[2].line, 10);
  EXPECT_EQ(found[2].size, 6);
}

TEST(Sizes, FilesFunctionsAndListsOfMembersAreShort) {
  const fs::path root = fs::path(PRIMUS_SOURCE_DIR) / "src";
  int functions = 0, classes = 0;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root)) {
    const std::string extension = entry.path().extension().string();
    const bool header = extension == ".h";
    if (!header && extension != ".cpp" && extension != ".cu" && extension != ".def") continue;
    const std::string file = fs::relative(entry.path(), root).string();
    const std::string text = read(entry.path());
    EXPECT_LE(std::count(text.begin(), text.end(), '\n'),
              allowed(kLongFiles, file, header ? kHeaderLines : kSourceLines))
        << file << ": split it by subject";
    if (extension == ".def") continue;
    for (const Found& one : scanned(text)) {
      if (one.kind == Found::Kind::kFunction) {
        ++functions;
        EXPECT_LE(one.size, allowed(kLongFunctions, file, kFunctionLines))
            << file << ":" << one.line << ": give its parts names";
      } else {
        ++classes;
        EXPECT_LE(one.size, allowed(kLongLists, one.name, kMembers))
            << file << ":" << one.line << ": " << one.name << " does more than one thing";
      }
    }
  }
  EXPECT_GT(functions, 4000);
  EXPECT_GT(classes, 1000);
}

}  // namespace
}  // namespace primus
