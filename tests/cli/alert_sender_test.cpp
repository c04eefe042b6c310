// Tests of the process that sends the alerts of a supervisor.
#include "cli/train/alert_sender.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/files/file.h"
#include "base/temporary_folder.h"
#include "lm/events/supervision_alerts.h"

namespace primus::cli {
namespace {

RunEvent lost_node(const std::string& text) {
  return {.step = 7, .cause = std::string(kNodeLostAlert), .facts = FaultFacts{.text = text}};
}

TEST(AlertSender, LongTextsAreSent) {
  const test::TemporaryFolder folder;
  const Path got = folder.path() / "got";
  {
    const AlertSender sender(watch::parse_alerts({"node_lost -> run:cat > " + got.string()}), "run");
    sender.send(lost_node(std::string(10000, 'x')));
  }
  EXPECT_THAT(read_file(got), ::testing::HasSubstr("xxxx"));
}

TEST(AlertSender, LinesHaveALimitAndAMark) {
  for (const std::size_t size : {std::size_t{10}, std::size_t{10000}, std::size_t{1000000}}) {
    const std::string text(size, '\n');  // two bytes each in JSON
    const std::string line = alert_line(lost_node(text));
    EXPECT_LE(line.size(), kMaxAlertLine);
    EXPECT_EQ(std::ranges::count(line, '\n'), 1);
    const auto event = event_of_alert_line(line);
    ASSERT_TRUE(event);
    EXPECT_EQ(event->step, 7);
    const std::string& told = event->as<FaultFacts>()->text;
    if (size < 100000) {
      EXPECT_EQ(told, text) << "whole";
    } else {
      EXPECT_THAT(told, ::testing::EndsWith("\n ... (shortened)"));
    }
  }
}

}  // namespace
}  // namespace primus::cli
