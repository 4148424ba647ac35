# Stands in for programs that fetch from a network. Arguments: the program's name and its own.
program=$1
shift
python=$(command -v python3) || python=

needs() {
  echo "hermes-verifier: needs $*"
  echo "hermes-verifier: needs $*" >&2
  exit 96
}

# name of a requirement: pytest==8.4.1 -> pytest
bare() {
  name=${1%%[<>=!~;@[ ]*}
  printf %s "$name"
}

# whether a Python package is there: ours, or importable by the sandbox's Python
has_package() {
  wanted=$(bare "$1")
  case $wanted in
  pytest | pip | uv | setuptools | wheel | pytest-json-ctrf) return 0 ;;
  pytest-*) return 1 ;; # our pytest loads no plug-ins of the sandbox
  esac
  [ "$python" ] && "$python" -c '
import importlib.metadata as m, sys
try: m.distribution(sys.argv[1])
except m.PackageNotFoundError: sys.exit(1)' "$wanted" 2>/dev/null
}

want_packages() {
  for package; do
    case $package in -*) continue ;; esac
    has_package "$package" || needs "the Python package $package"
  done
}

run_pytest() {
  [ "$python" ] || needs "python3 in the sandbox"
  exec "$python" -I -S "$HERMES_BUNDLE/run_pytest.py" "$@"
}

# run what is left of a `uv run` or `uvx` line
run_tool() {
  case $1 in
  pytest | py.test) shift; run_pytest "$@" ;;
  python | python3)
    [ "$2" = -m ] && [ "$3" = pytest ] && { shift 3; run_pytest "$@"; }
    [ "$python" ] || needs "python3 in the sandbox"
    shift
    exec "$python" "$@"
    ;;
  esac
  command -v "$1" >/dev/null 2>&1 || needs "the program $1"
  exec "$@"
}

uv_options() {
  while [ $# -gt 0 ]; do
    case $1 in
    -w | --with | --from) want_packages "$2"; shift 2 ;;
    --with=* | --from=*) want_packages "${1#*=}"; shift ;;
    -p | --python | --directory | --project | --index-url | -i) shift 2 ;;
    -*) shift ;;
    *) break ;;
    esac
  done
  run_tool "$@"
}

case $program in
pytest) run_pytest "$@" ;;
uvx) uv_options "$@" ;;
uv)
  command=$1
  shift
  case $command in
  run) uv_options "$@" ;;
  tool) [ "$1" = run ] && { shift; uv_options "$@"; } ;;
  add) want_packages "$@" ;;
  pip) [ "$1" = install ] && { shift; want_packages "$@"; } ;;
  esac
  ;;
pip | pip3)
  [ "$1" = install ] && { shift; want_packages "$@"; }
  ;;
apt | apt-get)
  installing=
  for word; do
    case $word in
    install) installing=1 ;;
    -* | update | upgrade | clean) ;;
    *)
      if [ "$installing" ] && ! command -v "$word" >/dev/null 2>&1 && ! dpkg -s "$word" >/dev/null 2>&1; then
        case $word in
        curl | ca-certificates) ;;
        *) needs "the package $word" ;;
        esac
      fi
      ;;
    esac
  done
  ;;
curl)
  url=
  for word; do
    case $word in
    *astral.sh/uv*) url=uv ;;
    http://localhost* | http://127.* | https://localhost* | https://127.* | localhost* | 127.*) url=${url:-local} ;;
    *://*) url=${url:-$word} ;;
    esac
  done
  case $url in
  uv) echo : ;;
  '' | local)
    IFS=:
    for directory in $PATH; do
      [ "$directory" = "$HERMES_BUNDLE/bin" ] && continue
      [ -x "$directory/curl" ] && { unset IFS; exec "$directory/curl" "$@"; }
    done
    needs "the program curl"
    ;;
  *) needs "$url" ;;
  esac
  ;;
esac
exit 0
