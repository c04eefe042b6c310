// A plug-in with a wrong ABI number. The bytes after the number are invalid and must not be read.
#include "device/plugin.h"

extern "C" const primus::DevicePlugin* primus_device_plugin() {
  static const std::uint64_t kWrongAbi[1] = {1};
  return reinterpret_cast<const primus::DevicePlugin*>(kWrongAbi);
}
