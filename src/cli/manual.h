// Manual pages and the command reference, generated from the declarations that help uses.
#pragma once

#include <string>

#include "cli/command.h"

namespace primus::cli {

// Returns the page name without its section: "primus", "primus-train-pretrain".
std::string manual_name(const CommandEntry& entry);

// Return the manual pages (section 1) of the program and of one command or mode, as man(7) source.
std::string program_manual();
std::string command_manual(const CommandEntry& entry);
struct ModeEntry;
std::string mode_manual(const ModeEntry& mode);

// Returns the content of docs/commands.md: the help of all commands and modes.
std::string commands_markdown();

}  // namespace primus::cli
