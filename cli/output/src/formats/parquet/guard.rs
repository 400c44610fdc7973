//! What polars does is run here: it panics on some inputs, and on an environment variable.

use polars::prelude::*;
use std::sync::OnceLock;
use stk_base::panics;

/// The result of polars' work on a file. A panic is a fault of that file.
pub(super) fn caught<T>(work: impl FnOnce() -> PolarsResult<T>) -> PolarsResult<T> {
    let of_environment = |text: &String| PolarsError::ComputeError(text.clone().into());
    check_environment().as_ref().map_err(of_environment)?;
    panics::caught_of_input(work).unwrap_or_else(|text| Err(PolarsError::ComputeError(text.into())))
}

/// Number of polars' threads, by this variable. polars panics if it is no number, and begins as
/// many as it says.
const THREADS: &str = "POLARS_MAX_THREADS";
const MOST_THREADS: usize = 1024;

fn check_environment() -> &'static Result<(), String> {
    static CHECKED: OnceLock<Result<(), String>> = OnceLock::new();
    CHECKED.get_or_init(|| match std::env::var_os(THREADS) {
        Some(text) if !threads(&text.to_string_lossy()) => {
            Err(format!("the environment variable {THREADS} is no number from 1 to {MOST_THREADS}"))
        }
        _ => Ok(()),
    })
}

fn threads(text: &str) -> bool {
    text.parse().is_ok_and(|threads: usize| (1..=MOST_THREADS).contains(&threads))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_threads_is_one_that_a_machine_has() {
        assert!(["1", "8", "1024"].into_iter().all(threads));
        for text in ["0", "x", "", "-1", "1025", "99999999", "1.5"] {
            assert!(!threads(text), "{text}");
        }
    }

    #[test]
    fn a_panic_of_polars_is_an_error_with_its_text() {
        let error = caught::<()>(|| panic!("activate dtype-categorical")).unwrap_err().to_string();
        assert!(error.contains("activate dtype-categorical"), "{error}");
    }
}
