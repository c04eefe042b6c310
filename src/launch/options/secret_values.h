// Refuses secrets in options of other programs (srun, docker ...). Internal to launch. Thread-safe.
#pragma once

#include <string_view>
#include <vector>

#include "launch/options/foreign_options.h"

namespace primus::launch {

// Throws Error(kInvalid) if the value of an option contains a secret, because every user of a machine can
// read command lines. The message does not contain the value. Variables of `env` are not checked, because a
// container gets their secrets by name. `hint`: the next step, in which "{}" is replaced by the variable's
// name.
void refuse_secret_values(const std::vector<GivenOption>& options, std::string_view hint);

}  // namespace primus::launch
