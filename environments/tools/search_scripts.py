"""The shell scripts of ``search_files``: POSIX, and with options that busybox has too."""

from __future__ import annotations

# Patterns come as octal escapes for printf: they hold bytes that are no text. Processes are what a search
# of a small tree costs, so each script starts as few as can be; sorting is done here.
# $1 glob as a pattern, or empty; $2 "1" to look at hidden entries too, .git excepted.
LIST = r"""
LC_ALL=C; export LC_ALL
newline='
'
list() {
  if [ "$2" = 1 ]; then hide='.git'; else hide='.?*'; fi
  if [ -n "$ONE" ]; then printf '%s\n' "$ONE"
  elif [ -z "$1" ]; then find . -name "$hide" -prune -o -type f ! -name "*$newline*" -print 2>/dev/null
  else
    glob=$(printf "$1")
    find . -name "$hide" -prune -o -type f ! -name "*$newline*" -print 2>/dev/null | grep -E -e "$glob"
  fi
}
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

# $3 pattern, $4 "i" or empty, $5 "-I" or empty. One line PATH:COUNT for each text file.
COUNT = r"""
pattern=$(printf "$3") fold=${4:+-i}
count() {
  tr '\n' '\000' | xargs -0 grep $1 -E $fold -c -e "$pattern" -- /dev/null 2>/dev/null
}
if [ -n "$5" ]; then list "$1" "$2" | count "$5"; exit 0; fi
list "$1" "$2" | count "" | grep -v ':0$' | while IFS= read -r entry; do
  nuls=$(head -c 32768 "${entry%:*}" | tr -c -d '\000' | wc -c)
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
# then the files. Lines FILE NUL NUMBER:TEXT, or NUMBER-TEXT around matches.
SHOW = r"""
LC_ALL=C; export LC_ALL
pattern=$(printf "$1") fold=${2:+-i} text=$3 context=$4 width=$5 most=$6; shift 6
show() {
  grep $text -E $fold -n -m "$most" -A "$context" -B "$context" -e "$pattern" "$@" 2>/dev/null
}
if [ -n "$text" ]; then show -H -Z -- "$@" | cut -b "1-$width"; exit 0; fi
for file do
  show -h -- "$file" | tr -d '\000' | cut -b "1-$width" | while IFS= read -r line; do
    printf '%s\000%s\n' "$file" "$line"
  done
done
exit 0
"""
