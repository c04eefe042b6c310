#include "safe/supervise/recovery/bookkeeping.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "base/temporary_folder.h"
#include "lm/events/run_event.h"
#include "lm/events/supervision.h"

namespace primus::supervise {
namespace {

using Json = nlohmann::ordered_json;

class BookkeepingTest : public ::testing::Test {
 protected:
  BookkeepingTest() {
    job_.run = folder_ / "run";
    job_.checkpoints = job_.run / "checkpoints";
    job_.say = [](const std::string&) {};
    make_folders(job_.run / "events");
  }

  // The lines of the record.
  std::vector<Json> lines() const {
    std::istringstream text(read_file(supervision_file(job_.run)));
    std::vector<Json> found;
    for (std::string line; std::getline(text, line);) found.push_back(Json::parse(line));
    return found;
  }

  test::TemporaryFolder folder_;
  SupervisedJob job_ = {};
};

TEST_F(BookkeepingTest, TheEndWithoutSpaceIsRecordedAsADecision) {
  Bookkeeping books(job_);
  books.record("supervise_start", {}, Json::object(), false);
  books.begin();
  const JobEnd end{.kind = EndKind::kDiskFull, .exit_code = 2, .text = "the disk is full"};
  EXPECT_EQ(books.give_up_without_space(end, {.free_bytes = 4096, .reason = "disk full"}), 2);
  const std::vector<Json> all = lines();
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(all[1].at("event"), "supervise_action");
  EXPECT_EQ(all[1].at("cause"), "disk full");
  EXPECT_EQ(all[1].at("facts").at("action"), "give up");
  EXPECT_EQ(all[1].at("facts").at("text"), "the disk did not have 4.00 KiB free within an hour");
  EXPECT_EQ(all[2].at("event"), "supervise_end");
}

// The clock of a supervisor is that of the wall at its start. A wall clock that was set between the starts of
// two supervisors changes no time.
TEST_F(BookkeepingTest, ClocksThatAreAnHourApartChangeNoTimes) {
  for (const double apart : {-3600.0, 3600.0}) {
    Bookkeeping first(job_, unix_seconds() + apart), second(job_);
    first.begin();
    first.end({.exit_code = 3}, {}, {}, Json::object());
    const Json saved = first.save();
    second.restore(saved);
    for (const char* const name : {"began_at", "detected_at"}) {
      EXPECT_NEAR(saved.at(name).get<double>(), unix_seconds(), 60) << name;
      EXPECT_NEAR(second.save().at(name).get<double>(), saved.at(name).get<double>(), 1) << name;
    }
    second.record("supervise_end", {}, Json::object());
    const Json times = lines().back().at("facts").at("times");
    EXPECT_LT(times.at("wall").get<double>(), 60);
    EXPECT_LT(times.at("restart").get<double>(), 60);
  }
}

}  // namespace
}  // namespace primus::supervise
