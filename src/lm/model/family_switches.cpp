#include "lm/model/family_switches.h"

#include <algorithm>
#include <array>

namespace primus {
namespace {

// Megatron-LM's switches whose value follows from model_type, with the value that most families have.
constexpr std::array<FamilySwitch, 14> kSwitches = {{{"multi_latent_attention", "false"},
                                                     {"add_qkv_bias", "false"},
                                                     {"add_bias_linear", "false"},
                                                     {"qk_layernorm", "false"},
                                                     {"swiglu", "true"},
                                                     {"quick_geglu", "false"},
                                                     {"activation_func_clamp_value", ""},
                                                     {"glu_linear_offset", "0"},
                                                     {"softmax_type", "vanilla"},
                                                     {"rotary_interleaved", "false"},
                                                     {"apply_layernorm_1p", "false"},
                                                     {"attention_output_gate", "false"},
                                                     {"experimental_attention_variant", ""},
                                                     {"moe_shared_expert_gate", "false"}}};

}  // namespace

std::vector<FamilySwitch> switches_of(const Family& family) {
  std::vector<FamilySwitch> all(kSwitches.begin(), kSwitches.end());
  for (FamilySwitch& common : all) {
    for (const FamilySwitch& own : family.switches) {
      if (own.key == common.key) common.value = own.value;
    }
  }
  return all;
}

bool leaves_open(const Family& family, std::string_view key) {
  return std::ranges::any_of(family.switches,
                             [&](const FamilySwitch& own) { return own.key == key && own.value == kEither; });
}

bool always_latent(const Family& family) { return leaves_open(family, "multi_latent_attention"); }

}  // namespace primus
