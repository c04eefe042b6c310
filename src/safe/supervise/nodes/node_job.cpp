#include "safe/supervise/nodes/node_job.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/terminal/terminal.h"
#include "launch/ranks/local_launch.h"
#include "lm/events/run_event.h"
#include "safe/supervise/nodes/node_link.h"
#include "safe/supervise/observation/run_files.h"

namespace primus::supervise {
namespace {

constexpr double kRepeats = 1;    // seconds in which a second signal repeats the first request to stop
constexpr double kUntilKill = 2;  // seconds from a second request to SIGKILL

}  // namespace

NodeJob::NodeJob(const SupervisedJob& job, const SupervisedNodes& nodes, const sigset_t& mask)
    : job_(job), nodes_(nodes), processes_(mask) {}

void NodeJob::start(const NodeMessage& message, const comm::Socket& listener) {
  place_ = static_cast<int>(message.number);
  std::vector<std::string> command = message.flag ? job_.restart(message.seconds) : job_.command;
  for (std::string& word :
       std::vector{fmt::format("--nnodes={}", nodes_.places), fmt::format("--node_rank={}", place_),
                   "--master_addr=" + message.more, fmt::format("--master_port={}", message.port)})
    command.push_back(std::move(word));
  std::map<std::string, std::string> variables = {
      {"PRIMUS_JOB_TOKEN", secret_of_attempt(nodes_.token, message.text, message.attempt)}};
  if (listener.valid()) {
    ::fcntl(listener.fd(), F_SETFD, 0);
    variables[launch::kListenerVariable] = std::to_string(listener.fd());
  }
  began_at_ = unix_seconds();
  kills_ = memory_kills();
  tail_.emplace(job_.run, job_.ranks, place_ * job_.ranks);
  processes_.start(command, variables);
  attempt_ = message.attempt;
  // The leader started the attempt before it received the request to stop.
  if (asked_) processes_.send(*asked_);
}

bool NodeJob::pass_on(int signal, double now) {
  const bool stops = launch::asks_to_stop(signal);
  if (!stops && signal != SIGUSR1) {
    processes_.send(signal);
    return false;
  }
  if (!asked_at_) {
    asked_at_ = now;
    asked_ = signal;
    processes_.send(signal);
  } else if (stops && !kill_at_ && (signal == SIGINT || now - *asked_at_ >= kRepeats)) {
    processes_.send(signal);
    kill_at_ = now + kUntilKill;
  }
  return true;
}

void NodeJob::read_events(const std::function<void(const EventLine&, int)>& event) {
  if (tail_) tail_->read(event);
}

NodeMessage NodeJob::end(bool stacks, const std::string& why,
                         const std::function<void(const EventLine&, int)>& event) {
  NodeMessage ended{.kind = NodeMessage::Kind::kEnded, .attempt = attempt_.value_or(0)};
  if (stacks) ended.more = write_stacks(why);
  std::vector<pid_t> remaining;
  ended.number = exit_code_of(processes_.end_all(remaining));
  read_events(event);
  tail_.reset();
  attempt_.reset();
  const std::optional<std::int64_t> kills = memory_kills();
  ended.flag = kills && kills_ && *kills > *kills_;
  ended.text = last_error(job_.run / "logs" / job_.module, job_.ranks, began_at_, place_ * job_.ranks);
  ended.checkpoint = newest_step(job_.checkpoints);
  remains_ = !remaining.empty();
  if (remains_) {
    ended.kind = NodeMessage::Kind::kStuck;
    ended.text = remaining_text(remaining);
    job_.say(fmt::format("supervise: node {}: {}", nodes_.node, ended.text));
  }
  return ended;
}

void NodeJob::abandon() {
  if (runs()) end(false, "", [](const EventLine&, int) {});
}

std::string NodeJob::left() {
  if (!remains_) return "";
  std::vector<pid_t> remaining;
  if (!processes_.wait_for_end(remaining)) return remaining_text(remaining);
  remains_ = false;
  return "";
}

// Returns the path of the file.
std::string NodeJob::write_stacks(const std::string& why) {
  const Path file =
      job_.run / "logs" /
      fmt::format("hang-{}-node-{}.txt", static_cast<std::int64_t>(unix_seconds()), nodes_.node);
  try {
    make_folders(file.parent_path());
    write_file_atomic(file, why + "\n\n" + processes_.describe());
  } catch (const Error& error) {
    job_.say(fmt::format("supervise: the stacks are not recorded: {}", error.what()));
  }
  return file.string();
}

}  // namespace primus::supervise
