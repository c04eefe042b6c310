// Compares rendered templates with transformers' results. The variable PRIMUS_TEMPLATE_CASES may name a
// folder with further files of the forms in lm/template/cases.h.
#include "lm/template/cases.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace primus::jinja {
namespace {

namespace fs = std::filesystem;

std::string content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream content;
  content << file.rdbuf();
  return content.str();
}

void expect_cases(const fs::path& path, std::int64_t least) {
  const CaseReport report = check_cases(content_of(path), path.filename().string());
  for (const FailedCase& failed : report.failed)
    ADD_FAILURE() << failed.name << "\nexpected: " << failed.expected << "\nfound: " << failed.found;
  EXPECT_GE(report.cases, least);
  EXPECT_EQ(report.other_errors, 0) << "errors have another type or message than in transformers";
}

const fs::path kGolden = fs::path(PRIMUS_SOURCE_DIR) / "tests/golden/templates";

TEST(TemplateCases, ProgramsEqualTransformers) { expect_cases(kGolden / "jinja.json", 54); }

TEST(TemplateCases, ChatTemplatesEqualTransformers) { expect_cases(kGolden / "templates.json", 350); }

TEST(TemplateCases, NamedFolderEqualsTransformers) {
  const char* const folder = std::getenv("PRIMUS_TEMPLATE_CASES");
  if (folder == nullptr) GTEST_SKIP() << "PRIMUS_TEMPLATE_CASES names no folder";
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == ".json") expect_cases(entry.path(), 1);
}

TEST(TemplateCases, WrongResultsFail) {
  const CaseReport report = check_cases(
      R"([{"template": "{{ 1 }}", "text": "2"}, {"template": "{{ 1 }}", "text": "1"},
          {"template": "{{ raise_exception('a') }}", "error": {"type": "TemplateError", "message": "b"}},
          {"template": "{{ 1 + none }}", "error": {"type": "ValueError", "message": "b"}}])",
      "x.json");
  EXPECT_EQ(report.cases, 4);
  ASSERT_EQ(report.failed.size(), 2U);
  EXPECT_EQ(report.failed[0].expected, "2");
  EXPECT_EQ(report.failed[1].found, "error TemplateError: a");
  EXPECT_EQ(report.other_errors, 1);
}

TEST(TemplateCases, OtherFormsAreErrors) {
  for (const char* const text :
       {"[1]", "{}", R"([{"text": "a"}])", R"([{"template": "a"}])", "[",
        R"({"conversations": {}, "templates": {"a": {"template": "x", "renders": [{}]}}})",
        R"({"now": "noon", "conversations": {}, "templates": {}})"}) {
    EXPECT_THROW(check_cases(text, "x.json"), Error) << text;
  }
}

}  // namespace
}  // namespace primus::jinja
