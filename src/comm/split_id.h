// Names the groups that are split off another one, so that all their members find the same name by
// themselves.
#pragma once

#include <map>
#include <span>
#include <string>

namespace primus::comm {

// The id of the next group called `name` of these members of the group `parent`. `made` counts, in the
// parent, how often each group was made: its members agree on that, because all of them make it.
std::string split_id(const std::string& parent, const std::string& name, std::span<const int> members,
                     std::map<std::string, int>& made);

}  // namespace primus::comm
