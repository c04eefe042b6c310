#include "cli/preflight/perf_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/text/suggest.h"
#include "safe/preflight/machine.h"

namespace primus::cli {
namespace {

// AMD Primus test names come first.
constexpr const char* kTests[] = {"gemm",           "intra-allreduce", "intra-alltoall", "inter-allreduce",
                                  "inter-alltoall", "inter-p2p",       "inter-ring-p2p", "memory",
                                  "corruption",     "storage",         "slow-nodes"};

constexpr std::int64_t kMaxMib = 65536, kMaxGroup = 1 << 20;

// An option for sizes or groups, and the tests that use it.
struct SizeOption {
  const char* name;
  std::string PerfRequest::*text;
  std::vector<std::string> tests;
};
const std::vector<SizeOption> kSizeOptions = {
    {"--comm-sizes-mb",
     &PerfRequest::sizes,
     {"intra-allreduce", "intra-alltoall", "inter-allreduce", "inter-alltoall", "inter-p2p"}},
    {"--intra-comm-sizes-mb", &PerfRequest::intra_sizes, {"intra-allreduce", "intra-alltoall"}},
    {"--inter-comm-sizes-mb", &PerfRequest::inter_sizes, {"inter-allreduce", "inter-alltoall", "inter-p2p"}},
    {"--intra-group-sizes", &PerfRequest::intra_groups, {"intra-allreduce", "intra-alltoall"}},
    {"--inter-group-sizes", &PerfRequest::inter_groups, {"inter-allreduce", "inter-alltoall"}},
    {"--ring-p2p-sizes-mb", &PerfRequest::ring_sizes, {"inter-ring-p2p"}}};

// Parses positive integers, sorts them and removes duplicates. If `everybody` is above 0, the word "all"
// means this number.
std::vector<std::int64_t> numbers(const char* option, const std::string& text, std::int64_t maximum,
                                  std::int64_t everybody = 0) {
  std::vector<std::int64_t> values;
  for (const std::string& word : preflight::split_text(text, ',')) {
    if (everybody > 0 && word == "all") {
      values.push_back(everybody);
      continue;
    }
    const bool digits = !word.empty() && word.size() < 10 &&
                        std::all_of(word.begin(), word.end(), [](char c) { return c >= '0' && c <= '9'; });
    const std::int64_t value = digits ? std::stoll(word) : 0;
    if (value < 1 || value > maximum)
      throw invalid(fmt::format("{} {}: '{}' is not a number from 1 to {}", option, text, word, maximum),
                    "separate numbers by commas: 64,1024");
    values.push_back(value);
  }
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}

std::vector<int> small_numbers(const std::vector<std::int64_t>& values) {
  return {values.begin(), values.end()};
}

std::set<std::string> chosen_tests(const PerfRequest& request) {
  std::set<std::string> tests;
  if (request.tests.empty() && request.quick)
    return {"gemm", "intra-allreduce", "inter-allreduce", "memory", "corruption", "storage"};
  if (request.tests.empty()) tests.insert(std::begin(kTests), std::end(kTests));
  for (const std::string& word : preflight::split_text(request.tests, ',')) {
    if (word == "all") {
      tests.insert(std::begin(kTests), std::end(kTests));
    } else if (std::find(std::begin(kTests), std::end(kTests), word) != std::end(kTests)) {
      tests.insert(word);
    } else {
      std::vector<std::string_view> known(std::begin(kTests), std::end(kTests));
      known.emplace_back("all");
      const std::string near = did_you_mean(word, known);
      throw invalid(fmt::format("--tests: there is no test '{}'", word),
                    near.empty() ? "choose one of " + perf_tests() + ", all" : near);
    }
  }
  return tests;
}

}  // namespace

std::string perf_tests() { return fmt::format("{}", fmt::join(kTests, ", ")); }

std::vector<std::string> given_sizes(const PerfRequest& request) {
  std::vector<std::string> given;
  for (const SizeOption& option : kSizeOptions)
    if (!(request.*option.text).empty()) given.emplace_back(option.name);
  return given;
}

std::vector<std::string> idle_sizes(const PerfRequest& request, const PerfPlan& plan) {
  std::vector<std::string> idle;
  for (const SizeOption& option : kSizeOptions) {
    const bool asked_about = std::any_of(plan.tests.begin(), plan.tests.end(), [&](const std::string& test) {
      return std::find(option.tests.begin(), option.tests.end(), test) != option.tests.end();
    });
    if (!(request.*option.text).empty() && !asked_about) idle.emplace_back(option.name);
  }
  return idle;
}

bool names_test(const PerfRequest& request, const std::string& test) {
  const std::vector<std::string> words = preflight::split_text(request.tests, ',');
  return std::find(words.begin(), words.end(), test) != words.end();
}

bool PerfPlan::any_communication() const {
  return std::any_of(tests.begin(), tests.end(), [](const std::string& test) {
    return test.starts_with("intra-") || test.starts_with("inter-") || test == "slow-nodes";
  });
}

PerfPlan plan_perf(const PerfRequest& request, const PerfPlace& place) {
  PerfPlan plan{.tests = chosen_tests(request), .communication = {}};
  preflight::CommunicationPlan& c = plan.communication;
  if (request.one_group) plan.tests.erase("inter-p2p");
  c.intra_all_reduce = plan.has("intra-allreduce");
  c.intra_all_to_all = plan.has("intra-alltoall");
  c.inter_all_reduce = plan.has("inter-allreduce");
  c.inter_all_to_all = plan.has("inter-alltoall");
  c.inter_pairs = plan.has("inter-p2p");
  c.inter_ring = plan.has("inter-ring-p2p");
  c.slow_search = plan.has("slow-nodes");

  // Only GPUs use messages of 1 GiB, because CPUs reduce more slowly than their links transfer.
  const char* const sizes = place.gpu ? (request.quick ? "64,1024" : "2,4,8,16,32,64,128,256,512,1024")
                                      : (request.quick ? "4" : "1,4,16");
  const std::string common = request.sizes.empty() ? sizes : request.sizes;
  c.intra_mib = numbers(request.intra_sizes.empty() ? "--comm-sizes-mb" : "--intra-comm-sizes-mb",
                        request.intra_sizes.empty() ? common : request.intra_sizes, kMaxMib);
  c.inter_mib = numbers(request.inter_sizes.empty() ? "--comm-sizes-mb" : "--inter-comm-sizes-mb",
                        request.inter_sizes.empty() ? common : request.inter_sizes, kMaxMib);
  c.ring_mib = numbers(
      "--ring-p2p-sizes-mb",
      request.ring_sizes.empty() ? (place.gpu ? "10,20,40,80,160" : "1,4") : request.ring_sizes, kMaxMib);
  c.warmup = place.gpu ? 5 : 1;
  c.iterations = place.gpu ? 20 : 3;

  if (request.intra_groups.empty()) {
    // Uses the default sizes that divide the number of ranks on the node, and always the entire node.
    if (!request.quick)
      for (const int size : {2, 4, 8})
        if (size < place.local_ranks && place.local_ranks % size == 0) c.intra_groups.push_back(size);
    c.intra_groups.push_back(place.local_ranks);
  } else {
    c.intra_groups = small_numbers(numbers("--intra-group-sizes", request.intra_groups, kMaxGroup));
    for (const int size : c.intra_groups) {
      if ((c.intra_all_reduce || c.intra_all_to_all) && place.local_ranks % size != 0)
        throw invalid(fmt::format("--intra-group-sizes: {} does not divide the {} ranks of a node", size,
                                  place.local_ranks),
                      "choose sizes that divide LOCAL_WORLD_SIZE");
    }
  }
  const std::string groups = request.one_group              ? "all"
                             : request.inter_groups.empty() ? (request.quick ? "all" : "2,4,all")
                                                            : request.inter_groups;
  c.inter_groups = small_numbers(numbers("--inter-group-sizes", groups, kMaxGroup, std::max(place.nodes, 1)));
  // Default sizes that exceed the number of nodes are removed. A size that the user requested stays, and the
  // report lists this size as skipped.
  if (request.inter_groups.empty() || request.one_group)
    std::erase_if(c.inter_groups, [&](int size) { return size > place.nodes; });
  return plan;
}

}  // namespace primus::cli
