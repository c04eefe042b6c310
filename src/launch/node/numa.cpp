#include "launch/node/numa.h"

#include <fmt/format.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>

#include "base/error.h"
#include "launch/node/hardware.h"
#include "launch/node/node.h"

namespace primus::launch {
namespace {

constexpr int kMaxCores = 1 << 16;
constexpr int kMaxNumaNodes = 1024;  // Linux's MAX_NUMNODES

}  // namespace

int numa_node_of_rank(const Surroundings& surroundings) {
  const auto text = surroundings.setting("LOCAL_RANK");
  if (!text) throw invalid("LOCAL_RANK is not set", "Primus can only bind ranks that a launcher started");
  std::size_t local = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), local);
  if (error != std::errc() || end != text->data() + text->size()) {
    throw invalid(fmt::format("LOCAL_RANK='{}' is not a number", *text));
  }
  const Accelerators gpus = find_accelerators(surroundings);
  return local < gpus.numa_nodes.size() ? gpus.numa_nodes[local] : -1;
}

std::vector<int> cores_of_numa_node(const Surroundings& surroundings, int node) {
  const Path file = surroundings.root / fmt::format("sys/devices/system/node/node{}/cpulist", node);
  const std::string list = read_file(file, 64 << 10);
  std::vector<int> cores;
  const char* at = list.data();
  const char* const end = at + list.size();
  while (at < end && *at >= '0' && *at <= '9') {
    int first = 0, last = 0;
    at = std::from_chars(at, end, first).ptr;
    last = first;
    if (at < end && *at == '-') at = std::from_chars(at + 1, end, last).ptr;
    for (int core = first; core <= last && core < kMaxCores; ++core) cores.push_back(core);
    if (at < end && *at == ',') ++at;
  }
  if (cores.empty())
    throw invalid(fmt::format("'{}' does not list any cores", file.string()), "remove --numa");
  return cores;
}

void bind_to_gpu(const Surroundings& surroundings) {
  const int node = numa_node_of_rank(surroundings);
  if (node < 0 || node >= kMaxNumaNodes) return;
  const std::vector<int> cores = cores_of_numa_node(surroundings, node);
  cpu_set_t* const set = CPU_ALLOC(static_cast<std::size_t>(kMaxCores));
  const std::size_t size = CPU_ALLOC_SIZE(static_cast<std::size_t>(kMaxCores));
  CPU_ZERO_S(size, set);
  for (const int core : cores) CPU_SET_S(static_cast<std::size_t>(core), size, set);
  const int failed = sched_setaffinity(0, size, set) != 0 ? errno : 0;
  CPU_FREE(set);
  if (failed != 0) throw io_error(fmt::format("cannot use the cores of memory node {}", node), failed);
  constexpr int kBits = 8 * sizeof(unsigned long);
  unsigned long mask[kMaxNumaNodes / kBits] = {};
  mask[node / kBits] = 1UL << node % kBits;
  if (syscall(SYS_set_mempolicy, MPOL_BIND, mask, kMaxNumaNodes + 1) != 0) {
    throw io_error(fmt::format("cannot restrict memory to node {}", node), errno);
  }
}

}  // namespace primus::launch
