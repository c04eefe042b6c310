// Tests of conventions in src/ (CONTRIBUTING.md): integer types from std, one namespace per folder, and named
// inputs and outputs of operators.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace primus {
namespace {

namespace fs = std::filesystem;

const fs::path kSource = fs::path(PRIMUS_SOURCE_DIR) / "src";

// The namespace of each folder; the longest matching entry counts. Files may open further namespaces inside
// this namespace.
const std::map<std::string, std::string> kNamespaces = {
    {"backends", "primus::backends"},
    {"base", "primus"},
    {"bench", "primus"},
    {"cli", "primus::cli"},
    {"comm", "primus::comm"},
    {"config", "primus::config"},
    {"device", "primus"},
    {"engine", "primus::engine"},
    {"launch", "primus::launch"},
    {"lm", "primus"},
    {"lm/data", "primus::data"},
    {"plan", "primus"},
    {"safe/preflight", "primus::preflight"},
    {"safe/watch", "primus::watch"},
    {"safe/supervise", "primus::supervise"},
    {"safe/simulation", "primus::simulation"},
    {"safe/postmortem", "primus::postmortem"},
    {"safe/dashboard", "primus::dashboard"},
    {"safe/jobs", "primus::jobs"},
    {"tensor", "primus"},
    {"turbo", "primus::turbo"},
};

// Files without a namespace of this project.
const std::vector<std::string> kWithoutNamespace = {"cli/main.cpp", "base/fmt_library.cpp"};

struct SourceText {
  std::string file;  // relative to src/
  std::vector<std::string> lines;
};

std::vector<SourceText> source_texts() {
  std::vector<SourceText> all;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(kSource)) {
    const std::string extension = entry.path().extension().string();
    if (extension != ".h" && extension != ".cpp" && extension != ".cu") continue;
    SourceText text{.file = fs::relative(entry.path(), kSource).string(), .lines = {}};
    std::ifstream stream(entry.path());
    for (std::string line; std::getline(stream, line);) text.lines.push_back(line);
    all.push_back(std::move(text));
  }
  return all;
}

TEST(Habits, IntegersOfFixedWidthHaveStdNames) {
  const std::regex bare(R"((^|[^:\w"])(u?int(8|16|32|64)|size|ptrdiff)_t\b)");
  int seen = 0;
  for (const SourceText& text : source_texts()) {
    for (std::size_t i = 0; i < text.lines.size(); ++i) {
      const std::string& line = text.lines[i];
      seen += line.find("std::int64_t") != std::string::npos ? 1 : 0;
      EXPECT_FALSE(std::regex_search(line, bare))
          << "src/" << text.file << ":" << i + 1 << ": write std:: before it: " << line;
    }
  }
  EXPECT_GT(seen, 1000);
}

TEST(Habits, AFolderHasOneNamespace) {
  const std::regex opening(R"(^namespace ([\w:]+) \{$)");
  for (const SourceText& text : source_texts()) {
    if (std::ranges::find(kWithoutNamespace, text.file) != kWithoutNamespace.end()) continue;
    std::string folder = fs::path(text.file).parent_path().string();
    while (!kNamespaces.contains(folder) && !folder.empty()) folder = fs::path(folder).parent_path().string();
    ASSERT_FALSE(folder.empty()) << "src/" << text.file << ": no namespace is known for its folder";
    const std::string& expected = kNamespaces.at(folder);
    bool any = false, own = false;
    for (const std::string& line : text.lines) {
      std::smatch match;
      if (!std::regex_match(line, match, opening)) continue;
      any = true;
      own = own || match[1] == expected || match[1].str().starts_with(expected + "::");
    }
    // Files that only list macros or instances open no namespace.
    EXPECT_TRUE(own || !any) << "src/" << text.file << " opens a namespace other than " << expected;
  }
}

// Functions of engine/runtime/operator_call.h that take an input or output.
const std::string kOperandOf =
    R"(\b(in|out|has_in|optional_in|in_shape|in_or_out|d_in|fresh_d_in|d_in_over_in|needs_d_in|pass_d_in)"
    R"(|take_d_in|d_out|complete_d_out)\()";

// Returns an error if a line of an operator selects inputs or outputs by literal numbers instead of names.
// Loop counters are permitted.
std::optional<std::string> unnamed_operand(const std::string& line) {
  static const std::regex call(R"(\bop_?\.)" + kOperandOf + R"(([^()]*, )?\d)");
  static const std::regex place(R"(\b(InputPlace|OutputPlace)\b( \w+)?[({]\d)");
  static const std::regex set(R"(\.for_(input|weight) = (\{\s*\.|Saves\{))");
  static const std::regex order(R"(// (Inputs?|Outputs?): )");
  if (std::regex_search(line, call) || std::regex_search(line, place)) return "name the input or output";
  if (std::regex_search(line, set)) return "make the set by saves(), from names";
  if (std::regex_search(line, order)) return "the struct of names says which inputs and outputs there are";
  return std::nullopt;
}

TEST(Habits, OperandsHaveNames) {
  int calls = 0;
  for (const SourceText& text : source_texts()) {
    if (!text.file.starts_with("engine/")) continue;
    for (std::size_t i = 0; i < text.lines.size(); ++i) {
      const std::string& line = text.lines[i];
      static const std::regex named(R"(\bop_?\.)" + kOperandOf + R"(\w+::k)");
      calls += std::regex_search(line, named) ? 1 : 0;
      const std::optional<std::string> wrong = unnamed_operand(line);
      EXPECT_FALSE(wrong) << "src/" << text.file << ":" << i + 1 << ": " << *wrong
                          << " (engine/runtime/operator_call.h): " << line;
    }
  }
  EXPECT_GT(calls, 300);
}

// A function uses the names of one operator only. Another operator's name selects the operand at the same
// position, which may be the wrong operand.
TEST(Habits, FunctionsNameOperandsOfOneOperator) {
  static const std::regex use(R"(\bop_?\.)" + kOperandOf + R"((\w+)::k)");
  int functions = 0;
  for (const SourceText& text : source_texts()) {
    if (!text.file.starts_with("engine/")) continue;
    std::set<std::string> operators;
    for (std::size_t i = 0; i < text.lines.size(); ++i) {
      const std::string& line = text.lines[i];
      for (std::sregex_iterator match(line.begin(), line.end(), use), end; match != end; ++match)
        operators.insert((*match)[2]);
      if (!line.starts_with("}") && !(line.ends_with("}") && !line.starts_with(" "))) continue;
      functions += operators.empty() ? 0 : 1;
      EXPECT_LE(operators.size(), 1U) << "src/" << text.file << ": the function that ends in line " << i + 1;
      operators.clear();
    }
  }
  EXPECT_GT(functions, 100);
}

TEST(Habits, AnOperandWithoutANameIsFound) {
  for (const char* line :
       {"  launch(op.context(), turbo::Scale{.x = op.in(0), .out = op.out(Scale::kY)});",
        "  op.pass_d_in(AddNorm::kX, 0);", "  op_.take_d_in(1, std::move(part));",
        "  const Tensor d_y = op.d_out(OutputPlace(2));", "  constexpr InputPlace kX{0};",
        "    .for_input = {.inputs = 0b11, .outputs = 1},", "    .for_weight = Saves{.inputs = 1},",
        "// Inputs: x, delta. Outputs: sum, y."}) {
    EXPECT_TRUE(unnamed_operand(line)) << line;
  }
  for (const char* line :
       {"  op.pass_d_in(AddNorm::kX, AddNorm::kSum);", "  const Tensor x = op.in(AddNorm::kX).slice(0, 2);",
        "  for (int i = 0; i < op.output_count(); ++i) copy(op.out(OutputPlace(i)));",
        "    .for_input = saves(AddNorm::kSum, AddNorm::kRstd),"}) {
    EXPECT_FALSE(unnamed_operand(line)) << line;
  }
}

}  // namespace
}  // namespace primus
