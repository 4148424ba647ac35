r"""What ``search_files`` runs in a sandbox: shell, ``find`` and ``grep`` as every image has them.

Patterns come as octal escapes for printf: they hold bytes that are no text. Processes are what a search of
a small tree costs, so each script starts as few as can be; sorting is done outside. Names stand one on a
line, a line break in one as the byte 1.
"""

from __future__ import annotations

# Patterns of case are unquoted where they can be: shells look for those faster in long texts.
# $1 glob as a pattern, or empty; $2 "1" to look at hidden entries too, .git excepted; $3 "1" where the names
# come over standard input. Sets wanted, and where ignore files are in and above the directory, rules and
# marks: their lines, and where there is a .git. These are for the other side to decide about.
LIST = r"""
LC_ALL=C; export LC_ALL
newline='
'
odd='BYTE_ONE'
own=${XDG_CONFIG_HOME:-${HOME:-}/.config}/git/ignore
rules= marks=
lines_of() {
  while IFS= read -r line || [ -n "$line" ]; do
    case $line in ''|'#'*) ;; *) rules="$rules$1:$line$newline" ;; esac
  done < "$2"
}
look_above() {
  above=$PWD level=0
  while [ -n "$above" ] && [ "$above" != / ]; do
    above=${above%/*} level=$((level + 1))
    [ -e "$above/.git" ] && marks="$marks^$level/.git:$newline"
    for name in .gitignore .ignore .rgignore .git/info/exclude; do
      [ -f "$above/$name" ] && [ -r "$above/$name" ] && lines_of "^$level/$name" "$above/$name"
    done
  done
}
look_below() {
  files=$(printf '%s\n' "$found" | grep -e '/\.git$' -e '/\.gitignore$' -e '/\.ignore$' -e '/\.rgignore$')
  plain=
  while IFS= read -r name; do
    case $name in
      */.git) marks="$marks$name:$newline"; name=$name/info/exclude ;;
    esac
    case $name in
      *$odd*) real_name "$name"; [ -f "$real" ] && lines_of "$name" "$real" ;;
      *) [ -f "$name" ] && plain="$plain$name$newline" ;;
    esac
  done <<EOF
$files
EOF
  if [ -n "$plain" ]; then
    rules=$rules$(printf '%s' "$plain" | tr '\n' '\000' | xargs -0 grep -a -v '^#' /dev/null 2>/dev/null)
    rules=${rules:+$rules$newline}
  fi
}
real_name() {
  real=$(printf '%s' "$1" | tr '\001' '\n'; printf x); real=${real%x}
}
make_list() {
  if [ "$3" = 1 ]; then wanted=$(cat); return; fi
  if [ "$2" = 1 ]; then hide='.git'; else hide='.?*'; fi
  if [ -n "$ONE" ]; then wanted=$ONE; return; fi
  found=$(find . -name .git -prune -print0 \
    -o -name "$hide" ! -name .gitignore ! -name .ignore ! -name .rgignore -prune \
    -o -type f -print0 2>/dev/null | tr '\n\000' '\001\n')
  wanted=$found below=
  case $found in *ignore*|*/.git*) below=1 ;; esac
  look_above
  if [ -n "$below" ]; then
    look_below
    wanted=$(printf '%s\n' "$found" | if [ "$2" = 1 ]; then
      grep -v '/\.git$'
    else
      grep -v -e '/\.git$' -e '/\.gitignore$' -e '/\.ignore$' -e '/\.rgignore$'
    fi)
  fi
  if [ -n "$marks" ] && [ -f "$own" ]; then lines_of '~' "$own"; fi
  if [ -n "$1" ]; then
    glob=$(printf "$1")
    wanted=$(printf '%s\n' "$wanted" | grep -E -e "$glob")
  fi
}
make_list "$1" "$2" "$3"
if [ -n "$rules" ] && [ -n "$wanted" ]; then
  printf '\000%s\000%s\000%s%s' "$PWD" "$wanted" "$marks" "$rules"
  exit 0
fi
[ -n "$wanted" ] || exit 0
""".replace("BYTE_ONE", "\x01")

SHOW_NAMES = r"""
printf '%s\n' "$wanted"
"""

# -I leaves binary files out; busybox takes the option without effect, so both ways are tried out, once in
# a rollout. Where it does not work, binary files are told by a NUL near their start. Greps that have it
# have -Z too, which sets the names of files apart from the rest by a NUL.
PROBE = r"""
printf 'x\n' | grep -I x >/dev/null 2>&1 || exit 1
printf 'x\000\n' | grep -I x >/dev/null 2>&1 && exit 1
printf 'x\n' | grep -H -Z x >/dev/null 2>&1 || exit 1
find . -prune -exec true {} + >/dev/null 2>&1 || exit 3
"""

# $4 pattern, $5 "i" or empty, $6 "-I" or empty. One line PATH:COUNT for each text file.
COUNT = r"""
pattern=$(printf "$4") fold=${5:+-i} text=$6 strange=
case $wanted in
  *$odd*)
    strange=$(printf '%s\n' "$wanted" | grep "$odd")
    wanted=$(printf '%s\n' "$wanted" | grep -v "$odd") ;;
esac
count_all() {
  if [ -n "$wanted" ]; then
    printf '%s\n' "$wanted" | tr '\n' '\000' |
      xargs -0 grep $text -E $fold -c -e "$pattern" -- /dev/null 2>/dev/null
  fi
  [ -n "$strange" ] && printf '%s\n' "$strange" | while IFS= read -r name; do
    real_name "$name"
    number=$(grep $text -E $fold -c -e "$pattern" -- "$real" 2>/dev/null) &&
      printf '%s:%s\n' "$name" "$number"
  done
}
if [ -n "$text" ]; then count_all; exit 0; fi
count_all | grep -v ':0$' | while IFS= read -r entry; do
  real_name "${entry%:*}"
  nuls=$(head -c 32768 "$real" | tr -c -d '\000' | wc -c)
  [ "$nuls" -eq 0 ] && printf '%s\n' "$entry"
done
exit 0
"""

CHECK = r"""
LC_ALL=C; export LC_ALL
pattern=$(printf "$1")
printf '' | grep -E -e "$pattern" >/dev/null
[ $? -lt 2 ] || exit 2
"""

# $1 pattern, $2 "i" or empty, $3 "-I" or empty, $4 context, $5 bytes of a line, $6 most matches of a file,
# then the files by their real names. Lines FILE NUL NUMBER:TEXT, or NUMBER-TEXT around matches.
SHOW = r"""
LC_ALL=C; export LC_ALL
newline='
'
pattern=$(printf "$1") fold=${2:+-i} text=$3 context=$4 width=$5 most=$6; shift 6
show() {
  grep $text -E $fold -n -m "$most" -A "$context" -B "$context" -e "$pattern" "$@" 2>/dev/null
}
each=$text
case "$*" in *"$newline"*) each= ;; esac
if [ -n "$each" ]; then show -H -Z -- "$@" | cut -b "1-$width"; exit 0; fi
for file do
  name=$(printf '%s' "$file" | tr '\n' '\001')
  show -h -- "$file" | tr -d '\000' | cut -b "1-$width" | while IFS= read -r line; do
    printf '%s\000%s\n' "$name" "$line"
  done
done
exit 0
"""
