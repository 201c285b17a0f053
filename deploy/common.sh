# Shared by deploy/install-deps, deploy/quickstart and tests/run; sourced by bash, which must have `set -euo pipefail`.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$root/build

# Ends the command with the project's one line for errors: fail STATUS WHAT WHERE WHAT-TO-DO (status 2: usage, 1: while running).
fail() {
  printf 'tensorlane: error: %s: %s: %s\n' "$2" "$3" "$4" >&2
  exit "$1"
}

# Runs a command as a named phase: says so before and reports seconds and outcome after. phase NAME COMMAND...
phase() {
  local name=$1 start=$SECONDS status=0
  shift
  printf '== %s\n' "$name"
  "$@" || status=$?
  if [ "$status" -eq 0 ]; then
    printf '== %s: done in %d s\n' "$name" $((SECONDS - start))
  else
    printf '== %s: failed with status %d after %d s\n' "$name" "$status" $((SECONDS - start))
  fi
  return "$status"
}

# Whether there is a ccache that can keep something: a user without a home has no place for it, and then it fails every compilation.
ccache_works() {
  local folder
  command -v ccache >/dev/null && folder=$(ccache --get-config cache_dir) && mkdir -p "$folder" 2>/dev/null && [ -w "$folder" ]
}

# Configures a preset of CMakePresets.json where needed and builds targets of it (none: all). build_preset PRESET [TARGET...]
build_preset() {
  local preset=$1 launcher=
  shift
  ! ccache_works || launcher=ccache
  # So that clones in other folders share what was compiled. Debug information then names the folder that compiled first.
  export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1
  # What is compiled with precompiled headers is kept, too: no source asks for the time.
  export CCACHE_SLOPPINESS=pch_defines,time_macros
  # What is not there yet is not preprocessed first to look for it: the compiler's own list of headers says what belongs to it.
  export CCACHE_DEPEND=1
  (cd "$root" && cmake --preset "$preset" --log-level=WARNING "-DCMAKE_C_COMPILER_LAUNCHER=$launcher" "-DCMAKE_CXX_COMPILER_LAUNCHER=$launcher") || return
  local targets=()
  [ $# -eq 0 ] || targets=(--target "$@")
  (cd "$root" && NINJA_STATUS='[%f/%t] ' cmake --build --preset "$preset" -j 2 "${targets[@]}")
}
