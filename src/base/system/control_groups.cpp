#include "base/system/control_groups.h"

#include <fstream>
#include <sstream>

namespace primus {

std::vector<ControlGroup> control_groups(std::string_view controller, const std::string& root) {
  std::vector<ControlGroup> groups;
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {  // "0::/path" or "4:cpu,cpuacct:/path"
    const auto first = line.find(':');
    const auto second = line.find(':', first == std::string::npos ? first : first + 1);
    if (second == std::string::npos) continue;
    std::istringstream controllers(line.substr(first + 1, second - first - 1));
    const bool v2 = controllers.str().empty();
    bool named = v2;
    for (std::string name; std::getline(controllers, name, ',');) named = named || name == controller;
    if (!named) continue;
    const std::string mount = root + "/sys/fs/cgroup" + (v2 ? "" : "/" + std::string(controller));
    std::string path = line.substr(second + 1);
    for (;;) {
      groups.push_back({path == "/" ? mount : mount + path, v2});
      const auto slash = path.find_last_of('/');
      if (slash == std::string::npos || path == "/") break;
      path.resize(slash);
    }
  }
  return groups;
}

}  // namespace primus
