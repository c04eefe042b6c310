// Tests of `primus slurm` on a real Slurm: a controller and two nodes on this machine, run by the current
// user with their own munge, ports and folders. Skipped without Debian's packages slurmctld, slurmd,
// slurm-client and munge.
#include <netinet/in.h>
#include <pwd.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <iostream>
#include <iterator>
#include <optional>
#include <set>
#include <thread>

#include "base/files/file.h"
#include "base/system/subprocess.h"
#include "cli/program_names.h"
#include "launch/option_samples.h"
#include "launch/options/tables.h"

namespace primus {
namespace {

using namespace std::chrono_literals;
using test::ProgramOptions;

const std::string kExperiment = PRIMUS_SOURCE_DIR "/examples/native/configs/CPU/llama_tiny-pretrain.yaml";
constexpr const char* kPath = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin";

std::string find(const std::string& program) { return find_program(program, kPath); }

int free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  bind(fd, reinterpret_cast<sockaddr*>(&address), size);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  close(fd);
  return ntohs(address.sin_port);
}

bool wait_until(const std::function<bool()>& condition, std::chrono::seconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(100ms);
  }
  return true;
}

// Returns a process whose environment has all of these variables.
std::optional<pid_t> process_with(const std::vector<std::string>& variables) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "environ", std::ios::binary);
    const std::string text = '\0' + std::string{std::istreambuf_iterator<char>(file), {}};
    const bool all = std::all_of(variables.begin(), variables.end(), [&](const std::string& variable) {
      return text.find('\0' + variable + '\0') != std::string::npos;
    });
    if (all) return static_cast<pid_t>(std::stol(entry.path().filename().string()));
  }
  return std::nullopt;
}

// A process that runs until the test ends, with its output in a file.
class Daemon {
 public:
  Daemon(const std::vector<std::string>& command, const Path& log) {
    pid_ = fork();
    if (pid_ == 0) {
      setpgid(0, 0);
      prctl(PR_SET_PDEATHSIG, SIGTERM);  // ends the cluster if the test is killed
      const int fd = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
      dup2(fd, 1);
      dup2(fd, 2);
      dup2(open("/dev/null", O_RDONLY), 0);
      std::vector<char*> argv;
      for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
      argv.push_back(nullptr);
      execv(argv[0], argv.data());
      _exit(127);
    }
  }
  ~Daemon() { end(SIGTERM); }
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;
  pid_t pid() const { return pid_; }
  void end(int signal) {
    if (pid_ <= 0) return;
    kill(pid_, signal);
    for (int i = 0; i < 50 && waitpid(pid_, nullptr, WNOHANG) == 0; ++i) {
      std::this_thread::sleep_for(100ms);
      if (i == 30) kill(pid_, SIGKILL);
    }
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
};

std::set<pid_t> all_processes() {
  std::set<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") == std::string::npos)
      found.insert(static_cast<pid_t>(std::stol(name)));
  }
  return found;
}

// Returns the content of a file of /proc, or "" if the process has ended.
std::string text_of(const Path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// Returns the processes of this machine with `mark` in their environment.
std::set<pid_t> processes_with(const std::string& mark) {
  std::set<pid_t> found;
  for (const pid_t pid : all_processes())
    if (text_of("/proc/" + std::to_string(pid) + "/environ").find(mark) != std::string::npos)
      found.insert(pid);
  return found;
}

class Cluster {
 public:
  Cluster() {
    const Path& f = folder_.path();
    for (const char* name : {"state", "spool-n1", "spool-n2", "tmp-n1", "tmp-n2", "munge", "home"})
      make_folders(f / name);
    std::filesystem::permissions(f, std::filesystem::perms(0711));
    std::filesystem::permissions(f / "munge", std::filesystem::perms(0711));
    const std::string key = (f / "munge/key").string();
    std::ofstream(key).flush();  // empty until only its owner can read it
    std::filesystem::permissions(key,
                                 std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
    std::string random(1024, '\0');
    std::ifstream("/dev/urandom", std::ios::binary).read(random.data(), 1024);
    std::ofstream(key, std::ios::binary) << random;
    const std::string socket = (f / "munge/socket").string();
    munged_ = std::make_unique<Daemon>(
        std::vector<std::string>{find("munged"), "--foreground", "--force", "--socket=" + socket,
                                 "--key-file=" + key, "--pid-file=" + (f / "munge/pid").string(),
                                 "--log-file=" + (f / "munge/log").string(),
                                 "--seed-file=" + (f / "munge/seed").string(), "--num-threads=2"},
        f / "munged.out");
    const passwd* const user = getpwuid(getuid());
    char host[256] = {};
    gethostname(host, sizeof(host) - 1);
    const std::string name = std::string(host).substr(0, std::string(host).find('.'));
    const std::string me = user ? user->pw_name : "root", at = f.string();
    std::string conf =
        "ClusterName=primustest\nSlurmctldHost=" + name + "(127.0.0.1)\nSlurmUser=" + me +
        "\nSlurmdUser=" + me + "\nAuthType=auth/munge\nCredType=cred/munge\nAuthInfo=socket=" + socket +
        "\nStateSaveLocation=" + at + "/state\nSlurmdSpoolDir=" + at + "/spool-%n\nSlurmctldPidFile=" + at +
        "/slurmctld.pid\nSlurmdPidFile=" + at + "/slurmd-%n.pid\nSlurmctldLogFile=" + at +
        "/slurmctld.log\nSlurmdLogFile=" + at + "/slurmd-%n.log\nTmpFS=" + at +
        "/tmp-%n\nSlurmctldPort=" + std::to_string(free_port()) +
        "\nProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nJobAcctGatherType=jobacct_gather/none\n"
        "AccountingStorageType=accounting_storage/none\nSelectType=select/"
        "cons_tres\nSelectTypeParameters=CR_CPU\n"
        "SchedulerType=sched/"
        "backfill\nSchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1\n"
        "MpiDefault=none\nReturnToService=2\nSlurmctldTimeout=30\nSlurmdTimeout=5\nKillWait=5\nMinJobAge="
        "300\n"
        "SwitchType=switch/none\nSlurmdParameters=config_overrides\n";
    for (const char* node : {"n1", "n2"}) {
      conf += std::string("NodeName=") + node + " NodeHostname=" + name +
              " NodeAddr=127.0.0.1 Port=" + std::to_string(free_port()) +
              " CPUs=2 RealMemory=2000 State=UNKNOWN\n";
    }
    // Each node has a switch of its own.
    conf += "TopologyPlugin=topology/tree\n";
    write_file(f / "topology.conf",
               "SwitchName=leaf1 Nodes=n1\nSwitchName=leaf2 Nodes=n2\nSwitchName=core Switches=leaf[1-2]\n");
    conf += "PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO\n";
    write_file(f / "slurm.conf", conf);
    setenv("SLURM_CONF", (f / "slurm.conf").c_str(), 1);
    wait_until([&] { return std::filesystem::exists(socket); }, 10s);
    slurmctld_ = std::make_unique<Daemon>(std::vector<std::string>{find("slurmctld"), "-D", "-c"},
                                          f / "slurmctld.out");
    start_node("n1");
    start_node("n2");
    ready_ = wait_until([] { return words({"sinfo", "-h", "-o", "%T %D"}) == "idle 2"; }, 30s);
    if (!ready_) why_ = words({"sinfo"}) + tail("slurmctld.log") + tail("slurmd-n1.log") + tail("munged.out");
  }

  bool ready() const { return ready_; }
  const std::string& why() const { return why_; }
  const Path& folder() const { return folder_.path(); }
  std::string tail(const std::string& file) const {
    if (!std::filesystem::exists(folder() / file)) return {};
    const std::string text = read_file(folder() / file);
    return "\n" + file + ":\n" + text.substr(text.size() > 3000 ? text.size() - 3000 : 0);
  }

  void start_node(const std::string& name) {
    nodes_[name] = std::make_unique<Daemon>(std::vector<std::string>{find("slurmd"), "-D", "-N", name},
                                            folder() / ("slurmd-" + name + ".out"));
  }
  // Kills all processes of the node at once, as a power failure does.
  void kill_node(const std::string& name) {
    nodes_[name]->end(SIGKILL);
    const std::set<pid_t> processes = processes_with("SLURMD_NODENAME=" + name);
    // Kills the node's stepds first, because they would report how their processes end. A stepd is found by
    // its open file, the node's log.
    const std::string log = (folder() / ("slurmd-" + name + ".log")).string();
    for (const pid_t pid : all_processes()) {
      const Path process = "/proc/" + std::to_string(pid);
      if (!text_of(process / "cmdline").starts_with("slurmstepd:")) continue;
      std::error_code none;
      for (const auto& fd : std::filesystem::directory_iterator(process / "fd", none)) {
        if (std::filesystem::read_symlink(fd.path(), none) != log) continue;
        kill(pid, SIGKILL);
        break;
      }
    }
    for (const pid_t pid : processes) kill(pid, SIGKILL);
  }

  static std::string words(const std::vector<std::string>& command) {
    std::string out = run_subprocess(command, {.path = kPath}).out;
    while (!out.empty() && (out.back() == '\n' || out.back() == ' ')) out.pop_back();
    return out;
  }
  static std::string state(const std::string& job) {
    const std::string text = words({"scontrol", "show", "job", job, "--oneliner"});
    const std::size_t at = text.find("JobState=");
    return at == std::string::npos ? "" : text.substr(at + 9, text.find(' ', at) - at - 9);
  }

 private:
  test::TemporaryFolder folder_;
  std::unique_ptr<Daemon> munged_, slurmctld_;
  std::map<std::string, std::unique_ptr<Daemon>> nodes_;
  bool ready_ = false;
  std::string why_;
};

class Slurm : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* program : {"munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol"}) {
      if (find(program).empty()) {
        GTEST_SKIP() << "there is no " << program << ": install slurmctld slurmd slurm-client munge";
      }
    }
    for (const char* name :
         {"SLURM_JOB_ID", "SLURM_PROCID", "NNODES", "NODE_RANK", "MASTER_ADDR", "GPUS_PER_NODE"})
      unsetenv(name);
    if (!cluster_) cluster_ = std::make_unique<Cluster>();
    ASSERT_TRUE(cluster_->ready()) << cluster_->why();
  }
  static void TearDownTestSuite() { cluster_.reset(); }

  // Returns a test's working folder. It is below the cluster's folder, so that all files of a failure are
  // together.
  static Path folder(const std::string& name) {
    const Path path = cluster_->folder() / name;
    make_folders(path);
    return path;
  }
  static ProgramOptions options(const Path& folder) {
    return {.folder = folder.string(), .environment = {{"HOME", (cluster_->folder() / "home").string()}}};
  }
  static std::vector<std::string> training(const std::vector<std::string>& more) {
    std::vector<std::string> words{"train",
                                   "pretrain",
                                   "--config",
                                   kExperiment,
                                   "seq_length=32",
                                   "micro_batch_size=1",
                                   "global_batch_size=4",
                                   "log_interval=1",
                                   "save_interval=5"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  static std::vector<std::string> joined(std::vector<std::string> a, const std::vector<std::string>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }
  static std::string log_of(const Path& folder) {
    for (const auto& file : std::filesystem::directory_iterator(folder)) {
      if (file.path().extension() == ".out") return read_file(file.path());
    }
    return {};
  }
  static std::string end_of_log(const Path& folder) {
    const std::string log = log_of(folder);
    return "\n..." + log.substr(log.size() > 2000 ? log.size() - 2000 : 0);
  }
  static void expect_in_log(const Path& folder, const std::string& text) {
    EXPECT_NE(log_of(folder).find(text), std::string::npos)
        << text << " is not in the log" << end_of_log(folder);
  }
  static bool wait_for_text(const Path& folder, const std::string& text, std::chrono::seconds limit) {
    return wait_until([&] { return log_of(folder).find(text) != std::string::npos; }, limit);
  }
  static std::string submitted(const ProgramResult& result) {
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const std::string line = "Submitted batch job ";
    const std::size_t at = result.out.find(line);
    if (at == std::string::npos) {
      ADD_FAILURE() << result.out << result.err;
      return "0";
    }
    return std::to_string(std::stol(result.out.substr(at + line.size())));
  }
  // Submits training on two nodes with two ranks each, which is queued again after a fault. Returns the job.
  static std::string requeued_job(const Path& here, const std::vector<std::string>& settings) {
    return submitted(run_program(joined({"slurm", "sbatch", "-N", "2", "--requeue", "--output=job.out", "--",
                                         "direct", "--env", "GPUS_PER_NODE=2", "--"},
                                        training(settings)),
                                 options(here)));
  }
  // Starts a requeued job in 3 seconds. By default Slurm waits two minutes, until the nodes have forgotten
  // the job. The job must not start at once, because a node refuses a credential made in the second in which
  // it revoked the job's last one, and Slurm then marks the job as failed.
  static void start_soon(const std::string& job) {
    EXPECT_EQ(
        run_subprocess({"scontrol", "update", "JobId=" + job, "StartTime=now+3"}, {.path = kPath}).exit_code,
        0);
  }
  // Expects that a requeued job starts, resumes and completes.
  static void expect_to_complete_again(const std::string& job, const Path& folder) {
    ASSERT_TRUE(wait_until([&] { return Cluster::state(job) == "PENDING"; }, 60s)) << Cluster::state(job);
    start_soon(job);
    std::string state;
    EXPECT_TRUE(wait_until(
        [&] {
          state = Cluster::state(job);
          return state == "COMPLETED" || state == "FAILED" || state == "CANCELLED";
        },
        300s));
    EXPECT_EQ(state, "COMPLETED") << Cluster::words({"sinfo"}) << end_of_log(folder)
                                  << cluster_->tail("slurmctld.log") << cluster_->tail("slurmd-n1.log")
                                  << cluster_->tail("slurmd-n2.log");
  }

  static std::unique_ptr<Cluster> cluster_;
};
std::unique_ptr<Cluster> Slurm::cluster_;

// Runs both commands alternately, and compares their fastest times, because other work on the machine only
// makes a command slower.
TEST_F(Slurm, LaunchingCostsAtMostATenthOfASecondMoreThanSrun) {
  const Path here = folder("overhead");
  double bare = 1e9, launched = 1e9;
  for (int round = 0; round < 30 && (round < 5 || launched - bare > 0.1); ++round) {
    const SubprocessResult plain =
        run_subprocess({"srun", "-N", "1", "--ntasks-per-node=1", PRIMUS_PROGRAM, "version"},
                       {.timeout = 60s, .path = kPath});
    ASSERT_TRUE(plain.ok()) << plain.err;
    bare = std::min(bare, plain.seconds);
    const auto start = std::chrono::steady_clock::now();
    const ProgramResult result =
        run_program({"slurm", "srun", "-N", "1", "--", "direct", "--", "version"}, options(here));
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.out, plain.out);
    launched = std::min(launched, seconds.count());
  }
  EXPECT_LE(launched - bare, 0.1) << launched << " s by primus slurm srun, " << bare << " s by srun";
}

TEST_F(Slurm, SrunTrainsOnTwoNodes) {
  const Path here = folder("srun");
  const ProgramResult result =
      run_program(joined({"slurm", "srun", "-N", "2", "--", "direct", "--env", "GPUS_PER_NODE=2", "--"},
                         training({"train_iters=3"})),
                  options(here));
  EXPECT_EQ(result.exit_code, 0) << result.err << cluster_->tail("slurmd-n1.log");
  EXPECT_THAT(result.out, HasSubstr("done after iteration 3"));
  EXPECT_THAT(result.err, HasSubstr("[rank-0/4]"));
}

// Two switches are more than the request allows, so Slurm waits a second for nodes below one. Then the nodes
// of two switches train, in an order that the run records.
TEST_F(Slurm, NodesAreOrderedByTheNetwork) {
  const Path here = folder("network");
  const std::vector<std::string> words =
      joined({"slurm", "srun", "-N", "2", "--switches=1@0:01", "--", "direct", "--rank-order", "switch",
              "--env", "GPUS_PER_NODE=2"},
             joined({"--"}, training({"train_iters=2", "workspace=" + here.string()})));
  const ProgramResult result = run_program(words, options(here));
  EXPECT_EQ(result.exit_code, 0) << result.err << cluster_->tail("slurmctld.log");
  std::string events;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(here))
    if (entry.path().filename() == "rank-00000.jsonl") events = read_file(entry.path());
  EXPECT_THAT(events, HasSubstr(R"("node_order":{"order":"switch","source":"scontrol show topology",)"
                                R"("nodes":[0,1],"switches":[[0,1],[0,2]]})"));
}

TEST_F(Slurm, TasksAreRanks) {
  const Path here = folder("tasks");
  ProgramOptions with_token = options(here);
  const ProgramResult result =
      run_program(joined({"slurm", "srun", "-N", "2", "--ntasks-per-node=2", "--", "direct", "--"},
                         training({"train_iters=2"})),
                  with_token);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("done after iteration 2"));
  EXPECT_THAT(result.err, HasSubstr("[rank-0/4]"));
}

TEST_F(Slurm, OnePreflightCoversAllNodesOfAJob) {
  const Path here = folder("preflight");
  const ProgramResult result = run_program({"slurm", "srun", "-N", "2", "--", "direct", "--", "preflight",
                                            "--quick", "--device", "cpu", "--skip-dmesg", "--no-html"},
                                           options(here));
  EXPECT_THAT(result.out, HasSubstr("Preflight of 2 nodes")) << result.err;
}

// Tasks that srun starts without a launcher form one job.
TEST_F(Slurm, TasksWithoutAModeFormOneJob) {
  const Path here = folder("bare");
  // A script in the launchers' settings does not replace the command.
  write_file(here / ".primus.yaml", "direct: {script: /bin/true}\n");
  const auto srun = [&](const std::vector<std::string>& how, const std::vector<std::string>& words) {
    std::vector<std::string> command{"srun", "-N", "2", "--chdir=" + here.string(),
                                     "--export=ALL,PRIMUS_JOB_TOKEN=shared-by-the-tasks-of-this-test,HOME=" +
                                         (cluster_->folder() / "home").string()};
    command.insert(command.end(), how.begin(), how.end());
    command.emplace_back(PRIMUS_PROGRAM);
    command.insert(command.end(), words.begin(), words.end());
    return run_subprocess(command, {.timeout = 120s, .path = kPath});
  };
  const auto times = [](const std::string& text, const std::string& part) {
    int found = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
    return found;
  };
  const std::vector<std::string> preflight{"preflight", "--quick",      "--device",
                                           "cpu",       "--skip-dmesg", "--no-html"};
  for (const char* tasks : {"--ntasks-per-node=1", "--ntasks-per-node=2"}) {
    const SubprocessResult checked = srun({tasks}, preflight);
    EXPECT_EQ(times(checked.out, "Preflight of 2 nodes"), 1) << tasks << checked.out << checked.err;
  }
  const SubprocessResult sums = srun({"--ntasks-per-node=2"}, {"benchmark", "collectives", "--device", "cpu",
                                                               "--op", "all_reduce", "--sizes", "1M"});
  EXPECT_EQ(sums.exit_code, 0) << sums.err;
  EXPECT_EQ(times(sums.out, "4 ranks on 2 nodes"), 1) << sums.out;
  const SubprocessResult trained = srun({"--ntasks-per-node=2"}, training({"train_iters=2"}));
  EXPECT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_EQ(times(trained.out, "done after iteration 2"), 1) << trained.out;
  // A benchmark of one device runs in each task separately, and a note says so.
  const std::vector<std::string> memory{"benchmark", "memory",   "--device", "cpu",       "--sizes",
                                        "1M",        "--output", "m.json",   "--baseline"};
  const SubprocessResult single = srun({"--ntasks-per-node=1"}, joined(memory, {"save", "before.json"}));
  EXPECT_EQ(single.exit_code, 0) << single.err;
  EXPECT_THAT(single.err,
              AllOf(HasSubstr("note: this is task 0 of 2"), HasSubstr("note: this is task 1 of 2")));
  for (const char* name : {"m.0-of-2.json", "m.1-of-2.json", "before.0-of-2.json", "before.1-of-2.json"})
    EXPECT_TRUE(std::filesystem::exists(here / name)) << name;
  EXPECT_THAT(read_file(here / "m.1-of-2.json"), HasSubstr("task 1 of 2, on n2"));
  const SubprocessResult compared = srun({"--ntasks-per-node=1"}, joined(memory, {"compare", "before.json"}));
  EXPECT_THAT(compared.out, AllOf(HasSubstr("compared with before.0-of-2.json"),
                                  HasSubstr("compared with before.1-of-2.json")))
      << compared.err;
  std::filesystem::remove(here / ".primus.yaml");
  // With --single, each task runs separately.
  const SubprocessResult each = srun(
      {"--ntasks-per-node=1"}, joined({"direct", "--single", "--"}, joined(preflight, {"--disable-pdf"})));
  EXPECT_EQ(times(each.out, "Preflight of 1 node"), 2) << each.out << each.err;
}

// Reports use the node names of Slurm. Both nodes run on this machine, whose host name is neither of these
// names.
TEST_F(Slurm, NodeSmokeUsesSlurmsNames) {
  const Path here = folder("smoke");
  for (const char* tasks : {"--ntasks-per-node=1", "--ntasks-per-node=2"}) {
    const SubprocessResult smoke =
        run_subprocess({"srun", "-N", "2", tasks, "--chdir=" + here.string(), PRIMUS_PROGRAM, "node_smoke",
                        "--skip-dmesg", "--shm-min-gb", "0", "--wait-timeout-sec", "30"},
                       {.timeout = 120s, .path = kPath});
    EXPECT_EQ(smoke.exit_code, 0) << smoke.out << smoke.err;
    EXPECT_THAT(smoke.out, HasSubstr("Node smoke test of 2 nodes"));
    EXPECT_EQ(read_file(here / "output/preflight/passing_nodes.txt"), "n1\nn2\n");
    EXPECT_EQ(read_file(here / "output/preflight/failing_nodes.txt"), "");
  }
  // Both nodes fail a check. The report is written, although the step ends with an error.
  const ProgramResult failing =
      run_program({"slurm", "srun", "-N", "2", "--", "direct", "--", "node_smoke", "--skip-dmesg",
                   "--require-tools", "no-such-tool", "--dump-path", "failing"},
                  options(here));
  EXPECT_EQ(failing.exit_code, 1) << failing.err;
  EXPECT_EQ(read_file(here / "failing/failing_nodes.txt"), "n1\nn2\n");
}

TEST_F(Slurm, AFailureSetsTheJobsExitCode) {
  const Path here = folder("failure");
  const ProgramResult result = run_program({"slurm", "srun", "-N", "2", "--", "direct", "--", "train",
                                            "pretrain", "--config", kExperiment, "lr_decay_stile=x"},
                                           options(here));
  EXPECT_EQ(result.exit_code, 2) << result.err;
  EXPECT_THAT(result.err, HasSubstr("lr_decay_stile"));
}

// Slurm sends a warning signal before the time limit. The ranks save and stop, and the requeued job resumes,
// also with auto_continue_train=false, which concerns only the first start.
TEST_F(Slurm, ABatchJobResumesAfterTheWarning) {
  const Path here = folder("warning");
  const std::string job = requeued_job(here, {"train_iters=30", "--plain", "auto_continue_train=false"});
  ASSERT_TRUE(wait_for_text(here, "iteration        3/", 60s))
      << end_of_log(here) << cluster_->tail("slurmctld.log");
  EXPECT_EQ(run_subprocess({"scancel", "--batch", "--signal=USR1", job}, {.path = kPath}).exit_code, 0);
  EXPECT_TRUE(wait_for_text(here, "stopped after iteration", 60s)) << end_of_log(here);
  expect_to_complete_again(job, here);
  expect_in_log(here, "continuing from");
  expect_in_log(here, "done after iteration 30");
}

// Without --requeue, the warning ends the job after a checkpoint.
TEST_F(Slurm, ATimeLimitStopsTheRunInTime) {
  const Path here = folder("limit");
  const std::string job = submitted(run_program(joined({"slurm", "sbatch", "-N", "2", "--output=job.out",
                                                        "--", "direct", "--env", "GPUS_PER_NODE=2", "--"},
                                                       training({"train_iters=100000", "--plain"})),
                                                options(here)));
  ASSERT_TRUE(wait_for_text(here, "iteration        2/", 60s)) << end_of_log(here);
  EXPECT_EQ(run_subprocess({"scancel", "--batch", "--signal=USR1", job}, {.path = kPath}).exit_code, 0);
  EXPECT_TRUE(wait_until([&] { return Cluster::state(job) == "COMPLETED"; }, 60s)) << Cluster::state(job);
  expect_in_log(here, "run the same command again to continue");
}

// 'primus stop' lets the ranks save, and the job is not queued again.
TEST_F(Slurm, AJobIsListedAndStopped) {
  const Path here = folder("stop");
  const std::string job = requeued_job(here, {"train_iters=100000", "save_interval=100000", "--plain"});
  ASSERT_TRUE(wait_for_text(here, "iteration        3/", 60s)) << end_of_log(here);
  const ProgramResult listed = run_program({"jobs", "--json"}, options(here));
  const json jobs = json::parse(listed.out);
  ASSERT_EQ(jobs.size(), 1U) << listed.out << listed.err;
  EXPECT_EQ(jobs[0].at("job"), "slurm:" + job);
  EXPECT_EQ(jobs[0].at("state"), "running");
  EXPECT_EQ(jobs[0].at("place"), "n[1-2]");
  EXPECT_EQ(jobs[0].at("steps"), 100000);
  const std::string run = jobs[0].at("run");
  const ProgramResult stopped = run_program({"stop", run, "--wait"}, options(here));
  EXPECT_EQ(stopped.exit_code, 0) << stopped.err << end_of_log(here);
  EXPECT_THAT(stopped.out, AllOf(HasSubstr("the ranks of Slurm's job " + job + ".0 were asked"),
                                 HasSubstr("the run has ended: interrupted at step")));
  EXPECT_TRUE(wait_until([&] { return Cluster::state(job) == "COMPLETED"; }, 30s)) << Cluster::state(job);
  expect_in_log(here, "stopped after iteration");
  EXPECT_THAT(run_program({"stop", run}, options(here)).err, HasSubstr("does not run: it is interrupted"));
}

TEST_F(Slurm, ALostNodeCostsOnlyStepsAfterTheLastCheckpoint) {
  const Path here = folder("node");
  const std::string job = requeued_job(here, {"train_iters=30", "--plain"});
  ASSERT_TRUE(wait_for_text(here, "iteration       12/", 90s)) << end_of_log(here);
  cluster_->kill_node("n2");
  ASSERT_TRUE(wait_until([&] { return Cluster::state(job) != "RUNNING"; }, 90s))
      << cluster_->tail("slurmctld.log");
  cluster_->start_node("n2");
  expect_to_complete_again(job, here);
  expect_in_log(here, "continuing from");
  expect_in_log(here, "done after iteration 30");
}

// The supervisors of both nodes start all ranks again within the job's step.
TEST_F(Slurm, ASupervisedJobOutlivesARank) {
  const Path here = folder("supervised");
  const std::string job =
      submitted(run_program(joined({"slurm", "sbatch", "-N", "2", "--output=job.out", "--", "direct", "--env",
                                    "GPUS_PER_NODE=1", "--"},
                                   training({"train_iters=30", "--plain", "--supervise"})),
                            options(here)));
  ASSERT_TRUE(wait_for_text(here, "iteration       12/", 90s)) << end_of_log(here);
  const auto victim = process_with({"SLURM_JOB_ID=" + job, "RANK=1"});
  ASSERT_TRUE(victim);
  kill(*victim, SIGKILL);
  std::string state;
  EXPECT_TRUE(
      wait_until([&] { return (state = Cluster::state(job)) != "RUNNING" && state != "COMPLETING"; }, 90s));
  EXPECT_EQ(state, "COMPLETED") << end_of_log(here);
  expect_in_log(here, "supervise: restart 1 of at most 20");
  expect_in_log(here, "done after iteration 30");
  EXPECT_FALSE(process_with({"SLURM_JOB_ID=" + job, "RANK=1"}));
}

// The value of srun's --wait here: srun gives up this many seconds after the first launcher has ended.
// Without it, srun waits for ever for tasks of a node that died and came back before Slurm noticed.
constexpr int kWait = 8;
constexpr std::chrono::seconds kKillWait = 5s;  // this cluster's KillWait; srun adds 2 s
// Until ranks of a busy machine detect that peers are lost. Without --wait, the job would never end.
constexpr std::chrono::seconds kNoticed = 40s;

TEST_F(Slurm, ANodeThatReturnsSoonDoesNotDelayItsJob) {
  for (const std::string node : {"n2", "n1"}) {  // n1 runs the job's script
    SCOPED_TRACE(node);
    const Path here = folder("back-" + node);
    write_file(here / ".primus.yaml", "slurm: {wait: " + std::to_string(kWait) + "}\n");
    const std::string job = requeued_job(here, {"train_iters=100000", "--plain"});
    ASSERT_TRUE(wait_for_text(here, "iteration       12/", 90s)) << end_of_log(here);
    // Slurm does not notice a missing batch script during BatchStartTimeout (10 s), so n1 is killed later.
    if (node == "n1") std::this_thread::sleep_for(11s);
    const auto killed = std::chrono::steady_clock::now();
    cluster_->kill_node(node);
    std::this_thread::sleep_for(1s);
    cluster_->start_node(node);
    EXPECT_TRUE(wait_until([&] { return Cluster::state(job) != "RUNNING"; },
                           kNoticed + std::chrono::seconds(kWait) + kKillWait + 2s))
        << end_of_log(here) << cluster_->tail("slurmctld.log");
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - killed;
    std::cout << node << " was killed and came back: its job left it after " << seconds.count() << " s\n";
    ASSERT_TRUE(wait_until([&] { return Cluster::state(job) == "PENDING"; }, 30s)) << Cluster::state(job);
    start_soon(job);
    EXPECT_TRUE(wait_for_text(here, "continuing from", 90s)) << end_of_log(here);
    run_subprocess({"scancel", job}, {.path = kPath});
    wait_until([&] { return Cluster::words({"squeue", "-h"}).empty(); }, 60s);
  }
}

TEST_F(Slurm, ANodeThatReturnsSoonEndsSrun) {
  const Path here = folder("back-srun");
  auto ended = std::async(std::launch::async, [&] {
    return run_program(joined({"slurm", "srun", "-N", "2", "--wait=" + std::to_string(kWait),
                               "--output=job.out", "--", "direct", "--env", "GPUS_PER_NODE=2", "--"},
                              training({"train_iters=100000", "--plain"})),
                       options(here));
  });
  ASSERT_TRUE(wait_for_text(here, "iteration        3/", 90s)) << end_of_log(here);
  cluster_->kill_node("n2");
  std::this_thread::sleep_for(1s);
  cluster_->start_node("n2");
  const bool in_time =
      ended.wait_for(kNoticed + std::chrono::seconds(kWait) + kKillWait + 2s) == std::future_status::ready;
  EXPECT_TRUE(in_time) << end_of_log(here) << cluster_->tail("slurmctld.log");
  if (!in_time) run_subprocess({"scancel", "--me"}, {.path = kPath});
  EXPECT_NE(ended.get().exit_code, 0);
}

// The launcher's table of options agrees with Slurm about accepted and refused values, and about which tool
// has an option.
TEST_F(Slurm, OptionsEqualSlurmsHelp) {
  const auto says = [&](const std::string& tool, const std::string& word) {
    std::vector<std::string> command{tool, "--test-only", word};
    if (tool == "sbatch") command.emplace_back("--wrap=true");
    if (tool == "srun") command.emplace_back("true");
    return run_subprocess(command, {.timeout = 20s, .path = kPath}).err;
  };
  const auto is_value_error = [](const std::string& text) {
    for (const char* part :
         {"Invalid numeric", "Invalid --", "nvalid time spec", "nvalid range", "nvalid plane", "Invalid host",
          "is not a valid node count", "less than minimum", "Bad rlimit", "Invalid --gpu-bind",
          "invalid --profile", "unrecognized", "Could not open", "opening file", "Invalid job array",
          "dependency problem", "Priority must", "cpu-freq", "Unable to open file"})
      if (text.find(part) != std::string::npos) return true;
    return false;
  };
  for (const auto& [tool, samples] :
       {std::pair(std::string("srun"), test::srun_samples()), {"sbatch", test::sbatch_samples()}}) {
    for (const test::OptionSample& sample : samples) {
      for (const std::string& value : sample.taken) {
        const std::string said = says(tool, "--" + sample.option + "=" + value);
        EXPECT_FALSE(is_value_error(said)) << tool << " --" << sample.option << "=" << value << ": " << said;
      }
      for (const std::string& value : sample.refused) {
        if (!sample.by_tool) continue;
        const std::string said = says(tool, "--" + sample.option + "=" + value);
        EXPECT_TRUE(is_value_error(said)) << tool << " --" << sample.option << "=" << value << ": " << said;
      }
    }
  }
  for (const launch::ForeignOption& option : launch::slurm_options()) {
    if (option.only.empty() || option.name == "wait" || option.name == "signal") continue;
    if (option.name == "threads") continue;  // sbatch reads it as an abbreviation of --threads-per-core
    const bool has_value = option.takes == launch::ForeignOption::Takes::kValue;
    for (const char* tool : {"srun", "sbatch"}) {
      const std::string said = says(tool, "--" + std::string(option.name) + (has_value ? "=1" : ""));
      EXPECT_EQ(said.find("unrecognized option") == std::string::npos, option.only == tool)
          << tool << " --" << option.name << ": " << said;
    }
  }
}

}  // namespace
}  // namespace primus
