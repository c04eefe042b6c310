// Commands that train one stage of fine-tuning.
#pragma once

#include <memory>
#include <string>

#include "cli/command.h"

namespace primus::cli {

// Makes a command with the options of 'train posttrain' that trains `stage`. Without an experiment file, it
// starts from the preset STAGE_trainer.yaml.
std::unique_ptr<Command> make_stage_command(std::string stage);

}  // namespace primus::cli
