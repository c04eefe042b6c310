#include "safe/preflight/smoke_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "base/terminal/terminal.h"
#include "base/text/json_text.h"
#include "safe/preflight/cluster.h"

namespace primus::preflight {
namespace {

// Returns the names without a report.
std::vector<std::string> missing_of(const std::vector<std::string>& names,
                                    const std::vector<NodeReport>& nodes) {
  std::vector<std::string> missing;
  for (const std::string& name : names)
    if (std::none_of(nodes.begin(), nodes.end(),
                     [&](const NodeReport& node) { return same_host(node.host, name); }))
      missing.push_back(name);
  return missing;
}

}  // namespace

std::vector<std::string> names_in_file(const std::string& file) {
  std::vector<std::string> names;
  for (const std::string& line : lines_of(read_file(file, 16 << 20))) {
    const std::string name = trimmed(line);
    if (!name.empty() && std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  if (names.empty())
    throw invalid(fmt::format("--expected-nodelist-file '{}' lists no node", file),
                  "write the names of the nodes into it, one per line");
  return names;
}

// Reads a file that another node wrote. Returns nullopt if the file is being replaced or is not a smoke-test
// report. In that case, the file's node counts as missing.
std::optional<SmokeFolder::Written> SmokeFolder::read(const std::string& name) const {
  const std::string file = (folder_ / name).string();
  try {
    const std::string text = read_file(file, 64 << 20);
    return Written{node_report(text, file), parse_json_object(text, file).at("run").get<std::string>()};
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

void SmokeFolder::clean(const std::function<void(std::string_view sentence)>& note) const {
  Env& env = Env::posix();
  if (!env.status(folder_)) return;
  if (env.is_link(folder_)) {
    note(fmt::format("note: '{}' is a link, so reports of earlier runs are kept", folder_.string()));
    return;
  }
  for (const std::string& name : env.list(folder_)) {
    if (!name.ends_with(".json") || env.is_link(folder_ / name)) continue;
    const auto there = read(name);
    // A faster node may already have written its report of this run. This report is kept.
    if (there && (place_.run.empty() || there->run != place_.run)) env.remove_file(folder_ / name);
  }
}

void SmokeFolder::write(const NodeReport& own) const {
  make_folders(folder_);
  nlohmann::ordered_json json = to_json(own);
  json["run"] = place_.run;
  const std::string name = place_.file_of(own.host);
  const Path file = folder_ / name;
  if (Env::posix().status(file) && !read(name))
    throw invalid(fmt::format("'{}' exists and is not a node_smoke report", file.string()),
                  "move it, or choose another folder: --dump-path FOLDER");
  write_file_atomic(file, json_text(json) + "\n");
}

std::vector<NodeReport> SmokeFolder::reported(const NodeReport& own, double started) const {
  const std::string own_file = place_.file_of(own.host);
  std::vector<NodeReport> nodes{own};
  for (const std::string& name : Env::posix().list(folder_)) {
    if (!name.ends_with(".json") || name == own_file) continue;
    const auto there = read(name);
    // Ignore reports that another run left behind.
    const bool of_this_run =
        there && (place_.run.empty() ? there->report.wall_clock >= started - 600 : there->run == place_.run);
    if (of_this_run) nodes.push_back(there->report);
  }
  return nodes;
}

SmokeFolder::Gathered SmokeFolder::gather(const NodeReport& own, const SmokeExpectation& expected,
                                          double started) const {
  const std::vector<std::string>& names = expected.names;
  const auto count = static_cast<std::size_t>(
      expected.count.value_or(names.empty() ? place_.nodes : static_cast<std::int64_t>(names.size())));
  const auto wait = static_cast<double>(expected.wait_seconds);
  const double deadline = steady_seconds() + wait;
  std::vector<NodeReport> nodes = reported(own, started);
  while ((nodes.size() < count || !missing_of(names, nodes).empty()) && steady_seconds() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    nodes = reported(own, started);
  }
  std::sort(nodes.begin(), nodes.end(), [](const auto& a, const auto& b) { return a.node < b.node; });
  ClusterOptions options{.missing_after = wait, .clock_skew_seconds = expected.clock_skew_seconds};
  options.missing = missing_of(names, nodes);
  // If the nodes' names are unknown, adds a placeholder for each missing node.
  const std::size_t known = nodes.size() + options.missing.size();
  for (std::size_t i = known; i < count; ++i)
    options.missing.push_back(fmt::format("<missing-{}>", i - known + 1));
  std::vector<Finding> cluster = compare_nodes(nodes, options);
  write_lists(nodes, names, options.missing);
  return {std::move(nodes), std::move(cluster)};
}

// Writes the lists in the format of 'srun --exclude'.
void SmokeFolder::write_lists(const std::vector<NodeReport>& nodes, const std::vector<std::string>& names,
                              const std::vector<std::string>& missing) const {
  const auto listed = [&](const std::string& name) {
    return (place_.named_by_slurm ? name : short_name(name)) + "\n";
  };
  std::string passing, failing, all;
  for (const NodeReport& node : nodes)
    (verdict_of(node.findings) == Verdict::kFail ? failing : passing) += listed(node.host);
  for (const std::string& name : missing)
    if (!name.starts_with('<')) failing += listed(name);
  for (const std::string& name : names) all += listed(name);
  write_file_atomic(dump_path_ / "passing_nodes.txt", passing);
  write_file_atomic(dump_path_ / "failing_nodes.txt", failing);
  if (!all.empty()) write_file_atomic(dump_path_ / "expected_nodes.txt", all);
}

}  // namespace primus::preflight
