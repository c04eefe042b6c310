#include "lm/events/supervision.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/temporary_folder.h"

namespace primus {
namespace {

using test::TemporaryFolder;

void append(const Path& run, const std::string& text) {
  std::filesystem::create_directories(supervision_file(run).parent_path());
  std::ofstream(supervision_file(run), std::ios::app | std::ios::binary) << text;
}

TEST(Supervision, ReadsBackTheNewestLine) {
  const TemporaryFolder folder;
  EXPECT_FALSE(read_supervision(folder.path()));
  const RunTimes times{.wall = 100, .useful = 90.5, .repeated = 4, .restart = 3, .other = 2.5};
  append(folder.path(),
         R"({"event":"supervise_start","step":0,"time":1,"facts":{"restarts":0}})"
         "\n"
         R"({"event":"supervise_end","step":7,"time":2,"cause":"finished","facts":{"restarts":3,"times":)" +
             to_json(times) + "}}\n{torn");
  const auto read = read_supervision(folder.path());
  ASSERT_TRUE(read);
  EXPECT_EQ(read->restarts, 3);
  EXPECT_EQ(read->ended, "finished");
  EXPECT_EQ(to_json(read->times), to_json(times));
  EXPECT_EQ(describe(read->times),
            "useful 90.5 % of 1m 40s; lost: repeated steps 4.0 %, restart 3.0 %, other 2.5 %");
}

TEST(Supervision, ForeignContentIsNoError) {
  const TemporaryFolder folder;
  append(folder.path(),
         "[]\n{\"event\":\"supervise_end\",\"step\":1,\"facts\":{\"restarts\":-5,\"times\":[1]}}\n\xff\n");
  const auto read = read_supervision(folder.path());
  ASSERT_TRUE(read);
  EXPECT_EQ(read->restarts, 0);
  EXPECT_EQ(read->times.wall, 0);
}

}  // namespace
}  // namespace primus
