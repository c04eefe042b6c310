// Names groups that are split off another group. All members derive the same name without communication.
#pragma once

#include <map>
#include <span>
#include <string>

namespace primus::comm {

// Returns the id of the next group named `name` with these members of the group `parent`. `made` counts, by
// name and members, the groups that were split off `parent`. All members of a group take part in each split
// of the group. So all members compute the same count and the same id.
std::string split_id(const std::string& parent, const std::string& name, std::span<const int> members,
                     std::map<std::string, int>& made);

}  // namespace primus::comm
