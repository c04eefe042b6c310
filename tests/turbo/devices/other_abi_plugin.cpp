// A plug-in from other sources: everything behind its ABI number is garbage that nobody may look at.
#include "device/plugin.h"

extern "C" const primus::DevicePlugin* primus_device_plugin() {
  static const std::uint64_t kWrongAbi[1] = {1};
  return reinterpret_cast<const primus::DevicePlugin*>(kWrongAbi);
}
