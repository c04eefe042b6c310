// The hint for errors of a device, its driver or its libraries that are not caused by settings.
#pragma once

namespace primus {

inline constexpr const char* kLostDeviceHint =
    "the GPU may have been lost: look at the kernel's log (dmesg) and start again from the last checkpoint";

}  // namespace primus
