// Tests that each typical mistake is refused with its place, its cause and the next step.
#include "mistakes.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <string>

#include "support.h"

namespace primus::config {
namespace {

TEST(Mistakes, HaveLocationReasonAndHint) {
  const std::vector<Mistake> all = typical_mistakes();
  EXPECT_GE(all.size(), 150u);
  std::set<std::pair<std::string, std::vector<std::string>>> seen;
  const std::filesystem::path presets = std::filesystem::path(PRIMUS_SOURCE_DIR) / "presets";
  for (const Mistake& mistake : all) {
    std::string what = mistake.file.substr(mistake.file.rfind('\n', mistake.file.size() - 2) + 1);
    for (const std::string& word : mistake.arguments) what += " " + word;
    SCOPED_TRACE(what);
    EXPECT_TRUE(seen.insert({mistake.file, mistake.arguments}).second) << "the table has this mistake twice";
    try {
      load_experiment_text(mistake.file, "exp.yaml", mistake.arguments, options_with({}, {presets}));
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 2);
      EXPECT_EQ(error.location(), mistake.place);
      EXPECT_NE(std::string(error.what()).find(mistake.cause), std::string::npos) << error.render();
      EXPECT_NE(error.hint().find(mistake.next_step), std::string::npos) << error.render();
    }
  }
}

}  // namespace
}  // namespace primus::config
