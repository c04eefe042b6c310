#include "safe/preflight/all_reduce.h"

#include <fmt/format.h>

namespace primus::preflight {
namespace {

void judge_unmeasured(const AllReduceFacts& facts, Judge& judge) {
  if (!facts.problem.empty()) {
    judge.fail(
        {.where = facts.where,
         .measured = facts.problem,
         .wanted = "a result",
         .source = "a check that cannot run counts as failed",
         .fix = "run it by hand with NCCL_DEBUG=INFO: primus preflight --tests intra-allreduce --nproc " +
                std::to_string(facts.gpus)});
  } else if (facts.is_demanded) {
    judge.fail({.where = facts.where,
                .measured = "fewer than two GPUs can be used",
                .wanted = fmt::format("at least {:.4g} GB/s", facts.minimum->value),
                .source = facts.minimum->source,
                .fix = fmt::format("'primus device list' shows why GPUs cannot be used; or omit {}",
                                   facts.minimum->source)});
  } else {
    judge.skip("fewer than two GPUs can be used", facts.where);
  }
}

void judge_all_reduce(const CheckInput& in, Judge& judge) {
  const AllReduceFacts& facts = in.facts<AllReduceFacts>();
  if (!facts.rate) {
    judge_unmeasured(facts, judge);
    return;
  }
  const std::string measured = fmt::format("{}: {:.4g} GB/s", facts.what, *facts.rate);
  if (!facts.minimum) {
    judge.skip(measured + ", no threshold is known for these devices", facts.where);
    return;
  }
  Finding finding{.where = facts.where,
                  .measured = measured,
                  .wanted = fmt::format("at least {:.4g} GB/s", facts.minimum->value),
                  .source = facts.minimum->source};
  if (*facts.rate >= facts.minimum->value) {
    judge.pass(std::move(finding));
    return;
  }
  finding.fix =
      "check that all GPUs are connected by NVLink or XGMI (nvidia-smi topo -m, rocm-smi --showtopo); "
      "NCCL_DEBUG=INFO shows what the library chose";
  judge.fail(std::move(finding));
}

}  // namespace

void check_all_reduce(const AllReduceFacts& facts, std::vector<Finding>& findings) {
  judge_group("all-reduce", facts, findings);
}

std::optional<Wanted> min_all_reduce(const std::vector<Hardware>& table,
                                     const std::vector<turbo::DeviceListing>& devices) {
  for (const turbo::DeviceListing& listing : devices) {
    for (const DeviceProperties& properties : listing.devices) {
      if (properties.kind == "cpu") continue;
      const auto hardware = find_hardware(table, properties.name);
      if (hardware && hardware->min_all_reduce > 0) return Wanted{hardware->min_all_reduce, hardware->file};
    }
  }
  return std::nullopt;
}

extern const Check kAllReduce{
    .name = "performance.all-reduce",
    .category = "performance",
    .question = "Do the GPUs of a node exchange fast enough?",
    .judge = judge_all_reduce,
    .threshold = {"--rccl-gbs-min", "G",
                  "with --tier2-perf: minimum of the all-reduce (default: presets/hardware)",
                  &Requirements::min_all_reduce, 0, ThresholdOption::About::kExchange},
    .group = "all-reduce"};

}  // namespace primus::preflight
