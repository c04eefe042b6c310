#include "cli/completion.h"

#include <algorithm>
#include <set>

#include "cli/launch/mode.h"

namespace primus::cli {
namespace {

class Completer {
 public:
  explicit Completer(std::string_view typed) : typed_(typed) {}

  void offer(std::string_view word, std::string_view help) {
    if (word.starts_with(typed_)) found_.words.push_back({std::string(word), std::string(help)});
  }

  // Offers the words that can begin a command line: one-word commands and groups, with their contents.
  void offer_commands() {
    std::set<std::string_view> groups;
    for (const CommandEntry& entry : commands()) {
      const std::string_view first = entry.name.substr(0, entry.name.find(' '));
      if (first == entry.name) {
        offer(first, entry.summary);
      } else if (groups.insert(first).second) {
        offer(first, commands_of(first));
      }
    }
  }

  void offer_commands_of(std::string_view group) {
    for (const CommandEntry& entry : commands()) {
      if (entry.name.starts_with(std::string(group) + " ")) {
        offer(entry.name.substr(group.size() + 1), entry.summary);
      }
    }
  }

  // Offers options, values and positional arguments of `arguments`, after the words `before`.
  void offer_arguments(const Arguments& arguments, Words before) {
    std::set<const Argument*> given;
    std::size_t positionals = 0;
    const Argument* pending = nullptr;  // the option whose value is being typed
    for (std::size_t i = 0; i < before.size(); ++i) {
      const Argument* const argument = before[i].starts_with('-') ? arguments.find(before[i]) : nullptr;
      if (argument) given.insert(argument);
      if (argument && !argument->value.empty() && before[i].find('=') == std::string::npos) {
        const std::size_t first = ++i;
        while (argument->several && i + 1 < before.size() && !before[i + 1].starts_with('-')) ++i;
        const bool open = argument->several ? i + 1 >= before.size() : first >= before.size();
        if (open) pending = argument;
      } else if (!argument && !before[i].starts_with('-')) {
        ++positionals;
      }
    }
    if (pending && !(pending->several && typed_.starts_with('-'))) return offer_values(*pending, "");
    const std::size_t equals = typed_.find('=');
    if (typed_.starts_with('-') && equals != std::string_view::npos) {
      const Argument* const argument = arguments.find(typed_);
      if (argument && !argument->value.empty()) offer_values(*argument, typed_.substr(0, equals + 1));
      return;
    }
    if (!typed_.starts_with('-')) {
      if (const Argument* const argument = positional(arguments, positionals)) offer_values(*argument, "");
      if (!typed_.empty() || found_.paths != Paths::kNone || !found_.words.empty()) return;
    }
    offer_options(arguments, given);
  }

  Completion result() && { return std::move(found_); }

 private:
  static std::string commands_of(std::string_view group) {
    std::string text;
    for (const CommandEntry& entry : commands()) {
      if (!entry.name.starts_with(std::string(group) + " ")) continue;
      text += (text.empty() ? "" : ", ") + std::string(entry.name.substr(group.size() + 1));
    }
    return text;
  }

  static bool is_list(const Argument& argument) {
    return std::holds_alternative<std::vector<std::string>*>(argument.target);
  }

  // Returns the positional argument after `count` other positional arguments.
  static const Argument* positional(const Arguments& arguments, std::size_t count) {
    for (const Argument& argument : arguments.all()) {
      if (!argument.names.empty()) continue;
      if (count == 0 || is_list(argument)) return &argument;
      --count;
    }
    return arguments.rest() ? &*arguments.rest() : nullptr;
  }

  void offer_values(const Argument& argument, std::string_view prefix) {
    const std::string begin(prefix);
    for (const std::string& choice : argument.choices) offer(begin + choice, "");
    if (argument.suggest) {
      for (const Suggestion& word : argument.suggest(typed_.substr(prefix.size()))) {
        offer(begin + word.word, word.help);
      }
    }
    found_.paths = paths_of(argument);
  }

  void offer_options(const Arguments& arguments, const std::set<const Argument*>& given) {
    for (const Argument& argument : arguments.all()) {
      if (argument.names.empty() || (given.contains(&argument) && !is_list(argument))) continue;
      // Offers only the first name of the option that matches the typed text.
      for (const std::string& name : argument.names) {
        if (!name.starts_with(typed_)) continue;
        offer(name, argument.help);
        break;
      }
    }
    offer("--help", "all about it");
  }

  const std::string_view typed_;
  Completion found_;
};

// Completes a command's name and its arguments; `before` is empty or begins with the name.
void complete_command(Completer& completer, Words before) {
  if (before.empty()) return completer.offer_commands();
  const CommandEntry* entry = find_command(before[0]);
  std::size_t used = 1;
  if (!entry && is_group(before[0])) {
    if (before.size() == 1) return completer.offer_commands_of(before[0]);
    entry = find_command(before[0] + " " + before[1]);
    used = 2;
  }
  if (!entry) return;
  const std::unique_ptr<Command> command = entry->make();
  Arguments arguments;
  command->declare(arguments);
  completer.offer_arguments(arguments, before.subspan(used));
}

void offer_modes(Completer& completer) {
  for (const ModeEntry& mode : modes()) completer.offer(mode.about.name, mode.about.summary);
}

void complete_mode(Completer& completer, const ModeEntry& mode, Words before) {
  const auto split = std::find(before.begin(), before.end(), "--");
  if (split != before.end()) {
    // The words after "--" may begin with another mode: 'slurm srun -- direct --numa -- train'.
    const Words after_split(split + 1, before.end());
    const ModeEntry* const inner = after_split.empty() ? nullptr : find_mode(after_split[0]);
    if (inner) return complete_mode(completer, *inner, after_split.subspan(1));
    complete_command(completer, after_split);
    if (after_split.empty() && mode.about.name != kDirect.about.name) offer_modes(completer);
    return;
  }
  Arguments arguments;
  const DeclaredMode declared = declare(mode, arguments);
  completer.offer_arguments(arguments, before);
  completer.offer("--", "the command follows");
}

void complete_help(Completer& completer, Words before) {
  if (before.empty()) {
    completer.offer_commands();
    offer_modes(completer);
  } else if (before.size() == 1) {
    completer.offer_commands_of(before[0]);
  }
}

constexpr std::string_view kBash = R"(# Completion of primus for bash.
_primus() {
  local word help typed cut paths rest=${COMP_LINE:0:COMP_POINT} trimmed i
  local -a line=()
  # bash cuts words at '=' and ':', too. What stands together in the line is one word.
  for ((i = 0; i <= COMP_CWORD; ++i)); do
    trimmed=${rest#"${rest%%[![:space:]]*}"}
    word=${COMP_WORDS[i]}
    ((i == COMP_CWORD)) && word=$trimmed
    if ((i > 0)) && [[ -n $rest && $trimmed == "$rest" ]]; then
      line[${#line[@]}-1]+=$word
    else
      line+=("$word")
    fi
    rest=${trimmed#"$word"}
  done
  typed=${line[${#line[@]}-1]}
  # The line editor replaces what stands behind the last of these characters.
  [[ $COMP_WORDBREAKS == *[=:]* ]] && cut=${typed%"${typed##*[=:]}"}
  local program=${BASH_ALIASES[$1]:-$1}
  COMPREPLY=()
  while IFS=$'\t' read -r word help; do
    case $word in
      :*) paths=$word ;;
      *) COMPREPLY+=("${word#"$cut"}") ;;
    esac
  done < <("${program/#\~/$HOME}" __complete "${line[@]:1}" 2>/dev/null)
  local IFS=$'\n'
  case $paths in
    :files) COMPREPLY+=($(compgen -f -- "${typed#"$cut"}")) ;;
    :folders) COMPREPLY+=($(compgen -d -- "${typed#"$cut"}")) ;;
  esac
  [[ $paths == :none ]] || compopt -o filenames 2>/dev/null
  [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace 2>/dev/null
}
complete -F _primus primus primus-cli
)";

constexpr std::string_view kZsh = R"(#compdef primus primus-cli
# Completion of primus for zsh.
_primus() {
  local line word help paths
  local -a whole open
  for line in "${(@f)$("${(Q)${~words[1]}}" __complete "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)}"; do
    word=${line%%$'\t'*} help=${line#*$'\t'}
    case $word in
      :*) paths=$word ;;
      *=) open+=("${word//:/\\:}:$help") ;;
      ?*) whole+=("${word//:/\\:}:$help") ;;
    esac
  done
  (($#whole)) && _describe 'primus' whole
  (($#open)) && _describe 'setting' open -S ''
  [[ $paths != :none && $PREFIX == -*=* ]] && compset -P '*='
  case $paths in
    :files) _files ;;
    :folders) _files -/ ;;
  esac
}
if [[ $funcstack[1] == _primus ]]; then
  _primus "$@"
else
  compdef _primus primus primus-cli
fi
)";

constexpr std::string_view kFish = R"(# Completion of primus for fish.
function __primus_complete
    set -l line (commandline -opc)
    set -l typed (commandline -ct)
    set -l program $line[1]
    set -e line[1]
    # A path behind '--option=' is completed without the option, which is then put back.
    set -l option (string match -r -- '^-[^=]*=' $typed)
    set -l path (string replace -- "$option" '' $typed)
    for answer in ($program __complete $line "$typed" 2>/dev/null)
        switch $answer
            case :files
                printf "$option%s\n" (__fish_complete_path "$path")
            case :folders
                printf "$option%s\n" (__fish_complete_directories "$path" '')
            case :none
            case '*'
                echo $answer
        end
    end
end
complete -c primus -f -a '(__primus_complete)'
complete -c primus-cli -w primus
)";

}  // namespace

Completion complete(std::span<const std::string> words) {
  const std::string empty;
  Completer completer(words.empty() ? empty : words.back());
  const Words before = words.first(words.empty() ? 0 : words.size() - 1);
  GlobalOptions globals;
  Arguments arguments;
  globals.declare(arguments);
  const Words rest = before.subspan(count_options(arguments, before));
  if (rest.empty()) {
    if (!words.empty() && words.back().starts_with('-')) {
      completer.offer_arguments(arguments, before);
    } else {
      completer.offer_commands();
      offer_modes(completer);
      completer.offer("help", "all about a command");
    }
  } else if (rest[0] == "help") {
    complete_help(completer, rest.subspan(1));
  } else if (const ModeEntry* const mode = find_mode(rest[0])) {
    complete_mode(completer, *mode, rest.subspan(1));
  } else {
    complete_command(completer, rest);
  }
  return std::move(completer).result();
}

std::string completion_reply(std::span<const std::string> words) {
  const Completion found = complete(words);
  std::string reply;
  for (const Suggestion& suggestion : found.words) {
    std::string help = suggestion.help;
    std::replace(help.begin(), help.end(), '\n', ' ');
    reply += suggestion.word + "\t" + help + "\n";
  }
  switch (found.paths) {
    case Paths::kFiles:
      return reply + ":files\n";
    case Paths::kFolders:
      return reply + ":folders\n";
    case Paths::kNone:
      break;
  }
  return reply + ":none\n";
}

std::string_view completion_script(std::string_view shell) {
  return shell == "bash" ? kBash : shell == "zsh" ? kZsh : kFish;
}

}  // namespace primus::cli
