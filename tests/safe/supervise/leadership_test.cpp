// Tests of what one leader hands over to the next: the agreed state as text, what was counted, and the lines
// of the record.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "base/temporary_folder.h"
#include "lm/events/supervision.h"
#include "safe/supervise/agreement/leader_state.h"
#include "safe/supervise/agreement/leadership_wire.h"
#include "safe/supervise/nodes/node_roster.h"
#include "safe/supervise/observation/event_tail.h"
#include "safe/supervise/observation/run_files.h"
#include "safe/supervise/recovery/bookkeeping.h"
#include "safe/supervise/recovery/recovery_policy.h"
#include "safe/supervise/recovery/time_account.h"
#include "safe/supervise/supervision_log.h"

namespace primus::supervise {
namespace {

using ::testing::ElementsAre;

AgreedState agreed_state() {
  const Delegate a{.node = 0, .life = ~std::uint64_t{0}, .address = "10.0.0.1", .port = 65535};
  const Delegate b{.node = 2, .life = 7, .address = "h2", .port = 1};
  return {.job = 5,
          .view = 12,
          .version = 3,
          .now = {.members = {a, b}, .chair = 2},
          .before = {.members = {a}, .chair = 0},
          .body = "\"a text\"\n"};
}

TEST(Leadership, AStateSurvivesItsText) {
  const AgreedState state = agreed_state();
  const auto read = read_state(to_text(state), 3);
  ASSERT_TRUE(read);
  EXPECT_EQ(to_text(*read), to_text(state));
  EXPECT_EQ(read->now.members[0].life, ~std::uint64_t{0});
  EXPECT_FALSE(read_state(to_text(state), 2)) << "node 2 of 2";
  EXPECT_FALSE(read_state("", 3));
  EXPECT_FALSE(read_state("{\"job\":1}", 3));
  for (std::size_t size = 0; size < to_text(state).size(); ++size)
    EXPECT_FALSE(read_state(to_text(state).substr(0, size), 3));
}

TEST(Leadership, MessagesSurviveTheWire) {
  using Kind = LeadershipMessage::Kind;
  for (const Kind kind : {Kind::kHello, Kind::kElsewhere, Kind::kPrepare, Kind::kPromise, Kind::kState,
                          Kind::kAcknowledge, Kind::kRefuse}) {
    LeadershipMessage message{.kind = kind, .view = 9, .version = 4};
    message.who = {.node = 1, .life = 3, .address = "h", .port = 2};
    message.state = agreed_state();
    std::string bytes = to_frame(to_node_message(message));
    NodeMessage arrived;
    ASSERT_EQ(take_frame(bytes, arrived), FrameState::kMessage);
    const auto read = leadership_in(arrived, 3);
    ASSERT_TRUE(read);
    EXPECT_EQ(read->kind, kind);
    EXPECT_EQ(read->view, 9U);
    EXPECT_EQ(read->version, 4U);
    EXPECT_EQ(read->who.life, 3U);
    EXPECT_EQ(to_text(read->state), to_text(message.state));
    EXPECT_FALSE(leadership_in(arrived, 1)) << "node 1 of 1";
    arrived.record = "{}";
    EXPECT_FALSE(leadership_in(arrived, 3));
  }
  EXPECT_FALSE(leadership_in({.kind = NodeMessage::Kind::kAlive}, 3));
}

// The decisions of a policy that is handed over after each end equal those of one that is not, although the
// clocks of the machines differ.
TEST(Leadership, APolicyContinuesElsewhere) {
  std::mt19937 random(3);
  for (int run = 0; run < 200; ++run) {
    const RecoveryLimits limits{.max_restarts = 4, .budget_seconds = 500, .mixed_loop = 6};
    RecoveryPolicy whole(limits), moved(limits);
    double offset = 0;
    for (int i = 0; i < 20; ++i) {
      JobEnd end{.kind = random() % 4 == 0 ? EndKind::kNan : EndKind::kLostRank,
                 .exit_code = 3,
                 .rank = static_cast<int>(random() % 2),
                 .began = 10 * i,
                 .step = 10 * i + 5,
                 .checkpoint = random() % 2 == 0 ? 10 * i + 5 : 10 * i,
                 .text = "text",
                 .time = 60.0 * i};
      const Action expected = whole.decide(end);
      end.time -= offset;
      const Action action = moved.decide(end);
      ASSERT_EQ(action.kind, expected.kind);
      EXPECT_EQ(action.reason, expected.reason);
      EXPECT_EQ(action.delay, expected.delay);
      if (action.kind != Action::Kind::kRestart) break;
      const auto saved = nlohmann::ordered_json::parse(moved.save(offset).dump());
      offset = static_cast<double>(random() % 1000);
      RecoveryPolicy next(limits);
      next.restore(saved, offset);
      moved = next;
      EXPECT_EQ(moved.restarts(), whole.restarts());
    }
  }
}

TEST(Leadership, AnAccountContinuesElsewhere) {
  TimeAccount whole(100), moved(100);
  const auto both = [&](auto call) {
    call(whole);
    call(moved);
    TimeAccount next(0);
    next.restore(nlohmann::ordered_json::parse(moved.save(0).dump()), 0, 1e9);
    moved = next;
  };
  double now = 101;
  both([&](TimeAccount& one) { one.begin(0, now); });
  for (int step = 1; step < 40; ++step) {
    now += 1.5;
    both([&](TimeAccount& one) { one.step(step, 1, now); });
    if (step % 7 == 0) both([&](TimeAccount& one) { one.copying(step, now + 0.1); });
    if (step % 10 == 0) both([&](TimeAccount& one) { one.saving(step, now + 0.2); });
    if (step % 13 == 0) both([&](TimeAccount& one) { one.detected(now + 0.5); });
    if (step % 13 == 0) both([&](TimeAccount& one) { one.begin(step - 3, now + 0.9); });
    ASSERT_EQ(to_json(moved.up_to(now + 1)), to_json(whole.up_to(now + 1)));
  }
}

TEST(Leadership, LinesAreWrittenOnceByAnyLeader) {
  const test::TemporaryFolder folder;
  const Path run = folder.path() / "run";
  SupervisionLog first(run);
  first.hold();
  const auto write = [](SupervisionLog& log, const char* kind) {
    log.write({.kind = kind, .time = 1}, nlohmann::ordered_json::object(), std::nullopt);
  };
  write(first, "one");
  write(first, "two");
  EXPECT_FALSE(first.release(2)) << "the run has no folder yet";
  EXPECT_EQ(first.held().size(), 2U);
  std::filesystem::create_directories(run);
  const std::vector<std::string> agreed = first.held();
  EXPECT_TRUE(first.release(1));
  // The first leader is lost here; the second one has both lines.
  SupervisionLog second(run);
  second.hold();
  second.take(agreed);
  write(second, "three");
  EXPECT_TRUE(second.release(3, true));
  const std::string text = read_file(supervision_file(run));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3);
  EXPECT_LT(text.find("one"), text.find("two"));
  EXPECT_LT(text.find("two"), text.find("three"));
}

// Alerts are sent when the supervisors have agreed on what they tell.
TEST(Leadership, NewsAreToldAfterTheirLine) {
  const test::TemporaryFolder folder;
  std::filesystem::create_directories(folder.path());
  SupervisionLog log(folder.path());
  std::vector<std::string> told;
  const auto to = [&](const RunEvent& event) { told.push_back(event.cause); };
  const auto write = [&](const char* kind) {
    log.write({.kind = kind, .time = 1}, nlohmann::ordered_json::object(), std::nullopt);
    log.tell({.cause = kind, .facts = FaultFacts{.text = kind}}, to);
  };
  write("zero");
  EXPECT_THAT(told, ElementsAre("zero")) << "one machine needs no agreement";
  log.hold();
  write("one");
  write("two");
  EXPECT_THAT(told, ElementsAre("zero"));
  EXPECT_TRUE(log.release(1));
  EXPECT_THAT(told, ElementsAre("zero", "one"));
  write("three");
  EXPECT_TRUE(log.release(2));
  EXPECT_THAT(told, ElementsAre("zero", "one", "two", "three"));
  write("four");
  log.take({});  // another leader's lines
  EXPECT_TRUE(log.release(0));
  EXPECT_EQ(told.size(), 4U) << "the fourth line was never agreed";
}

TEST(Leadership, OneSupervisorReportsThatTheJobIsGivenUp) {
  const test::TemporaryFolder folder;
  std::filesystem::create_directories(folder.path());
  EXPECT_TRUE(is_first_to_give_up(folder.path(), 7));
  EXPECT_FALSE(is_first_to_give_up(folder.path(), 7));
  EXPECT_TRUE(is_first_to_give_up(folder.path(), 8)) << "another job of the run";
  forget_given_up(folder.path());
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  EXPECT_TRUE(is_first_to_give_up(folder.path(), 7));
  EXPECT_TRUE(is_first_to_give_up(folder.path() / "missing", 7)) << "better twice than never";
}

TEST(Leadership, TheEventsOfAnAttemptAreReadAgain) {
  const test::TemporaryFolder folder;
  const std::string before = R"({"event":"step","step":1,"rank":0,"time":1,"facts":{}})"
                             "\n";
  const std::string after = R"({"event":"step","step":7,"rank":0,"time":2,"facts":{}})"
                            "\n";
  std::filesystem::create_directories(event_file(folder.path(), 0).parent_path());
  write_file(event_file(folder.path(), 0), before + after);
  std::vector<std::int64_t> steps;
  const auto add = [&](const EventLine& event, int) { steps.push_back(event.step); };
  EventTail::of_rank_zero(folder.path(), static_cast<std::int64_t>(before.size())).read(add);
  EXPECT_THAT(steps, ElementsAre(7));
}

TEST(Leadership, ALeadersStateSurvivesItsText) {
  LeaderState state{.leader = 1, .offset = 7, .attempt = 3, .runs = true};
  state.books = {{"restarts", 2}};
  state.places = {2, 1};
  state.hosts = {"a", "b", "c"};
  state.lines = {"{\"event\":\"x\"}\n"};
  state.free_bytes = std::uint64_t{1} << 60;
  state.stop = 15;
  EXPECT_EQ(to_text(read_leader_state(to_text(state), 3)), to_text(state));
  EXPECT_EQ(read_leader_state("", 3).leader, -1);
  EXPECT_EQ(read_leader_state("{}", 3).leader, -1);
  EXPECT_EQ(read_leader_state(to_text(state), 2).leader, -1) << "node 2 of 2";
  EXPECT_EQ(read_leader_state(to_text(state), 3).stop, 15);
  nlohmann::ordered_json older = nlohmann::ordered_json::parse(to_text(state));
  older.erase("stop");
  EXPECT_EQ(read_leader_state(older.dump(), 3).leader, 1) << "an older version had no requests to stop";
  state.stop = 65;
  EXPECT_EQ(read_leader_state(to_text(state), 3).leader, -1) << "no signal";
  state.stop = 0;
  state.places = {-2};
  EXPECT_EQ(read_leader_state(to_text(state), 3).leader, -1);
}

// An older version counted no rank restarts, and marked no snapshots.
TEST(Leadership, CountsOfAnOlderVersionAreRead) {
  const test::TemporaryFolder folder;
  SupervisedJob job;
  job.run = folder.path();
  Bookkeeping books(job);
  nlohmann::ordered_json saved = books.save();
  saved.erase("rank_restarts");
  saved["furthest"] = 12;
  saved["account"]["marks"] = {{10, 2.5}};
  books.restore(saved);
  EXPECT_EQ(books.save()["furthest"], 12);
  EXPECT_EQ(books.save()["rank_restarts"], 0);
  EXPECT_EQ(books.save()["account"]["marks"][0][2], false);
}

TEST(Leadership, TheErrorOfARankWithoutALogIsInItsOutput) {
  const test::TemporaryFolder folder;
  const Path rank = folder.path() / "rank-1";
  std::filesystem::create_directories(rank);
  write_file(rank / "output.log",
             "error: an earlier one\n[time] : loads\nerror: no file 'x'\n  hint: make it\n");
  EXPECT_EQ(last_error(folder.path(), 2, 0), "no file 'x'");
  EXPECT_EQ(last_error(folder.path(), 2, 4e9), "") << "of an earlier attempt";
  write_file(rank / "output.log", "error: an earlier one\n[time] : loads\n");
  EXPECT_EQ(last_error(folder.path(), 2, 0), "");
  std::filesystem::create_directories(folder.path() / "rank-0");
  write_file(folder.path() / "rank-0" / "error.log",
             "[time][rank-0/2][ERROR]    [a.cpp:1] : the disk is full\n");
  EXPECT_EQ(last_error(folder.path(), 2, 0), "the disk is full");
  write_file(
      folder.path() / "rank-0" / "error.log",
      "[time][rank-0/2][ERROR]    [a.cpp:1] : no checkpoint can be used:\n  iter_0000020: it is damaged\n");
  EXPECT_EQ(last_error(folder.path(), 2, 0), "no checkpoint can be used:");
}

// Node 1 leads after the loss of node 0, whose place the spare takes.
TEST(Leadership, ASpareTakesTheFirstPlace) {
  Roster roster(3, 2, {}, 0, {}, 1);
  roster.joined(1, "h1", 0);
  roster.joined(2, "h2", 0);
  roster.resume(4, {0, 1}, {"h0", "h1", "h2"}, 5, 0);
  EXPECT_EQ(roster.step(4), Roster::Step::kNothing) << "the delay of the restart";
  EXPECT_EQ(roster.step(5), Roster::Step::kStart);
  EXPECT_EQ(roster.start(5), 5U);
  EXPECT_THAT(roster.places(), ElementsAre(2, 1));
  EXPECT_EQ(roster.host(0), "h0");
  const std::vector<Roster::Taken> taken = roster.take_replacements();
  ASSERT_EQ(taken.size(), 1U);
  EXPECT_EQ(taken[0].node, 2);
  EXPECT_EQ(taken[0].place, 0);
}

}  // namespace
}  // namespace primus::supervise
