// primus completion
#include "cli/completion.h"

#include "cli/command.h"

namespace primus::cli {
namespace {

class CompletionCommand final : public Command {
 public:
  void declare(Arguments& args) override {
    args.positional("SHELL", &shell_, "which shell").choices.assign(std::begin(kShells), std::end(kShells));
  }
  int run(Console& console) override {
    console.write(completion_script(shell_));
    return 0;
  }

 private:
  std::string shell_;
};

}  // namespace

extern const CommandEntry kCompletion{
    "completion",
    "Prints a shell's completion script, for commands, options, values and settings",
    "The script calls the program to find the completions, so it stays correct when the program is "
    "updated.\n\n"
    "bash: put 'source <(primus completion bash)' into ~/.bashrc. zsh: write the script to a file _primus in "
    "a folder of $fpath, or put 'source <(primus completion zsh)' after compinit in ~/.zshrc. fish: write it "
    "to ~/.config/fish/completions/primus.fish.",
    "source <(primus completion bash)\n"
    "mkdir -p ~/.zfunc && primus completion zsh > ~/.zfunc/_primus\n"
    "mkdir -p ~/.config/fish/completions && primus completion fish > ~/.config/fish/completions/primus.fish",
    make_command<CompletionCommand>,
    {Section::kProgram, 1}};

}  // namespace primus::cli
