// Tests of preflight, node_smoke and doctor as programs: on this machine, in jobs of several processes, and
// with real faults.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/files/file.h"
#include "cli/program_names.h"

namespace primus {
namespace {

using test::Program;
using test::ProgramOptions;

class Preflight : public ::testing::Test {
 protected:
  std::string file(const std::string& name) const { return (folder_.path() / name).string(); }

  // Returns a check's findings with one of these verdicts, of all nodes and of the cluster.
  static std::vector<json> findings(const json& report, const std::string& check,
                                    const std::vector<std::string>& verdicts) {
    std::vector<json> found;
    const auto look = [&](const json& list) {
      for (const json& f : list) {
        if (!check.empty() && f["check"] != check) continue;
        if (std::find(verdicts.begin(), verdicts.end(), f["verdict"]) != verdicts.end()) found.push_back(f);
      }
    };
    for (const json& node : report["nodes"]) look(node["findings"]);
    look(report["cluster"]);
    return found;
  }
  static std::string text_of(const std::vector<json>& findings) {
    std::string text;
    for (const json& f : findings) text += f.dump() + "\n";
    return text;
  }
  static std::set<std::string> names_of_measurements(const json& report) {
    std::set<std::string> names;
    for (const json& node : report["nodes"])
      for (const json& m : node["measurements"]) names.insert(m["name"]);
    return names;
  }

  static int free_port() {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    if (bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0)
      throw std::runtime_error("no free port");
    close(fd);
    return ntohs(address.sin_port);
  }

  // Returns the variables of rank `rank` in a job of `world` machines with one rank each.
  static ProgramOptions of_rank(int rank, int world, int port) {
    return {.environment = {{"RANK", std::to_string(rank)},
                            {"WORLD_SIZE", std::to_string(world)},
                            {"LOCAL_RANK", "0"},
                            {"LOCAL_WORLD_SIZE", "1"},
                            {"GROUP_RANK", std::to_string(rank)},
                            {"MASTER_ADDR", "127.0.0.1"},
                            {"MASTER_PORT", std::to_string(port)}}};
  }

  test::TemporaryFolder folder_;
};

TEST_F(Preflight, QuickOnThisMachineEndsSoonAndFindsNoFault) {
  const ProgramResult result =
      run_program({"preflight", "--quick", "--device", "cpu", "--skip-dmesg", "--dump-path", file("out"),
                   "--report-file-name", "quick", "--json"});
  const json report = json::parse(result.out);
  EXPECT_EQ(text_of(findings(report, "", {"fail"})), "");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_LT(report["seconds"].get<double>(), 30);
  EXPECT_EQ(names_of_measurements(report),
            (std::set<std::string>{"gemm fp32", "memory copy", "write and sync, checkpoints"}));
  EXPECT_FALSE(findings(report, "performance.corruption", {"pass"}).empty());
  for (const char* ending : {".md", ".html", ".json"})
    EXPECT_TRUE(std::filesystem::exists(file("out/quick") + ending)) << ending;
  EXPECT_EQ(json::parse(read_file(file("out/quick.json")))["passed"], report["passed"]);
}

TEST_F(Preflight, DoctorWritesNothing) {
  ProgramOptions options{.folder = folder_.path().string()};
  const ProgramResult result = run_program({"doctor", "--json"}, options);
  const json report = json::parse(result.out);
  EXPECT_EQ(result.exit_code, report["failures"] == 0 ? 0 : 2);
  EXPECT_FALSE(findings(report, "host.memory", {"pass", "warn"}).empty());
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  EXPECT_THAT(run_program({"doctor", "--all-checks"}, options).out, HasSubstr("host.open-files"));
}

TEST_F(Preflight, ALowLimitOfAChildIsFound) {
  const std::string command =
      fmt::format("ulimit -n 300; {} doctor --json > {}", PRIMUS_PROGRAM, file("low.json"));
  const int status = std::system(command.c_str());
  EXPECT_EQ(WEXITSTATUS(status), 2);
  const auto found = findings(json::parse(read_file(file("low.json"))), "host.open-files", {"fail"});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_THAT(found[0]["measured"].get<std::string>(), HasSubstr("at most 300"));
  EXPECT_THAT(found[0]["fix"].get<std::string>(), HasSubstr("ulimit -n"));
}

TEST_F(Preflight, RanksOfOneMachineExchangeData) {
  const ProgramResult result =
      run_program({"preflight", "--tests", "intra-allreduce,intra-alltoall", "--nproc", "2", "--device",
                   "cpu", "--comm-sizes-mb", "1,2", "--dump-path", file("out"), "--report-file-name", "two",
                   "--plot", "--json"});
  EXPECT_EQ(result.exit_code, 0) << result.err << result.out;
  const json report = json::parse(result.out);
  EXPECT_EQ(report["nodes"].size(), 2U);
  EXPECT_EQ(names_of_measurements(report),
            (std::set<std::string>{
                "all-reduce within nodes, 2 ranks, 1 MiB", "all-reduce within nodes, 2 ranks, 2 MiB",
                "all-to-all within nodes, 2 ranks, 1 MiB", "all-to-all within nodes, 2 ranks, 2 MiB"}));
  EXPECT_THAT(read_file(file("out/two_perf.html")), HasSubstr("<svg"));
}

TEST_F(Preflight, MachinesOfAJobAreCompared) {
  const int port = free_port();
  const std::vector<std::string> words{"preflight",
                                       "--device",
                                       "cpu",
                                       "--skip-dmesg",
                                       "--perf-test",
                                       "--tests",
                                       "inter-allreduce,inter-alltoall,inter-p2p,inter-ring-p2p,slow-nodes",
                                       "--comm-sizes-mb",
                                       "1",
                                       "--ring-p2p-sizes-mb",
                                       "1",
                                       "--inter-group-sizes",
                                       "2,all",
                                       "--dump-path",
                                       file("out"),
                                       "--json"};
  std::vector<std::unique_ptr<Program>> others;
  for (int rank = 1; rank < 3; ++rank)
    others.push_back(std::make_unique<Program>(words, of_rank(rank, 3, port)));
  const ProgramResult first = run_program(words, of_rank(0, 3, port));
  for (const auto& other : others) EXPECT_EQ(other->wait().exit_code, 0);
  const json report = json::parse(first.out);
  ASSERT_EQ(report["nodes"].size(), 3U) << first.err;
  for (const char* name :
       {"all-reduce between nodes, 2 nodes, 1 MiB", "all-reduce between nodes, 3 nodes, 1 MiB",
        "all-to-all between nodes, 3 nodes, 1 MiB", "pairs of nodes, 1 MiB", "ring of nodes, 1 MiB"})
    EXPECT_EQ(names_of_measurements(report).count(name), 1U) << name;
  // The speeds of processes are not checked, because they may differ on a busy machine. No rank is missing,
  // and all other facts agree.
  EXPECT_FALSE(findings(report, "cluster.drift", {"pass"}).empty());
  EXPECT_FALSE(findings(report, "cluster.clocks", {"pass"}).empty());
  EXPECT_TRUE(findings(report, "cluster.missing", {"fail"}).empty());
  EXPECT_TRUE(findings(report, "cluster.rendezvous", {"fail"}).empty());
}

// Nodes with different settings are named: one has a lower limit of open files and another NCCL algorithm.
TEST_F(Preflight, NodesWithDifferentSettingsAreNamed) {
  const int port = free_port();
  const std::vector<std::string> words{"preflight", "--host",    "--skip-dmesg", "--dump-path",
                                       file("out"), "--no-html", "--json"};
  ProgramOptions first_node = of_rank(0, 2, port), second_node = of_rank(1, 2, port);
  first_node.environment["NCCL_ALGO"] = "Ring";
  first_node.environment["NCCL_DEBUG"] = "INFO";
  second_node.environment["NCCL_ALGO"] = "Tree";
  second_node.open_files_limit = 2000;
  Program other(words, second_node);
  const ProgramResult first = run_program(words, first_node);
  EXPECT_EQ(other.wait().exit_code, first.exit_code);
  const json report = json::parse(first.out);
  ASSERT_EQ(report["nodes"].size(), 2U) << first.err;
  std::map<std::string, std::string> drift;
  for (const json& finding : findings(report, "cluster.drift", {"warn"})) {
    drift[finding["where"]] = finding["measured"].get<std::string>() + ", " +
                              finding["wanted"].get<std::string>() + ", " + finding["fix"].get<std::string>();
  }
  EXPECT_THAT(drift["limit: open files"], HasSubstr("'2000'")) << first.out;
  EXPECT_THAT(drift["NCCL_ALGO"], AllOf(HasSubstr("'Ring'"), HasSubstr("'Tree'"), HasSubstr("(rank "),
                                        HasSubstr("--env NCCL_ALGO=")));
  EXPECT_THAT(drift["NCCL_DEBUG"], AllOf(HasSubstr("'INFO'"), HasSubstr("'not set'")));
  EXPECT_EQ(drift.size(), 3U) << first.out;
}

TEST_F(Preflight, ImpossibleTestsAreNoSuccess) {
  const auto run = [&](const std::string& tests, const std::vector<std::string>& more = {}) {
    std::vector<std::string> words{"preflight", "--tests",         tests,      "--device",
                                   "cpu",       "--comm-sizes-mb", "1",        "--dump-path",
                                   file("out"), "--json",          "--no-html"};
    words.insert(words.end(), more.begin(), more.end());
    return run_program(words);
  };
  for (const char* tests : {"inter-allreduce", "intra-allreduce"}) {
    const ProgramResult single = run(tests);
    EXPECT_EQ(single.exit_code, 2) << tests;
    const json report = json::parse(single.out);
    EXPECT_EQ(findings(report, "cluster.exchanges", {"skip"}).size(), 1U) << single.out;
    EXPECT_EQ(findings(report, "cluster.nothing-measured", {"fail"}).size(), 1U) << single.out;
  }
  EXPECT_EQ(run("inter-allreduce", {"--nproc", "2"}).exit_code, 2);
  // A run succeeds if at least one of its tests could run.
  const ProgramResult some = run("inter-allreduce,memory");
  EXPECT_EQ(some.exit_code, 0) << some.out;
  EXPECT_EQ(findings(json::parse(some.out), "cluster.exchanges", {"skip"}).size(), 1U);
  EXPECT_THAT(json::parse(some.out)["notes"].dump(), HasSubstr("not run: tests within and between nodes"));
}

TEST_F(Preflight, ASectionWithoutChecksFails) {
  make_folders(file("no-machine"));
  const auto run = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words{"preflight",        "--device",    "cpu",       "--skip-dmesg", "--root",
                                   file("no-machine"), "--dump-path", file("out"), "--no-html",    "--json"};
    words.insert(words.end(), more.begin(), more.end());
    return run_program(words, {.environment = {{"PATH", "/nowhere"}}});
  };
  const ProgramResult gpus = run({"--gpu"});
  EXPECT_EQ(gpus.exit_code, 2) << gpus.out;
  EXPECT_EQ(findings(json::parse(gpus.out), "cluster.nothing-checked", {"fail"}).size(), 1U) << gpus.out;
  const ProgramResult none = run({"--gpu", "--expected-gpus", "0"});
  EXPECT_EQ(none.exit_code, 0) << none.out;
}

// Two launchers on this machine with the variables that srun would set form one preflight.
TEST_F(Preflight, TheNodesOfASlurmJobFormOnePreflight) {
  const std::vector<std::string> words{"direct",      "--",        "preflight", "--host", "--skip-dmesg",
                                       "--dump-path", file("out"), "--no-html", "--json"};
  const int port = free_port();
  const auto on_node = [&](int node) {
    const std::string number = std::to_string(node);
    return ProgramOptions{.environment = {{"SLURM_JOB_ID", "4711"},
                                          {"SLURM_STEP_ID", "3"},
                                          {"SLURM_NNODES", "2"},
                                          {"SLURM_NTASKS", "2"},
                                          {"SLURM_PROCID", number},
                                          {"SLURM_NODEID", number},
                                          {"SLURM_LOCALID", "0"},
                                          {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
                                          {"SLURM_STEP_NODELIST", "localhost,localhost"},
                                          {"CUDA_VISIBLE_DEVICES", ""},
                                          {"HIP_VISIBLE_DEVICES", ""},
                                          {"NNODES", "1"},  // left over from an earlier launch
                                          {"MASTER_PORT", std::to_string(port)},
                                          {"PRIMUS_JOB_TOKEN", "a-token"}}};
  };
  Program other(words, on_node(1));
  const ProgramResult first = run_program(words, on_node(0));
  EXPECT_THAT(first.err, HasSubstr("NNODES=1 of the environment is ignored"));
  const ProgramResult second = other.wait();
  const json report = json::parse(first.out);
  EXPECT_EQ(report["nodes"].size(), 2U) << first.err;
  EXPECT_TRUE(findings(report, "cluster.missing", {"fail"}).empty());
  EXPECT_FALSE(findings(report, "cluster.drift", {"pass", "warn", "fail"}).empty());
  EXPECT_EQ(second.out, "") << "only the first rank reports";
  int reports = 0;
  for (const auto& entry : std::filesystem::directory_iterator(file("out"))) {
    const std::string name = entry.path().filename().string();
    if (entry.path().extension() != ".json") continue;
    ++reports;
    EXPECT_THAT(name, HasSubstr("preflight-2N-"));
    EXPECT_THAT(name, HasSubstr("-job4711.3.json"));
  }
  EXPECT_EQ(reports, 1);
}

TEST_F(Preflight, AMissingMachineIsNamedAndTheOthersAreReported) {
  const int port = free_port();
  const std::vector<std::string> words{"preflight", "--host",      "--skip-dmesg", "--dist-timeout-sec",
                                       "4",         "--dump-path", file("out"),    "--json"};
  Program other(words, of_rank(2, 3, port));
  const ProgramResult first = run_program(words, of_rank(0, 3, port));
  EXPECT_EQ(first.exit_code, 2);
  EXPECT_EQ(other.wait().exit_code, 2);
  const json report = json::parse(first.out);
  EXPECT_EQ(report["nodes"].size(), 2U);
  const auto missing = findings(report, "cluster.missing", {"fail"});
  ASSERT_EQ(missing.size(), 1U);
  EXPECT_EQ(missing[0]["where"], "rank 1");
}

TEST_F(Preflight, ARankThatIsKilledIsAFailureNotAHang) {
  const int port = free_port();
  const std::vector<std::string> words{
      "preflight",          "--tests", "inter-allreduce", "--device",  "cpu",   "--comm-sizes-mb", "256,512",
      "--dist-timeout-sec", "20",      "--dump-path",     file("out"), "--json"};
  Program first(words, of_rank(0, 2, port));
  {
    Program other(words, of_rank(1, 2, port));
    // SIGSTOP comes before the kill, and the messages are so large that they take seconds. Otherwise a fast
    // machine would finish before the kill.
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
    other.send(SIGSTOP);
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    other.send(SIGKILL);
    other.wait();
  }
  const ProgramResult result = first.wait();
  const json report = json::parse(result.out);
  EXPECT_EQ(result.exit_code, 2);
  const auto lost = findings(report, "", {"fail"});
  ASSERT_FALSE(lost.empty());
  EXPECT_THAT(text_of(lost), ::testing::AnyOf(HasSubstr("cluster.rendezvous"), HasSubstr("cluster.missing")));
}

TEST_F(Preflight, ExperimentsThatDoNotFitAreFound) {
  const std::string example = PRIMUS_SOURCE_DIR "/examples/native/configs/CPU/llama_tiny-text.yaml";
  const ProgramResult result =
      run_program({"preflight", "--host", "--skip-dmesg", "--config", example, "--dump-path", file("out"),
                   "--json", "data_path=" + file("nowhere.txt"), "workspace=" + file("runs")});
  const json report = json::parse(result.out);
  EXPECT_EQ(result.exit_code, 2);
  const auto data = findings(report, "experiment.data", {"fail"});
  ASSERT_FALSE(data.empty()) << result.out;
  EXPECT_THAT(text_of(data), HasSubstr("nowhere.txt"));
  // The memory of no machine is large enough for this batch.
  write_file(file("text.txt"), std::string(100'000, 'a'));
  const ProgramResult large =
      run_program({"preflight", "--host", "--skip-dmesg", "--config", example, "--dump-path", file("out"),
                   "--json", "data_path=" + file("text.txt"), "workspace=" + file("runs"),
                   "micro_batch_size=1048576", "global_batch_size=1048576"});
  EXPECT_EQ(findings(json::parse(large.out), "experiment.memory", {"fail"}).size(), 1U) << large.out;
}

TEST_F(Preflight, WrongArgumentsAreRefusedBeforeAnythingIsStarted) {
  struct Case {
    std::vector<std::string> words;
    std::string message;
  };
  for (const Case& c : {Case{{"--tests", "gem"}, "there is no test 'gem'"},
                        {{"--comm-sizes-mb", "64,0"}, "'0' is not a number"},
                        {{"--tests", "intra-allreduce", "--nproc", "4", "--intra-group-sizes", "3"},
                         "3 does not divide the 4 ranks"},
                        {{"--report-file-name", "../x"}, "not a file name"},
                        {{"--dist-timeout-sec", "0"}, "--dist-timeout-sec 0"},
                        {{"lr=3"}, "need --config"},
                        {{"--root", "/no/such/folder"}, "does not exist"}}) {
    std::vector<std::string> words{"preflight", "--dump-path", file("out")};
    words.insert(words.end(), c.words.begin(), c.words.end());
    const ProgramResult result = run_program(words);
    EXPECT_EQ(result.exit_code, 2) << c.message;
    EXPECT_THAT(result.err, HasSubstr(c.message));
    EXPECT_FALSE(std::filesystem::exists(file("out")));
  }
}

// --nnodes cannot change the number of ranks that a launcher started.
TEST_F(Preflight, NodesThatTheLauncherDidNotStartAreRefused) {
  const ProgramResult result = run_program({"preflight", "--host", "--nnodes", "3", "--master_addr",
                                            "127.0.0.1", "--master_port", "1", "--dump-path", file("out")},
                                           of_rank(0, 2, free_port()));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("--nnodes is 3, but a launcher has already started 2 ranks"));
}

// --expected-gpus is checked with each section.
TEST_F(Preflight, ExpectationsAreCheckedInEverySection) {
  const std::vector<std::vector<std::string>> sections{{"--host"},
                                                       {"--network"},
                                                       {"--gpu"},
                                                       {"--tests", "gemm"},
                                                       {"--tests", "memory", "--host"},
                                                       {"--perf-test", "--tests", "corruption"}};
  for (const std::vector<std::string>& section : sections) {
    std::vector<std::string> words{"preflight",    "--expected-gpus", "8192",      "--device",  "cpu",
                                   "--skip-dmesg", "--dump-path",     file("out"), "--no-html", "--json"};
    words.insert(words.end(), section.begin(), section.end());
    const ProgramResult result = run_program(words);
    EXPECT_EQ(result.exit_code, 2) << section.back() << result.err;
    const json report = json::parse(result.out);
    const auto found = findings(report, "gpu.count", {"fail"});
    ASSERT_EQ(found.size(), 1U) << section.back();
    EXPECT_EQ(found[0]["source"], "--expected-gpus");
    // Checks of sections that were not requested are left out.
    if (section[0] != "--gpu") {
      EXPECT_TRUE(findings(report, "gpu.tools", {"pass", "skip"}).empty());
    }
  }
  // In a job, only the first rank of each machine counts the GPUs.
  const ProgramResult ranks =
      run_program({"preflight", "--tests", "intra-allreduce", "--nproc", "2", "--comm-sizes-mb", "1",
                   "--expected-gpus", "8192", "--device", "cpu", "--dump-path", file("out"), "--json"});
  EXPECT_EQ(ranks.exit_code, 2);
  EXPECT_EQ(findings(json::parse(ranks.out), "gpu.count", {"fail"}).size(), 1U);
}

TEST_F(Preflight, RequirementsInVariablesAreCheckedOrReported) {
  const auto run = [&](const std::vector<std::string>& more, const std::string& variable) {
    std::vector<std::string> words{"preflight",   "--device",  "cpu",       "--skip-dmesg",
                                   "--dump-path", file("out"), "--no-html", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    return run_program(words, {.environment = {{variable, "100000"}, {"PATH", "/usr/bin:/bin"}}});
  };
  for (const std::vector<std::string>& section :
       std::vector<std::vector<std::string>>{{"--host"}, {"--gpu"}, {"--tests", "corruption"}}) {
    const ProgramResult free = run(section, "PRIMUS_PREFLIGHT_MIN_FREE_MEM_GB");
    EXPECT_EQ(free.exit_code, 2) << section.back();
    EXPECT_FALSE(findings(json::parse(free.out), "gpu.free-memory", {"fail"}).empty()) << free.out;
  }
  EXPECT_EQ(run({"--quick", "--host"}, "PRIMUS_PREFLIGHT_MIN_TFLOPS").exit_code, 2);
  EXPECT_THAT(run({"--host"}, "PRIMUS_PREFLIGHT_MIN_TFLOPS").out,
              HasSubstr("PRIMUS_PREFLIGHT_MIN_TFLOPS: no effect, because no product was measured"));
}

TEST_F(Preflight, SelectorsAndOptionsWithoutEffectAreReported) {
  const ProgramResult info = run_program(
      {"preflight", "--network", "--comm-sizes-mb", "8", "--dump-path", file("out"), "--no-html"});
  EXPECT_THAT(info.out, HasSubstr("--comm-sizes-mb: no effect"));
  const ProgramResult perf = run_program({"preflight", "--host", "--tests", "storage", "--device", "cpu",
                                          "--dump-path", file("out"), "--no-html"});
  EXPECT_THAT(perf.out, HasSubstr("--host, --gpu and --network were left out"));

  const auto run = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words{"preflight",   "--device",  "cpu",      "--skip-dmesg",
                                   "--dump-path", file("out"), "--no-html"};
    words.insert(words.end(), more.begin(), more.end());
    return run_program(words).out;
  };
  const std::string corruption =
      run({"--tests", "corruption,inter-p2p", "--intra-group-sizes", "1", "--inter-group-sizes", "2",
           "--no-split-nodes-subgroup", "--ring-p2p-sizes-mb", "1", "--plot", "--storage-path",
           folder_.path().string()});
  EXPECT_THAT(
      corruption,
      AllOf(HasSubstr("--intra-group-sizes, --inter-group-sizes, --ring-p2p-sizes-mb: no effect"),
            HasSubstr("inter-p2p was left out, because --no-split-nodes-subgroup"),
            HasSubstr("--plot: no effect, because --no-html"), HasSubstr("--storage-path: no effect")));
  EXPECT_THAT(run({"--tests", "corruption,intra-allreduce", "--comm-sizes-mb", "1"}),
              HasSubstr("--comm-sizes-mb: no effect, because the job has one rank"));
  EXPECT_THAT(run({"--host", "--plot"}), HasSubstr("--plot: no effect"));
}

// Skipped tests are reported: a group larger than the job, and nodes that belong to no group.
TEST_F(Preflight, ImpossibleGroupsOfNodesAreReported) {
  const int port = free_port();
  const std::vector<std::string> words{"preflight",
                                       "--device",
                                       "cpu",
                                       "--tests",
                                       "inter-allreduce,inter-p2p",
                                       "--comm-sizes-mb",
                                       "1",
                                       "--inter-group-sizes",
                                       "2,8",
                                       "--dump-path",
                                       file("out"),
                                       "--json"};
  Program second(words, of_rank(1, 3, port)), third(words, of_rank(2, 3, port));
  const ProgramResult first = run_program(words, of_rank(0, 3, port));
  second.wait();
  third.wait();
  EXPECT_THAT(text_of(findings(json::parse(first.out), "cluster.communication", {"skip"})),
              AllOf(HasSubstr("all-reduce between nodes, groups of 8: the job has 3 nodes"),
                    HasSubstr("the last 1 of 3 nodes are in no group"),
                    HasSubstr("pairs of nodes: the last of 3 nodes has no partner")));
}

// Two ranks on one node have different NCCL algorithms, and are named.
TEST_F(Preflight, RanksOfOneNodeWithDifferentSettingsAreNamed) {
  const int port = free_port();
  const auto rank = [&](int number, const std::string& algorithm) {
    ProgramOptions options = of_rank(number, 2, port);
    options.environment["LOCAL_RANK"] = std::to_string(number);
    options.environment["LOCAL_WORLD_SIZE"] = "2";
    options.environment["GROUP_RANK"] = "0";
    options.environment["NCCL_ALGO"] = algorithm;
    options.environment["UCX_NET_DEVICES"] = "mlx5_" + std::to_string(number);  // a card per rank
    if (number == 1) options.environment["NCCL_DEBUG"] = "INFO";
    return options;
  };
  const std::vector<std::string> words{"preflight", "--host",    "--skip-dmesg", "--dump-path",
                                       file("out"), "--no-html", "--json"};
  Program other(words, rank(1, "Tree"));
  const ProgramResult first = run_program(words, rank(0, "Ring"));
  other.wait();
  std::map<std::string, std::string> drift;
  for (const json& finding : findings(json::parse(first.out), "cluster.drift", {"warn"}))
    drift[finding["where"]] =
        finding["measured"].get<std::string>() + ", " + finding["wanted"].get<std::string>();
  EXPECT_THAT(drift["NCCL_ALGO"], AllOf(HasSubstr("'Ring'"), HasSubstr("'Tree'"), HasSubstr("as on 1 rank")));
  EXPECT_THAT(drift["NCCL_DEBUG"], AllOf(HasSubstr("'INFO'"), HasSubstr("'not set'")));
  EXPECT_EQ(drift.size(), 2U) << first.out;
}

// As with `srun primus direct --single -- preflight`, two tasks check concurrently. Each writes its own
// report into the shared folder.
TEST_F(Preflight, ConcurrentPreflightsKeepTheirReports) {
  const auto task = [](int number) {
    return ProgramOptions{.environment = {{"SLURM_JOB_ID", "4711"},
                                          {"SLURM_STEP_ID", "3"},
                                          {"SLURM_STEP_NUM_TASKS", "2"},
                                          {"SLURM_PROCID", std::to_string(number)}}};
  };
  const std::vector<std::string> words{"preflight",
                                       "--tests",
                                       "intra-allreduce",
                                       "--comm-sizes-mb",
                                       "1",
                                       "--nproc",
                                       "2",
                                       "--device",
                                       "cpu",
                                       "--dump-path",
                                       file("out"),
                                       "--report-file-name",
                                       "mine",
                                       "--no-html"};
  Program other(words, task(1));
  EXPECT_EQ(run_program(words, task(0)).exit_code, 0);
  EXPECT_EQ(other.wait().exit_code, 0);
  for (const char* name : {"mine_perf.0-of-2.json", "mine_perf.1-of-2.json", "ranks.0-of-2/rank-0.log",
                           "ranks.1-of-2/rank-1.log"})
    EXPECT_TRUE(std::filesystem::exists(file("out/") + name)) << name;
  EXPECT_THAT(read_file(file("out/mine_perf.1-of-2.json")), HasSubstr("task 1 of 2"));
}

TEST_F(Preflight, NodeSmokeListsPassedNodes) {
  const std::vector<std::string> words{"node_smoke", "--skip-dmesg", "--dump-path", file("out"), "--json"};
  const ProgramResult result = run_program(words);
  EXPECT_EQ(result.exit_code, 0) << result.out;
  const json report = json::parse(result.out);
  const std::string host = report["nodes"][0]["host"];
  EXPECT_EQ(read_file(file("out/passing_nodes.txt")), host + "\n");
  EXPECT_EQ(read_file(file("out/failing_nodes.txt")), "");
  EXPECT_TRUE(std::filesystem::exists(file("out/smoke_report.md")));

  // The second node has a report. The third is only in Slurm's list.
  json other = json::parse(read_file(file("out/smoke/" + host + ".json")));
  other["host"] = "node-b";
  other["rank"] = other["node"] = 1;
  write_file(file("out/smoke/node-b.json"), other.dump());
  write_file(file("list"), host + "\nnode-b\nnode-c\n");
  std::vector<std::string> again = words;
  again.insert(again.end(),
               {"--no-clean-dump-path", "--expected-nodelist-file", file("list"), "--wait-timeout-sec", "1"});
  const ProgramResult missing = run_program(again);
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_EQ(read_file(file("out/failing_nodes.txt")), "node-c\n");
  EXPECT_THAT(read_file(file("out/passing_nodes.txt")), HasSubstr("node-b\n"));
  EXPECT_EQ(findings(json::parse(missing.out), "cluster.missing", {"fail"}).size(), 1U);
}

// node_smoke removes only its own earlier reports. Other files, and files reached through links, are kept.
TEST_F(Preflight, NodeSmokeRemovesOnlyItsOwnReports) {
  const std::vector<std::string> words{
      "node_smoke", "--skip-dmesg", "--dump-path", file("out"), "--json", "--wait-timeout-sec", "0"};
  ASSERT_EQ(run_program(words).exit_code, 0);
  std::string own;
  for (const auto& entry : std::filesystem::directory_iterator(file("out/smoke")))
    own = entry.path().string();
  const std::string report = read_file(own);
  json old = json::parse(report);
  old["host"] = "node-of-an-earlier-run";
  write_file(file("out/smoke/old.json"), old.dump());
  write_file(file("out/smoke/mine.json"), "{\"a\": 1}");
  write_file(file("out/smoke/text.json"), "x");
  json other = old;  // a report of another command
  other.erase("run");
  write_file(file("out/smoke/other.json"), other.dump());
  write_file(file("elsewhere.json"), old.dump());
  std::filesystem::create_symlink(file("elsewhere.json"), file("out/smoke/link.json"));
  ASSERT_EQ(run_program(words).exit_code, 0);
  EXPECT_FALSE(std::filesystem::exists(file("out/smoke/old.json")));
  for (const char* name : {"mine.json", "text.json", "other.json", "link.json"})
    EXPECT_TRUE(std::filesystem::is_regular_file(file("out/smoke/") + name)) << name;
  EXPECT_EQ(read_file(file("elsewhere.json")), old.dump());

  // The report folder is itself a link.
  std::filesystem::create_directories(file("keep"));
  std::filesystem::create_directories(file("linked"));
  write_file(file("keep/old.json"), old.dump());
  write_file(file("keep/a.json"), "x");
  std::filesystem::create_symlink(file("keep"), file("linked/smoke"));
  std::vector<std::string> linked = words;
  linked[3] = file("linked");
  EXPECT_THAT(run_program(linked).err, HasSubstr("is a link, so reports of earlier runs are kept"));
  EXPECT_EQ(read_file(file("keep/a.json")), "x");
  EXPECT_EQ(read_file(file("keep/old.json")), old.dump());

  // A file that is no report has the report's name.
  write_file(own, "precious");
  const ProgramResult taken = run_program(words);
  EXPECT_EQ(taken.exit_code, 2);
  EXPECT_THAT(taken.err, HasSubstr("exists and is not a node_smoke report"));
  EXPECT_EQ(read_file(own), "precious");
}

TEST_F(Preflight, NodeSmokeComparesTheNodeWithExpectations) {
  const ProgramResult result =
      run_program({"node_smoke", "--skip-dmesg", "--dump-path", file("out"), "--expected-gpus", "8192",
                   "--require-tools", "no-such-tool", "--expected-rdma-nics", "77", "--json"});
  EXPECT_EQ(result.exit_code, 1);
  const json report = json::parse(result.out);
  for (const char* check : {"gpu.count", "host.tools", "network.rdma-count"})
    EXPECT_FALSE(findings(report, check, {"fail"}).empty()) << check;
}

// With one rank, `direct` sets GPUS_PER_NODE=1, which must not demand a GPU.
TEST_F(Preflight, NodeSmokeUnderALauncherExpectsNoGpuOnANodeWithoutGpus) {
  const ProgramResult result =
      run_program({"direct", "--", "node_smoke", "--skip-dmesg", "--dump-path", file("out"), "--json"});
  EXPECT_TRUE(findings(json::parse(result.out), "gpu.count", {"fail"}).empty()) << result.out;
}

// A threshold without its measurement is refused.
TEST_F(Preflight, NodeSmokeMeasuresRequestedThresholdsOrRefuses) {
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"--gemm-tflops-min", "700"},
                                             {"--hbm-gbs-min", "4500"},
                                             {"--rccl-gbs-min", "180"},
                                             {"--rccl-size-mb", "32"},
                                             {"--rccl-timeout-sec", "60"}}) {
    std::vector<std::string> all{"node_smoke", "--dump-path", file("none")};
    all.insert(all.end(), words.begin(), words.end());
    const ProgramResult result = run_program(all);
    EXPECT_EQ(result.exit_code, 2) << words[0];
    EXPECT_THAT(result.err, AllOf(HasSubstr(words[0]), HasSubstr("add --tier2-perf")));
  }
  write_file(file("empty"), "\n");
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"--expected-rdma-nics", "-1"},
                                             {"--shm-min-gb", "-1"},
                                             {"--tier2-perf", "--gemm-tflops-min", "-3"},
                                             {"--skip-dmesg", "--dmesg-minutes", "5"},
                                             {"--expected-nodelist-file", file("empty")}}) {
    std::vector<std::string> all{"node_smoke", "--dump-path", file("none")};
    all.insert(all.end(), words.begin(), words.end());
    EXPECT_EQ(run_program(all).exit_code, 2) << words[0];
  }
  EXPECT_FALSE(std::filesystem::exists(file("none")));
  // Without GPUs, the all-reduce cannot be measured, so its threshold fails.
  const ProgramResult result =
      run_program({"node_smoke", "--skip-dmesg", "--dump-path", file("out"), "--tier2-perf", "--rccl-gbs-min",
                   "180", "--json"},
                  {.environment = {{"CUDA_VISIBLE_DEVICES", ""}, {"HIP_VISIBLE_DEVICES", ""}}});
  EXPECT_EQ(result.exit_code, 1);
  const auto found = findings(json::parse(result.out), "performance.all-reduce", {"fail"});
  ASSERT_EQ(found.size(), 1U) << result.out;
  EXPECT_EQ(found[0]["source"], "--rccl-gbs-min");
}

TEST_F(Preflight, NodeSmokeExpectsTheListedPorts) {
  const ProgramResult result = run_program({"node_smoke", "--skip-dmesg", "--dump-path", file("out"),
                                            "--rdma-nic-allowlist", "nosuch0,nosuch1:1", "--json"});
  EXPECT_EQ(result.exit_code, 1);
  const auto found = findings(json::parse(result.out), "network.rdma-variable", {"fail"});
  ASSERT_EQ(found.size(), 1U) << result.out;
  EXPECT_THAT(found[0]["measured"].get<std::string>(), HasSubstr("nosuch0, nosuch1:1"));
}

// Runs in the environment that srun sets for a step's tasks. The nodes' names differ from the host's.
class NodeSmokeOfAStep : public Preflight {
 protected:
  ProgramOptions on(int node, int local = 0) const {
    return {.environment = {{"SLURM_JOB_ID", "4711"},
                            {"SLURM_STEP_ID", "3"},
                            {"SLURM_STEP_NUM_TASKS", "4"},
                            {"SLURM_NNODES", "2"},
                            {"SLURM_NODEID", std::to_string(node)},
                            {"SLURM_LOCALID", std::to_string(local)},
                            {"SLURM_PROCID", std::to_string(2 * node + local)},
                            {"SLURM_STEP_NODELIST", "gpu-[07,12]"},
                            {"SLURM_JOB_NODELIST", "gpu-[07-12]"},  // more nodes than the step has
                            {"SLURMD_NODENAME", node == 0 ? "gpu-07" : "gpu-12"},
                            {"NODE_RANK", "0"},  // left over from an earlier launch
                            {"PATH", "/usr/bin:/bin"}}};
  }
  std::vector<std::string> words() const {
    return {"node_smoke", "--skip-dmesg", "--dump-path", file("out"), "--wait-timeout-sec", "20", "--json"};
  }
};

TEST_F(NodeSmokeOfAStep, NodesHaveSlurmsNames) {
  // The second node finishes before the first one starts, and the folder has an old report.
  const ProgramResult second = run_program(words(), on(1));
  EXPECT_EQ(second.exit_code, 0) << second.err;
  json old = json::parse(read_file(file("out/smoke/gpu-12.json")));
  ASSERT_TRUE(old.contains("run"));
  old["run"] = "an earlier step";
  write_file(file("out/smoke/gpu-03.json"), old.dump());
  const ProgramResult first = run_program(words(), on(0));
  EXPECT_EQ(first.exit_code, 0) << first.out << first.err;
  const json report = json::parse(first.out);
  ASSERT_EQ(report["nodes"].size(), 2U);
  EXPECT_TRUE(findings(report, "cluster.missing", {"fail"}).empty());
  EXPECT_EQ(read_file(file("out/passing_nodes.txt")), "gpu-07\ngpu-12\n");
  EXPECT_EQ(read_file(file("out/expected_nodes.txt")), "gpu-07\ngpu-12\n");
  EXPECT_TRUE(std::filesystem::exists(file("out/smoke/gpu-12.json")));
  EXPECT_FALSE(std::filesystem::exists(file("out/smoke/gpu-03.json")));
}

// The number of Slurm tasks per node does not state how many GPUs are expected. An explicit GPUS_PER_NODE
// does.
TEST_F(NodeSmokeOfAStep, TasksUnderALauncherAreNotCountedAsGpus) {
  for (const bool said : {false, true}) {
    const auto gpus_missing = [&](int node) {
      ProgramOptions options = on(node);
      options.environment["SLURM_NTASKS"] = "4";
      options.environment["SLURM_STEP_TASKS_PER_NODE"] = "2(x2)";
      if (said) options.environment["GPUS_PER_NODE"] = "2";
      std::vector<std::string> all{"direct", "--"};
      const std::vector<std::string> smoke = words();
      all.insert(all.end(), smoke.begin(), smoke.end());
      const ProgramResult result = run_program(all, options);
      return result.out.empty() ? json() : json::parse(result.out);
    };
    gpus_missing(1);
    EXPECT_EQ(findings(gpus_missing(0), "gpu.count", {"fail"}).empty(), !said);
  }
}

TEST_F(NodeSmokeOfAStep, OneTaskOfEachNodeChecksTheNode) {
  const ProgramResult other = run_program(words(), on(0, 1));
  EXPECT_EQ(other.exit_code, 0);
  EXPECT_THAT(other.err, HasSubstr("node_smoke checks each node once: the first process on gpu-07 does it"));
  EXPECT_FALSE(std::filesystem::exists(file("out")));
}

TEST_F(NodeSmokeOfAStep, NodeZeroReportsFailuresOfOtherNodes) {
  std::vector<std::string> demanding = words();
  demanding.insert(demanding.end(), {"--require-tools", "no-such-tool"});
  // The task ends with code 0, because an error would let Slurm end the step before node 0 reports.
  const ProgramResult second = run_program(demanding, on(1));
  EXPECT_EQ(second.exit_code, 0);
  EXPECT_THAT(second.err, HasSubstr("gpu-12: fail"));
  EXPECT_EQ(run_program(words(), on(0)).exit_code, 1);
  EXPECT_EQ(read_file(file("out/failing_nodes.txt")), "gpu-12\n");
  // A report of another Slurm step does not count for this step.
  ProgramOptions later = on(0);
  later.environment["SLURM_STEP_ID"] = "4";
  std::vector<std::string> kept = words();
  kept.insert(kept.end(), {"--no-clean-dump-path"});
  kept[5] = "1";
  EXPECT_EQ(run_program(kept, later).exit_code, 1);
  EXPECT_EQ(read_file(file("out/failing_nodes.txt")), "gpu-12\n");
}

// A node list may have names with or without domain, and addresses.
TEST_F(Preflight, NodeSmokeRecognizesAHostWithItsDomain) {
  const std::vector<std::string> words{
      "node_smoke", "--skip-dmesg",       "--dump-path", file("out"),
      "--json",     "--wait-timeout-sec", "1",           "--expected-nodelist-file",
      file("list")};
  ASSERT_EQ(run_program({"node_smoke", "--skip-dmesg", "--dump-path", file("out")}).exit_code, 0);
  std::string host = read_file(file("out/passing_nodes.txt"));
  host.pop_back();
  write_file(file("list"), host + ".cluster.example\n");
  EXPECT_EQ(run_program(words).exit_code, 0);
  write_file(file("list"), host + "\n10.0.0.7\n10.0.0.8\n");
  EXPECT_EQ(run_program(words).exit_code, 1);
  EXPECT_EQ(read_file(file("out/failing_nodes.txt")), "10.0.0.7\n10.0.0.8\n");
}

}  // namespace
}  // namespace primus
