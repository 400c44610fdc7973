//! A panic is the failure of one piece of work and not the end of the others.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};

thread_local! {
    /// Whether a panic of this thread is a fault of the input.
    static OF_INPUT: Cell<bool> = const { Cell::new(false) };
}

/// The result of the work, or the text of its panic.
pub fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| text(&*panic).to_owned())
}

/// [`caught`], for work of a library that panics on what it cannot read: its panic is an error of
/// the input and no fault of stk, which [`is_of_input`] says of it.
pub fn caught_of_input<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    let before = OF_INPUT.replace(true);
    let result = caught(work);
    OF_INPUT.set(before);
    result
}

/// Whether a panic needs no words of its own, since an error has them. polars has threads of its
/// own.
pub fn is_of_input(panic: &PanicHookInfo<'_>) -> bool {
    OF_INPUT.get() || panic.location().is_some_and(|place| place.file().contains("polars"))
}

/// What a panic says; empty if it is no text.
pub fn text(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or_default()
}
