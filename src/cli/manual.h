// Manual pages and the reference document, from the declarations that help is made of.
#pragma once

#include <string>

#include "cli/command.h"

namespace primus::cli {

// A page's name without its section: "primus", "primus-train-pretrain".
std::string manual_name(const CommandEntry& entry);

// The page of the program (section 1), and of one command or mode, as man(7) source.
std::string program_manual();
std::string command_manual(const CommandEntry& entry);
struct ModeEntry;
std::string mode_manual(const ModeEntry& mode);

// docs/commands.md: the help of every command and mode.
std::string commands_markdown();

}  // namespace primus::cli
