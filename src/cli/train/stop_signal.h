// Stop requests by signal: Ctrl-C, SIGTERM, a closed terminal (SIGHUP), and a scheduler's warning before a
// time limit (SIGUSR1). The first signal sets a flag. A second signal ends the process as usual, together
// with its helper programs (base/system/child_groups.h), but a signal within a tenth of a second counts as a
// duplicate of the first.
#pragma once

#include <atomic>
#include <string>

namespace primus::cli {

// kIgnored: another process ends this process when its time is over.
enum class SecondSignal { kEnds, kIgnored };

// Installs the handlers: SIGINT, SIGTERM, SIGHUP and SIGUSR1 set the returned flag, and SIGPIPE no longer
// ends the process. If SIGHUP is already ignored it stays ignored, as nohup(1) requests. The flag is global,
// since a signal handler can access only global state.
const std::atomic<bool>& catch_stop_signals(SecondSignal second = SecondSignal::kEnds);

// Returns the name of the first signal received: "SIGTERM"; empty if none.
std::string stop_signal_name();

}  // namespace primus::cli
