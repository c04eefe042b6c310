#include "safe/postmortem/incident_folder.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "safe/postmortem/clocks.h"
#include "safe/postmortem/text_evidence.h"

namespace primus::postmortem {
namespace {

constexpr std::size_t kMostFiles = 4096;
// Folders of a run's own records, which may be large.
constexpr std::array<std::string_view, 8> kOwn = {"events", "logs",    "checkpoints", "tensorboard",
                                                  "traces", "samples", "profile",     "rollouts"};
constexpr std::array<std::string_view, 5> kEndings = {".log", ".out", ".err", ".txt", ".json"};
// Folders in which each file has the name of its node.
constexpr std::array<std::string_view, 6> kByNode = {"kernel", "dmesg",      "journal",
                                                     "nccl",   "nvidia-smi", "rocm-smi"};
constexpr std::array<std::string_view, 4> kPrefixes = {"nccl.", "kernel-", "dmesg-", "rccl."};

bool contains(const auto& list, std::string_view word) { return std::ranges::find(list, word) != list.end(); }

void add_files(const Path& folder, bool top, std::vector<Path>& files) {
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const Path path = at->path();
    const std::string name = path.filename().string();
    if (at->is_symlink(error) || files.size() >= kMostFiles) continue;
    if (at->is_directory(error) && top && !contains(kOwn, name)) add_files(path, false, files);
    const bool own = top && (name == "ending.json" || name == "bundle.json");
    if (at->is_regular_file(error) && contains(kEndings, path.extension().string()) && !own)
      files.push_back(path);
  }
}

std::string stem_of(const Path& file) {
  std::string stem = file.stem().string();
  for (const std::string_view prefix : kPrefixes) {
    if (stem.starts_with(prefix)) stem.erase(0, prefix.size());
  }
  return stem;
}

bool by_node(const Path& file) { return contains(kByNode, file.parent_path().filename().string()); }

}  // namespace

std::vector<Path> logs_beside(const Path& folder) {
  std::vector<Path> files;
  add_files(folder, true, files);
  std::ranges::sort(files);
  return files;
}

std::string node_of_file(const Path& file, const CaseFile& known) {
  const std::string stem = stem_of(file);
  for (const RankRecord& rank : known.ranks) {
    const std::string_view node = std::string_view(rank.node).substr(0, rank.node.find('.'));
    if (node.empty() || !stem.starts_with(node)) continue;
    if (stem.size() == node.size() ||
        std::string_view("-._").find(stem[node.size()]) != std::string_view::npos)
      return rank.node;
  }
  return by_node(file) ? stem : std::string();
}

void read_log(const Path& file, double near, CaseFile& into) {
  const std::size_t first = into.evidence.size();
  read_text(file, {}, near, into, node_of_file(file, into));
  align_evidence(first, into);
}

void complete_nodes(const std::vector<Path>& logs, CaseFile& file) {
  for (Evidence& one : file.evidence) {
    if (one.source != Source::kScheduler || !one.node.empty()) continue;
    for (const auto& [pod, node] : file.pods) {
      if (one.text.find(pod) != std::string::npos) one.node = node;
    }
  }
  if (!file.hosts.empty()) return;
  for (const auto& [pod, node] : file.pods) {
    if (!contains(file.hosts, node)) file.hosts.push_back(node);
  }
  if (!file.hosts.empty()) return;
  for (const Path& log : logs) {
    const std::string node = by_node(log) ? node_of_file(log, file) : std::string();
    if (!node.empty() && !contains(file.hosts, node)) file.hosts.push_back(node);
  }
}

}  // namespace primus::postmortem
