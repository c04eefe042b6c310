// Tests of the dashboard's data: lists of runs, reports, events, metrics, and names that attack.
#include "safe/dashboard/service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "lm/events/supervision.h"
#include "safe/dashboard/client.h"
#include "safe/dashboard/runs.h"

namespace primus::dashboard {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using test::append;
using test::step_line;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class Dashboards : public ::testing::Test {
 protected:
  Path make_run(const std::string& name, std::int64_t done) const {
    const Path folder = folder_.path() / name;
    for (std::int64_t step = 1; step <= done; ++step) append(folder / "metrics.jsonl", step_line(step, 2));
    return folder;
  }
  static json ask(Service& service, const std::string& path, std::map<std::string, std::string> query = {}) {
    const Reply reply = service.answer({.path = path, .query = std::move(query)});
    EXPECT_EQ(reply.status, 200) << reply.body;
    return json::parse(reply.body);
  }
  static std::string id_of(Service& service, const std::string& name) {
    const json list = ask(service, "/api/runs");
    for (const json& run : list.at("runs")) {
      if (run.at("name") == name) return run.at("id");
    }
    return "";
  }

  test::TemporaryFolder folder_;
};

TEST_F(Dashboards, RunsAreListedAndCompared) {
  write_file(make_run("a", 3) / "experiment.yaml", "exp_name: a\nlr: 0.5\n");
  write_file(make_run("b", 5) / "experiment.yaml", "exp_name: b\nlr: 0.25\n");
  Workspace workspace({folder_.path()});
  Service service(workspace, "1.0");
  const json list = ask(service, "/api/runs");
  EXPECT_EQ(list.at("version"), "1.0");
  ASSERT_EQ(list.at("runs").size(), 2U);
  const json report =
      ask(service, "/api/report", {{"runs", id_of(service, "a") + "," + id_of(service, "b")}});
  EXPECT_EQ(report.at("runs").at(0).at("name"), "a");
  EXPECT_EQ(report.at("runs").at(1).at("curves").at("lm_loss").at("mean").size(), 5U);
  EXPECT_EQ(report.at("differences").at(0).at("key"), "lr");
  EXPECT_EQ(report.at("charts").at(0).at("key"), "lm_loss");
}

TEST_F(Dashboards, ARequestCannotNameAFile) {
  make_run("a", 1);
  Workspace workspace({folder_.path()});
  Service service(workspace, "1.0");
  for (const std::string& id : {std::string("../../etc/passwd"), std::string("/etc/passwd"), std::string("a"),
                                folder_.path().string(), std::string("a\0b", 3), std::string(10'000, 'a'),
                                std::string(), std::string(","), std::string("<script>")}) {
    for (const char* path : {"/api/report", "/api/events", "/api/ranks", "/api/range"}) {
      const Reply reply =
          service.answer({.path = path, .query = {{"runs", id}, {"run", id}, {"from", "1"}, {"to", "2"}}});
      const bool none = path == std::string_view("/api/report") || path == std::string_view("/api/range")
                            ? id.empty()
                            : false;
      EXPECT_EQ(reply.status, none ? 400 : 404) << path << " " << id;
      EXPECT_THAT(reply.body, none ? HasSubstr("'runs' takes the ids of 1 to 8 runs")
                                   : HasSubstr("there is no run with this id; /api/runs lists the ids"));
      EXPECT_THAT(reply.body, Not(HasSubstr("script")));
    }
  }
  for (const char* path :
       {"/../etc/passwd", "/api", "//", "/dashboard.js/", "/metrics.jsonl", "/%2e%2e/x", ""})
    EXPECT_EQ(service.answer({.path = path}).status, 404) << path;
  const std::string id = id_of(service, "a");
  for (const char* path : {"/api/events", "/api/ranks", "/api/timeline"}) {
    const Reply reply = service.answer({.path = path});
    EXPECT_EQ(reply.status, 400);
    EXPECT_THAT(reply.body, HasSubstr("'run' is missing"));
  }
  const std::string nul("1\0", 2);
  for (const std::string& bad :
       {std::string(), std::string("x"), std::string("1e3"), std::string("-1"),
        std::string("99999999999999999999"), std::string("9223372036854775807"), std::string("-"),
        std::string("NaN"), std::string(" 1"), std::string("1.5"), std::string("0x10"), nul}) {
    Reply reply = service.answer({.path = "/api/range", .query = {{"runs", id}, {"from", bad}, {"to", "5"}}});
    EXPECT_EQ(reply.status, 400) << bad;
    EXPECT_EQ(reply.body, "'from' is not a step: give a whole number from 0 to 9007199254740992\n") << bad;
    reply = service.answer({.path = "/api/range", .query = {{"runs", id}, {"from", "1"}, {"to", bad}}});
    EXPECT_THAT(reply.body, HasSubstr("'to' is not a step")) << bad;
    reply = service.answer({.path = "/api/timeline", .query = {{"run", id}, {"step", bad}}});
    EXPECT_EQ(reply.status, 400) << bad;
    EXPECT_THAT(reply.body, HasSubstr("'step' is not a step")) << bad;
  }
  EXPECT_EQ(service.answer({.path = "/api/range", .query = {{"runs", id}, {"from", "1"}}}).body,
            "'to' is missing: give a step\n");
  EXPECT_EQ(service.answer({.path = "/api/range", .query = {{"runs", id}, {"from", "9"}, {"to", "3"}}}).body,
            "'from' is after 'to'\n");
  const json far = ask(service, "/api/range", {{"runs", id}, {"from", "0"}, {"to", "9007199254740992"}});
  EXPECT_EQ(far.at("runs").at(0).at("curves").at("lm_loss").at("mean").size(), 1U);
}

TEST_F(Dashboards, HostileNamesStayText) {
  const std::string name = "<script>alert(1)<!--\"'&\n\\";
  make_run("x" + name, 1);
  make_run(std::string("bad \xff utf8"), 1);
  Workspace workspace({folder_.path()});
  Service service(workspace, "1.0");
  const Reply reply = service.answer({.path = "/api/runs"});
  EXPECT_THAT(reply.type, HasSubstr("application/json"));  // with nosniff, browsers run no script in it
  const json list = json::parse(reply.body);
  EXPECT_EQ(list.at("runs").size(), 2U);
  EXPECT_NE(id_of(service, "x" + name), "");
  const std::string metrics = service.answer({.path = "/metrics"}).body;
  EXPECT_THAT(metrics, HasSubstr(R"(primus_run_step{run="x<script>alert(1)<!--\"'&\n\\"} 1)"));
  // The page has no text of a run.
  EXPECT_THAT(service.answer({.path = "/"}).body, Not(HasSubstr("alert(1)")));
}

TEST_F(Dashboards, PrometheusReadsTheNewestValues) {
  const Path run = make_run("a", 3);
  const RunTimes times{.wall = 100, .useful = 75, .repeated = 25};
  append(supervision_file(run), fmt::format(R"({{"event":"supervise_end","step":3,"time":1,)"
                                            R"("facts":{{"restarts":2,"times":{}}}}})"
                                            "\n",
                                            to_json(times)));
  Workspace workspace({folder_.path()});
  Service service(workspace, "1.0");
  const Reply reply = service.answer({.path = "/metrics"});
  EXPECT_THAT(reply.type, HasSubstr("version=0.0.4"));
  EXPECT_THAT(
      reply.body,
      AllOf(HasSubstr("# TYPE primus_run_step gauge\nprimus_run_step{run=\"a\"} 3\n"),
            HasSubstr("primus_run_loss{run=\"a\"} 2\n"), HasSubstr("primus_run_restarts{run=\"a\"} 2\n"),
            HasSubstr("primus_run_goodput{run=\"a\"} 0.75\n"),
            HasSubstr("primus_run_state{run=\"a\",state=\"crashed\"} 1\n"),
            HasSubstr("primus_run_lost_seconds{run=\"a\",cause=\"repeated steps\"} 25\n")));
}

TEST_F(Dashboards, EventsOfARestartedRun) {
  const Path run = make_run("a", 3);
  std::string text;
  std::size_t before = 0;
  const auto event = [&](const std::string& kind, int step, const std::string& facts) {
    const std::size_t at = text.size();
    text += fmt::format(R"({{"event":"{}","step":{},"rank":0,"time":{},{}"facts":{}}})"
                        "\n",
                        kind, step, 100 + text.size(),
                        text.empty() ? "" : fmt::format("\"before\":{},", before), facts);
    before = at;
  };
  event("begin", 0, R"({"first_iteration":0,"trains":true})");
  event("checkpoint", 2, R"({"state":"durable"})");
  event("warning", 3, R"({"iteration":3,"detector":"loss_growth","text":"the loss <b>grew</b>"})");
  event("begin", 2, R"({"first_iteration":2,"trains":true})");
  append(run / "events" / "rank-00000.jsonl", text);
  Workspace workspace({folder_.path()});
  Service service(workspace, "1.0");
  const json events = ask(service, "/api/events", {{"run", id_of(service, "a")}}).at("events");
  ASSERT_EQ(events.size(), 4U);
  EXPECT_EQ(events.at(0).at("kind"), "begin");
  EXPECT_EQ(events.at(1).at("text"), "the loss <b>grew</b>");
  EXPECT_EQ(events.at(1).at("void"), true);
  EXPECT_EQ(events.at(2).at("text"), "durable");
  EXPECT_EQ(events.at(2).at("void"), false);
}

TEST_F(Dashboards, TheTimelineOfAStep) {
  const Path run = make_run("a", 10);
  const auto line = [](int step, int stage, const std::string& spans) {
    return fmt::format(
        R"({{"step":{},"stage":{},"stages":2,"rank":{},"microseconds":900,"left_out":0,"spans":[{}]}})"
        "\n",
        step, stage, 2 * stage, spans);
  };
  Workspace workspace({folder_.path()});
  Service service(workspace, "1.0");
  const std::string id = id_of(service, "a");
  EXPECT_TRUE(ask(service, "/api/timeline", {{"run", id}}).at("step").is_null());
  append(run / "timelines" / "stage-0000.jsonl",
         line(2, 0, "") + line(5, 0, R"(["F",0,0,1,10])") + "damaged\n" + line(5, 0, R"(["B",0,1,20,30])"));
  append(run / "timelines" / "stage-0001.jsonl",
         line(2, 1, R"(["F",0,0,1,10],["<b>",0,0,1,1],["F",0,0,-1,1],["F",0,0,1],{},["P",0,0,11,1e99])") +
             line(5, 1, R"(["F",1,0,5,10])"));
  json table = ask(service, "/api/timeline", {{"run", id}});
  EXPECT_EQ(table.at("steps"), json({5, 2}));
  EXPECT_EQ(table.at("step"), 5);
  EXPECT_EQ(table.at("missing"), 0);
  ASSERT_EQ(table.at("stages").size(), 2U);
  // A restart has repeated step 5.
  EXPECT_EQ(table.at("stages").at(0).at("spans"), json::parse(R"([["B",0,1,20,30]])"));
  EXPECT_EQ(table.at("stages").at(1).at("rank"), 2);
  table = ask(service, "/api/timeline", {{"run", id}, {"step", "2"}});
  EXPECT_EQ(table.at("stages").at(1).at("spans"), json::parse(R"([["F",0,0,1,10]])"));
  EXPECT_TRUE(ask(service, "/api/timeline", {{"run", id}, {"step", "3"}}).at("stages").empty());
  EXPECT_EQ(service.answer({.path = "/api/timeline", .query = {{"run", id}, {"step", "x"}}}).status, 400);
}

TEST_F(Dashboards, NewStepsReachAViewerWithinTwoSeconds) {
  const Path run = make_run("a", 3);
  Workspace workspace({folder_.path()});
  Service service(workspace, "1.0");
  const std::string id = id_of(service, "a");
  HttpServer server("127.0.0.1", 0, [&](const Request& request) { return service.answer(request); });
  const test::Serving serving(server, [&] { return service.work(server); });
  test::ask(server.port(), "/api/report?runs=" + id);
  test::Client viewer(server.port());
  viewer.send("GET /api/stream HTTP/1.1\r\nHost: localhost\r\n\r\n");
  viewer.read_until("retry");
  const auto begin = std::chrono::steady_clock::now();
  append(run / "metrics.jsonl", step_line(4, 1.5));
  EXPECT_THAT(viewer.read_until("\"step\":4"), HasSubstr("event: run"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, milliseconds(2000));
  const json report = json::parse(test::body_of(test::ask(server.port(), "/api/report?runs=" + id)));
  EXPECT_EQ(report.at("runs").at(0).at("positions").at("last").size(), 4U);
}

TEST_F(Dashboards, NewAndRemovedRunsAreFound) {
  make_run("a", 1);
  Workspace workspace({folder_.path()}, {.poll = milliseconds(0), .search = milliseconds(0)});
  make_run("b", 1);
  // A search that takes long, because the machine is busy, delays the next search (Workspace::search).
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  Workspace::Work work;
  while (work.changed.empty() && std::chrono::steady_clock::now() < deadline) {
    work = workspace.work(milliseconds(10));
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_EQ(work.changed.size(), 1U);
  EXPECT_EQ(workspace.runs().size(), 2U);
  std::filesystem::remove_all(folder_.path() / "b");
  std::this_thread::sleep_for(milliseconds(100));
  while (work.removed.empty() && std::chrono::steady_clock::now() < deadline) {
    work = workspace.work(milliseconds(10));
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_EQ(work.removed.size(), 1U);
  EXPECT_EQ(workspace.runs().size(), 1U);
  EXPECT_THROW(Workspace({folder_.path() / "missing"}), Error);
}

}  // namespace
}  // namespace primus::dashboard
