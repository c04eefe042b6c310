#include "safe/supervise/recovery/bookkeeping.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/files/file.h"
#include "base/terminal/terminal.h"
#include "lm/events/lost_rank.h"
#include "lm/events/run_ending.h"
#include "lm/events/run_event.h"
#include "lm/events/supervision.h"
#include "safe/supervise/observation/event_facts.h"
#include "safe/supervise/observation/run_files.h"
#include "safe/supervise/supervision_news.h"

namespace primus::supervise {

using Json = nlohmann::ordered_json;

namespace {

Json facts_of(const Action& action) {
  using Kind = Action::Kind;
  Json facts{{"action", action.kind == Kind::kRestart  ? "restart"
                        : action.kind == Kind::kFinish ? "finish"
                                                       : "give up"}};
  if (action.kind == Kind::kRestart) facts["delay"] = action.delay;
  if (action.free_bytes) facts["needs_free_bytes"] = *action.free_bytes;
  if (!action.text.empty()) facts["text"] = action.text;
  if (!action.hint.empty()) facts["hint"] = action.hint;
  return facts;
}

}  // namespace

Bookkeeping::Bookkeeping(const SupervisedJob& job, double wall)
    : job_(job),
      policy_(job.recovery),
      to_unix_(wall - steady_seconds()),
      account_(clock()),
      log_(job.run),
      started_(steady_seconds()) {}

double Bookkeeping::clock() const { return steady_seconds() + to_unix_; }

double Bookkeeping::elapsed() const { return steady_seconds() - started_; }

void Bookkeeping::record(std::string_view kind, std::string cause, Json facts, bool times,
                         std::optional<int> rank) {
  std::optional<RunEvent> news;
  if (kind == "supervise_node" && cause == "lost") {
    news = lost_node_news(furthest_, fmt::format("node {} ({}) is lost: {}", facts.value("node", 0),
                                                 facts.value("host", ""), facts.value("text", "")));
  }
  facts["attempt"] = attempts_;
  facts["restarts"] = policy_.restarts();
  if (rank_restarts_ > 0) facts["rank_restarts"] = rank_restarts_;
  log_.write({.kind = kind,
              .step = furthest_,
              .rank = rank,
              .time = unix_seconds(),
              .cause = std::move(cause),
              .is_decision = kind != "supervise_times"},
             std::move(facts), times ? std::optional(account_.up_to(clock())) : std::nullopt);
  if (news) tell(*news);
}

// The news belong to the line that was recorded last. On several machines, both wait for the agreement.
void Bookkeeping::tell(const RunEvent& event) {
  if (job_.tell) log_.tell(event, job_.tell);
}

void Bookkeeping::record_times() {
  constexpr double kLeast = 2, kShare = 0.01;  // seconds, and share of the time since the start
  const double elapsed = this->elapsed();
  if (!attempt_.began() || elapsed - times_at_ < std::max(kLeast, kShare * elapsed)) return;
  times_at_ = elapsed;
  record("supervise_times", {}, Json::object());
}

void Bookkeeping::begin() {
  ++attempts_;
  continues_ = continues_ || attempt_.began();
  attempt_ = {};
  began_at_ = clock();
  event_clock_.attempt(began_at_);
  recovering_ = attempts_ > 1;
  hang_.emplace(job_.hang, steady_seconds());
}

void Bookkeeping::add(const EventLine& event, int rank) {
  const double now = steady_seconds();
  attempt_.add(event, rank);
  if (rank != 0) return hang_->sign(now);
  const double time = event_clock_.at(event.time, clock());
  if (event.event == "begin") {
    account_.begin(event.step, time);
    hang_->begin(now);
  } else if (event.event == "step") {
    const double seconds = seconds_of_step(event.facts);
    account_.step(event.step, seconds, time);
    hang_->step(seconds, now);
    recovered(event, time);
    furthest_ = std::max(furthest_, event.step);
  } else if (event.event == "phase") {
    const std::string what = phase_in(event.facts);
    account_.phase(what, time);
    hang_->phase(what, now);
  } else if (event.event == "checkpoint") {
    const std::string state = state_in(event.facts);
    if (state == "copying") account_.copying(event.step, time);
    if (state == "saving") account_.saving(event.step, time);
    state == "saving" || state == "durable" ? hang_->saving(state == "saving", now) : hang_->sign(now);
  } else if (event.event == "end") {
    hang_->ended(now);
  } else {
    hang_->sign(now);
  }
}

void Bookkeeping::recovered(const EventLine& event, double time) {
  if (!std::exchange(recovering_, false)) return;
  record("supervise_recovered", {},
         {{"first_step", event.step},
          {"state_from", attempt_.from().empty() ? "start" : attempt_.from()},
          {"seconds", std::round(1e3 * (time - detected_at_)) / 1e3},
          {"repeats", std::max<std::int64_t>(0, furthest_ - event.step + 1)}});
  tell(restart_news(event.step, time - detected_at_, policy_.restarts()));
}

JobEnd Bookkeeping::end(const ProcessEnd& process, const std::optional<HangFinding>& finding,
                        std::optional<int> hang_rank, Json facts, const std::optional<LostNode>& lost,
                        const std::function<Json(const JobEnd&)>& facts_of) {
  JobEnd end = attempt_.judge(process, finding, hang_rank);
  // Only a run that was already finished has nothing to do, and ends without a step.
  const auto ending = read_ending(job_.run);
  const bool finished = ending && ending->state == RunEnding::State::kFinished;
  if (end.kind == EndKind::kDone && !end.began && !finished) {
    end.kind = EndKind::kEarlyExit;
    end.exit_code = 3;
    end.text = "the process ended with exit code 0 before the run began";
  }
  if (lost && end.kind != EndKind::kDone && end.kind != EndKind::kStopped) {
    end.kind = EndKind::kLostNode;
    end.exit_code = kLostNodeCode;
    end.rank.reset();
    end.node = lost->node;
    end.text = lost->text;
  }
  end.time = steady_seconds();
  end.free_bytes = free_bytes(job_.run);
  // The job may have ended between the commit of a checkpoint and its event.
  const NewestCheckpoint newest = newest_checkpoint(job_.checkpoints);
  end.checkpoint_bytes = newest.bytes;
  blame_full_disk(end, continues_ || end.began.has_value());
  // The job has moved the checkpoints aside that may be damaged, and uses no snapshot that may be damaged.
  if (end.kind == EndKind::kCorruption) {
    end.checkpoint = newest.step;
    end.snapshot = 0;
  }
  if (end.began && newest.step <= end.step) end.checkpoint = std::max(end.checkpoint, newest.step);
  if (end.kind == EndKind::kDone && process.exit_code != 0 && !finding)
    job_.say(fmt::format("supervise: {} after the end of the run, so nothing is lost", end.text));
  const bool is_fault = end.kind != EndKind::kDone && end.kind != EndKind::kStopped;
  if (!is_fault) return end;
  account_.detected(detected_at_ = clock());
  if (end.began) account_.keeps(std::max(end.checkpoint, end.snapshot));
  if (end.kind == EndKind::kHang) record_lost_rank(job_.run, hang_rank.value_or(0), finding->text);
  if (facts_of) facts.update(facts_of(end));
  facts["exit_code"] = end.exit_code;
  facts["checkpoint"] = end.checkpoint;
  if (end.snapshot > 0) facts["snapshot"] = end.snapshot;
  facts["text"] = end.text;
  record("supervise_detection", std::string(name_of(end.kind)), std::move(facts), true, end.rank);
  if (const auto news = fault_news(end)) tell(*news);
  return end;
}

Action Bookkeeping::decide(const JobEnd& end, Rung rung) {
  Action action = policy_.decide(end);
  const bool restarts = action.kind == Action::Kind::kRestart;
  if (restarts && rung == Rung::kRank) ++rank_restarts_;
  Json facts = primus::supervise::facts_of(action);
  if (restarts) {
    facts["rung"] = rung == Rung::kRank ? kRankRestart : kJobRestart;
    facts["supervisor"] = Json::parse(to_json(this_job()));
  }
  record("supervise_action", action.reason, std::move(facts));
  if (restarts) announce(end, action, rung);
  return action;
}

void Bookkeeping::announce(const JobEnd& end, const Action& action, Rung rung) const {
  const std::string rank = end.rank ? fmt::format("rank {}, ", *end.rank) : "";
  const std::string step = end.began ? fmt::format("step {}", end.step) : "before the first step";
  // An attempt that ended before its first step has recorded no checkpoint.
  const std::int64_t checkpoint = end.began ? end.checkpoint : newest_step(job_.checkpoints);
  const std::string from = end.snapshot > checkpoint
                               ? fmt::format("from a snapshot in memory (step {} or later)", end.snapshot)
                           : checkpoint > 0 && (end.began || continues_)
                               ? fmt::format("from the newest checkpoint (step {})", checkpoint)
                               : "from the start";
  const std::string when =
      action.free_bytes
          ? fmt::format(", when the disk has {} free", human_bytes(static_cast<double>(*action.free_bytes)))
      : action.delay > 0 ? fmt::format(", in {:.0f} s", action.delay)
                         : "";
  job_.say(fmt::format("supervise: {} ({}{}): {}\nsupervise: restart {} of at most {}{} {}{}",
                       name_of(end.kind), rank, step, end.text.substr(0, end.text.find('\n')),
                       policy_.restarts(), job_.recovery.max_restarts,
                       rung == Rung::kRank ? " (rank restart: the other processes stay)" : "", from, when));
}

int Bookkeeping::give_up_without_space(const JobEnd& end, const Action& action) {
  const std::string needed = human_bytes(static_cast<double>(*action.free_bytes));
  const Action last{.kind = Action::Kind::kGiveUp,
                    .reason = action.reason,
                    .text = fmt::format("the disk did not have {} free within an hour", needed),
                    .hint = "free space; the same command then continues from the newest checkpoint"};
  record("supervise_action", last.reason, primus::supervise::facts_of(last));
  return finish(end, last);
}

int Bookkeeping::give_up(const std::string& reason, const std::string& text, const std::string& hint) {
  const Action action{.kind = Action::Kind::kGiveUp, .reason = reason, .text = text, .hint = hint};
  record("supervise_action", reason, primus::supervise::facts_of(action));
  return finish({.kind = EndKind::kLostNode, .exit_code = kLostNodeCode}, action);
}

// Snapshots in memory do not outlive the supervisor.
void Bookkeeping::keep_checkpoint() {
  const std::int64_t saved = newest_step(job_.checkpoints);
  account_.keeps(saved <= furthest_ ? saved : 0);
}

int Bookkeeping::stopped_waiting(int signal) {
  keep_checkpoint();
  record("supervise_end", "stopped", {{"exit_code", 128 + signal}});
  tell(ending_news(furthest_,
                   {.state = RunEnding::State::kStopped, .reason = "stopped", .iteration = furthest_}));
  job_.say(
      "supervise: stopped between two starts of the job; the same command continues from the newest "
      "checkpoint");
  return 128 + signal;
}

Json Bookkeeping::save() const {
  const double to_unix = unix_seconds() - steady_seconds(), error = unix_seconds() - clock();
  return {{"started", started_ + to_unix},
          {"attempts", attempts_},
          {"continues", continues_},
          {"recovering", recovering_},
          {"furthest", furthest_},
          {"began_at", began_at_ + error},
          {"detected_at", detected_at_ + error},
          {"account", account_.save(error)},
          {"policy", policy_.save(to_unix)},
          {"rank_restarts", rank_restarts_}};
}

void Bookkeeping::restore(const Json& saved) {
  const double to_unix = unix_seconds() - steady_seconds(), error = unix_seconds() - clock();
  // The clock of the other machine may be ahead.
  const auto time = [&](const char* name) { return std::min(saved.at(name).get<double>() - error, clock()); };
  started_ = saved.at("started").get<double>() - to_unix;
  attempts_ = saved.at("attempts").get<int>();
  continues_ = saved.at("continues").get<bool>();
  recovering_ = saved.at("recovering").get<bool>();
  furthest_ = saved.at("furthest").get<std::int64_t>();
  rank_restarts_ = saved.value("rank_restarts", std::int64_t{0});  // older versions had none
  began_at_ = time("began_at");
  detected_at_ = time("detected_at");
  account_.restore(saved.at("account"), error, clock());
  policy_.restore(saved.at("policy"), to_unix);
  event_clock_.attempt(began_at_);
  attempt_ = {};
  hang_.emplace(job_.hang, steady_seconds());
}

// A job that ends before it has made its folder is listed, too.
void Bookkeeping::keep_record_of_early_end(const JobEnd& end) const {
  try {
    if (!attempt_.began()) make_folders(job_.run / "logs");
  } catch (const Error&) {
    return;  // the disk is full or cannot be written: the lines for the user remain
  }
  const std::string reason(end.kind == EndKind::kRefused ? kRefused : name_of(end.kind));
  const double since = began_at_ + unix_seconds() - clock();
  record_early_end(job_.run, end.rank.value_or(0), reason, end.text, since);
}

int Bookkeeping::finish(const JobEnd& end, const Action& action) {
  const bool gives_up = action.kind == Action::Kind::kGiveUp;
  const int code = end.exit_code;
  if (end.kind != EndKind::kDone) keep_checkpoint();
  if (gives_up) keep_record_of_early_end(end);
  record("supervise_end", action.reason, {{"exit_code", code}});
  // The ranks of a supervised run do not report a failed end, because a restart may follow.
  const auto ending = read_ending(job_.run);
  if (gives_up) {
    tell(give_up_news(furthest_, action));
  } else if (end.began && ending && ending->state == RunEnding::State::kFailed) {
    tell(ending_news(furthest_, *ending));
  }
  if (gives_up)
    job_.say(fmt::format("supervise: {}: {}\n  hint: {}", action.reason, action.text, action.hint));
  // A job without steps has no times worth a line.
  const RunTimes times = account_.up_to(clock());
  if (times.useful + times.repeated > 0 || policy_.restarts() > 0) {
    const char* const several = policy_.restarts() == 1 ? "" : "s";
    job_.say(fmt::format("supervise: {} restart{}; {}", policy_.restarts(), several, describe(times)));
  }
  return code;
}

}  // namespace primus::supervise
