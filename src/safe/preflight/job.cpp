#include "safe/preflight/job.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/terminal/terminal.h"
#include "base/text/json_text.h"
#include "comm/job.h"
#include "safe/preflight/all_reduce.h"
#include "safe/preflight/check.h"
#include "turbo/devices/devices.h"

namespace primus::preflight {

struct JobFacts {
  struct Problem {
    std::string what, fix;
  };
  std::vector<Problem> reports;       // reports of ranks that cannot be read
  std::vector<std::string> skipped;   // exchanges that were not measured, and why
  std::optional<Problem> rendezvous;  // the error that ended communication
};

namespace {

std::string report_key(int rank) { return fmt::format("preflight/report/{}", rank); }
std::string clock_key(int rank) { return fmt::format("preflight/clock/{}", rank); }
std::string rates_key(int rank) { return fmt::format("preflight/rates/{}", rank); }

std::string name_of(const JobPreflight& job, int rank) {
  const std::string name = job.name_of_rank ? job.name_of_rank(rank) : "";
  return name.empty() ? fmt::format("rank {}", rank) : fmt::format("{} (rank {})", name, rank);
}

Finding failure(const JobFacts::Problem& problem) {
  return {.measured = problem.what,
          .wanted = "all ranks",
          .source = "a rank that does not answer has failed",
          .fix = problem.fix};
}

void judge_reports(const CheckInput& in, Judge& judge) {
  for (const JobFacts::Problem& problem : in.facts<JobFacts>().reports) judge.fail(failure(problem));
}

void judge_skipped_exchanges(const CheckInput& in, Judge& judge) {
  for (const std::string& what : in.facts<JobFacts>().skipped) judge.skip(what);
}

void judge_rendezvous(const CheckInput& in, Judge& judge) {
  if (const auto& problem = in.facts<JobFacts>().rendezvous) judge.fail(failure(*problem));
}

// Returns the ranks of each machine, ordered by their first ranks.
Nodes nodes_of(const std::vector<NodeReport>& reports) {
  std::map<std::pair<std::string, int>, std::size_t> places;
  Nodes nodes;
  for (const NodeReport& report : reports) {
    const auto [place, fresh] = places.try_emplace({report.host, report.node}, nodes.size());
    if (fresh) nodes.emplace_back();
    nodes[place->second].push_back(report.rank);
  }
  return nodes;
}

nlohmann::json to_json(const SearchRates& rates) {
  return {{"halves", rates.halves}, {"pairs", rates.pairs}};
}

// Merges another rank's rates into `rates` by the minimum of each group. Returns false if their shape does
// not match.
bool take_minimum(std::vector<std::vector<double>>& rates, const nlohmann::json& theirs) {
  if (!theirs.is_array() || theirs.size() != rates.size()) return false;
  for (std::size_t r = 0; r < rates.size(); ++r) {
    if (!theirs[r].is_array() || theirs[r].size() != rates[r].size()) return false;
    for (std::size_t g = 0; g < rates[r].size(); ++g) {
      if (!theirs[r][g].is_number()) return false;
      const double rate = theirs[r][g].get<double>();
      if (rate > 0) rates[r][g] = rates[r][g] == 0 ? rate : std::min(rates[r][g], rate);
    }
  }
  return true;
}

class Ranks {
 public:
  Ranks(const JobPreflight& job, NodeReport own) : job_(job), own_(std::move(own)) {
    own_.rank = job.environment.rank;
    own_.node = job.environment.host;
  }

  JobOutcome run() {
    const bool first = job_.environment.rank == 0;
    try {
      // Other ranks have a longer timeout than rank 0. So rank 0 reports missing ranks before other ranks
      // time out.
      comm::JobOptions options{.start_timeout = job_.timeout + std::chrono::seconds(first ? 0 : 15),
                               .timeout = job_.timeout};
      options.before_start = [this, first](comm::StoreClient& store) {
        // From now on, rank 0 has the report even if this rank is lost.
        store.set(report_key(own_.rank), json_text(preflight::to_json(own_), -1));
        if (first) gather(store);
      };
      const auto joined = comm::Job::connect(job_.environment, options);
      // All ranks have just left the barrier together, so their clocks are comparable.
      joined->store()->set(clock_key(own_.rank), fmt::format("{:.6f}", job_.clock()));
      if (first) read_clocks(*joined->store());
      if (job_.communication && job_.environment.world > 1) communicate(*joined);
      joined->leave();
    } catch (const Error& error) {
      add_rendezvous_failure(error.what(), error.hint());
    } catch (const std::exception& error) {  // an error of the JSON library: a rank sent invalid JSON
      add_rendezvous_failure(error.what(), "");
    }
    if (nodes_.empty()) nodes_ = {own_};
    JobOutcome outcome{.nodes = nodes_, .cluster = {}};
    std::vector<Finding> of_job;
    judge_group("job", facts_, of_job);
    of_job.insert(of_job.end(), search_findings_.begin(), search_findings_.end());
    if (!first) {
      outcome.cluster = std::move(of_job);  // only the output of this rank shows these findings
      return outcome;
    }
    ClusterOptions cluster = job_.cluster;
    cluster.same_start = same_start_;
    cluster.missing.insert(cluster.missing.end(), missing_.begin(), missing_.end());
    cluster.missing_after = static_cast<double>(job_.timeout.count()) / 1e3;
    outcome.cluster = compare_nodes(nodes_, cluster);
    outcome.cluster.insert(outcome.cluster.end(), of_job.begin(), of_job.end());
    return outcome;
  }

 private:
  void add_rendezvous_failure(const std::string& what, const std::string& hint) {
    if (!missing_.empty()) return;  // the missing ranks are already reported
    facts_.rendezvous = {
        "the ranks could not communicate: " + what,
        hint.empty() ? "check the logs of the ranks that the message names, and the network between them"
                     : hint};
  }

  // Called on rank 0: gathers the reports that arrive in time.
  void gather(comm::StoreClient& store) {
    const comm::Deadline deadline = comm::in(job_.timeout);
    std::set<int> waiting;
    for (int rank = 0; rank < job_.environment.world; ++rank) waiting.insert(rank);
    // Reads each report when it arrives. A lost rank ends the job, but earlier reports are kept.
    for (;;) {
      for (auto rank = waiting.begin(); rank != waiting.end();) {
        const auto text = store.get(report_key(*rank));
        if (text) {
          take_report(*rank, *text);
          store.erase(report_key(*rank));
        }
        rank = text ? waiting.erase(rank) : std::next(rank);
      }
      if (waiting.empty() || std::chrono::steady_clock::now() >= deadline) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    for (const int rank : waiting) missing_.push_back(name_of(job_, rank));
    std::sort(nodes_.begin(), nodes_.end(), [](const auto& x, const auto& y) { return x.rank < y.rank; });
    if (!missing_.empty())
      throw Error(ErrorKind::kIo,
                  fmt::format("{} of {} ranks did not join", missing_.size(), job_.environment.world));
    store.set("preflight/nodes", nlohmann::json(nodes_of(nodes_)).dump());
  }

  void take_report(int rank, const std::string& text) {
    try {
      NodeReport report = node_report(text, name_of(job_, rank) + "'s report");
      report.rank = rank;
      nodes_.push_back(std::move(report));
    } catch (const Error& error) {
      facts_.reports.push_back({error.what(), error.hint()});
    }
  }

  void read_clocks(comm::StoreClient& store) {
    for (NodeReport& node : nodes_) {
      const std::string text = store.wait(clock_key(node.rank), comm::in(job_.timeout));
      node.wall_clock = leading_real(text).value_or(0);
    }
    same_start_ = true;
  }

  void communicate(comm::Job& joined) {
    comm::StoreClient& store = *joined.store();
    const auto table =
        nlohmann::json::parse(store.wait("preflight/nodes", comm::in(job_.timeout)), nullptr, false);
    if (table.is_discarded()) throw Error(ErrorKind::kIo, "rank 0 sent no list of nodes");
    const auto nodes = table.get<Nodes>();
    const std::unique_ptr<Device> device = turbo::open_device(turbo::parse_device(job_.device));
    const std::unique_ptr<comm::Communicator> world = joined.world(*device, turbo::collectives_of(*device));
    world->set_timeout(job_.timeout);
    CommunicationResult result = measure_communication(*world, *device, nodes, *job_.communication);
    NodeReport mine{.rank = own_.rank,
                    .node = own_.node,
                    .host = own_.host,
                    .measurements = std::move(result.measurements)};
    nlohmann::ordered_json message{{"report", preflight::to_json(mine)},
                                   {"rates", to_json(result.search_rates)}};
    store.set(rates_key(own_.rank), json_text(message, -1));
    if (own_.rank == 0) take_results(store, result, nodes);
    joined.barrier("preflight/end");
  }

  void take_results(comm::StoreClient& store, CommunicationResult& result, const Nodes& nodes) {
    facts_.skipped = result.skipped;
    for (NodeReport& node : nodes_) {
      const nlohmann::json theirs = parse_json_object(
          store.wait(rates_key(node.rank), comm::in(job_.timeout)), name_of(job_, node.rank));
      const NodeReport report = node_report(json_text(theirs.value("report", nlohmann::json::object()), -1),
                                            name_of(job_, node.rank));
      for (const Measurement& measurement : report.measurements) judge(measurement, node);
      const nlohmann::json rates = theirs.value("rates", nlohmann::json::object());
      const bool good = take_minimum(result.search_rates.halves, rates.value("halves", nlohmann::json())) &&
                        take_minimum(result.search_rates.pairs, rates.value("pairs", nlohmann::json()));
      if (!good) throw Error(ErrorKind::kIo, name_of(job_, node.rank) + " measured other groups than rank 0");
    }
    if (result.search_plan.pairs.empty()) return;
    std::vector<std::string> names;
    for (const std::vector<int>& ranks : nodes) {
      const auto report = std::find_if(nodes_.begin(), nodes_.end(),
                                       [&](const NodeReport& r) { return r.rank == ranks.front(); });
      names.push_back(fmt::format("{} (rank {})", report->host, report->rank));
    }
    search_findings_ = judge_search(result.search_plan, result.search_rates, names);
  }

  // Adds a measurement to its rank's report. The largest all-reduce within a node has a threshold.
  void judge(Measurement measurement, NodeReport& node) {
    const auto& minimum = job_.min_all_reduce;
    if (minimum && measurement.compared && measurement.name.starts_with("all-reduce within nodes")) {
      measurement.wanted = minimum->value;
      check_all_reduce({.what = measurement.name,
                        .rate = measurement.value,
                        .where = measurement.where,
                        .minimum = minimum},
                       node.findings);
    }
    // Ranks of a collective wait for each other, so the times of ranks do not show the slow node. The search
    // for slow nodes (slow_search.h) finds this node.
    measurement.compared = false;
    node.measurements.push_back(std::move(measurement));
  }

  const JobPreflight& job_;
  NodeReport own_;
  std::vector<NodeReport> nodes_;
  std::vector<std::string> missing_;
  bool same_start_ = false;
  JobFacts facts_;
  std::vector<Finding> search_findings_;
};

}  // namespace

JobOutcome run_job(const JobPreflight& job, NodeReport own) { return Ranks(job, std::move(own)).run(); }

extern const Check kClusterReport{.name = "cluster.report",
                                  .category = "cluster",
                                  .question = "Can the reports of all ranks be read?",
                                  .judge = judge_reports,
                                  .may_be_silent = true,
                                  .group = "job"};
extern const Check kClusterCommunication{.name = "cluster.communication",
                                         .category = "cluster",
                                         .question = "Could all exchanges be measured?",
                                         .judge = judge_skipped_exchanges,
                                         .may_be_silent = true,
                                         .group = "job"};
extern const Check kClusterRendezvous{.name = "cluster.rendezvous",
                                      .category = "cluster",
                                      .question = "Could the ranks work together?",
                                      .judge = judge_rendezvous,
                                      .may_be_silent = true,
                                      .group = "job"};

}  // namespace primus::preflight
