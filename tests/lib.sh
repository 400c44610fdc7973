# The parts of tests/run.sh. Sourced by it after tests/setup/setup.sh.

tests_begin() {
  tests_log=$(mktemp -d)
  trap 'rm -rf "$tests_log"' EXIT
  SECONDS=0
  export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-never}
}

# Fails where the disk has no room for all that a run builds: recordings would end early, by the tenth of the free space that each may have.
STK_ROOM_GIB=20
room_on_disk() {
  local free used=0
  mkdir -p "$STK_TARGET_DIR"
  free=$(df --output=avail -BG "$STK_TARGET_DIR" | tail -n 1 | tr -dc 0-9)
  used=$(du -s -BG "$STK_TARGET_DIR" | tr -dc '0-9\t' | cut -f1)
  [ $((free + used)) -ge $STK_ROOM_GIB ] && return
  printf 'tests/run.sh: %s has %d GiB of free space; with the %d GiB that are there, a run needs %d. Make room, or set CARGO_TARGET_DIR.\n' \
    "$STK_TARGET_DIR" "$free" "$used" "$STK_ROOM_GIB" >&2
  return 1
}

# step NAME COMMAND…: runs it, shows its output only if it fails, counts it, and continues either way. For a lane of `at_once` too.
step() {
  local name=$1 from=$SECONDS output=$tests_log/step-$BASHPID
  shift
  # Not in a condition: `set -e` must hold inside.
  set +e
  (
    set -e
    "$@"
  ) </dev/null >"$output" 2>&1
  local status=$?
  set -e
  if [ $status = 0 ]; then
    printf '%s\n' "$name" >>"$tests_log/steps-passed"
    printf 'step %s ... ok (%d s)\n' "$name" $((SECONDS - from))
  else
    printf '%s\n' "$name" >>"$tests_log/steps-failed"
    tail -n 60 "$output"
    printf 'step %s ... FAILED\n' "$name"
  fi
  return 0
}

# must NAME COMMAND…: a step without which the rest makes no sense, run in this shell for what it exports.
must() {
  local name=$1 from=$SECONDS status=0
  shift
  "$@" </dev/null || status=$?
  if [ $status != 0 ]; then
    printf '%s\n' "$name" >>"$tests_log/steps-failed"
    printf 'step %s ... FAILED\n' "$name"
    tests_end
  fi
  printf '%s\n' "$name" >>"$tests_log/steps-passed"
  printf 'step %s ... ok (%d s)\n' "$name" $((SECONDS - from))
}

# set_up NAME COMMAND…: as `must`, for what a registry or a new prefix can refuse by chance: a second try after a failure, which it says.
set_up() {
  local name=$1
  shift
  must "set-up: $name" twice "$@"
}
twice() {
  "$@" && return
  printf 'set-up: %s failed; trying once more\n' "$1"
  sleep 10
  "$@"
}

# Programs that only tests/viewers needs, which fetches them itself.
STK_VIEWERS=(speedscope duckdb polars polars-runtime pyspark perfetto protobuf playwright)

# Programs for the end-to-end tests: tests/.cache/NAME.
fetch_all() {
  local name
  export STK_FETCH_DIR=${STK_FETCH_DIR:-$STK_ROOT/tests/.cache}
  for name in $("$STK_ROOT/tests/fetch.sh" --list); do
    case " ${STK_VIEWERS[*]} " in *" $name "*) continue ;; esac
    case $name in
      ziglang) continue ;; # setup_zig fetches it
      pykd | unicorn | capstone) continue ;; # setup_microsoft fetches them
      node-arm64) continue ;; # recorded by hand: docs/measured/unwinding.md
    esac
    "$STK_ROOT/tests/fetch.sh" "$name" >/dev/null || return 1
  done
}

# What tests/viewers needs, before it asks.
fetch_viewers() {
  local name
  setup_packages test java || return 1
  for name in "${STK_VIEWERS[@]}"; do "$STK_ROOT/tests/fetch.sh" "$name" >/dev/null || return 1; done
}

# Outputs read by the programs they are for. Beside recordings, which come first: nothing here depends on time.
viewers() {
  renice -n 15 "$BASHPID" >/dev/null
  step "outputs in other people's viewers" "$STK_ROOT/tests/viewers/check.sh"
  step "the page of stk report in Chromium" "$STK_ROOT/tests/viewers/report.sh"
  step "the recipes, and Spark on two workers" "$STK_ROOT/tests/viewers/recipes.sh"
}

# inject and stk as `cargo build --release` on Windows sees them, type-checked for MSVC. There is no SDK: C compilers are stubbed, nothing is linked.
# The agent is built and run: setup_build_msvc_agents.
check_msvc() {
  local target variable all
  for target in "${STK_MSVC_TARGETS[@]}"; do
    for variable in CC CXX AR; do
      export "${variable}_${target//-/_}=$STK_ROOT/tests/stub-cc.sh"
    done
  done
  all=$(printf '%s,' "${STK_MSVC_TARGETS[@]}")
  # agent/dll would link the agent.
  export STK_AGENT_APART=1
  setup_cargo "$all" check -q -p stk-inject
  # stk's library has next to nothing that depends on the processor; its commands and outputs nothing that differs from the other Windows target.
  setup_cargo x86_64-pc-windows-msvc check -q -p stk-agent-dll -p stk --no-default-features
  # The end-to-end tests, as .github/workflows/windows.yml runs them.
  setup_cargo "x86_64-pc-windows-msvc,aarch64-pc-windows-msvc" check -q -p stk-tests --no-default-features --test e2e
}

# What release.sh makes beside programs, on Wine 8.
release_parts() {
  use_machine wine8
  machine_session wine8 600
  "$STK_ROOT/tests/release-parts.sh"
  machine_end wine8
}

# build_recorders TARGET…: the recorder for x64, in the folder STK_WINDOWS_BIN, for x86, in STK_WINDOWS32_BIN, and for what else is named.
build_recorders() {
  setup_build_recorder -q "$STK_WINDOWS_TARGET" "$STK_WINDOWS32_TARGET" "$@" &&
    STK_WINDOWS_BIN=$(setup_windows_bin "$STK_WINDOWS_TARGET") &&
    STK_WINDOWS32_BIN=$(setup_windows_bin "$STK_WINDOWS32_TARGET") &&
    export STK_WINDOWS_BIN STK_WINDOWS32_BIN
}

# stk.exe beside inject.exe. It is not optimised, and checks for overflow: tests ask what it writes, not how fast. Only the long form has
# Parquet in it: polars takes longer to compile than all the rest, and the host's tests have it.
build_stk_exe() {
  local features=(--no-default-features)
  [ -z "${STK_LONG:-}" ] || features=()
  setup_cargo "$STK_WINDOWS_TARGET" build -q --profile quick -p stk "${features[@]}" &&
    cp --remove-destination "$(setup_windows_bin "$STK_WINDOWS_TARGET" quick)/stk.exe" "$(setup_windows_bin "$STK_WINDOWS_TARGET")/"
}

# The end-to-end tests as Windows programs, and what they run.
build_native_tests() {
  setup_cargo "$STK_WINDOWS_TARGET" test -q --no-run --profile quick -p stk-tests --no-default-features --test e2e &&
    native_unit_tests --no-run
}

# The unit tests of inject, and of those parts of stk that differ on Windows, as Windows programs.
native_unit_tests() { # [CARGO ARGUMENT…]
  local package filters status=0
  for package in stk stk-inject; do
    filters=()
    [ $package != stk ] || filters=(symbols:: map:: interrupt::)
    CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUNNER=$STK_WINE10 setup_cargo "$STK_WINDOWS_TARGET" test -q --profile quick \
      -p $package --no-default-features --lib "$@" -- ${filters[@]+"${filters[@]}"} || status=1
  done
  return $status
}

build_examples() {
  export STK_BUSY_DIR=$STK_TARGET_DIR/examples/busy STK_STRESS_DIR=$STK_TARGET_DIR/examples/stress
  export STK_CAPTURE_DIR=$STK_TARGET_DIR/examples/capture STK_CAPTURE32_DIR=$STK_TARGET_DIR/examples/capture32
  export STK_MIXED_DIR=$STK_TARGET_DIR/examples/mixed STK_BUSY32_DIR=$STK_TARGET_DIR/examples/busy32
  "$STK_ROOT/examples/busy/build.sh" && "$STK_ROOT/examples/busy/build.sh" --x86 && "$STK_ROOT/examples/stress/build.sh" &&
    "$STK_ROOT/examples/capture/build.sh" && "$STK_ROOT/examples/capture/build.sh" --x86 &&
    build_rust_api && build_dll32 && build_hammers && build_slow_dll && build_ends && build_launch_probe && "$STK_ROOT/examples/mixed/build.sh"
}

build_examples_arm64() {
  setup_zig && "$STK_ROOT/examples/busy/build.sh" --arm64 && "$STK_ROOT/examples/capture/build.sh" --arm64
}

# The example in Rust, which loads agent.dll or finds it loaded.
build_rust_api() {
  setup_cargo "$STK_WINDOWS_TARGET" build -q --profile quick -p stk-example-api &&
    STK_RUST_API=$(setup_windows_bin "$STK_WINDOWS_TARGET" quick)/rust_api.exe && export STK_RUST_API
}

# A program that does one thing all the time, for the comparison with perf.
build_hammers() {
  export STK_HAMMERS=$STK_TARGET_DIR/examples/hammers/hammers.exe
  [ "$STK_HAMMERS" -nt "$STK_ROOT/tests/programs/hammers.c" ] && return 0
  mkdir -p "$(dirname "$STK_HAMMERS")"
  x86_64-w64-mingw32-gcc -O1 -s -o "$STK_HAMMERS" "$STK_ROOT/tests/programs/hammers.c"
}

# A DLL that takes its time to load.
build_slow_dll() {
  export STK_SLOW_DLL=$STK_TARGET_DIR/examples/slow_dll/slow.dll
  [ "$STK_SLOW_DLL" -nt "$STK_ROOT/tests/programs/slow_dll.c" ] && return 0
  mkdir -p "$(dirname "$STK_SLOW_DLL")"
  x86_64-w64-mingw32-gcc -O1 -shared -s -o "$STK_SLOW_DLL" "$STK_ROOT/tests/programs/slow_dll.c"
}

# Programs that end in many ways, start many threads, or make another's pipe.
build_ends() {
  local name
  export STK_ENDS_DIR=$STK_TARGET_DIR/examples/ends
  mkdir -p "$STK_ENDS_DIR"
  for name in ends churn cull raises squat; do
    [ "$STK_ENDS_DIR/$name.exe" -nt "$STK_ROOT/tests/programs/$name.c" ] ||
      x86_64-w64-mingw32-gcc -O1 -Wall -Wextra -s -o "$STK_ENDS_DIR/$name.exe" "$STK_ROOT/tests/programs/$name.c" || return 1
  done
}

# A program that shows which thread initialised its process, and programs whose DLLs wait alertably, for x64 and x86.
build_launch_probe() {
  export STK_LAUNCH_DIR=$STK_TARGET_DIR/examples/launch STK_LAUNCH32_DIR=$STK_TARGET_DIR/examples/launch32
  build_launch_probe_with x86_64-w64-mingw32-gcc "$STK_LAUNCH_DIR" && build_launch_probe_with i686-w64-mingw32-gcc "$STK_LAUNCH32_DIR"
}

build_launch_probe_with() {
  local cc=$1 to=$2 from=$STK_ROOT/tests/programs
  mkdir -p "$to"
  [ "$to/launch_probe.exe" -nt "$from/launch_probe.c" ] && [ "$to/launch_probe.dll" -nt "$from/launch_probe_dll.c" ] ||
    { "$cc" -O1 -shared -s -o "$to/launch_probe.dll" "$from/launch_probe_dll.c" &&
      "$cc" -O1 -s -static-libgcc -o "$to/launch_probe.exe" "$from/launch_probe.c" "$to/launch_probe.dll"; } || return 1
  build_attach_with "$cc" "$to" plain '(void)0' && build_attach_with "$cc" "$to" alerted 'SleepEx(0, TRUE)' &&
    build_attach_with "$cc" "$to" alerted_long 'for (ULONGLONG end = GetTickCount64() + 1000; GetTickCount64() < end;) WaitForSingleObjectEx(GetCurrentProcess(), 200, TRUE)' &&
    build_attach_with "$cc" "$to" own_calls 'for (int i = 0; i < 5; i++) QueueUserAPC(own_call, GetCurrentThread(), 10); SleepEx(0, TRUE)'
}

# A program with a DLL that is attached in this way, named after it.
build_attach_with() { # CC FOLDER NAME STATEMENT
  local cc=$1 to=$2 name=attach_$3 from=$STK_ROOT/tests/programs late=1
  [ "$3" != plain ] || late=0
  [ "$to/$name.exe" -nt "$from/attach.c" ] && [ "$to/$name.exe" -nt "$STK_ROOT/tests/lib.sh" ] && [ "$to/$name.dll" -nt "$from/attach_dll.c" ] && [ "$to/$name.dll" -nt "$STK_ROOT/tests/lib.sh" ] && return 0
  "$cc" -O1 -shared -s -D "ATTACHING=$4" -o "$to/$name.dll" "$from/attach_dll.c" &&
    "$cc" -O1 -s -static-libgcc -D "MAY_BE_LATE=$late" -o "$to/$name.exe" "$from/attach.c" "$to/$name.dll"
}

# A 32-bit DLL, which inject must refuse.
build_dll32() {
  export STK_DLL32=$STK_TARGET_DIR/examples/dll32/dll32.dll
  [ -e "$STK_DLL32" ] && return 0
  mkdir -p "$(dirname "$STK_DLL32")"
  echo '__declspec(dllexport) int stk_agent_start(void *config) { return config == 0; }' |
    clang-19 --target=i686-pc-windows-msvc -O1 -x c -c - -o "$STK_DLL32.obj" &&
    lld-link-19 -dll -noentry -nodefaultlib -machine:x86 "-out:$STK_DLL32" "$STK_DLL32.obj"
}

build_host() {
  # It builds the programs too, for the tests that run them.
  cargo test -q --release "${STK_SELECTION[@]}" --no-run &&
    export STK_BIN=$STK_TARGET_DIR/release/stk
}

# The integration programs that need no Windows program.
# hostile_many: a program begins with the memory of the process that starts it, and `host` has much.
STK_HOST_PROGRAMS=(it host hostile_many format no_allocation)

# The modules of tests/tests/e2e, which need a machine that runs Windows programs. All other tests run on the host alone.
e2e_modules() {
  sed -n 's/^mod \([a-z0-9_]*\);$/\1/p' "$STK_ROOT/tests/tests/e2e/main.rs"
}

# The end-to-end modules of a machine. Wine 10 runs all that it can; the others run what only they can show, and what shows that they work.
machine_tests() { # wine8|wine10|arm64
  case $1 in
    wine8) printf '%s\n' "${STK_WINE8_TESTS[@]}" ;;
    # examples/stress dies there in two of three runs without the agent: page faults that it raises on purpose, beside DLLs that come and go.
    wine10) e2e_modules | grep -vx stress ;;
    arm64) printf '%s\n' "${STK_ARM64_TESTS[@]}" ;;
  esac
}
# The modules of Wine 10 that take longest. First in the queue, so that its two prefixes end at about the same time.
STK_LONGEST_TESTS=(dotnet rotate guard flight handover agent output lifecycle unload suspend inject)
# What is run again with the MSVC flavour of the agent: our programs and MSVC's (cmake, node), x64 and x86; on arm64 the shortest that records.
STK_MSVC_TESTS=(agent_dll smoke agent heaps x86 programs)
STK_MSVC_ARM64_TESTS=(agent_dll smoke)
STK_WINE8_TESTS=(smoke agent capture lifecycle kill launch stress)
# Left out on Wine 8 where Wine 10 is tested in the same run: fifty kills take minutes, and show nothing that only Wine 8 can.
STK_WINE8_ONCE=(kill)
# Emulated, a step takes ten times as long.
STK_ARM64_TESTS=(smoke agent_dll agent capture dynamic doctor)
# Left out on arm64: a walk by the system's unwinder is not supported there; and a program that ends while its threads run dies of SIGSEGV in
# qemu or Wine, also without the agent; and host.c diverts a system call by x64 code. There is no 32-bit inject or agent beside those of arm64.
STK_ARM64_SKIPPED=(--skip the_32_bit_inject --skip a_32_bit_program --skip a_thread_whose_environment_block_is_unmapped --skip a_walk_that --skip a_process_that_exits_while_it_is_recorded --skip a_capture_right_before_the_process_ends)
# What a Windows program that starts others shows, and what the long form adds.
STK_NATIVE_TESTS=(smoke agent_dll)
STK_NATIVE_LONG_TESTS=(lifecycle inject)
# Wine refuses a Ctrl-Break where no terminal is behind the console.
STK_NATIVE_SKIPPED=(--skip ctrl_c)

host_tests() {
  local status=0 from=$SECONDS
  printf '\nhost tests\n'
  cargo test -q --release "${STK_SELECTION[@]}" --no-fail-fast --lib --bins "${STK_HOST_PROGRAMS[@]/#/--test=}" </dev/null 2>&1 | tee "$tests_log/host" || status=1
  cargo test -q --release "${STK_SELECTION[@]}" --no-fail-fast --doc </dev/null 2>&1 | tee "$tests_log/host-doc" || status=1
  count_silent_failure $status host
  printf 'host tests: %d s\n' $((SECONDS - from))
  # What makes the traces of benches/convert.sh: other features, hence minutes.
  [ -z "${STK_LONG:-}" ] || step "the maker of large traces" cargo test -q --release -p stk-benches --example grow
}

# The newest of the integration programs of this name, for the host or below a target's folder.
test_program() { # NAME FOLDER [.exe]
  ls -t "$2/deps/$1"-*"${3:-}" | grep -v '\.d$' | head -n 1
}

# queue MODULE…: modules for the lanes that call `end_to_end MACHINE --queue`; each is run by the lane that comes to it first.
queue() {
  printf '%s\n' "$@" >"$tests_log/queue"
}

# Prints the first module of the queue and takes it out. Fails when none is left.
take_module() {
  (
    flock 9
    [ -s "$tests_log/queue" ] && head -n 1 "$tests_log/queue" && sed -i 1d "$tests_log/queue"
  ) 9>"$tests_log/queue.lock"
}

# run_tests FILE PROGRAM ARGUMENT…: a test program, one test at a time, as RUN_BY and RUN_WITH say. What it prints goes to the file: a pipe would
# be held open by what the first Wine program starts.
run_tests() {
  local output=$1 seconds=900
  shift
  # What waits in a test has a limit of its own: only a fault of the tests takes as long.
  [ -z "${STK_LONG:-}" ] || seconds=7200
  (cd "$STK_ROOT/tests" && "${RUN_BY[@]}" timeout -k 30 "${STK_E2E_TIMEOUT:-$seconds}" "${RUN_WITH[@]}" "$@" --test-threads=1) </dev/null >"$output" 2>&1
}

# show_tests FILE [LOG]: prints what a reader wants of a test program's output, and adds all of it to the log.
show_tests() { tr -d '\r' <"$1" | tee -a "${2:-/dev/null}" | grep -vE '^(running .*|)$' || true; }

# run_modules LOG PROGRAM MODULE…|--queue -- ARGUMENT…: the modules one after the other, each a run of its own with its seconds, into LOG. Tests
# share two cores with what they record, so one runs at a time.
run_modules() {
  local log=$1 program=$2 modules=() module from part
  shift 2
  while [ "$1" != -- ]; do
    modules+=("$1")
    shift
  done
  shift
  while true; do
    if [ "${modules[0]:-}" = --queue ]; then
      module=$(take_module) || break
    else
      [ ${#modules[@]} -gt 0 ] || break
      module=${modules[0]} modules=("${modules[@]:1}")
    fi
    from=$SECONDS part=$tests_log/part-${log##*/}
    printf '\n%s\n' "$module"
    if ! run_tests "$part" "$program" "$module::" "$@" && ! grep -q '^test result: FAILED' "$part"; then
      note_failure "$module ended without a result"
    fi
    show_tests "$part" "$log"
    grep -qE '^test result: .* [1-9][0-9]* (passed|failed)' "$part" || note_failure "$module ran no test"
    printf '%s: %d s\n' "$module" $((SECONDS - from))
  done
  second_tries "$log" "$program" "$@"
}

# second_tries LOG PROGRAM ARGUMENT…: tests that failed, alone and in a new session of the machine. Wine itself breaks now and then (a thread
# that it ends, a program that it does not start), which no message distinguishes from a fault of ours. The output of the first try remains, the
# summary names the test, and of more than STK_SECOND_TRIES failed ones on a machine none has a second try. Nor has any with --long.
STK_SECOND_TRIES=2
second_tries() {
  local log=$1 program=$2 name failed part=$tests_log/second-try-$BASHPID
  shift 2
  [ -e "$log" ] || return 0
  failed=($(sed -n 's/^test \([^ ]*\) \.\.\. FAILED$/\1/p' "$log"))
  if [ "${STK_LONG:-}" ] || [ ${#failed[@]} = 0 ] || [ ${#failed[@]} -gt $STK_SECOND_TRIES ]; then return 0; fi
  machine_session "$STK_MACHINE" 1800
  for name in "${failed[@]}"; do
    printf '\nsecond try of %s\n' "$name"
    if run_tests "$part" "$program" "$name" --exact "$@" && grep -q '^test result: ok\. 1 passed' "$part"; then
      printf '%s\n' "$name" >>"$tests_log/second-tries"
    fi
    show_tests "$part"
  done
}

# end_to_end MACHINE [MODULE…|--queue]: these modules, or all of the machine's, in a session of their own, which outlasts every pause between them.
end_to_end() {
  # A machine may have several turns, and a twin.
  local machine=$1 log=$tests_log/end-to-end-$1-$BASHPID-$SECONDS skipped=() from=$SECONDS RUN_BY=() RUN_WITH=()
  shift
  [ "$machine" != arm64 ] || skipped+=("${STK_ARM64_SKIPPED[@]}")
  [ $# -gt 0 ] || set -- $(machine_tests "$machine")
  printf '\nend-to-end tests, %s\n' "$machine"
  use_machine "$machine"
  [ -z "${MSVC_AGENTS:-}" ] || use_msvc_agents
  machine_session "$machine" 1800
  run_modules "$log" "$(test_program e2e "$STK_TARGET_DIR/release")" "$@" -- "${skipped[@]}"
  machine_end "$machine"
  printf 'end-to-end tests, %s: %d s\n' "$machine" $((SECONDS - from))
}

# end_to_end_msvc MACHINE: the tests that show that the MSVC flavour of the agent works as the other one, injected by the same inject.
end_to_end_msvc() {
  local MSVC_AGENTS=1 modules=("${STK_MSVC_TESTS[@]}")
  [ "$1" != arm64 ] || modules=("${STK_MSVC_ARM64_TESTS[@]}")
  printf "\nthe agent's MSVC flavour\n"
  end_to_end "$1" "${modules[@]}"
}

# Has tests take the MSVC flavour of the agent on the machine in use.
use_msvc_agents() {
  STK_WINDOWS_BIN=$STK_TARGET_DIR/msvc/x86_64
  if [ "$STK_MACHINE" = arm64 ]; then
    STK_WINDOWS_BIN=$STK_TARGET_DIR/msvc/aarch64
  else
    export STK_WINDOWS32_BIN=$STK_TARGET_DIR/msvc/i686
  fi
  export STK_WINDOWS_BIN
}

# at_once COMMANDS…: runs all, each in a shell of its own, and shows what all but the first print when all are done.
at_once() {
  local first=$1 commands lane=0 pid pids=() status=0
  shift
  for commands in "$@"; do
    lane=$((lane + 1))
    (eval "$commands") >"$tests_log/lane-$lane" 2>&1 &
    pids+=($!)
  done
  # Not in a condition: `set -e` must hold inside.
  set +e
  (
    set -e
    eval "$first"
  )
  status=$?
  for pid in "${pids[@]}"; do wait "$pid" || status=$?; done
  set -e
  for lane in $(seq ${#pids[@]}); do cat "$tests_log/lane-$lane"; done
  [ $status = 0 ] || note_failure "the end-to-end tests ended early (status $status)"
}

# Makes Wine 10's twin the `wine10` of this shell.
use_twin() {
  export STK_WINE10_DIR=$STK_WINE10_TWIN STK_WINE10=$STK_WINE10_TWIN/wine
}

# The end-to-end tests as Windows programs, run inside Wine 10: there they start the programs themselves.
end_to_end_native() {
  local log=$tests_log/end-to-end-native from=$SECONDS RUN_BY=(native_environment) RUN_WITH=("$STK_WINE10") modules=("${STK_NATIVE_TESTS[@]}")
  [ -z "${STK_LONG:-}" ] || modules+=("${STK_NATIVE_LONG_TESTS[@]}")
  printf '\nend-to-end tests as Windows programs\n'
  use_machine wine10
  machine_session wine10 1800
  run_modules "$log" "$(test_program e2e "$(setup_windows_bin "$STK_WINDOWS_TARGET" quick)" .exe)" "${modules[@]}" -- "${STK_NATIVE_SKIPPED[@]}"
  native_unit_tests --no-fail-fast </dev/null >"$tests_log/native" 2>&1 || grep -q '^test result: FAILED' "$tests_log/native" ||
    note_failure "the unit tests as Windows programs ended without a result"
  tr -d '\r' <"$tests_log/native" | tee -a "$log"
  machine_end wine10
  printf 'end-to-end tests as Windows programs: %d s\n' $((SECONDS - from))
}

# Runs a command with the tests' variables as a Windows program sees them.
native_environment() {
  local variable values=("STK_BIN=$(windows_path "$STK_WINDOWS_BIN/stk.exe")")
  for variable in STK_WINDOWS_BIN STK_WINDOWS32_BIN STK_BUSY_DIR STK_BUSY32_DIR STK_STRESS_DIR STK_FETCH_DIR STK_DLL32 STK_SLOW_DLL; do
    values+=("$variable=$(windows_path "${!variable}")")
  done
  env "${values[@]}" "$@"
}
windows_path() { printf 'Z:%s' "${1//\//\\}"; }

# Beside Microsoft's walkers and symbol engines, in Wine 10: tests/tests/microsoft, which prints its counts.
STK_MICROSOFT_TESTS=(states frame_data names stacks)
microsoft_tests() {
  local log=$tests_log/end-to-end-microsoft from=$SECONDS RUN_BY=() RUN_WITH=()
  if ! setup_wants_microsoft; then
    printf "\ntests beside Microsoft's DLLs: left out by STK_MICROSOFT=0\n"
    return
  fi
  printf "\ntests beside Microsoft's DLLs\n"
  use_machine wine10
  machine_session wine10 1800
  run_modules "$log" "$(test_program microsoft "$STK_TARGET_DIR/release")" "${STK_MICROSOFT_TESTS[@]}" -- --nocapture
  machine_end wine10
  printf "tests beside Microsoft's DLLs: %d s\n" $((SECONDS - from))
}

# A failure that no result line shows: a build error, a time-out.
count_silent_failure() { # STATUS LOG
  if [ "$1" != 0 ] && ! grep -q '^test result: FAILED' "$tests_log/$2"*; then note_failure "$2 ended without a result"; fi
}

# Counts a failure that no result line shows, also from a shell of `at_once`.
note_failure() {
  printf '%s\n' "$1" | tee -a "$tests_log/noted"
}

# ---- machines: what runs the tests' Windows programs (tests/src/wine/machine.rs)

# use_machine wine8|wine10|arm64: sets the variables by which tests find it. Each must have been set up.
use_machine() {
  export STK_MACHINE=$1
  STK_WINE8=${STK_WINE8:-$STK_WINE}
  case $1 in
    wine8) export STK_WINE=$STK_WINE8 STK_WINE32=$STK_WINE32_DIR/wine ;;
    wine10) export STK_WINE=$STK_WINE10 STK_WINE32=$STK_WINE10 ;;
    arm64)
      export STK_WINE=$STK_WINE_ARM64 STK_BUSY_DIR=$STK_TARGET_DIR/examples/busy-arm64 STK_CAPTURE_DIR=$STK_TARGET_DIR/examples/capture-arm64
      STK_WINDOWS_BIN=$(setup_windows_bin "$STK_ARM64_TARGET")
      setup_zig || return 1
      export STK_WINDOWS_BIN STK_CC=$STK_ROOT/tests/setup/zig-cc.sh
      unset STK_WINE32 STK_WINDOWS32_BIN
      return
      ;;
  esac
  unset STK_CC
  export STK_BUSY_DIR=$STK_TARGET_DIR/examples/busy STK_CAPTURE_DIR=$STK_TARGET_DIR/examples/capture
  STK_WINDOWS_BIN=$(setup_windows_bin "$STK_WINDOWS_TARGET") STK_WINDOWS32_BIN=$(setup_windows_bin "$STK_WINDOWS32_TARGET")
  export STK_WINDOWS_BIN STK_WINDOWS32_BIN
}

machine_session() { # MACHINE SECONDS
  machine_end "$1"
  case $1 in
    wine8)
      setup_wine_session "$2"
      setup_wine32_session "$2"
      ;;
    wine10) setup_wine10_session "$STK_WINE10_DIR" "$2" ;;
    arm64) setup_wine10_session "$STK_WINE_ARM64_DIR" "$2" ;;
  esac
}

machine_end() { # MACHINE
  case $1 in
    wine8)
      setup_wine_end
      setup_wine32_end
      ;;
    wine10) setup_wine10_end "$STK_WINE10_DIR" ;;
    arm64) setup_wine10_end "$STK_WINE_ARM64_DIR" ;;
  esac
}

# The runner's summary, over cargo's result lines and the steps; the last line says it all.
tests_end() {
  local passed=0 failed=0 line
  for line in "$tests_log"/host* "$tests_log"/end-to-end*; do
    [ -e "$line" ] || continue
    passed=$((passed + $(sed -n 's/^test result: .* \([0-9]*\) passed.*/\1/p' "$line" | paste -sd+ | sed 's/^$/0/')))
    failed=$((failed + $(sed -n 's/^test result: .* \([0-9]*\) failed.*/\1/p' "$line" | paste -sd+ | sed 's/^$/0/')))
  done
  touch "$tests_log/steps-passed" "$tests_log/steps-failed" "$tests_log/second-tries"
  cat "$tests_log"/host* "$tests_log"/end-to-end* 2>/dev/null | sed -n '/^failures:$/,/^$/p' | sed -n 's/^    //p' | sort -u |
    grep -vxFf "$tests_log/second-tries" | sed 's/^/failed: /' || true
  sed 's/^/passed at its second try: /' "$tests_log/second-tries"
  passed=$((passed + $(wc -l <"$tests_log/second-tries")))
  failed=$((failed - $(wc -l <"$tests_log/second-tries")))
  passed=$((passed + $(wc -l <"$tests_log/steps-passed")))
  failed=$((failed + $(wc -l <"$tests_log/steps-failed")))
  if [ -e "$tests_log/noted" ]; then failed=$((failed + $(wc -l <"$tests_log/noted"))); fi
  if [ "${STK_BUDGET:-}" ] && [ $SECONDS -gt "$STK_BUDGET" ]; then
    printf '\nwarning: %d s above the budget of .ci/run on a quiet machine\n' $((SECONDS - STK_BUDGET))
  fi
  printf '\nSummary (%d min %d s): %d passed, %d failed\n' $((SECONDS / 60)) $((SECONDS % 60)) "$passed" "$failed"
  [ "$failed" = 0 ] && exit 0 || exit 1
}
