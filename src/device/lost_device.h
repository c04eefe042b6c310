// The next step for an error of a device, its driver or a library on it that no setting is to blame for.
#pragma once

namespace primus {

inline constexpr const char* kLostDeviceHint =
    "the GPU may have been lost: look at the kernel's log (dmesg) and start again from the last checkpoint";

}  // namespace primus
