#include "launch/dependency_folder.h"

namespace primus::launch {

Path dependency_folder(const Surroundings& surroundings) {
  if (const auto folder = surroundings.setting("PRIMUS_THIRDPARTY_DIR")) return *folder;
  return Path(surroundings.setting("HOME").value_or("/root")) / ".cache" / "Primus" / "third_party";
}

}  // namespace primus::launch
