#include "safe/supervise/observation/event_tail.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/temporary_folder.h"

namespace primus::supervise {
namespace {

using test::TemporaryFolder;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::string line(int step) {
  return R"({"event":"step","step":)" + std::to_string(step) + R"(,"rank":0,"time":1,"facts":{}})" + "\n";
}

void append(const Path& file, const std::string& text) {
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file, std::ios::app | std::ios::binary) << text;
}

std::vector<std::int64_t> steps(EventTail& tail) {
  std::vector<std::int64_t> found;
  tail.read([&](const EventLine& event, int rank) { found.push_back(1000 * rank + event.step); });
  return found;
}

TEST(EventTail, ReadsNewLinesOfAllRanksInParts) {
  const TemporaryFolder folder;
  append(event_file(folder.path(), 0), line(1) + line(2));
  EventTail tail(folder.path(), 2);
  EXPECT_THAT(steps(tail), IsEmpty());
  append(event_file(folder.path(), 0), line(3) + line(4).substr(0, 9));
  EXPECT_THAT(steps(tail), ElementsAre(3));
  append(event_file(folder.path(), 0), line(4).substr(9) + "damaged\n");
  append(event_file(folder.path(), 1), line(4));  // the file is new
  EXPECT_THAT(steps(tail), ElementsAre(4, 1004));
  EXPECT_THAT(steps(tail), IsEmpty());
}

TEST(EventTail, SkipsTheRestOfATornLine) {
  const TemporaryFolder folder;
  append(event_file(folder.path(), 0), line(1) + line(2).substr(0, 9));
  EventTail tail(folder.path(), 1);
  append(event_file(folder.path(), 0), "\n" + line(2));
  EXPECT_THAT(steps(tail), ElementsAre(2));
}

TEST(EventTail, FollowsAFileThatIsReplacedOrShortened) {
  const TemporaryFolder folder;
  const Path file = event_file(folder.path(), 0);
  append(file, line(1) + line(2));
  EventTail tail(folder.path(), 1);
  std::filesystem::remove(file);
  EXPECT_THAT(steps(tail), IsEmpty());
  append(file, line(1));
  EXPECT_THAT(steps(tail), ElementsAre(1));
  std::filesystem::resize_file(file, 0);
  EXPECT_THAT(steps(tail), IsEmpty());
  append(file, line(7));
  EXPECT_THAT(steps(tail), ElementsAre(7));
}

TEST(EventTail, SkipsALineThatIsTooLong) {
  const TemporaryFolder folder;
  EventTail tail(folder.path(), 1);
  append(event_file(folder.path(), 0), std::string(3 << 20, 'x') + "\n" + line(5));
  EXPECT_THAT(steps(tail), ElementsAre(5));
}

}  // namespace
}  // namespace primus::supervise
