//! Methods of .NET: how many of the functions in the samples have names, and why the others have
//! none.

use serde::Serialize;
use stk_base::text::{count, counted, since_start};
use stk_profile::runtimes;
use stk_profile::trace::{CodeRegion, Trace};

/// The names of a trace's functions made at run time.
#[derive(Serialize)]
pub struct MethodNames {
    /// Number of lists of methods that were read.
    lists: usize,
    /// Number of methods in them. A method counts once for each of its addresses.
    listed: usize,
    /// Number of functions made at run time that occur in samples.
    functions: usize,
    /// Those of these functions that no list names.
    unnamed: Vec<UnnamedFunction>,
    /// Errors in the lists.
    problems: Vec<String>,
}

/// A function that occurs in samples and that no list names.
#[derive(Serialize)]
struct UnnamedFunction {
    /// Its first address.
    address: String,
    size: u64,
    /// When it was first seen.
    seen_ns: u64,
    reason: &'static str,
}

/// The methods of a trace of a .NET process; `None` for other processes.
pub(super) fn of(trace: &Trace<'_>) -> Option<MethodNames> {
    if trace.timeline.runtimes.is_empty() {
        return None;
    }
    let methods = runtimes::methods(trace);
    let functions: Vec<&CodeRegion> = trace.timeline.code.iter().filter(|region| !region.is_stub()).collect();
    let clock = trace.clock;
    // Methods in the runtime's lists have an id.
    let listed = || methods.map.methods().iter().filter(|method| method.id != 0);
    let listed_until = listed().map(|method| method.span.last).max();
    let unnamed = functions.iter().filter_map(|region| {
        let from = clock.ns(region.add);
        let until = region.remove.map_or(clock.ns(trace.last()), |remove| clock.ns(remove));
        let inside =
            |offset: u64| methods.map.find(region.base.saturating_add(offset), from, until.max(from));
        let reason = match inside(0) {
            Ok(Some(_)) => return None,
            Err(_) => "several methods were at its address, and which of them is unknown",
            // A region may begin within a function.
            Ok(None) if matches!(inside(region.size / 2), Ok(Some(_))) => return None,
            Ok(None) => match listed_until {
                None => "the runtime listed no methods",
                Some(until) if until < from => "it was made after the runtime's last list",
                Some(_) if region.remove.is_some() => "it went before the runtime listed its methods again",
                Some(_) => "the runtime's lists leave it out",
            },
        };
        Some(UnnamedFunction {
            address: format!("{:#x}", region.base),
            size: region.size,
            seen_ns: from,
            reason,
        })
    });
    Some(MethodNames {
        lists: methods.streams,
        listed: listed().count(),
        functions: functions.len(),
        unnamed: unnamed.collect(),
        problems: methods.problems,
    })
}

impl MethodNames {
    pub fn text(&self) -> String {
        let MethodNames { lists, listed, functions, unnamed, .. } = self;
        format!(
            "{} listed in {}; {} of the {} functions seen have names",
            count(*listed as u64),
            counted(*lists as u64, "list"),
            count((functions - unnamed.len()) as u64),
            count(*functions as u64)
        )
    }

    /// Prints the errors and, with `all`, the functions without names.
    pub fn list(&self, all: bool, line: &mut impl FnMut(&str, &str)) {
        for problem in &self.problems {
            line("", problem);
        }
        for unnamed in self.unnamed.iter().filter(|_| all) {
            let UnnamedFunction { address, size, seen_ns, reason } = unnamed;
            let seen = since_start(*seen_ns);
            line("", &format!("unnamed {address} ({size} bytes), seen at {seen}: {reason}"));
        }
    }
}
