#!/bin/sh
# Checks the wording of comments, messages and documents: they contain no phrase of scripts/words.txt and, if
# codespell is installed, no misspelled word.
#
#   scripts/check-words.sh            all files of the repository
#   scripts/check-words.sh FILE...    these files
#
# scripts/words-allowed.txt lists the lines that quote such a phrase, and scripts/words-known.txt the words that
# codespell takes for mistakes.
set -eu
cd "$(dirname "$0")/.."
export LC_ALL=C.UTF-8

prose=$(mktemp)
trap 'rm -f "$prose"' EXIT
if [ $# -gt 0 ]; then
  printf '%s\n' "$@"
else
  # Excludes golden results, sample texts and tables of other projects, whose wording is not ours.
  git ls-files -- '*.cpp' '*.h' '*.cu' '*.def' '*.py' '*.sh' '*.cmake' '*CMakeLists.txt' '*.md' '*.yaml' '*.yml' |
    grep -vE '/golden/|/corpus/|^presets/backends/'
fi | xargs awk -f scripts/prose.awk >"$prose"
[ -s "$prose" ] || {
  echo "no prose to check: this is no checkout of the repository, or the files have no comments" >&2
  exit 2
}

failed=0
perl -CSD -e '
  sub lines { open my $file, "<", $_[0] or die "$_[0]: $!\n"; grep { !/^(#|\s*$)/ } map { chomp; $_ } <$file> }
  my @rules = map { [split /\t+/] } lines("scripts/words.txt");
  my @allowed = lines("scripts/words-allowed.txt");
  my $found = 0;
  open my $prose, "<", $ARGV[0] or die "$ARGV[0]: $!\n";
  while (my $line = <$prose>) {
    chomp $line;
    my ($place, $text) = split /\t/, $line, 2;
    next if grep { index($text, $_) >= 0 } @allowed;
    for my $rule (@rules) {
      next unless $text =~ /$rule->[0]/;
      print "$place: \"$&\": $rule->[1]\n    $text\n";
      ++$found;
    }
  }
  if ($found) { print "$found phrases to rewrite (scripts/words.txt)\n"; exit 1 }
' "$prose" || failed=1

if command -v codespell >/dev/null; then
  codespell --ignore-words scripts/words-known.txt - <"$prose" || failed=1
else
  echo "spelling not checked: codespell is not installed"
fi
[ $failed = 0 ] && echo "wording is in order"
exit $failed
