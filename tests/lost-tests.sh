#!/usr/bin/env bash
# Lists the test functions that a commit has and the work tree lacks, except those that tests/renamed-tests.txt maps to what holds
# their claim now. Prints them and ends with 1 if there are any.
#
#   tests/lost-tests.sh COMMIT
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Names of functions behind #[test], or made by a macro's `fn name() in`, one a line.
names() {
  awk '/^ *#\[test\]/ { test = 1; next }
       test && match($0, /fn [a-z0-9_]+/) { print substr($0, RSTART + 3, RLENGTH - 3); test = 0 }'
}
before() { git grep -h '' "$1" -- '*.rs' | names | sort -u; }
now() { git ls-files -z --cached --others --exclude-standard '*.rs' | xargs -0 cat | names | sort -u; }
mapped() { sed -n 's/^\([a-z0-9_]*\) -> ..*/\1/p' tests/renamed-tests.txt | sort -u; }

lost=$(comm -23 <(comm -23 <(before "$1") <(now)) <(mapped))
[ -z "$lost" ] || { printf '%s\n' "$lost"; exit 1; }
printf '%d test functions then, %d now, none lost\n' "$(before "$1" | wc -l)" "$(now | wc -l)"
