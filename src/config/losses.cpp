#include "config/losses.h"

namespace primus::config {
namespace {

constexpr std::string_view kSft[] = {"nll", "dft"};
constexpr std::string_view kDpo[] = {"sigmoid",  "hinge",    "ipo",       "exo_pair", "nca_pair",
                                     "robust",   "bco_pair", "sppo_hard", "aot",      "aot_unpaired",
                                     "apo_zero", "apo_down", "discopop",  "sft",      "sigmoid_norm"};
constexpr std::string_view kKto[] = {"kto", "apo_zero_unpaired"};
constexpr std::string_view kCpo[] = {"sigmoid", "hinge", "ipo", "simpo"};
constexpr std::string_view kGrpo[] = {"grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "vespo", "luspo"};

}  // namespace

std::span<const std::string_view> losses_of(std::string_view stage) {
  if (stage == "sft") return kSft;
  if (stage == "dpo") return kDpo;
  if (stage == "kto") return kKto;
  if (stage == "cpo") return kCpo;
  if (stage == "grpo") return kGrpo;
  return {};
}

}  // namespace primus::config
