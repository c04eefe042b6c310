#include "comm/split_id.h"

#include <fmt/format.h>

namespace primus::comm {

std::string split_id(const std::string& parent, const std::string& name, std::span<const int> members,
                     std::map<std::string, int>& made) {
  std::string key = name;
  for (const int member : members) key += fmt::format(",{}", member);
  const int count = made[key]++;
  return fmt::format("{}/{}#{}", parent, key, count);
}

}  // namespace primus::comm
