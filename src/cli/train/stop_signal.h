// Ctrl-C, SIGTERM, a terminal that goes away (SIGHUP) and the warning of a scheduler before a time limit
// (SIGUSR1) as a request: the first sets a flag, another one ends the process as usual, unless it comes
// within a tenth of a second and so belongs to the first.
#pragma once

#include <atomic>
#include <string>

namespace primus::cli {

// kIgnored: somebody else ends the process when its time is over.
enum class SecondSignal { kEnds, kIgnored };

// From here on SIGINT, SIGTERM, SIGHUP and SIGUSR1 set the flag, and a reader that goes away (SIGPIPE) does
// not end the process. A SIGHUP that is ignored already stays so: nohup(1) asked for that. The flag lives as
// long as the process; it is the one piece of state a signal handler can reach.
const std::atomic<bool>& catch_stop_signals(SecondSignal second = SecondSignal::kEnds);

// The name of the first signal that came: "SIGTERM"; empty before.
std::string stop_signal_name();

}  // namespace primus::cli
