// Tests of 'primus dashboard' with a run that trains: the page, its data, the token, and a browser.
#include "cli/program_names.h"
#include "cli/runs.h"
#include "safe/dashboard/client.h"

namespace primus {
namespace {

using test::Program;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::StartsWith;

class Dashboard : public ::testing::Test {
 protected:
  std::vector<std::string> train(const std::string& name, const std::vector<std::string>& more) const {
    std::vector<std::string> words = test::train(folder_.path(), {"exp_name=" + name});
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  // Starts the dashboard, which writes its address into a file. Sets port_.
  std::unique_ptr<Program> start(const std::vector<std::string>& more = {}) {
    const std::string output = (folder_.path() / "address").string();
    write_file(output, "");
    std::vector<std::string> words{"dashboard", folder_.path().string(), "--port", "0"};
    words.insert(words.end(), more.begin(), more.end());
    auto program = std::make_unique<Program>(words, test::ProgramOptions{.output = output});
    for (int i = 0; i < 1000 && !read_file(output).ends_with("\n"); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    address_ = read_file(output);
    const std::size_t colon = address_.find(':', address_.find("//"));
    port_ = colon == std::string::npos ? 0 : std::stoi(address_.substr(colon + 1));
    return program;
  }
  json ask(const std::string& path) const { return json::parse(test::body_of(test::ask(port_, path))); }

  test::TemporaryFolder folder_;
  std::string address_;
  int port_ = 0;
};

TEST_F(Dashboard, FollowsARunThatTrains) {
  std::unique_ptr<Program> server = start();
  ASSERT_GT(port_, 0) << address_;
  EXPECT_THAT(address_, StartsWith("0 runs: http://127.0.0.1:"));
  EXPECT_EQ(ask("/api/runs").at("runs").size(), 0U);
  ASSERT_EQ(run_program(train("one", {"train_iters=20", "--nproc", "2", "--supervise"})).exit_code, 0);
  json list;
  for (int i = 0; i < 200 && (list.empty() || list[0].at("state") != "finished"); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    list = ask("/api/runs").at("runs");
  }
  ASSERT_EQ(list.size(), 1U);
  EXPECT_EQ(list[0].at("state"), "finished");
  EXPECT_EQ(list[0].at("step"), 20);
  EXPECT_EQ(list[0].at("restarts"), 0);
  EXPECT_GT(list[0].at("goodput"), 0);
  const std::string id = list[0].at("id");
  const json run = ask("/api/report?runs=" + id).at("runs").at(0);
  EXPECT_EQ(run.at("curves").at("lm_loss").at("mean").size(), 20U);
  EXPECT_GT(run.at("times").at("useful"), 0);
  const json ranks = ask("/api/ranks?run=" + id);
  ASSERT_EQ(ranks.at("ranks").size(), 2U);
  EXPECT_EQ(ranks.at("ranks").at(1).at("seconds").size(), 20U);
  const json events = ask("/api/events?run=" + id).at("events");
  EXPECT_EQ(events.at(0).at("kind"), "supervise_end");
  EXPECT_THAT(test::ask(port_, "/metrics"), HasSubstr("primus_run_step{run="));
  server->send(SIGTERM);
  EXPECT_EQ(server->wait().exit_code, 0);
}

TEST_F(Dashboard, BeyondThisMachineATokenIsNeeded) {
  const std::unique_ptr<Program> server = start({"--host", "0.0.0.0"});
  ASSERT_GT(port_, 0) << address_;
  const std::size_t at = address_.find("?token=");
  ASSERT_NE(at, std::string::npos) << address_;
  const std::string token = address_.substr(at + 7, address_.find('\n', at) - at - 7);
  for (const char* path : {"/", "/api/runs", "/metrics", "/dashboard.js", "/api/stream", "/?token=x"})
    EXPECT_THAT(test::ask(port_, path), StartsWith("HTTP/1.1 401")) << path;
  EXPECT_THAT(test::ask(port_, "/api/runs", "Authorization: Bearer " + token + "\r\n"),
              StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(test::ask(port_, "/?token=" + token), StartsWith("HTTP/1.1 303"));
  const ProgramResult weak = run_program({"dashboard", folder_.path().string(), "--token", "guess"});
  EXPECT_EQ(weak.exit_code, 2);
  EXPECT_THAT(weak.err, HasSubstr("the token must have"));
}

TEST_F(Dashboard, MistakesAreNamed) {
  EXPECT_THAT(run_program({"dashboard", "/nowhere"}).err, HasSubstr("does not exist"));
  const std::unique_ptr<Program> server = start();
  const ProgramResult second =
      run_program({"dashboard", folder_.path().string(), "--port", std::to_string(port_)});
  EXPECT_EQ(second.exit_code, 2);
  EXPECT_THAT(second.err, AllOf(HasSubstr("in use"), HasSubstr("--port 0")));
  EXPECT_EQ(
      run_program({"dashboard", "--host", "no.such.host.invalid"}, {.folder = folder_.path()}).exit_code, 2);
}

// A browser draws the page, follows a growing file, and shows the names of runs as text.
TEST_F(Dashboard, ABrowserDrawsThePage) {
  if (std::system("command -v python3 && (command -v chromium || command -v chromium-headless-shell)") != 0)
    GTEST_SKIP() << "python3, and chromium or chromium-headless-shell, are not installed";
  const Path other = folder_.path() / "<img src=x onerror=alert(1)>";
  make_folders(other / "events");
  write_file(other / "metrics.jsonl",
             "{\"iteration\":1,\"lm_loss\":2}\n{\"iteration\":2,\"lm_loss\":\"NaN\"}\n{\"iteration\":3,\"lm_"
             "loss\":1}\n");
  write_file(other / "events" / "rank-00000.jsonl",
             "{\"event\":\"begin\",\"step\":0,\"rank\":0,\"time\":1,\"facts\":{\"host\":\"<b>bold</b>\"}}\n"
             "{\"event\":\"step\",\"step\":1,\"rank\":0,\"time\":2,\"before\":0,\"facts\":{\"iteration\":1,"
             "\"elapsed_time_per_iteration_ms\":5}}\n");
  make_folders(other / "timelines");
  write_file(other / "timelines" / "stage-0000.jsonl",
             R"({"step":2,"stage":0,"rank":0,"microseconds":1000,"left_out":0,"spans":[["F",0,0,0,250],)"
             R"(["B",0,0,500,500]]})"
             "\n");
  const std::unique_ptr<Program> server = start();
  const std::string drawn = (folder_.path() / "drawn").string();
  const std::string command =
      fmt::format("timeout 100 python3 {}/scripts/measure-dashboard.py --dom http://127.0.0.1:{}/ > '{}'",
                  PRIMUS_SOURCE_DIR, port_, drawn);
  ASSERT_EQ(std::system(command.c_str()), 0);
  const std::string dom = read_file(drawn);
  EXPECT_THAT(dom, AllOf(HasSubstr(">Loss<"), HasSubstr("class=\"curve\""), HasSubstr("class=\"bad-mark\""),
                         HasSubstr("&lt;img src=x onerror=alert(1)&gt;"),
                         HasSubstr("&lt;b&gt;bold&lt;/b&gt;"), HasSubstr("<canvas")));
  // The stage's shares: forward, backward, weight gradients, two kinds of waiting, and idle.
  EXPECT_THAT(dom, HasSubstr("work of 1 stages in step 2"));
  EXPECT_THAT(dom, HasSubstr("<td>25 %</td><td>50 %</td><td>0 %</td><td>0 %</td><td>0 %</td><td>25 %</td>"
                             "<td>1.0 ms</td>"));
  EXPECT_THAT(dom, AllOf(Not(HasSubstr("<img")), Not(HasSubstr("<b>bold"))));
}

}  // namespace
}  // namespace primus
