//! Code made at run time: how much was recorded, and the cost for the target.

use serde::Serialize;
use std::fmt::Write;
use stk_base::text::{count, counted, size, span};
use stk_profile::trace::Trace;

/// Counts of a trace's code made at run time.
#[derive(Default, Serialize)]
pub struct DynamicCode {
    /// Regions with unwind data.
    functions: usize,
    /// Regions without unwind data.
    stubs: usize,
    /// Bytes of code and unwind data.
    bytes: u64,
    /// Lookups in the target's function tables; 0 if the recording did not end properly.
    lookups: u64,
    lookup_ns: u64,
    lookup_max_ns: u64,
    /// Lookups that ended in a fault of the target's callback.
    faults: u64,
    /// Addresses that were not looked up.
    not_looked_up: u64,
}

impl DynamicCode {
    pub fn of(trace: &Trace<'_>) -> DynamicCode {
        let fact = |key: &str| trace.fact(key).and_then(|value| value.parse().ok()).unwrap_or(0);
        let code = &trace.timeline.code;
        let stubs = code.iter().filter(|region| region.is_stub()).count();
        DynamicCode {
            functions: code.len() - stubs,
            stubs,
            bytes: fact("recorder.code.bytes"),
            lookups: fact("recorder.code.lookups"),
            lookup_ns: fact("recorder.code.lookup_ns"),
            lookup_max_ns: fact("recorder.code.lookup_max_ns"),
            faults: fact("recorder.code.faults"),
            not_looked_up: fact("recorder.code.unseen"),
        }
    }

    /// One line; empty if there was no such code.
    pub fn text(&self) -> String {
        if self.functions + self.stubs + self.not_looked_up as usize == 0 {
            return String::new();
        }
        let functions = counted(self.functions as u64, "function");
        let stubs = counted(self.stubs as u64, "stub");
        let mut text = format!("{functions} and {stubs} made at run time");
        if self.lookups > 0 {
            let (bytes, lookups) = (size(self.bytes), counted(self.lookups, "lookup"));
            let (all, longest) = (span(self.lookup_ns), span(self.lookup_max_ns));
            let _ = write!(text, " ({bytes}; {lookups} in {all}, the longest {longest})");
        }
        if self.not_looked_up > 0 {
            let addresses = if self.not_looked_up == 1 { "address" } else { "addresses" };
            let _ = write!(text, "; {} {addresses} not looked up", count(self.not_looked_up));
        }
        if self.faults > 0 {
            let _ = write!(text, "; {} failed in the target", counted(self.faults, "lookup"));
        }
        text
    }
}
