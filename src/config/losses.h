// Lists the losses that each stage offers as choices of the key `loss_type`. Pure data; thread-safe.
#pragma once

#include <span>
#include <string_view>

namespace primus::config {

// Returns the losses that `stage` offers; empty if the stage has one loss, or if no stage has this name.
std::span<const std::string_view> losses_of(std::string_view stage);

}  // namespace primus::config
