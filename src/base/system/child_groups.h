// Process groups of helper programs that must not outlive this process, such as reward programs. A helper in
// a separate group gets no signals of the terminal. A signal handler that ends this process therefore kills
// these groups first. A process that is killed by SIGKILL cannot do so.
//
// Thread-safety: any thread may call these functions, and a signal handler may call kill_child_groups().
#pragma once

#include <sys/types.h>

namespace primus {

// Adds a process group. `group`: the process id of its leader, a child of this process.
void add_child_group(pid_t group);
// Removes a group. Call it as soon as the group's leader has ended, because the id may then be reused.
void remove_child_group(pid_t group);
// Kills all groups that were added and not removed.
void kill_child_groups();

}  // namespace primus
