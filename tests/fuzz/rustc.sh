#!/bin/sh
# The rustc of fuzz targets (tests/fuzz/run.sh): crates that read input get libFuzzer's counters of reached code and the address
# sanitizer, as cargo-fuzz would have it with a nightly toolchain; all others, polars above all, are compiled as ever.
#
#   RUSTC_WRAPPER=tests/fuzz/rustc.sh cargo build --target …   cargo calls it as `rustc.sh RUSTC ARGUMENTS…`
#
# Build scripts and what they link (object, for one) are compiled without `--target`, and as ever.
rustc=$1
shift
case " $* " in *" --target "*) ;; *) exec "$rustc" "$@" ;; esac
name=
case " $* " in *" --crate-name "*) name=${*#*--crate-name } name=${name%% *} ;; esac
case $name in
  stk_inject | stk_agent) exec "$rustc" "$@" ;;
  agent | stk | stk_* | format_* | unwind_* | dotnet_* | symbols_* | command_* | dataset_* | trace_* | batch_* | pdb2 | cab | tar | object | gimli | undname | cpp_demangle | rustc_demangle) ;;
  *) exec "$rustc" "$@" ;;
esac
# `-Z` of a stable rustc.
RUSTC_BOOTSTRAP=1 exec "$rustc" "$@" --cfg fuzzing -Cdebug-assertions -Ccodegen-units=1 -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares ${STK_FUZZ_SANITIZER--Zsanitizer=address -Cunsafe-allow-abi-mismatch=sanitizer}
