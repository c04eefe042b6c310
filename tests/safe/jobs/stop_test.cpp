// Tests which process or job is asked to stop a run, and that no other one is asked.
#include "safe/jobs/stop.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/temporary_folder.h"
#include "lm/events/event_log.h"
#include "lm/events/run_event.h"
#include "lm/events/run_folder.h"
#include "lm/events/supervision.h"
#include "lm/events/supervisor_record.h"
#include "safe/jobs/job_list.h"

namespace primus::jobs {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// A process that sleeps until it is killed.
class Sleeper {
 public:
  // `saves`: it does not end because of SIGTERM, like a process that saves first.
  explicit Sleeper(bool saves = false) {
    sigset_t request, before;
    sigemptyset(&request);
    sigaddset(&request, SIGTERM);
    if (saves) pthread_sigmask(SIG_BLOCK, &request, &before);
    pid_ = fork();
    if (saves && pid_ != 0) pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (pid_ == 0) {
      for (;;) pause();
    }
  }
  ~Sleeper() { end(); }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;
  pid_t pid() const { return pid_; }
  // Returns the signal that ended it; 0: it was running.
  int end() {
    if (pid_ <= 0) return 0;
    int status = 0;
    int ended_by = 0;
    for (int i = 0; i < 20 && ended_by == 0; ++i) {
      if (waitpid(pid_, &status, WNOHANG) == pid_) ended_by = WTERMSIG(status);
      if (ended_by == 0) usleep(5000);
    }
    if (ended_by == 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, &status, 0);
    }
    pid_ = -1;
    return ended_by;
  }

 private:
  pid_t pid_ = -1;
};

// A supervisor that is busy when signals arrive, and reads them later. It ends after two, or after a minute
// without any.
class BusySupervisor {
 public:
  BusySupervisor() {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    int ends[2];
    if (pipe(ends) != 0) throw std::runtime_error("no pipe");
    pid_ = fork();
    if (pid_ == 0) read_signals(all, ends[1]);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    close(ends[1]);
    from_ = ends[0];
    // Reads its status like the shell that has started it.
    reaper_ = std::thread([this] { waitpid(pid_, nullptr, 0); });
  }
  ~BusySupervisor() {
    reaper_.join();
    close(from_);
  }
  BusySupervisor(const BusySupervisor&) = delete;
  BusySupervisor& operator=(const BusySupervisor&) = delete;
  pid_t pid() const { return pid_; }
  // Returns the signals in the order in which it has read them.
  std::vector<int> received() const {
    std::vector<int> found;
    for (unsigned char number; read(from_, &number, 1) == 1;) found.push_back(number);
    return found;
  }

 private:
  [[noreturn]] static void read_signals(sigset_t all, int to) {
    const int signals = signalfd(-1, &all, 0);
    usleep(300000);
    signalfd_siginfo info;
    constexpr int kPatience = 60000;  // milliseconds
    pollfd polled = {signals, POLLIN, 0};
    for (int left = 2; left > 0 && poll(&polled, 1, kPatience) == 1;) {
      if (read(signals, &info, sizeof info) != sizeof info) break;
      if (info.ssi_signo == SIGCONT) continue;
      const auto number = static_cast<unsigned char>(info.ssi_signo);
      if (write(to, &number, 1) == 1) --left;
    }
    _exit(0);
  }

  pid_t pid_ = -1;
  int from_ = -1;
  std::thread reaper_;
};

class Stopping : public ::testing::Test {
 protected:
  Stopping() { std::filesystem::create_directories(run_); }

  void begin(const RunJob& job, bool ended = false) const {
    EventLog log(event_file(run_, 0));
    log.write({.step = 0, .time = unix_seconds(), .facts = RunFacts{.job = to_json(job)}});
    if (ended) {
      log.write({.step = 5,
                 .time = unix_seconds(),
                 .facts = RunEnding{.state = RunEnding::State::kFinished, .iteration = 5}});
    }
  }
  // Makes a program that logs its arguments, one call per line.
  void tool(const std::string& name, const std::string& script) const {
    const std::string file =
        folder_.write("bin/" + name, "#!/bin/sh\necho \"$*\" >> " + (folder_ / (name + ".log")).string() +
                                         "\n" + script + "\n");
    std::filesystem::permissions(file, std::filesystem::perms::owner_all);
  }
  std::string log(const std::string& name) const {
    const Path file = folder_ / (name + ".log");
    return std::filesystem::exists(file) ? read_file(file) : "";
  }
  Tools tools() const { return Tools((folder_ / "bin").string()); }
  static Error error_of(const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      return error;
    }
    ADD_FAILURE() << "no error";
    return invalid("");
  }
  std::string refusal(ErrorKind kind = ErrorKind::kInvalid) const {
    const Tools programs = tools();
    const Error error = error_of([&] { StopRequest(run_.string(), programs).send(false); });
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.render();
  }
  static std::string squeue(const std::string& state, const std::string& name = "llama") {
    return "printf '12\\037"
           "12\\037" +
           state + "\\037n[1-2]\\037Priority\\0372026-11-28T12:00:00\\0371-00:10:00\\037" + name + "\\n'";
  }

  test::TemporaryFolder folder_;
  Path run_ = folder_ / "run";
};

TEST_F(Stopping, SignalsTheRecordedProcess) {
  Sleeper process;
  begin({.process = *process_identity(process.pid())});
  const RunLock lock(run_);
  const Tools programs = tools();
  StopRequest request(run_.string(), programs);
  EXPECT_FALSE(request.has_ended());
  EXPECT_THAT(request.send(false), HasSubstr("SIGTERM"));
  EXPECT_EQ(process.end(), SIGTERM);
}

TEST_F(Stopping, ASecondRequestIsNotSent) {
  Sleeper process(true);
  begin({.process = *process_identity(process.pid())});
  const RunLock lock(run_);
  const Tools programs = tools();
  EXPECT_THAT(StopRequest(run_.string(), programs).send(false), HasSubstr("asked to save"));
  EXPECT_THAT(StopRequest(run_.string(), programs).send(false), HasSubstr("was asked before"));
  EXPECT_THAT(StopRequest(run_.string(), programs).send(true), HasSubstr("killed"));
  EXPECT_EQ(process.end(), SIGKILL);
}

TEST_F(Stopping, AStoppedProcessContinuesWithTheRequest) {
  Sleeper process;
  begin({.process = *process_identity(process.pid())});
  kill(process.pid(), SIGSTOP);
  ASSERT_EQ(waitpid(process.pid(), nullptr, WUNTRACED), process.pid());
  const Tools programs = tools();
  const RunLock lock(run_);
  StopRequest(run_.string(), programs).send(false);
  EXPECT_EQ(process.end(), SIGTERM);
}

TEST_F(Stopping, AReusedNumberIsNeverSignalled) {
  Sleeper process;
  const ProcessIdentity now = *process_identity(process.pid());
  const std::vector<std::function<void(ProcessIdentity&)>> changes = {
      [](ProcessIdentity& p) { ++p.started; }, [](ProcessIdentity& p) { p.boot = "another"; },
      [](ProcessIdentity& p) { p.pid_space = "pid:[1]"; }};
  for (const auto& change : changes) {
    ProcessIdentity recorded = now;
    change(recorded);
    EXPECT_FALSE(is_running(recorded));
    begin({.process = recorded});
    EXPECT_THAT(refusal(), HasSubstr("does not run"));
  }
  EXPECT_TRUE(is_running(now));
  EXPECT_EQ(process.end(), 0);
}

TEST_F(Stopping, ARunThatEndedIsNamed) {
  Sleeper process;  // outlives the run, like a launcher of several commands
  begin({.process = *process_identity(process.pid())}, true);
  EXPECT_THAT(refusal(), HasSubstr("does not run: it is"));
  EXPECT_EQ(process.end(), 0);
}

TEST_F(Stopping, ARunOnAnotherHostIsNamed) {
  begin({.process = {.host = "n7", .pid = 1, .started = 3, .boot = "b", .pid_space = "p"}});
  EXPECT_THAT(refusal(), HasSubstr("was started on the host 'n7'"));
}

// Its ranks have ended, and its supervisor on another host will start them again.
TEST_F(Stopping, ARunThatIsRestartedOnAnotherHostIsNamed) {
  const RunJob job{.process = {.host = "n7", .pid = 1, .started = 3, .boot = "b", .pid_space = "p"}};
  begin(job, true);
  std::filesystem::create_directories(supervision_file(run_).parent_path());
  const nlohmann::json action{
      {"event", "supervise_action"},
      {"step", 5},
      {"time", unix_seconds()},
      {"cause", "lost rank"},
      {"facts", {{"action", "restart"}, {"delay", 30}, {"supervisor", nlohmann::json::parse(to_json(job))}}}};
  write_file(supervision_file(run_), action.dump() + "\n");
  EXPECT_THAT(refusal(), HasSubstr("is restarting, and was started on the host 'n7'"));
}

TEST_F(Stopping, ARunThatStartsIsFoundByItsLock) {
  begin({.process = {.host = host_name(), .pid = 1, .started = 3, .boot = "b", .pid_space = "p"}}, true);
  const RunLock lock(run_);
  const auto process = lock_holder(run_);
  if (!process) GTEST_SKIP() << "this system does not show its locks";
  EXPECT_EQ(process->pid, getpid());
  EXPECT_EQ(local_process(run_, std::nullopt), process);
}

// A process in a pid namespace of its own, as in a container, records another number for itself.
TEST_F(Stopping, AProcessInAContainerIsFound) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t outer = fork();
  if (outer == 0) {
    if (unshare(CLONE_NEWPID) != 0) _exit(1);
    const pid_t inner = fork();
    if (inner == 0) {
      for (;;) pause();
    }
    [[maybe_unused]] const ssize_t written = write(ready[1], &inner, sizeof(inner));
    int status = 0;
    waitpid(inner, &status, 0);
    _exit(WIFSIGNALED(status) ? 100 + WTERMSIG(status) : 2);
  }
  close(ready[1]);
  pid_t inner = 0;
  const bool has_namespace = read(ready[0], &inner, sizeof(inner)) == sizeof(inner);
  close(ready[0]);
  int status = 0;
  if (!has_namespace) {
    waitpid(outer, &status, 0);
    GTEST_SKIP() << "this user cannot make a pid namespace";
  }
  ProcessIdentity recorded = *process_identity(inner);
  recorded.host = "container";
  recorded.pid = 1;
  recorded.pid_space = std::filesystem::read_symlink("/proc/" + std::to_string(inner) + "/ns/pid").string();
  begin({.process = recorded});
  const RunLock lock(run_);
  const Tools programs = tools();
  StopRequest request(run_.string(), programs);
  request.send(true);
  waitpid(outer, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 100 + SIGKILL);
}

TEST_F(Stopping, OtherFoldersAndJobsAreRefused) {
  const Tools programs = tools();
  for (const char* target :
       {"missing", "slurm:", "slurm:1;rm", "slurm:--all", "k8s:A b", "k8s:-n/x", "k8s:a/b/c"}) {
    const Error error = error_of([&] { StopRequest(target, programs); });
    EXPECT_THAT(error.render(), HasSubstr("is not the folder of a run")) << target;
  }
  EXPECT_EQ(error_of([&] { StopRequest("slurm:12", programs); }).kind(), ErrorKind::kDependency);
}

TEST_F(Stopping, RecordsOfAJobSurviveText) {
  const RunJob job{.scheduler = RunJob::Scheduler::kKubernetes,
                   .id = "llama",
                   .name_space = "team",
                   .kind = "jobset",
                   .process = *process_identity(getpid())};
  const auto read = job_from_json(to_json(job));
  ASSERT_TRUE(read);
  EXPECT_EQ(to_json(*read), to_json(job));
  EXPECT_EQ(read->process, job.process);
  for (const char* text : {"", "{", "[]", "3", R"({"scheduler":"other"})", R"({"scheduler":7})"})
    EXPECT_FALSE(job_from_json(text)) << text;
  const auto odd = job_from_json(R"({"scheduler":"local","pid":-7,"started":"x","host":{}})");
  ASSERT_TRUE(odd);
  EXPECT_FALSE(is_running(odd->process));
}

TEST_F(Stopping, AsksStepsOfSlurmAndCancelsWaitingJobs) {
  begin({.scheduler = RunJob::Scheduler::kSlurm, .id = "12", .step = "0", .cluster = "c"});
  EXPECT_THAT(refusal(ErrorKind::kDependency), HasSubstr("'squeue' is not installed"));
  tool("scontrol", "[ \"$2\" = job ] && echo 'JobId=12 BatchFlag=1' || echo 'ClusterName             = c'");
  tool("squeue", squeue("RUNNING"));
  tool("scancel", "exit 0");
  const Tools programs = tools();
  EXPECT_THAT(StopRequest(run_.string(), programs).send(false), HasSubstr("12.0"));
  EXPECT_EQ(log("scancel"), "--signal=USR1 12.0\n");
  EXPECT_THAT(StopRequest(run_.string(), programs).send(false), HasSubstr("asked before"));
  StopRequest(run_.string(), programs).send(true);
  EXPECT_EQ(log("scancel"), "--signal=USR1 12.0\n12\n");
  tool("squeue", squeue("PENDING"));
  EXPECT_THAT(StopRequest("slurm:12", programs).send(false), HasSubstr("was waiting"));
  EXPECT_EQ(log("scancel"), "--signal=USR1 12.0\n12\n12\n");
}

// The newest record is of a job that has ended; a later start waits for its machines.
TEST_F(Stopping, AWaitingSupervisorOfALaterStartIsStopped) {
  tool("squeue", "exit 0");
  begin({.scheduler = RunJob::Scheduler::kSlurm, .id = "11"}, true);
  EXPECT_THAT(refusal(), HasSubstr("does not run"));
  const Path file = run_ / kSupervisorFile;
  Sleeper process;
  write_file(file, to_json(RunJob{.process = *process_identity(process.pid())}));
  const Tools programs = tools();
  EXPECT_THAT(StopRequest(run_.string(), programs).send(false), HasSubstr("asked to save and end (SIGTERM)"));
  EXPECT_EQ(process.end(), SIGTERM);
  EXPECT_THAT(refusal(), HasSubstr("does not run")) << "the supervisor has ended";
  ProcessIdentity elsewhere = *process_identity(getpid());
  elsewhere.host = "h7";
  elsewhere.boot = "another";
  write_file(file, to_json(RunJob{.process = elsewhere}));
  EXPECT_THAT(refusal(), HasSubstr("was started on the host 'h7'"));
  tool("squeue", squeue("RUNNING"));
  tool("scancel", "exit 0");
  write_file(file, to_json(RunJob{.scheduler = RunJob::Scheduler::kSlurm, .id = "12", .process = elsewhere}));
  EXPECT_THAT(StopRequest(run_.string(), programs).send(false), HasSubstr("12"));
  EXPECT_THAT(log("scancel"), HasSubstr("12"));
}

// Pending signals arrive in the order of their numbers, not in the order in which they were sent.
TEST_F(Stopping, ABusySupervisorGetsTheSecondRequestLast) {
  const BusySupervisor supervisor;
  const RunJob job{.process = *process_identity(supervisor.pid())};
  begin(job, true);
  write_file(run_ / kSupervisorFile, to_json(job));
  const Tools programs = tools();
  EXPECT_THAT(StopRequest(run_.string(), programs).send(true), HasSubstr("the ranks of all machines"));
  EXPECT_THAT(supervisor.received(), ElementsAre(SIGTERM, SIGINT));
}

TEST_F(Stopping, NamesSlurmsFailures) {
  begin({.scheduler = RunJob::Scheduler::kSlurm, .id = "12", .step = "0", .cluster = "c"});
  tool("scontrol", "echo 'ClusterName = other'");
  tool("squeue", squeue("RUNNING"));
  tool("scancel", "echo 'scancel: error: Kill job error on job id 12: Access denied' >&2; exit 1");
  EXPECT_THAT(refusal(), HasSubstr("the Slurm cluster 'c'"));
  tool("scontrol", "echo 'ClusterName = c'");
  EXPECT_THAT(refusal(ErrorKind::kIo), HasSubstr("Access denied"));
  tool("squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1");
  EXPECT_THAT(refusal(), HasSubstr("does not run"));
  tool("squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1");
  EXPECT_THAT(refusal(ErrorKind::kIo), HasSubstr("Unable to contact"));
  EXPECT_EQ(log("scancel"), "--signal=USR1 12.0\n");
}

TEST_F(Stopping, DeletesJobsOfKubernetes) {
  begin({.scheduler = RunJob::Scheduler::kKubernetes, .id = "llama", .name_space = "team", .kind = "jobset"});
  tool("kubectl",
       R"(case "$1" in get) echo '{"metadata":{"name":"llama","namespace":"team"},"spec":{}}';; esac)");
  const Tools programs = tools();
  EXPECT_THAT(StopRequest(run_.string(), programs).send(false), HasSubstr("'llama' is deleted"));
  EXPECT_THAT(log("kubectl"), HasSubstr("delete jobsets.jobset.x-k8s.io llama --wait=false"));
  EXPECT_THAT(log("kubectl"), HasSubstr("--namespace=team"));
  EXPECT_THAT(log("kubectl"), Not(HasSubstr("pods")));
  StopRequest(run_.string(), programs).send(true);
  EXPECT_THAT(log("kubectl"),
              HasSubstr("pods --selector jobset.sigs.k8s.io/jobset-name=llama --grace-period=1"));
  tool("kubectl", "echo 'Error from server (NotFound): jobsets \"llama\" not found' >&2; exit 1");
  EXPECT_THAT(refusal(), HasSubstr("does not run"));
}

TEST_F(Stopping, ListsWhatRunsAndWaits) {
  begin({.scheduler = RunJob::Scheduler::kSlurm, .id = "12", .step = "0"});
  const JobListRequest request{.folder = folder_.path()};
  EXPECT_EQ(list_jobs(request, tools()).jobs.size(), 0U);
  EXPECT_EQ(list_jobs(request, tools()).notes.size(), 0U);
  tool("squeue", "echo 'squeue: a message'; " + squeue("PENDING", "a\\037b") + "; " + squeue("COMPLETED"));
  JobList list = list_jobs(request, tools());
  ASSERT_EQ(list.jobs.size(), 1U);
  EXPECT_EQ(list.jobs[0].state, "waiting");
  EXPECT_EQ(list.jobs[0].title,
            "a\x1f"
            "b");
  EXPECT_EQ(list.jobs[0].reason, "Priority");
  tool("squeue", squeue("RUNNING"));
  tool(
      "kubectl",
      "case \"$2\" in pytorch*) echo \"error: the server doesn't have a resource type \\\"x\\\"\" >&2; exit "
      "1;; esac\n"
      "echo "
      "'{\"items\":[{\"metadata\":{\"name\":\"llama\",\"namespace\":\"team\"},\"spec\":{\"replicatedJobs\":[{"
      "\"replicas\":1,"
      "\"template\":{\"spec\":{\"parallelism\":4}}}]},\"status\":{\"replicatedJobsStatus\":[{\"ready\":1}]}},"
      "{\"metadata\":{\"name\":\"done\"},\"status\":{\"conditions\":[{\"type\":\"Completed\",\"status\":"
      "\"True\"}]}},7,"
      "{\"metadata\":{\"name\":\"queued\"},\"spec\":{\"suspend\":true}}]}'");
  list = list_jobs(request, tools());
  EXPECT_EQ(list.notes.size(), 0U);
  ASSERT_EQ(list.jobs.size(), 3U);
  EXPECT_EQ(list.jobs[0].name, "slurm:12");
  EXPECT_EQ(list.jobs[0].run, run_);
  EXPECT_EQ(list.jobs[0].seconds_left, 87000);
  EXPECT_EQ(list.jobs[1].name, "k8s:team/llama");
  EXPECT_EQ(list.jobs[1].place, "4 of 4 pods");
  EXPECT_EQ(list.jobs[2].name, "k8s:queued");
  EXPECT_EQ(list.jobs[2].state, "waiting");
  tool("kubectl", "echo 'Unable to connect to the server' >&2; exit 1");
  list = list_jobs(request, tools());
  ASSERT_EQ(list.notes.size(), 1U);
  EXPECT_THAT(list.notes[0], HasSubstr("Unable to connect"));
}

TEST_F(Stopping, ReadsSlurmsTimes) {
  EXPECT_EQ(seconds_of_slurm("1-02:03:04"), 93784);
  EXPECT_EQ(seconds_of_slurm("10:00"), 600);
  EXPECT_EQ(seconds_of_slurm("0:09"), 9);
  for (const char* text : {"", "INVALID", "UNLIMITED", "1-", ":", "1:x", "-5"})
    EXPECT_FALSE(seconds_of_slurm(text)) << text;
}

}  // namespace
}  // namespace primus::jobs
