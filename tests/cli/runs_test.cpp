// Tests of `runs` and `report` on the files of real training runs.
#include "cli/runs.h"

#include <cstdlib>
#include <filesystem>

#include "cli/program_names.h"

namespace primus {
namespace {

using test::Program;
using test::run_folder;
using test::train;
using ::testing::AllOf;
using ::testing::ElementsAre;

class RunsAndReports : public ::testing::Test {
 protected:
  std::vector<std::string> command(const std::string& name, const std::vector<std::string>& more) const {
    std::vector<std::string> words =
        train(folder_.path(), {"exp_name=" + name, "mock_data=true", "save_interval=4"});
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  json list(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words{"runs", folder_.path().string(), "--json"};
    words.insert(words.end(), more.begin(), more.end());
    const ProgramResult result = run_program(words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json::parse(result.out);
  }
  static std::size_t steps(const Path& run) { return test::losses(run).size(); }
  // Waits until `run` has done at least six steps.
  static void wait_for_steps(const Program& program, const Path& run) {
    while (program.running() && steps(run) < 6) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }

  test::TemporaryFolder folder_;
};

TEST_F(RunsAndReports, StatesOfRealRuns) {
  ASSERT_EQ(run_program(command("done", {"train_iters=5"})).exit_code, 0);
  EXPECT_EQ(list()[0].at("state"), "finished");
  const Path folder = run_folder(folder_.path(), "long");
  {
    Program program(command("long", {"train_iters=1000000"}));
    wait_for_steps(program, folder);
    const json running = list({"--sort", "name"});
    ASSERT_EQ(running.size(), 2U);
    EXPECT_EQ(running[0].at("state"), "finished");
    EXPECT_EQ(running[1].at("state"), "running");
    EXPECT_EQ(running[1].at("steps"), 1000000);
    EXPECT_TRUE(program.running());  // `runs` did not disturb it
    program.send(SIGTERM);
    EXPECT_EQ(program.wait().exit_code, 0);
  }
  EXPECT_EQ(list({"--sort", "name"})[1].at("state"), "interrupted");
  {
    // A killed run without checkpoints has lost its steps.
    Program program(command("killed", {"train_iters=1000000", "save_interval=1000000"}));
    wait_for_steps(program, run_folder(folder_.path(), "killed"));
    program.send(SIGKILL);
    program.wait();
  }
  const json killed = list({"--state", "crashed"});
  ASSERT_EQ(killed.size(), 1U);
  EXPECT_THAT(killed[0].at("folder").get<std::string>(), ::testing::EndsWith("/killed"));
}

// The model is too large for the memory that the limit leaves, or a file is missing: the run has only logs.
TEST_F(RunsAndReports, ARunThatFailedBeforeItsFirstEventIsListed) {
  const Path logs = run_folder(folder_.path(), "early") / "logs" / "pre_trainer" / "rank-0";
  std::filesystem::create_directories(logs);
  write_file(logs / "error.log", "[20261128 10:00:00][rank-0/1][ERROR]    [train.cpp:1] : no memory\n");
  const json runs = list();
  ASSERT_EQ(runs.size(), 1U);
  EXPECT_EQ(runs[0].at("state"), "crashed");
  EXPECT_EQ(runs[0].at("reason"), "before its first step");
  EXPECT_EQ(runs[0].at("failure"), "no memory");
}

TEST_F(RunsAndReports, PrintsATable) {
  ASSERT_EQ(run_program(command("done", {"train_iters=5", "eval_interval=2", "eval_iters=1"})).exit_code, 0);
  const Path damaged = folder_.path() / "w" / "u" / "dam\x1b[31maged";
  make_folders(damaged);
  write_file(damaged / "metrics.jsonl", "rubbish\n");
  const ProgramResult table = run_program({"runs", folder_.path().string()});
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("RUN"));
  EXPECT_THAT(table.out,
              ::testing::ContainsRegex("w/u/done +finished +5/5 +[0-9.]+ +[0-9.]+ +- +[0-9.]+k? "));
  EXPECT_THAT(table.out, HasSubstr("damaged"));
  EXPECT_THAT(table.out, HasSubstr("is not a metrics record"));
  EXPECT_THAT(table.out, Not(HasSubstr("\x1b")));
  EXPECT_EQ(run_program({"runs", "/nowhere"}).exit_code, 2);
  test::TemporaryFolder empty;
  EXPECT_THAT(run_program({"runs", empty.path().string()}).out, HasSubstr("no runs in"));
}

TEST_F(RunsAndReports, OnlyReportsReplaceAReport) {
  ASSERT_EQ(run_program(command("one", {"train_iters=3"})).exit_code, 0);
  ASSERT_EQ(run_program(command("two", {"train_iters=4", "lr=0.001"})).exit_code, 0);
  const std::string page = (folder_.path() / "report.html").string();
  const std::vector<std::string> words{"report", folder_.path().string(), "-o", page};
  const ProgramResult written = run_program(words);
  EXPECT_EQ(written.exit_code, 0) << written.err;
  EXPECT_THAT(written.out, HasSubstr("2 runs"));
  EXPECT_EQ(run_program(words).exit_code, 0);  // a report may replace a report
  const std::string one = run_folder(folder_.path(), "one").string();
  const ProgramResult twice = run_program({"report", one, one + "/", "-o", page});
  EXPECT_THAT(twice.out, HasSubstr("1 run,"));
  EXPECT_THAT(twice.err, HasSubstr("is named more than once, and appears once"));
  EXPECT_EQ(run_program({"report", folder_.path().string(), "-o", "-"}).out.substr(0, 15), "<!DOCTYPE html>");
  write_file(page, "a letter");
  const ProgramResult refused = run_program(words);
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("--overwrite"));
  EXPECT_EQ(read_file(page), "a letter");
  EXPECT_EQ(run_program({"report", folder_.path().string(), "-o", page, "--overwrite"}).exit_code, 0);
  EXPECT_THAT(read_file(page), HasSubstr("<!DOCTYPE html>"));

  const json report = json::parse(run_program({"report", folder_.path().string(), "--json"}).out);
  ASSERT_EQ(report.at("runs").size(), 2U);
  EXPECT_EQ(report.at("runs")[0].at("name"), "one");
  EXPECT_EQ(report.at("runs")[1].at("curves").at("lm_loss").at("mean").size(), 4U);
  std::vector<std::string> differences;
  for (const json& row : report.at("differences")) differences.push_back(row.at("key"));
  EXPECT_THAT(differences, ElementsAre("lr", "train_iters"));

  // A page shows at most 64 runs; JSON has no limit.
  for (int i = 0; i < 63; ++i) {
    const Path copy = folder_.path() / "copies" / std::to_string(i);
    std::filesystem::create_directories(copy);
    std::filesystem::copy(run_folder(folder_.path(), "one") / "metrics.jsonl", copy / "metrics.jsonl");
  }
  EXPECT_THAT(run_program(words).err, AllOf(HasSubstr("these are 65 runs, but a page can show 64"),
                                            HasSubstr("--json has no limit")));
  const ProgramResult all = run_program({"report", folder_.path().string(), "--json"});
  EXPECT_EQ(json::parse(all.out).at("runs").size(), 65U) << all.err;

  EXPECT_EQ(run_program({"report", "/nowhere"}).exit_code, 2);
  test::TemporaryFolder empty;
  EXPECT_THAT(run_program({"report", empty.path().string()}).err, HasSubstr("has no run"));
}

// A browser draws all charts of the page, and shows the names of runs as text.
TEST_F(RunsAndReports, ABrowserDrawsThePage) {
  if (std::system("command -v chromium >/dev/null 2>&1") != 0) GTEST_SKIP() << "chromium is not installed";
  ASSERT_EQ(run_program(command("one", {"train_iters=3"})).exit_code, 0);
  const Path other = folder_.path() / "<img src=x>";
  make_folders(other);
  write_file(other / "metrics.jsonl",
             "{\"iteration\":1,\"lm_loss\":2}\n{\"iteration\":2,\"lm_loss\":\"NaN\"}\n{\"iteration\":3,\"lm_"
             "loss\":1}\n");
  const std::string page = (folder_.path() / "report.html").string(), drawn = page + ".drawn";
  ASSERT_EQ(run_program({"report", folder_.path().string(), "-o", page}).exit_code, 0);
  const std::string browser = "timeout 100 chromium --headless --no-sandbox --disable-gpu --user-data-dir='" +
                              (folder_.path() / "browser").string() +
                              "' --virtual-time-budget=2000 --dump-dom 'file://" + page + "' > '" + drawn +
                              "' 2>/dev/null";
  ASSERT_EQ(std::system(browser.c_str()), 0);
  const std::string dom = read_file(drawn);
  for (const char* title : {">Loss<", ">Gradient norm<", ">Learning rate<", ">Throughput<", ">Memory<"}) {
    EXPECT_THAT(dom, HasSubstr(title));
  }
  EXPECT_THAT(dom, HasSubstr("class=\"curve\""));
  EXPECT_THAT(dom, HasSubstr("class=\"bad-mark\""));
  EXPECT_THAT(dom, HasSubstr("&lt;img src=x&gt;"));
  EXPECT_THAT(dom, Not(HasSubstr("<img")));
}

}  // namespace
}  // namespace primus
