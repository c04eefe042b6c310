#include "launch/network/network.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/system/subprocess.h"
#include "base/text/counted.h"
#include "launch/node/node.h"

namespace primus::launch {
namespace {

constexpr std::string_view kSlices = "slices=";
constexpr std::size_t kMaxLevels = 16;
constexpr int kTries = 3;  // of scontrol, which all nodes of a job run at the same time
constexpr std::size_t kMaxTopology = std::size_t{64} << 20;
constexpr std::size_t kMaxNodesOfRecords = std::size_t{1} << 20;  // nodes of all records together

// Returns the value of "KEY=value" in a line of scontrol; nullopt: there is none.
std::optional<std::string_view> field(std::string_view line, std::string_view key) {
  for (std::size_t at = line.find(key); at != std::string_view::npos; at = line.find(key, at + 1)) {
    const bool begins = at == 0 || line[at - 1] == ' ';
    const std::size_t value = at + key.size();
    if (!begins || value >= line.size() || line[value] != '=') continue;
    return line.substr(value + 1, std::min(line.find(' ', value), line.size()) - value - 1);
  }
  return std::nullopt;
}

std::int64_t number_or(std::optional<std::string_view> text, std::int64_t otherwise) {
  std::int64_t value = 0;
  if (!text || std::from_chars(text->data(), text->data() + text->size(), value).ec != std::errc())
    return otherwise;
  return value;
}

// A switch or a block, and the nodes of the job below it.
struct Record {
  std::string name;
  std::int64_t level = 0;
  std::size_t below = 0;  // all nodes below it
  std::vector<std::size_t> nodes;
};

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

std::vector<std::string_view> words_of_line(std::string_view line) {
  line = line.substr(0, line.find('#'));
  std::vector<std::string_view> words;
  for (std::size_t at = line.find_first_not_of(" \t\r"); at != std::string_view::npos;) {
    const std::size_t end = std::min(line.find_first_of(" \t\r", at), line.size());
    words.push_back(line.substr(at, end - at));
    at = line.find_first_not_of(" \t\r", end);
  }
  return words;
}

std::map<std::string, std::size_t, std::less<>> numbers_of(const std::vector<std::string>& nodes) {
  std::map<std::string, std::size_t, std::less<>> numbers;
  for (std::size_t i = 0; i < nodes.size(); ++i) numbers.emplace(nodes[i], i);
  return numbers;
}

void note_unplaced(Network& network) {
  if (!network.is_known()) return;
  std::vector<std::string> unplaced;
  for (std::size_t i = 0; i < network.nodes.size(); ++i)
    if (network.switches[i].empty()) unplaced.push_back(network.nodes[i]);
  if (unplaced.empty()) return;
  constexpr std::size_t kShown = 4;
  const std::size_t count = unplaced.size();
  unplaced.resize(std::min(count, kShown));
  network.notes.push_back(fmt::format("{} does not contain {} node{} of the job, which are placed last: {}{}",
                                      network.source, count, count == 1 ? "" : "s", fmt::join(unplaced, ", "),
                                      count > kShown ? " ..." : ""));
}

Network without_switches(std::string source, std::vector<std::string> nodes, std::string note) {
  Network network{.source = std::move(source), .nodes = std::move(nodes), .switches = {}, .notes = {}};
  network.switches.resize(network.nodes.size());
  network.notes.push_back(std::move(note));
  return network;
}

constexpr const char* kScontrol = "scontrol show topology";

bool is_blank(const std::string& text) { return text.find_first_not_of(" \t\r\n") == std::string::npos; }

Network network_of_slurm(const std::vector<std::string>& nodes, const Surroundings& surroundings,
                         const SlurmQuery& query) {
  const auto scontrol = surroundings.find_program("scontrol");
  if (!scontrol && query.orders) {
    // Other nodes may have the program, so this node cannot decide alone to keep Slurm's order.
    throw Error(ErrorKind::kDependency,
                "the program scontrol is not installed here, so --rank-order cannot read the network",
                "name the network in a file, by --topology FILE, or remove --rank-order");
  }
  if (!scontrol) {
    return without_switches(kScontrol, nodes,
                            "the program scontrol is not installed here, so the network is not known: nodes "
                            "keep Slurm's order");
  }
  SubprocessResult shown;
  bool silent = false;
  for (int i = 0; i < kTries; ++i) {
    std::this_thread::sleep_for(wait_before_query(i, query.node));
    shown = run_subprocess({scontrol->string(), "show", "topology"},
                           {.timeout = std::chrono::seconds(30), .output_limit = kMaxTopology});
    // Where Slurm has no topology, scontrol says so. No answer at all is a failure.
    silent = shown.ok() && is_blank(shown.out) && is_blank(shown.err);
    if (shown.ok() && !silent) break;
  }
  if (!shown.ok() || silent) {
    // Other nodes may have succeeded, so this node cannot decide alone to keep Slurm's order.
    throw Error(ErrorKind::kDependency,
                fmt::format("'{}' failed {} times: {}", kScontrol, kTries,
                            shown.timed_out ? "no answer within 30 s"
                            : silent        ? "empty answer"
                                            : shown.err.substr(0, 200)),
                "name the network in a file, by --topology FILE, or remove --rank-order");
  }
  return parse_slurm_topology(shown.out, nodes);
}

std::optional<int> slice_of(const std::string& source) {
  if (!source.starts_with(kSlices)) return std::nullopt;
  const std::string_view text = std::string_view(source).substr(kSlices.size());
  int size = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
  if (error != std::errc() || end != text.data() + text.size() || size < 1 || size > kMaxNodes) {
    throw invalid(
        fmt::format("--topology {}: the size of a slice is a number from 1 to {}", source, kMaxNodes),
        "write for example --topology slices=4");
  }
  return size;
}

}  // namespace

bool Network::is_known() const {
  return std::ranges::any_of(switches, [](const SwitchPath& path) { return !path.empty(); });
}

std::chrono::milliseconds wait_before_query(int number, int node) {
  if (number == 0) return {};
  // Nodes that failed at the same time repeat their queries at 100 different times.
  return std::chrono::seconds(number) + std::chrono::milliseconds(node % 100 * 20);
}

Network parse_slurm_topology(std::string_view text, std::vector<std::string> nodes) {
  Network network{.source = kScontrol, .nodes = std::move(nodes), .switches = {}, .notes = {}};
  network.switches.resize(network.nodes.size());
  const auto numbers = numbers_of(network.nodes);
  std::vector<Record> records;
  std::size_t unread = 0, expanded = 0;
  for (const std::string_view line : lines_of(text)) {
    std::optional<std::string_view> name;
    for (const char* key : {"SwitchName", "BlockName", "AggregatedBlock"})
      if (!name) name = field(line, key);
    const auto list = field(line, "Nodes");
    if (!name || !list || name->empty() || list->empty() || *list == "(null)") continue;
    try {
      if (expanded > kMaxNodesOfRecords) throw invalid("too many nodes");
      const std::vector<std::string> below = expand_nodes(*list);
      expanded += below.size();
      Record record{.name = std::string(*name),
                    .level = number_or(field(line, "Level"), number_or(field(line, "BlockSize"), 0)),
                    .below = below.size(),
                    .nodes = {}};
      for (const std::string& node : below)
        if (const auto found = numbers.find(node); found != numbers.end())
          record.nodes.push_back(found->second);
      records.push_back(std::move(record));
    } catch (const Error&) {
      ++unread;
    }
  }
  // A switch contains the switches below it, so it has more nodes, or as many on a higher level.
  std::ranges::stable_sort(records, [](const Record& a, const Record& b) {
    return std::pair(a.below, a.level) > std::pair(b.below, b.level);
  });
  for (const Record& record : records)
    for (const std::size_t node : record.nodes) network.switches[node].push_back(record.name);
  for (SwitchPath& path : network.switches)
    if (path.size() > kMaxLevels)
      path.erase(path.begin(), path.end() - static_cast<std::ptrdiff_t>(kMaxLevels));
  if (unread > 0)
    network.notes.push_back(
        fmt::format("{} of {} could not be read", counted(unread, "line"), network.source));
  if (!network.is_known())
    network.notes.push_back(
        fmt::format("{} names no switch of the job's nodes: nodes keep Slurm's order", network.source));
  note_unplaced(network);
  return network;
}

Network read_network_file(const Path& file, std::vector<std::string> nodes, int count) {
  Network network{.source = file.string(), .nodes = {}, .switches = {}, .notes = {}};
  std::map<std::string, SwitchPath, std::less<>> found;
  const std::string text = read_file(file);
  int number = 0;
  for (const std::string_view line : lines_of(text)) {
    ++number;
    const std::vector<std::string_view> words = words_of_line(line);
    if (words.empty()) continue;
    const auto refuse = [&](const std::string& what) {
      return invalid(fmt::format("{}:{}: {}", file.string(), number, what),
                     "write a node and the switches above it, from the top to the lowest: n1 spine1 leaf3");
    };
    if (words.size() > kMaxLevels + 1)
      throw refuse(fmt::format("there are more than {} switches", kMaxLevels));
    if (words.size() == 1) throw refuse(fmt::format("'{}' has no switch", words[0]));
    if (std::ranges::any_of(words, [](std::string_view word) { return word.find('=') != word.npos; }))
      throw refuse("'=' has no meaning here");
    std::vector<std::string> names;
    try {
      names = expand_nodes(words[0]);
    } catch (const Error&) {
      throw refuse(fmt::format("'{}' is neither a node nor a list of nodes", words[0]));
    }
    const SwitchPath path(words.begin() + 1, words.end());
    for (std::string& name : names) {
      if (found.size() >= kMaxNodesOfRecords) throw refuse("the file has too many nodes");
      if (!found.emplace(name, path).second) throw refuse(fmt::format("the node {} occurs twice", name));
      if (nodes.empty()) network.nodes.push_back(std::move(name));
    }
  }
  if (nodes.empty() && static_cast<int>(network.nodes.size()) != count) {
    throw invalid(
        fmt::format("{} has {} nodes, but the job has {}", file.string(), network.nodes.size(), count),
        "without Slurm, the file must have the job's nodes in the order of NODE_RANK");
  }
  if (!nodes.empty()) network.nodes = std::move(nodes);
  for (const std::string& node : network.nodes) {
    const auto path = found.find(node);
    network.switches.push_back(path == found.end() ? SwitchPath() : path->second);
  }
  if (!network.is_known())
    network.notes.push_back(
        fmt::format("{} contains no node of the job: nodes keep their order", network.source));
  note_unplaced(network);
  return network;
}

Network find_network(const std::string& source, const std::vector<std::string>& nodes, int count,
                     const Surroundings& surroundings, const SlurmQuery& query) {
  if (const auto size = slice_of(source)) {
    Network network{
        .source = fmt::format("slices of {} nodes", *size), .nodes = nodes, .switches = {}, .notes = {}};
    for (int node = 0; node < count; ++node) {
      if (nodes.empty()) network.nodes.push_back(fmt::format("node-{}", node));
      network.switches.push_back({fmt::format("slice-{}", node / *size)});
    }
    return network;
  }
  if (source != "slurm") return read_network_file(source, nodes, count);
  if (nodes.empty()) {
    throw invalid("--topology slurm: this is no step of a Slurm job",
                  "name a file with the nodes and their switches: --topology FILE");
  }
  return network_of_slurm(nodes, surroundings, query);
}

void check_network_source(const std::string& source) {
  if (source.empty()) throw invalid("--topology needs slurm, slices=N, or a file");
  slice_of(source);
}

}  // namespace primus::launch
