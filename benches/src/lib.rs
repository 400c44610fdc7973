//! Shared code of the benchmarks, which compare stk with its peers in one run. They are in
//! `benches/`, one file for each subject (format, unwinding, walks that reuse the last one,
//! symbols).
