#include "launch/ranks/local_launch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <thread>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/files/sha256.h"
#include "base/terminal/terminal.h"
#include "comm/rendezvous/socket.h"
#include "launch/direct/group_guard.h"
#include "launch/ranks/rank_channel.h"
#include "launch/ranks/rank_restart.h"
#include "launch/ranks/signals.h"

extern char** environ;

namespace primus::launch {
namespace {

using namespace std::chrono_literals;
using comm::Deadline;
using comm::Socket;  // also used for descriptors that are not sockets

constexpr int kMaxRanks = GroupGuard::kMaxGroups;  // maximum number of ranks on one host
constexpr std::size_t kMaxLine = 64 << 10;         // longer lines are split
constexpr auto kUnasked = 500ms;                   // for the process of a lost rank to end
constexpr int kLookMs = 10;                        // shortest wait between two looks at ranks that are late
constexpr std::size_t kTailLines = 12;             // last lines of a failed rank's output to show

struct Stream {
  Socket pipe;
  std::string line;  // start of an unfinished line
};

struct RankProcess {
  int rank = 0, local = 0;
  pid_t pid = -1;
  Socket pidfd, file;
  Stream out, err;
  Channel channel;                     // with LocalLaunch::restarts
  std::optional<std::uint16_t> ready;  // it has left the lost start: ready_port_of()
  std::deque<std::string> tail;        // last lines of output
  bool running = false;
  int status = 0;
};

class Launcher {
 public:
  explicit Launcher(const LocalLaunch& launch) : launch_(launch) { check(); }
  // Ends all processes, even if only some ranks could be started.
  ~Launcher() {
    for (RankProcess& p : processes_) {
      if (p.running) kill(-p.pid, SIGKILL);
    }
    for (RankProcess& p : processes_) {
      if (p.running) waitpid(p.pid, nullptr, 0);
    }
  }

  LaunchResult run() {
    prepare();
    for (RankProcess& p : processes_) {
      start(p);
      // Closes the socket immediately, because rank 0's program may open a new socket on this port.
      if (p.local == 0) master_.close();
    }
    while (std::any_of(processes_.begin(), processes_.end(), [](const auto& p) { return p.running; }))
      round();
    for (RankProcess& p : processes_) {
      drain(p);
      for (Stream* stream : {&p.out, &p.err}) show_line(p, *stream, true);
    }
    return std::move(result_);
  }

 private:
  void check() const {
    if (launch_.command.empty()) throw invalid("there is no command to launch");
    if (launch_.ranks < 1 || launch_.ranks > kMaxRanks) {
      throw invalid(fmt::format("cannot start {} ranks on one host", launch_.ranks),
                    fmt::format("choose a number from 1 to {}", kMaxRanks));
    }
    if (launch_.hosts < 1 || launch_.host < 0 || launch_.host >= launch_.hosts) {
      throw invalid(fmt::format("this cannot be host {} of {}", launch_.host, launch_.hosts),
                    "hosts are numbered from 0");
    }
    if (launch_.hosts > 1 && (launch_.master_address.empty() || launch_.master_port == 0)) {
      throw invalid("a job on several hosts needs the address and port of rank 0",
                    "set the same ones on all hosts");
    }
    if (launch_.restarts.supervisor && (launch_.hosts > 1 || !launch_.is_job))
      throw invalid("single ranks are restarted only in a job on one host", "end the whole job");
  }

  void prepare() {
    if (!launch_.log_file.empty()) {
      if (launch_.log_file.has_parent_path()) make_folders(launch_.log_file.parent_path());
      log_ = append_to(launch_.log_file);
    }
    if (!launch_.is_job) {
      processes_.emplace_back();
      return;
    }
    address_ = launch_.master_address.empty() ? "127.0.0.1" : launch_.master_address;
    port_ = launch_.master_port;
    if (launch_.host == 0) {
      // Rank 0 inherits the socket, so that no other process can take the port in between.
      if (launch_.listener >= 0) fcntl(launch_.listener, F_SETFD, FD_CLOEXEC);
      master_ = launch_.listener >= 0 ? Socket(launch_.listener) : comm::listen_on(address_, port_);
      port_ = comm::port_of(master_);
    }
    const auto has = [&](const char* name) {
      return launch_.environment.contains(name) || std::getenv(name) != nullptr;
    };
    if (launch_.hosts == 1 && !has("PRIMUS_JOB_TOKEN") && !has("PRIMUS_JOB_TOKEN_FILE")) {
      token_ = hex(random_bytes(32));
    }
    for (int local = 0; local < launch_.ranks; ++local) {
      RankProcess& p = processes_.emplace_back();
      p.local = local;
      p.rank = launch_.host * launch_.ranks + local;
      if (!launch_.output_file) continue;
      const Path path = launch_.output_file(p.rank);
      if (path.has_parent_path()) make_folders(path.parent_path());
      p.file = append_to(path);
    }
  }

  static Socket append_to(const Path& path) {
    Socket file(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
    if (!file.valid()) throw FileError("cannot write '" + path.string() + "'", errno);
    return file;
  }

  // `channel`: the rank's end; `replaces`: the process takes the place of a lost rank.
  std::vector<std::string> environment_of(const RankProcess& p, const Channel& channel, bool replaces) const {
    std::map<std::string, std::string> all;
    for (char** entry = environ; *entry; ++entry) {
      const std::string text = *entry;
      const auto equals = text.find('=');
      if (equals != std::string::npos) all[text.substr(0, equals)] = text.substr(equals + 1);
    }
    std::vector<std::string> result;
    if (!launch_.is_job) {
      for (const auto& [name, value] : launch_.environment) all[name] = value;
      for (const auto& [name, value] : all) result.push_back(name + "=" + value);
      return result;
    }
    // Variables that an outer launcher set for its ranks do not apply to these ranks.
    for (const char* name : {"PRIMUS_MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE", "PRIMUS_RENDEZVOUS_FD",
                             kListenerVariable, kRankChannel, kReplacesVariable, kSupervisorChannel}) {
      all.erase(name);
    }
    for (const auto& [name, value] : launch_.environment) all[name] = value;
    all["RANK"] = std::to_string(p.rank);
    all["WORLD_SIZE"] = std::to_string(launch_.hosts * launch_.ranks);
    all["LOCAL_RANK"] = std::to_string(p.local);
    all["LOCAL_WORLD_SIZE"] = std::to_string(launch_.ranks);
    all["GROUP_RANK"] = std::to_string(launch_.host);
    all["MASTER_ADDR"] = address_;
    all["MASTER_PORT"] = std::to_string(port_);
    if (!token_.empty()) all["PRIMUS_JOB_TOKEN"] = token_;
    if (p.rank == 0 && master_.valid()) all["PRIMUS_RENDEZVOUS_FD"] = std::to_string(master_.fd());
    if (channel.valid()) all[kRankChannel] = std::to_string(channel.fd());
    if (replaces) all[kReplacesVariable] = "1";
    for (const auto& [name, value] : all) result.push_back(name + "=" + value);
    return result;
  }

  // All data is prepared before the fork, because the child of a process with threads must not allocate
  // memory. execvpe() allocates none in glibc 2.24 and later.
  void start(RankProcess& p, bool replaces = false) {
    Channel rank_end;
    if (launch_.restarts.supervisor) std::tie(p.channel, rank_end) = Channel::pair();
    const std::vector<std::string> environment = environment_of(p, rank_end, replaces);
    const auto pointers = [](const std::vector<std::string>& texts) {
      std::vector<char*> list;
      for (const std::string& text : texts) list.push_back(const_cast<char*>(text.c_str()));
      list.push_back(nullptr);
      return list;
    };
    const std::vector<char*> argv = pointers(launch_.command), envp = pointers(environment);
    int out[2], err[2], failure[2];
    if (pipe2(out, O_CLOEXEC) != 0) throw io_error("cannot make a pipe", errno);
    p.out.pipe = Socket(out[0]);
    const Socket out_end(out[1]);
    if (pipe2(err, O_CLOEXEC) != 0) throw io_error("cannot make a pipe", errno);
    p.err.pipe = Socket(err[0]);
    const Socket err_end(err[1]);
    if (pipe2(failure, O_CLOEXEC) != 0) throw io_error("cannot make a pipe", errno);
    const Socket failure_read(failure[0]);
    Socket failure_end(failure[1]);
    const Socket nothing(open("/dev/null", O_RDONLY | O_CLOEXEC));
    for (const Stream* stream : {&p.out, &p.err}) fcntl(stream->pipe.fd(), F_SETFL, O_NONBLOCK);

    const pid_t parent = getpid();
    const pid_t pid = fork();
    if (pid < 0) throw io_error(fmt::format("cannot start {}", name_of(p)), errno);
    if (pid == 0) {
      setpgid(0, 0);
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(127);  // the parent died before prctl
      pthread_sigmask(SIG_SETMASK, &signals_.before(), nullptr);
      dup2(nothing.fd(), 0);
      dup2(out_end.fd(), 1);
      dup2(err_end.fd(), 2);
      if (p.rank == 0 && master_.valid()) fcntl(master_.fd(), F_SETFD, 0);
      if (rank_end.valid()) rank_end.pass_on();
      execvpe(argv[0], argv.data(), envp.data());
      const int error = errno;
      if (write(failure_end.fd(), &error, sizeof(error)) < 0) {
        // The parent has ended.
      }
      _exit(127);
    }
    p.pid = pid;
    p.running = true;
    guard_.add(pid);
    setpgid(pid, pid);  // in parent and child, because either may run first
    failure_end.close();
    int error = 0;
    if (read(failure_read.fd(), &error, sizeof(error)) == sizeof(error)) {
      throw FileError("cannot run '" + launch_.command[0] + "'", error);
    }
    p.pidfd = Socket(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    if (!p.pidfd.valid()) throw io_error("cannot watch a process", errno);
  }

  // ---- Watching ---------------------------------------------------------------------------------

  void round() {
    std::vector<pollfd> polled{{signals_.fd(), POLLIN, 0}};
    for (RankProcess& p : processes_) {
      polled.push_back({p.running ? p.pidfd.fd() : -1, POLLIN, 0});
      polled.push_back({p.out.pipe.fd(), POLLIN, 0});
      polled.push_back({p.err.pipe.fd(), POLLIN, 0});
      polled.push_back({p.channel.fd(), POLLIN, 0});
    }
    if (restart_) polled.push_back({launch_.restarts.supervisor->fd(), POLLIN, 0});
    std::optional<int> wait;
    if (const auto look = restart_ ? restart_->next_look() : std::nullopt)
      wait = std::max(kLookMs, comm::milliseconds_until(*look));
    if (unasked_) wait = std::max(kLookMs, comm::milliseconds_until(*unasked_));
    for (const std::optional<Deadline>& next : {terminate_at_, kill_at_, notice_at_})
      if (next) wait = std::min(wait.value_or(INT_MAX), comm::milliseconds_until(*next));
    poll(polled.data(), polled.size(), wait.value_or(-1));
    while (const auto signal = signals_.next()) pass_on(*signal);
    for (RankProcess& p : processes_) drain(p);
    reap();
    read_channels();
    if (restart_) advance_restart();
    if (terminate_at_ && comm::milliseconds_until(*terminate_at_) == 0) {
      signal_all(SIGTERM);
      terminate_at_.reset();
    }
    if (kill_at_ && comm::milliseconds_until(*kill_at_) == 0) {
      signal_all(SIGKILL);
      kill_at_ = comm::in(1s);
    }
    if (notice_at_ && comm::milliseconds_until(*notice_at_) == 0) show_waiting();
  }

  // Says that ranks are still running after a request to stop.
  void show_waiting() {
    notice_at_ = comm::in(launch_.notice_after_signal);
    const auto running = std::ranges::count_if(processes_, [](const auto& p) { return p.running; });
    if (!launch_.is_job || running == 0) return;
    show(launch_.error, fmt::format("waiting for {} of {} ranks: they finish their step, save and stop; "
                                    "a second Ctrl-C or SIGTERM kills them\n",
                                    running, processes_.size()));
  }

  // Appends the ranks that have ended since the last call.
  void collect(std::vector<RankProcess*>& ended) {
    for (RankProcess& p : processes_) {
      if (!p.running || waitpid(p.pid, &p.status, WNOHANG) != p.pid) continue;
      p.running = false;
      kill(-p.pid, SIGKILL);  // remaining processes of its group
      guard_.remove(p.pid);
      drain(p);
      ended.push_back(&p);
    }
  }

  void reap() {
    std::vector<RankProcess*> ended;
    collect(ended);
    if (restart_) return replace(ended);
    const auto killed = [](const RankProcess* p) { return WIFSIGNALED(p->status); };
    const auto failed = [](const RankProcess* p) {
      return !WIFEXITED(p->status) || WEXITSTATUS(p->status) != 0;
    };
    // A killed process closes its connections before its status is available. A peer may therefore fail and
    // end earlier. Waits briefly for a killed process, to report it as the cause.
    constexpr auto kMoment = 50ms, kLook = 2ms;
    if (result_.failed_rank < 0 && std::any_of(ended.begin(), ended.end(), failed)) {
      for (auto waited = 0ms; waited < kMoment && std::none_of(ended.begin(), ended.end(), killed);
           waited += kLook) {
        std::this_thread::sleep_for(kLook);
        collect(ended);
      }
    }
    // If several processes have ended, a killed process is reported as the cause of the other errors.
    std::stable_partition(ended.begin(), ended.end(), killed);
    for (RankProcess* p : ended) {
      if (!failed(p) || result_.failed_rank >= 0) continue;
      record_failure(*p);
      can_restart(*p) ? begin_restart(ended) : end_others();
    }
  }

  std::string name_of(const RankProcess& p) const {
    return launch_.is_job ? fmt::format("rank {}", p.rank) : "'" + launch_.command[0] + "'";
  }

  void record_failure(RankProcess& p) {
    result_.failed_rank = p.rank;
    if (WIFSIGNALED(p.status)) {
      const int signal = WTERMSIG(p.status);
      result_.exit_code = 128 + signal;
      result_.failure = fmt::format("{} was killed by signal {} ({})", name_of(p), signal, strsignal(signal));
    } else {
      result_.exit_code = WEXITSTATUS(p.status);
      result_.failure = fmt::format("{} ended with exit code {}", name_of(p), result_.exit_code);
      // Ranks that wait for a stopped rank fail, but are not the cause.
      const auto stopped = std::ranges::find_if(
          processes_, [](const RankProcess& other) { return other.running && is_stopped(other.pid); });
      if (stopped != processes_.end()) {
        result_.failed_rank = stopped->rank;
        result_.failure =
            fmt::format("{} was stopped by a signal (SIGSTOP), so {}", name_of(*stopped), result_.failure);
      }
    }
    for (Stream* stream : {&p.out, &p.err}) show_line(p, *stream, true);
    for (const std::string& line : p.tail) result_.failure += "\n  " + line;
  }

  void end_others() {
    for (RankProcess& p : processes_) p.channel.send(to_text(std::optional<JoinOrder>()));
    if (same_request_until_) {  // the ranks were asked to stop, and may be saving
      kill_at_ = comm::in(launch_.grace_after_signal);
    } else {
      terminate_at_ = comm::in(launch_.patience);
      kill_at_ = comm::in(launch_.patience + launch_.grace);
    }
  }

  // ---- Restarts of single ranks -------------------------------------------------------------------

  // `lost`: the rank that was lost first. If a rank has ended without an error, the run may be complete.
  bool can_restart(const RankProcess& lost) const {
    const auto runs = [](const RankProcess& p) { return p.running; };
    const auto is_done = [](const RankProcess& p) {
      return !p.running && WIFEXITED(p.status) && WEXITSTATUS(p.status) == 0;
    };
    return launch_.restarts.supervisor && launch_.restarts.supervisor->valid() && !same_request_until_ &&
           WIFSIGNALED(lost.status) && std::ranges::any_of(processes_, runs) &&
           std::ranges::none_of(processes_, is_done);
  }

  void begin_restart(const std::vector<RankProcess*>& ended) {
    restart_.emplace(launch_.ranks, comm::in(launch_.restarts.leave_time));
    replace(ended);
  }

  // Starts the processes of ranks again that have ended during a restart. Another failure, such as that of a
  // new process, ends the job.
  void replace(const std::vector<RankProcess*>& ended) {
    for (RankProcess* p : ended) {
      if (!restart_) return;
      const bool is_done = WIFEXITED(p->status) && WEXITSTATUS(p->status) == 0;
      if (is_done || restart_->is_replaced(p->local)) return call_off();
      for (Stream* stream : {&p->out, &p->err}) show_line(*p, *stream, true);
      p->tail.clear();
      p->ready.reset();
      try {
        start(*p, true);
      } catch (const Error& error) {
        show(launch_.error, fmt::format("{} cannot be started again: {}\n", name_of(*p), error.what()));
        return call_off();
      }
      restart_->replaced(p->local, comm::in(launch_.restarts.start_time));
    }
  }

  void read_channels() {
    for (RankProcess& p : processes_) {
      while (const std::optional<std::string> text = p.channel.receive()) {
        if (!ready_port_of(*text)) continue;
        p.ready = ready_port_of(*text);
        if (!restart_ && !unasked_) unasked_ = comm::in(kUnasked);
      }
    }
    // Ranks may notice a loss before this process does. But if no process ends, a rank hangs, or has an error
    // of its own and is ending; then all end.
    if (!unasked_ || (!restart_ && comm::milliseconds_until(*unasked_) > 0)) return;
    unasked_.reset();
    if (restart_) return;
    for (RankProcess& p : processes_) {
      if (p.ready) p.channel.send(to_text(std::optional<JoinOrder>()));
    }
  }

  void advance_restart() {
    for (RankProcess& p : processes_) {
      if (p.ready) restart_->ready(p.local, *p.ready);
      // It is started again when it has ended.
      if (p.running && restart_->is_late(p.local)) kill(-p.pid, SIGKILL);
    }
    if (restart_->settled() && !std::exchange(restart_->reported, true)) report_loss();
    Channel& supervisor = *launch_.restarts.supervisor;
    while (const std::optional<std::string> text = supervisor.receive()) {
      restart_->order = join_order_of(*text);
      if (!restart_->order) return call_off();
    }
    if (!supervisor.valid() || restart_->is_stuck()) return call_off();
    if (restart_->order && restart_->all_ready()) join();
  }

  void report_loss() {
    result_.reported = true;
    if (launch_.restarts.lost) launch_.restarts.lost(result_);
    LossReport report{.rank = result_.failed_rank, .exit_code = result_.exit_code, .text = result_.failure};
    for (const RankProcess& p : processes_) {
      if (restart_->is_replaced(p.local)) report.replaced.push_back(p.rank);
    }
    launch_.restarts.supervisor->send(to_text(report));
  }

  void join() {
    JoinOrder order = *restart_->order;
    order.port = restart_->port();
    order.token = hex(random_bytes(32));
    for (RankProcess& p : processes_) {
      p.channel.send(to_text(std::optional(order)));
      p.ready.reset();
    }
    restart_.reset();
    result_ = {};
    if (launch_.restarts.joined) launch_.restarts.joined();
  }

  // The supervisor sees the end of the channel at once, and sends no further orders.
  void call_off() {
    restart_.reset();
    launch_.restarts.supervisor->close();
    end_others();
  }

  void pass_on(int signal) {
    const bool stops = asks_to_stop(signal);
    // Between two starts, no rank has anything to save, and a new process would die of the signal.
    if (signal == SIGUSR1 && restart_) return call_off();
    if (!stops || !same_request_until_) {
      signal_all(signal);
      if (!stops) return;
      same_request_until_ = comm::in(1s);
      notice_at_ = comm::in(launch_.notice_after_signal);
      if (restart_) call_off();
    } else if (signal == SIGINT || comm::milliseconds_until(*same_request_until_) == 0) {
      signal_all(SIGKILL);  // a second request ends the ranks immediately
    }
  }

  void signal_all(int signal) {
    for (const RankProcess& p : processes_) {
      if (p.running) kill(-p.pid, signal);
    }
  }

  // ---- Output -----------------------------------------------------------------------------------

  void drain(RankProcess& p) {
    for (Stream* stream : {&p.out, &p.err}) {
      char buffer[16 << 10];
      while (stream->pipe.valid()) {
        const ssize_t got = read(stream->pipe.fd(), buffer, sizeof(buffer));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && errno == EAGAIN) break;
        if (got <= 0) {
          stream->pipe.close();
          break;
        }
        stream->line.append(buffer, static_cast<std::size_t>(got));
        show_line(p, *stream, false);
      }
    }
  }

  // Shows the complete lines that have arrived. If `all` is true, also shows an unfinished line.
  void show_line(RankProcess& p, Stream& stream, bool all) {
    const bool raw = p.file.valid();
    const int to = &stream == &p.out ? launch_.output : launch_.error;
    for (;;) {
      auto end = stream.line.find('\n');
      if (end == std::string::npos && (all ? !stream.line.empty() : stream.line.size() > kMaxLine)) {
        end = std::min(stream.line.size(), kMaxLine) - 1;
        stream.line.insert(end + 1, "\n");
        ++end;
      }
      if (end == std::string::npos) return;
      const std::string line = stream.line.substr(0, end + 1);
      stream.line.erase(0, end + 1);
      p.tail.push_back(line.substr(0, line.size() - 1));
      if (p.tail.size() > kTailLines) p.tail.pop_front();
      if (raw) write_all(p.file.fd(), line);
      const bool as_it_is = raw || !launch_.is_job;
      if (!as_it_is) {
        show(to, fmt::format("[rank {}] {}", p.rank, line));
      } else if (p.local == 0) {
        show(to, line);
      }
    }
  }

  void show(int to, const std::string& line) const {
    write_all(to, line);
    if (log_.valid()) write_all(log_.fd(), line);
  }

  // If the reader has ended or does not read, the text is dropped and the job continues.
  static void write_all(int fd, const std::string& text) { try_write(fd, text, 1000); }

  const LocalLaunch& launch_;
  // declared first, because the guard process keeps copies of all descriptors that are open when the guard
  // starts
  GroupGuard guard_;
  Signals signals_;
  std::string address_, token_;
  std::uint16_t port_ = 0;
  Socket master_, log_;
  std::deque<RankProcess> processes_;
  std::optional<Deadline> terminate_at_, kill_at_, notice_at_;
  std::optional<Deadline> same_request_until_;  // signals before this time repeat the first request to stop
  std::optional<RankRestart> restart_;
  std::optional<Deadline> unasked_;  // ranks are ready, but no loss is known
  LaunchResult result_;
};

}  // namespace

LaunchResult run_local(const LocalLaunch& launch) { return Launcher(launch).run(); }

}  // namespace primus::launch
